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
    group_weight = 0
    # Each file counts for more bytes than it has, because opening it takes time too.
    cost_of_opening = unit_size // _FILES_PER_UNIT
    for ranges in files:
        if not ranges:
            continue
        # A large file is cut already, and ends the group before it.
        weight = ranges[0].weight
        if len(ranges) > 1 or weight >= unit_size:
            if group:
                yield tuple(group)
            for file_range in ranges:
                yield (file_range,)
            group = []
            group_weight = 0
            continue
        # A small one joins the group.
        weight += cost_of_opening
        group.extend(ranges)
        group_weight += weight
        if group_weight >= unit_size or _ends_by_hash(ranges[0], weight, unit_size):
            yield tuple(group)
            group = []
            group_weight = 0
    if group:
        yield tuple(group)


def _ends_by_hash(first_range: FileRange, weight: int, unit_size: int) -> bool:
    """Whether a group ends after a file, with a chance proportional to its weight."""
    # The hash of the path is a number below 2^64 that looks random.
    chance = min(1.0, _HASH_ENDS_PER_UNIT * weight / unit_size)
    draw = xxhash.xxh3_64_intdigest(first_range.file.path.encode())
    return draw < chance * 2**64


def range_identity(ranges: Sequence[FileRange]) -> list[dict[str, object]]:
    """Return the canonical form of a unit's inputs.

    It has nothing of the machine on which they are stored.
    """
    identities: list[dict[str, object]] = []
    for file_range in ranges:
        identity: dict[str, object] = {
            "path": file_range.file.path,
            "size": file_range.file.size,
            "token": file_range.file.token,
            "format": file_range.file.format,
            "compression": file_range.file.compression,
            "start": file_range.start,
            "stop": file_range.stop,
        }
        if file_range.file.companions:
            companions = file_range.file.companions
            identity["companions"] = [companion.token for companion in companions]
        # Without a limit of rows the identity is that of versions before there were
        # limits.
        if file_range.rows is not None:
            identity["rows"] = file_range.rows
        identities.append(identity)
    return identities


def files_of_sources(
    build: ResolvedBuild, ranges: Sequence[Iterable[Sequence[FileRange]]]
) -> list[int | None]:
    """Return the number of files that each source writes.

    None if units and sizes decide it.

    A source's own `num_shards` is its number. The rest of the build's is divided among
    the other sources by their weight (input bytes), with at least one for each.

    Args:
        build: Build with its sources.
        ranges: Ranges of each source, in any groups.
    """
    file_counts = [source.num_shards for source in build.sources]
    if build.num_shards is None:
        return file_counts
    files_left = build.num_shards
    open_indices: list[int] = []
    for source_index, file_count in enumerate(file_counts):
        if file_count is None:
            open_indices.append(source_index)
        else:
            files_left -= file_count
    weights = [_weight_of(ranges[source_index]) for source_index in open_indices]
    for source_index, file_count in zip(
        open_indices, _divide(files_left, weights), strict=True
    ):
        file_counts[source_index] = file_count
    return file_counts


def _weight_of(files: Iterable[Iterable[FileRange]]) -> int:
    """Return the weight of the ranges of some files, in input bytes."""
    total_weight = 0
    for ranges in files:
        for file_range in ranges:
            total_weight += file_range.weight
    return total_weight


def _divide(count: int, weights: Sequence[int]) -> list[int]:
    """Divide a number by weights.

    Each share is at least one. The others are divided in proportion, and units lost by
    rounding go to the largest remainders, ties to the first. For example, 10 divided by
    the weights 3, 1 and 1 gives 5, 3 and 2.
    """
    remaining = count - len(weights)
    if sum(weights) == 0:
        weights = [1] * len(weights)
    total_weight = sum(weights)
    shares: list[int] = []
    remainders: list[int] = []
    for weight in weights:
        share, remainder = divmod(remaining * weight, total_weight)
        shares.append(1 + share)
        remainders.append(remainder)
    # Rounding down leaves fewer units than there are shares.
    by_remainder = sorted(
        range(len(weights)), key=lambda index: (-remainders[index], index)
    )
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def cut_into_files(
    source: ResolvedSource, parts: Sequence[Sequence[FileRange]], files: int
) -> list[tuple[tuple[FileRange, ...], int]]:
    """Return the ranges of each unit and the number of files that it writes.

    The numbers sum up to `files`.

    Args:
        source: Source of the ranges.
        parts: Ranges of each file of the source, in order.
        files: Number of files that the source writes for each split.

    Raises:
        ConfigError: One unit would have to write more files at a time than it may.
    """
    # 1. Ranges that are small enough to be divided among the files.
    piece_size = max(1, _weight_of(parts) // (_PIECES_PER_FILE * files))
    pieces: list[FileRange] = []
    for ranges in parts:
        # Row groups or batches were joined to ranges of a unit's size, which are too
        # large here.
        was_joined = False
        if ranges and source.num_rows is None:
            was_joined = ranges[0].file.has_blocks or ranges[0].file.has_records
        if was_joined:
            file = ranges[0].file
            pieces.extend(split_file(file, piece_size, source.storage_options))
        else:
            pieces.extend(ranges)

    # 2. The units between the marks of the line.
    line = _RangeLine(pieces)
    marks, more_files = line.marks(files)
    units: list[tuple[tuple[FileRange, ...], int]] = []
    for index, (begin, end) in enumerate(pairwise(marks)):
        units.append((tuple(line.between(begin, end)), 1 + more_files[index]))

    # 3. A unit with many files holds a row group of each in memory.
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
    """Ranges laid end to end. A place on the line is the weight before it."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self._ranges = ranges
        # Range i lies between places i and i + 1.
        self._places = list(accumulate((part.weight for part in ranges), initial=0))

    def marks(self, files: int) -> tuple[list[int], Counter[int]]:
        """Return the marks of the line, both ends included.

        Args:
            files: Number of files.

        Returns:
            The marks, ascending; and the number of files beyond one that the unit after
            each mark writes, by the mark's index.
        """
        # 1. Each mark goes to the nearest cut, unless another mark is there.
        line_end = self._places[-1]
        marks = [0]
        places_without_mark: list[int] = []
        range_index = 0
        for mark_number in range(1, files):
            target_place = line_end * mark_number // files
            while (
                range_index < len(self._ranges) - 1
                and self._places[range_index + 1] <= target_place
            ):
                range_index += 1
            place = self._nearest_cut(range_index, target_place)
            if marks[-1] < place < line_end:
                marks.append(place)
            else:
                places_without_mark.append(target_place)
        marks.append(line_end)

        # 2. A lost mark falls into a unit, which writes one file more.
        more_files: Counter[int] = Counter()
        last_unit = len(marks) - 2
        for place in places_without_mark:
            unit = bisect_right(marks, place) - 1
            more_files[max(0, min(unit, last_unit))] += 1
        return marks, more_files

    def _nearest_cut(self, range_index: int, target_place: int) -> int:
        """Return the place nearest to a target at which a range can be cut.

        Args:
            range_index: Index of the range that holds the target.
            target_place: Place on the line.
        """
        if not self._ranges:
            return 0
        if _can_be_cut(self._ranges[range_index]):
            return target_place
        begin = self._places[range_index]
        end = self._places[range_index + 1]
        if target_place - begin <= end - target_place:
            return begin
        return end

    def between(self, begin: int, end: int) -> Iterator[FileRange]:
        """Yield the ranges, or parts of them, between two places.

        Neighbours in one file are joined.
        """
        # The last range may still grow.
        open_range: FileRange | None = None
        for piece in self._pieces(begin, end):
            if open_range is None:
                open_range = piece
                continue
            joined = _joined(open_range, piece)
            if joined is None:
                yield open_range
                open_range = piece
            else:
                open_range = joined
        if open_range is not None:
            yield open_range

    def _pieces(self, begin: int, end: int) -> Iterator[FileRange]:
        """Yield the ranges, or parts of them, between two places, not joined."""
        line_end = self._places[-1]
        first_index = max(0, bisect_left(self._places, begin) - 1)
        for index in range(first_index, len(self._ranges)):
            range_begin = self._places[index]
            range_end = self._places[index + 1]
            if range_begin > end:
                return
            start = max(range_begin, begin)
            stop = min(range_end, end)
            # A range without weight, such as an empty file, belongs to the piece that
            # begins at it, or to the last one.
            is_weightless = range_begin == range_end
            is_in_piece = begin <= range_begin and (
                range_begin < end or end == line_end
            )
            if start >= stop and not (is_weightless and is_in_piece):
                continue
            file_range = self._ranges[index]
            if (start, stop) != (range_begin, range_end):
                offset = file_range.start - range_begin
                file_range = replace(
                    file_range,
                    start=offset + start,
                    stop=offset + stop,
                    weight=stop - start,
                )
            yield file_range


def _can_be_cut(file_range: FileRange) -> bool:
    """Whether a range is one of bytes, in which a line belongs to where it begins."""
    return (
        file_range.file.is_lines
        and file_range.file.compression is None
        and file_range.rows is None
    )


def _joined(left_range: FileRange, right_range: FileRange) -> FileRange | None:
    """Return one range for two neighbours of a file, None if they are none."""
    are_neighbours = (
        left_range.file == right_range.file and left_range.stop == right_range.start
    )
    if (
        not are_neighbours
        or left_range.rows is not None
        or right_range.rows is not None
    ):
        return None
    records = None
    if left_range.records is not None and right_range.records is not None:
        records = left_range.records + right_range.records
    return replace(
        left_range,
        stop=right_range.stop,
        weight=left_range.weight + right_range.weight,
        records=records,
    )
