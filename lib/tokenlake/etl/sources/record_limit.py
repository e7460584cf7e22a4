"""`num_rows`: the first records of a source up to a number, good or bad.

The positions of records are here as well.

The ranges of a file do not depend on the limit. The planner finds the range in which
the limit falls: it counts the records of one range after the other, as far as the limit
and no further, and limits that range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.line_records import record_starts
from tokenlake.etl.sources.listing_progress import OnProgress, Progress
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.records import read_range, read_rows
from tokenlake.etl.sources.splits import split_file


@final
class RecordLimit:
    """Takes files in the order of the listing until they hold `num_rows` records.

    Attributes:
        ranges: Ranges of each file taken so far; the last range may have a limit of its
            own.
        left: Number of records up to the limit.
    """

    def __init__(
        self,
        source: ResolvedSource,
        num_rows: int,
        unit_size: int,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Begin before the first file.

        Args:
            source: Source whose files are taken.
            num_rows: Largest number of records, good or bad.
            unit_size: Size of a range in bytes.
            on_progress: Function that receives the progress after each file.
        """
        self._source = source
        self._unit_size = unit_size
        self._on_progress = on_progress
        self._bytes = 0
        self.ranges: list[list[FileRange]] = []
        self.left = num_rows

    def take(self, file: InputFile) -> bool:
        """Take the next file; return whether the limit is reached.

        Raises:
            DamagedFileError: The file cannot be read.
        """
        ranges: list[FileRange] = []
        for part in split_file(file, self._unit_size, self._source.storage_options):
            if not self.left:
                break
            ranges.append(self._limited(part))
        self.ranges.append(ranges)
        self._bytes += sum(part.weight for part in ranges)
        if self._on_progress:
            self._on_progress(Progress("counting", len(self.ranges), 0, self._bytes, 0))
        return not self.left

    def _limited(self, part: FileRange) -> FileRange:
        """Count the records of a range; return it with the limit if that falls inside."""
        record_count, weight = count_records(part, self._source, self.left)
        is_reached = record_count >= self.left
        self.left -= min(record_count, self.left)
        # A range that the limit leaves whole keeps its identity: with a higher limit it
        # is the same unit.
        if not is_reached or record_count == part.records:
            return part
        return replace(part, rows=record_count, weight=weight)


def count_records(
    part: FileRange, source: ResolvedSource, most: int
) -> tuple[int, int]:
    """Return the number of records in a range, up to `most`, and their weight.

    Good and bad records count.

    Args:
        part: The range.
        source: Its source.
        most: Number of records at which counting ends.
    """
    # Some formats state the number of records: nothing is read.
    if part.records is not None:
        record_count = min(part.records, most)
        return record_count, part.weight * record_count // max(part.records, 1)
    record_count = 0
    weight = 0
    for block_count, bytes_read in _counts_of_blocks(part, source):
        if record_count + block_count >= most:
            # The weight of the first records of the block, rounded up.
            share_of_block = -(
                -bytes_read * (most - record_count) // max(block_count, 1)
            )
            return most, min(weight + share_of_block, part.weight)
        record_count += block_count
        weight += bytes_read
    return record_count, part.weight


def _counts_of_blocks(
    part: FileRange, source: ResolvedSource
) -> Iterator[tuple[int, int]]:
    """Yield the number of records in each block of a range, and its input bytes."""
    # From the cheapest way to the dearest: lines are only found, a document is one
    # record, other formats are read without a look at fields.
    if part.file.is_lines:
        for starts, bytes_read in _line_starts(part, source):
            yield len(starts), bytes_read
    elif part.file.format == "text":
        yield 1, part.weight
    else:
        lenient = replace(source, where=None, on_bad_record="quarantine")
        # Records of ids have no text to look at.
        read = read_range if source.tokens is None else read_rows
        for batch in read(part, lenient, ()):
            yield batch.rows_read, batch.bytes_read


def _line_starts(
    part: FileRange, source: ResolvedSource
) -> Iterator[tuple[Int64, int]]:
    """Yield the positions of records in each block of lines, and its input bytes.

    Positions are int64[n].
    """
    with opened(part.file, source.storage_options) as data:
        for starts, block in record_starts(part, data, source.max_record_bytes):
            yield starts, block.bytes_read


def positions_of(parts: Sequence[FileRange], source: ResolvedSource) -> Iterator[Int64]:
    """Yield the positions of a file's records, good or bad, int64[n].

    They are those of :class:`BadRecord`.

    If the file itself or its lines give the positions, nothing else is read. With
    `where` all records are read, and the positions of those that it keeps are returned.

    Args:
        parts: All ranges of the file, in order.
        source: Its source.
    """
    # Row indices continue from range to range; byte offsets do not depend on the ranges
    # before.
    rows_before = 0
    for part in parts:
        if source.where is None and part.records is not None:
            record_count, _ = count_records(part, source, part.rows or part.records)
            yield np.arange(rows_before, rows_before + record_count)
            rows_before += part.records
        elif source.where is None and part.file.is_lines:
            rows_left = part.rows
            for starts, _ in _line_starts(part, source):
                yield starts[:rows_left]
                if rows_left is not None:
                    rows_left = max(0, rows_left - len(starts))
        else:
            lenient = replace(source, on_bad_record="quarantine")
            for batch in read_rows(part, lenient, ()):
                yield batch.positions
