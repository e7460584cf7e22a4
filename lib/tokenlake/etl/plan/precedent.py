"""The committed version that a plan must equal, where a version is planned again (by
a repair, for example).
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
    """The version that a plan is to be equal to, where a version is planned again.

    Attributes:
        version: what versions from there on hold out says nothing; None: all count.
        inputs: (source, path) of the input files that are planned with, whatever others
            there are by now; None: all.
        held_out: source to what the version holds out.
        unit_size: number of input bytes of a unit; None: not known.
    """

    version: int | None = None
    inputs: frozenset[tuple[str, str]] | None = None
    held_out: Mapping[str, ResolvedHeldOut]
    unit_size: int | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Precedent:
        """Return what a committed version says."""
        inputs = frozenset((file.source, file.path) for file in manifest.inputs)
        return cls(
            version=manifest.version,
            inputs=inputs,
            held_out=held_out_by(manifest),
            unit_size=unit_size_of(manifest),
        )
