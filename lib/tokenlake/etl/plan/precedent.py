"""Committed version that a plan must equal.

A repair, for example, plans a version again. Files that were added since have no part
in that plan, and documents that were held out are held out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from tokenlake.config.resolved import ResolvedHeldOut
from tokenlake.etl.plan.held_out import held_out_by
from tokenlake.etl.plan.unit_size import unit_size_of
from tokenlake.runtime.store.manifest import Manifest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Precedent:
    """Committed version that a plan must equal.

    Attributes:
        version: Number of the version; versions from it on do not decide the held-out
            documents. None counts all versions.
        inputs: Source and path of each input file of the plan; None for all files that
            exist now.
        held_out: Held-out documents of the version, by source.
        unit_size: Number of input bytes of a unit; None if it is not known.
    """

    version: int | None = None
    inputs: frozenset[tuple[str, str]] | None = None
    held_out: Mapping[str, ResolvedHeldOut]
    unit_size: int | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Precedent:
        """Return the precedent of a committed version."""
        # Paths are relative to the listing of their source, so both name a file.
        inputs = frozenset((file.source, file.path) for file in manifest.inputs)
        return cls(
            version=manifest.version,
            inputs=inputs,
            held_out=held_out_by(manifest),
            unit_size=unit_size_of(manifest),
        )
