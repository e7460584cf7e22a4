"""Inputs to work units: a fixed amount of input bytes each, whatever the total and the workers.

Big files are cut into ranges and each range is a unit. Small files are grouped in path order; a group
closes when it is full, or when the hash of the last path says so. The second rule keeps groups in step:
after a file is added, removed or renamed, only the groups up to the next hash boundary change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from tokenlake.sources.inputs import InputFile
from tokenlake.sources.split import FileRange, split_file

#: Hash boundaries come about every half unit, so that most groups close by hash and not by size.
_BOUNDARIES_PER_UNIT: Final = 2


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What one task does, start to end.

    Attributes:
        index: place in the plan, 0-based; names the output files, is not part of the unit's identity.
        source: name of the source; a unit never holds two.
        ranges: the parts of input files to read, in order.
        bytes: input bytes, for progress and scheduling.
        fingerprint: identity of the unit: equal fingerprints give equal bytes (sha256 hex).
    """

    index: int
    source: str
    ranges: tuple[FileRange, ...]
    bytes: int
    fingerprint: str


def group_ranges(
    files: Iterable[InputFile], unit_size: int, storage_options: Mapping[str, Any] | None = None
) -> Iterator[tuple[FileRange, ...]]:
    """Cut and group one source's files, sorted by path, into the ranges of its units.

    Args:
        files: inputs in path order.
        unit_size: bytes of input per unit.
    """
    group: list[FileRange] = []
    size = 0
    for file in files:
        ranges = split_file(file, unit_size, storage_options)
        weight = sum(part.weight for part in ranges)
        if len(ranges) > 1 or weight >= unit_size:
            if group:
                yield tuple(group)
            yield from ((part,) for part in ranges)
            group, size = [], 0
            continue
        group += ranges
        size += weight
        if size >= unit_size or _is_boundary(file.path, weight, unit_size):
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
