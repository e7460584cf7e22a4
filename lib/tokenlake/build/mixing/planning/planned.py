"""The units of a build from stored versions: what a session knows of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from tokenlake.build.mixing.job import ParentVersion


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RangeUnit:
    """Some neighbouring rows of a mixture.

    Attributes:
        index: place in the plan, from 0; names the output files, is not part of the unit's identity.
        source: of several sources, so it is :data:`tokenlake.manifest.MIXED`.
        bytes: about so many bytes of the parents' files, for progress and scheduling.
        fingerprint: equal fingerprints give equal bytes (sha256 hex).
        start, stop: positions of the mixture.
    """

    index: int
    source: str
    bytes: int
    fingerprint: str
    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RepackedUnit:
    """A unit of a parent that is packed again; attributes as of :class:`RangeUnit`, and

    Attributes:
        parent: the parent.
        parent_unit: index of the unit in it.
    """

    index: int
    source: str
    bytes: int
    fingerprint: str
    parent: ParentVersion
    parent_unit: int


MixUnits: TypeAlias = tuple[RangeUnit, ...] | tuple[RepackedUnit, ...]
