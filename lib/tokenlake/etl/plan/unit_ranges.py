"""Ranges of input files, grouped into units of about equal size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

import xxhash

from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.splits import split_file

#: Hash boundaries come about every half unit, so that most groups close by hash and not by size.
_BOUNDARIES_PER_UNIT: Final = 2

#: So many files at most make a unit, however small they are.
_FILES_PER_UNIT: Final = 4096

#: That a unit writes at a time, all splits together: each is an open file with a row group in the making.
_MOST_FILES: Final = 512


def group_ranges(files: Iterable[Sequence[FileRange]], unit_size: int) -> Iterator[tuple[FileRange, ...]]:
    """Group the ranges of one source's files into units.

    Args:
        files: the ranges of each file, files in path order.
        unit_size: bytes of input per unit.
    """
    group: list[FileRange] = []
    size, opening = 0, unit_size // _FILES_PER_UNIT
    for ranges in files:
        if not ranges:
            continue
        weight = ranges[0].weight
        if len(ranges) > 1 or weight >= unit_size:
            if group:
                yield tuple(group)
            yield from ((part,) for part in ranges)
            group, size = [], 0
            continue
        weight += opening
        group += ranges
        size += weight
        # By hash: with a chance proportional to the file's weight.
        chance = min(1.0, _BOUNDARIES_PER_UNIT * weight / unit_size)
        drawn = xxhash.xxh3_64_intdigest(ranges[0].file.path.encode())
        if size >= unit_size or drawn < chance * 2**64:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


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


_FINENESS: Final = 4  # knots of row groups or batches that make up about one file


def files_of_sources(
    build: ResolvedBuild, ranges: Sequence[Iterable[Sequence[FileRange]]]
) -> list[int | None]:
    """Return how many files each source gets, None: as many as units and sizes make.

    A source's own `num_shards` is its number; what is left of the build's goes to the other sources by their
    weight (input bytes), at least one to each.

    Args:
        ranges: of each source, in any groups.
    """
    own = [source.num_shards for source in build.sources]
    if build.num_shards is None:
        return own
    others = [index for index, number in enumerate(own) if number is None]
    left = build.num_shards - sum(number or 0 for number in own)
    weights = [sum(part.weight for group in ranges[index] for part in group) for index in others]
    dealt = _by_weight(left, weights)
    for index, number in zip(others, dealt, strict=True):
        own[index] = number
    return own


def _by_weight(count: int, weights: Sequence[int]) -> list[int]:
    """Deal `count` things, one to each and the rest by the largest remainder; ties go to the first."""
    total, rest = sum(weights), count - len(weights)
    if not total:
        weights, total = [1] * len(weights), len(weights)
    dealt = [1 + rest * weight // total for weight in weights]
    order = sorted(range(len(weights)), key=lambda index: (-(rest * weights[index] % total), index))
    for index in order[: count - sum(dealt)]:
        dealt[index] += 1
    return dealt


def cut(
    source: ResolvedSource, parts: Sequence[Sequence[FileRange]], files: int
) -> list[tuple[tuple[FileRange, ...], int]]:
    """Return the ranges of each unit and how many files it writes; these sum up to `files`.

    Args:
        parts: the ranges of each file of the source, in order.

    Raises:
        ConfigError: one unit would have to write more files at a time than it may.
    """
    knot = max(1, sum(part.weight for whole in parts for part in whole) // (_FINENESS * files))
    finer: list[FileRange] = []
    for whole in parts:
        # Row groups or batches were joined to units: of these, ranges of about `knot` bytes.
        joined = bool(whole) and source.num_rows is None and whole[0].file.has_blocks
        finer += split_file(whole[0].file, knot, source.storage_options) if joined else whole
    rope = _Rope(finer)
    marks, extra = rope.cuts(files)
    found = [(tuple(rope.between(a, b)), 1 + extra[index]) for index, (a, b) in enumerate(pairwise(marks))]
    most = max(number for _, number in found)
    if most * len(source.split_names) > _MOST_FILES:
        raise ConfigError(
            f"source {source.name!r}: num_shards makes one reader write {most} files for each of "
            f"{len(source.split_names)} splits at a time, because its input cannot be cut; at most {_MOST_FILES} can "
            "be. Lower num_shards, or give the input as JSON Lines, Parquet with more row groups, or more files",
            source=source.name,
            files=most,
        )
    return found


class _Rope:
    """Ranges laid end to end; places on it count weight from its beginning."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self._ranges = ranges
        self._ends = list(accumulate((part.weight for part in ranges), initial=0))

    def cuts(self, files: int) -> tuple[list[int], Counter[int]]:
        """Return where the rope is cut, both ends included, and how many files more each piece has than one."""
        total = self._ends[-1]
        made = [0]
        refused: list[int] = []
        at = 0
        for number in range(1, files):
            wanted = total * number // files
            while at < len(self._ranges) - 1 and self._ends[at + 1] <= wanted:
                at += 1
            place = wanted
            if not self._ranges or not _can_be_cut(self._ranges[at]):  # the nearer end of the knot it lies on
                begin, end = self._ends[at], self._ends[at + 1] if self._ranges else 0
                place = begin if wanted - begin <= end - wanted else end
            if made[-1] < place < total:
                made.append(place)
            else:
                refused.append(wanted)
        marks = [*made, total]
        # The piece that each place lies in.
        return marks, Counter(max(0, min(bisect_right(marks, at), len(marks) - 1) - 1) for at in refused)

    def between(self, begin: int, end: int) -> Iterator[FileRange]:
        """Yield the ranges, or parts of them, from one place to another; neighbours in one file joined."""
        last: FileRange | None = None
        for piece in self._pieces(begin, end):
            joint = None if last is None else _joined(last, piece)
            if last is not None and joint is None:
                yield last
            last = joint or piece
        if last is not None:
            yield last

    def _pieces(self, begin: int, end: int) -> Iterator[FileRange]:
        for index in range(max(0, bisect_left(self._ends, begin) - 1), len(self._ranges)):
            low, high = self._ends[index], self._ends[index + 1]
            if low > end:
                return
            first, stop = max(low, begin), min(high, end)
            # Of what weighs nothing, such as an empty file, an end of the rope has its share too.
            weightless = low == high and begin <= low and (low < end or end == self._ends[-1])
            if first < stop or weightless:
                part = self._ranges[index]
                if (first, stop) != (low, high):
                    begins = part.start - low
                    part = replace(part, start=begins + first, stop=begins + stop, weight=stop - first)
                yield part


def _can_be_cut(part: FileRange) -> bool:
    """Whether a range is of bytes, each line belonging to the range in which it begins."""
    return part.file.is_lines and part.file.compression is None and part.rows is None


def _joined(a: FileRange, b: FileRange) -> FileRange | None:
    """Return one range for two neighbours of a file, None where they are none."""
    if a.file != b.file or a.stop != b.start or a.rows is not None or b.rows is not None:
        return None
    records = None if a.records is None or b.records is None else a.records + b.records
    return replace(a, stop=b.stop, weight=a.weight + b.weight, records=records)
