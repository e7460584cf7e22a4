"""Inputs to work units: a fixed amount of input bytes each, whatever the total and the workers.

Big files are cut into ranges and each range is a unit. Small files are grouped in path order; a group
closes when it is full, or when the hash of the last path says so. The second rule keeps groups in step:
after a file is added, removed or renamed, only the groups up to the next hash boundary change. To open a file
counts like reading a few KiB of it, or a hundred thousand tiny files would be one unit for one worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from tokenlake.sources.ranges import FileRange

#: Hash boundaries come about every half unit, so that most groups close by hash and not by size.
_BOUNDARIES_PER_UNIT: Final = 2

#: So many files at most make a unit, however small they are.
_FILES_PER_UNIT: Final = 4096


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What one task does, start to end.

    Attributes:
        index: place in the plan, 0-based; names the output files, is not part of the unit's identity.
        source: name of the source; a unit never holds two.
        ranges: the parts of input files to read, in order.
        bytes: input bytes, for progress and scheduling.
        fingerprint: identity of the unit: equal fingerprints give equal bytes (sha256 hex).
        excluded: file id to the positions that are left out of these ranges.
        files: exactly so many files for each split; None: as many as their size makes.
    """

    index: int
    source: str
    ranges: tuple[FileRange, ...]
    bytes: int
    fingerprint: str
    excluded: dict[int, list[int]]
    files: int | None = None


def group_ranges(files: Iterable[Sequence[FileRange]], unit_size: int) -> Iterator[tuple[FileRange, ...]]:
    """Group the ranges of one source's files into units.

    Args:
        files: the ranges of each file, files in path order.
        unit_size: bytes of input per unit.
    """
    group: list[FileRange] = []
    size = 0
    for ranges in files:
        if not ranges:
            continue
        weight = sum(part.weight for part in ranges)
        if len(ranges) > 1 or weight >= unit_size:
            if group:
                yield tuple(group)
            yield from ((part,) for part in ranges)
            group, size = [], 0
            continue
        weight += unit_size // _FILES_PER_UNIT
        group += ranges
        size += weight
        if size >= unit_size or _is_boundary(ranges[0].file.path, weight, unit_size):
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def _is_boundary(path: str, weight: int, unit_size: int) -> bool:
    """Whether a group closes after a file: with a chance proportional to its weight."""
    chance = min(1.0, _BOUNDARIES_PER_UNIT * weight / unit_size)
    return xxhash.xxh3_64_intdigest(path.encode()) < chance * 2**64


def range_identity(ranges: Sequence[FileRange]) -> list[dict[str, object]]:
    """The canonical form of a unit's inputs: nothing of the machine they lie on."""
    return [
        {
            "path": part.file.path,
            "size": part.file.size,
            "token": part.file.token,
            "format": part.file.format,
            "compression": part.file.compression,
            "start": part.start,
            "stop": part.stop,
            # Left out where there is no limit: the identities of units that have none stay what they were.
            **({} if part.rows is None else {"rows": part.rows}),
        }
        for part in ranges
    ]
