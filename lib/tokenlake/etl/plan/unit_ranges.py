"""Ranges of input files, grouped into units of about equal size.

Without `num_shards` (:func:`group_ranges`):

1. A file that is at least a unit long, or that is cut into several ranges, makes a unit
   of each range.
2. Neighbouring smaller files are joined, in path order. A group ends when its files
   reach the size of a unit, or earlier, when the hash of a file's path says so. The
   chance of this is proportional to the file's size: a group of average size has two
   such ends. An added file therefore changes only the groups around it.

With `num_shards` (:func:`cut_into_files`), a source writes exactly F files:

1. Lay the ranges of the source end to end: a line of their total weight W (input
   bytes).
2. Mark the line at ``W * 1 / F, W * 2 / F ... W * (F - 1) / F``. Where a range cannot
   be cut, take its nearer end.
3. The ranges between two marks are a unit, which writes one file. A mark that falls on
   another mark, or on an end of the line, makes no unit of its own: the unit at that
   place writes one file more, and deals its documents out.

For example, three files of 90 bytes that cannot be cut, and F = 4, are marked at 67,
135 and 202. The nearer ends are 90, 90 (both ends of the second file are equally far
from 135, and the first one counts) and 180. So each file is a unit, and the second one
writes two files: the mark at 135, which is lost, falls into it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final, final

import xxhash

from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.splits import split_file

_HASH_ENDS_PER_UNIT: Final = 2
"""Number of ends by hash in the size of a unit, so that most groups end by hash and
not by size.
"""

_FILES_PER_UNIT: Final = 4096
"""Largest number of files of a unit, however small they are."""

_MOST_OPEN_FILES: Final = 512
"""Largest number of files that a unit writes at a time, all splits together: each
has a row group in memory.
"""

_PIECES_PER_FILE: Final = 4
"""Number of row groups or batches that are cut finer, in the size of about one
output file.
"""


def group_ranges(
    files: Iterable[Sequence[FileRange]], unit_size: int
) -> Iterator[tuple[FileRange, ...]]:
    """Yield the ranges of each unit of one source.

    Args:
        files: Ranges of each file, files in path order.
        unit_size: Number of input bytes of a unit.
    """
    group: list[FileRange] = []
    group_size = 0
    # Each file counts for more bytes than it has, because opening it takes time too.
    cost_of_opening = unit_size // _FILES_PER_UNIT
    for ranges in files:
        if not ranges:
            continue
        weight = ranges[0].weight
        if len(ranges) > 1 or weight >= unit_size:
            if group:
                yield tuple(group)
            for part in ranges:
                yield (part,)
            group = []
            group_size = 0
            continue
        weight += cost_of_opening
        group.extend(ranges)
        group_size += weight
        if group_size >= unit_size or _ends_by_hash(ranges[0], weight, unit_size):
            yield tuple(group)
            group = []
            group_size = 0
    if group:
        yield tuple(group)


def _ends_by_hash(part: FileRange, weight: int, unit_size: int) -> bool:
    """Return whether a group ends after a file, with a chance proportional to the
    file's weight.
    """
    chance = min(1.0, _HASH_ENDS_PER_UNIT * weight / unit_size)
    draw = xxhash.xxh3_64_intdigest(part.file.path.encode())
    return draw < chance * 2**64


def range_identity(ranges: Sequence[FileRange]) -> list[dict[str, object]]:
    """Return the canonical form of a unit's inputs: it has nothing of the machine on
    which they are stored.
    """
    identities: list[dict[str, object]] = []
    for part in ranges:
        identity: dict[str, object] = {
            "path": part.file.path,
            "size": part.file.size,
            "token": part.file.token,
            "format": part.file.format,
            "compression": part.file.compression,
            "start": part.start,
            "stop": part.stop,
        }
        if part.file.companions:
            identity["companions"] = [
                companion.token for companion in part.file.companions
            ]
        # Without a limit of rows the identity is that of versions before there were
        # limits.
        if part.rows is not None:
            identity["rows"] = part.rows
        identities.append(identity)
    return identities


def files_of_sources(
    build: ResolvedBuild, ranges: Sequence[Iterable[Sequence[FileRange]]]
) -> list[int | None]:
    """Return the number of files that each source writes; None where units and sizes
    decide it.

    A source's own `num_shards` is its number. The rest of the build's is divided among
    the other sources by their weight (input bytes), with at least one for each.

    Args:
        build: Build with its sources.
        ranges: Ranges of each source, in any groups.
    """
    numbers = [source.num_shards for source in build.sources]
    if build.num_shards is None:
        return numbers
    rest = build.num_shards
    others: list[int] = []
    for index, number in enumerate(numbers):
        if number is None:
            others.append(index)
        else:
            rest -= number
    weights = [_weight_of(ranges[index]) for index in others]
    for index, number in zip(others, _divide(rest, weights), strict=True):
        numbers[index] = number
    return numbers


def _weight_of(files: Iterable[Iterable[FileRange]]) -> int:
    total = 0
    for ranges in files:
        for part in ranges:
            total += part.weight
    return total


def _divide(count: int, weights: Sequence[int]) -> list[int]:
    """Divide a number by weights: one for each, and the rest by the largest
    remainder; ties go to the first.
    """
    rest = count - len(weights)
    if sum(weights) == 0:
        weights = [1] * len(weights)
    total = sum(weights)
    shares = [1 + rest * weight // total for weight in weights]
    remainders = [rest * weight % total for weight in weights]
    by_remainder = sorted(
        range(len(weights)), key=lambda index: (-remainders[index], index)
    )
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def cut_into_files(
    source: ResolvedSource, parts: Sequence[Sequence[FileRange]], files: int
) -> list[tuple[tuple[FileRange, ...], int]]:
    """Return the ranges of each unit and the number of files that it writes; these sum
    up to `files`.

    Args:
        source: Source of the ranges.
        parts: Ranges of each file of the source, in order.
        files: Number of files that the source writes for each split.

    Raises:
        ConfigError: One unit would have to write more files at a time than it may.
    """
    piece_size = max(1, _weight_of(parts) // (_PIECES_PER_FILE * files))
    pieces: list[FileRange] = []
    for ranges in parts:
        # Row groups or batches were joined to ranges of a unit's size, which are too
        # large here.
        has_groups = bool(ranges) and (
            ranges[0].file.has_blocks or ranges[0].file.has_records
        )
        was_joined = has_groups and source.num_rows is None
        if was_joined:
            pieces.extend(
                split_file(ranges[0].file, piece_size, source.storage_options)
            )
        else:
            pieces.extend(ranges)

    line = _RangeLine(pieces)
    marks, more_files = line.marks(files)
    units: list[tuple[tuple[FileRange, ...], int]] = []
    for index, (begin, end) in enumerate(pairwise(marks)):
        units.append((tuple(line.between(begin, end)), 1 + more_files[index]))

    most_files = max(number for _, number in units)
    if most_files * len(source.split_names) > _MOST_OPEN_FILES:
        raise ConfigError(
            f"source {source.name!r}: num_shards makes one reader write {most_files} files for each of "
            f"{len(source.split_names)} splits at a time, because its input cannot be divided; at most "
            f"{_MOST_OPEN_FILES} can be. Lower num_shards, or give the input as JSON Lines, Parquet with more row "
            "groups, or more files",
            source=source.name,
            files=most_files,
        )
    return units


@final
class _RangeLine:
    """Ranges laid end to end; a place on the line is the weight before it."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self._ranges = ranges
        # Range i lies between places i and i + 1.
        self._places = list(accumulate((part.weight for part in ranges), initial=0))

    def marks(self, files: int) -> tuple[list[int], Counter[int]]:
        """Return the marks of the line, both ends included.

        Args:
            files: Number of files.

        Returns:
            The marks, ascending; and how many files more than one the unit after each
            mark writes, by the mark's index.
        """
        total = self._places[-1]
        marks = [0]
        places_without_mark: list[int] = []
        index = 0
        for number in range(1, files):
            wanted = total * number // files
            while index < len(self._ranges) - 1 and self._places[index + 1] <= wanted:
                index += 1
            place = self._nearest_cut(index, wanted)
            if marks[-1] < place < total:
                marks.append(place)
            else:
                places_without_mark.append(wanted)
        marks.append(total)

        more_files: Counter[int] = Counter()
        last_unit = len(marks) - 2
        for place in places_without_mark:
            unit = bisect_right(marks, place) - 1
            more_files[max(0, min(unit, last_unit))] += 1
        return marks, more_files

    def _nearest_cut(self, index: int, wanted: int) -> int:
        """Return the place nearest to the wanted one at which the range with this
        index can be cut.
        """
        if not self._ranges:
            return 0
        if _can_be_cut(self._ranges[index]):
            return wanted
        begin = self._places[index]
        end = self._places[index + 1]
        if wanted - begin <= end - wanted:
            return begin
        return end

    def between(self, begin: int, end: int) -> Iterator[FileRange]:
        """Yield the ranges, or parts of them, between two places; neighbours in one
        file are joined.
        """
        last: FileRange | None = None
        for piece in self._pieces(begin, end):
            if last is None:
                last = piece
                continue
            joined = _joined(last, piece)
            if joined is None:
                yield last
                last = piece
            else:
                last = joined
        if last is not None:
            yield last

    def _pieces(self, begin: int, end: int) -> Iterator[FileRange]:
        total = self._places[-1]
        for index in range(
            max(0, bisect_left(self._places, begin) - 1), len(self._ranges)
        ):
            low = self._places[index]
            high = self._places[index + 1]
            if low > end:
                return
            start = max(low, begin)
            stop = min(high, end)
            # A range without weight, such as an empty file, belongs to the piece that
            # begins at it, or to the last one.
            is_weightless_here = (
                low == high and begin <= low and (low < end or end == total)
            )
            if start >= stop and not is_weightless_here:
                continue
            part = self._ranges[index]
            if (start, stop) != (low, high):
                offset = part.start - low
                part = replace(
                    part, start=offset + start, stop=offset + stop, weight=stop - start
                )
            yield part


def _can_be_cut(part: FileRange) -> bool:
    """Return whether a range is one of bytes, in which each line belongs to the
    range where it begins.
    """
    return part.file.is_lines and part.file.compression is None and part.rows is None


def _joined(first: FileRange, second: FileRange) -> FileRange | None:
    """Return one range for two neighbours of a file, None where they are none."""
    are_neighbours = first.file == second.file and first.stop == second.start
    if not are_neighbours or first.rows is not None or second.rows is not None:
        return None
    records = None
    if first.records is not None and second.records is not None:
        records = first.records + second.records
    return replace(
        first, stop=second.stop, weight=first.weight + second.weight, records=records
    )
