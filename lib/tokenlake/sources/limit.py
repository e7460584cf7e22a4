"""`num_rows`: the first so many records of a source, good or bad, in the order of the listing.

The planner finds out where the limit falls, so that units stay functions of their own ranges: it counts the
records of one range after the other, as far as the limit and no further, and cuts the range in which it falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, final

import numpy as np

from tokenlake.sources.blocks import BLOCK_BYTES, Block, LongLine, read_blocks
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.lineindex import LineIndex, index_lines
from tokenlake.sources.meter import OnProgress, Progress
from tokenlake.sources.opening import opened
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.records import read_range
from tokenlake.sources.split import split_file

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_BLANK = np.frombuffer(b" \t\r", np.uint8)


@final
class RecordLimit:
    """Takes files in the order of the listing until they hold `num_rows` records.

    Attributes:
        ranges: of each file taken; the last range may have a limit of its own.
        left: records that may still come.
    """

    def __init__(
        self, source: ResolvedSource, num_rows: int, unit_size: int, on_progress: OnProgress | None = None
    ) -> None:
        self._source, self._unit_size, self._report = source, unit_size, on_progress
        self._bytes = 0
        self.ranges: list[list[FileRange]] = []
        self.left = num_rows

    def take(self, file: InputFile) -> bool:
        """Take the next file; return whether the limit is reached.

        Raises:
            DamagedFileError: the file cannot be read.
        """
        parts = split_file(file, self._unit_size, self._source.storage_options)
        kept = [self._limited(part) for part in parts if self.left]
        self.ranges.append(kept)
        self._bytes += sum(part.weight for part in kept)
        if self._report:
            self._report(Progress("counting", len(self.ranges), 0, self._bytes, 0))
        return not self.left

    def _limited(self, part: FileRange) -> FileRange:
        count, weight = count_records(part, self._source, self.left)
        reached = count >= self.left
        self.left -= min(count, self.left)
        # A range that the limit leaves whole keeps its identity: it is the same unit with a higher limit.
        if not reached or count == part.records:
            return part
        return replace(part, rows=count, weight=weight)


def count_records(part: FileRange, source: ResolvedSource, most: int) -> tuple[int, int]:
    """Return how many records a range holds, good or bad, but at most `most`; and the weight of so many."""
    if part.records is not None:
        count = min(part.records, most)
        return count, part.weight * count // max(part.records, 1)
    count = weight = 0
    for found, read in _counted(part, source):
        if count + found >= most:
            return most, min(weight + -(-read * (most - count) // max(found, 1)), part.weight)
        count, weight = count + found, weight + read
    return count, part.weight


def _counted(part: FileRange, source: ResolvedSource) -> Iterator[tuple[int, int]]:
    """Yield (records, input bytes) block by block."""
    file = part.file
    if file.format == "jsonl" or (file.format == "text" and file.text_mode == "lines"):
        yield from _counted_lines(part, source)
    elif file.format == "text":
        yield 1, part.weight
    else:
        every = replace(source, where=None, on_bad_record="quarantine")
        for batch in read_range(part, every):
            yield batch.rows_read, batch.bytes_read


def _counted_lines(part: FileRange, source: ResolvedSource) -> Iterator[tuple[int, int]]:
    """Count lines without parsing them: one that holds anything is a record, whatever it holds."""
    blank_is_none = part.file.format == "jsonl"
    with opened(part.file, source.storage_options) as data:
        for block in read_blocks(part, data, source.max_record_bytes):
            if isinstance(block, Block):
                lines = index_lines(block)
                count = len(lines.starts) - (_spaces(block, lines) if blank_is_none else 0)
                yield count, block.bytes_read
            else:
                yield int(not (blank_is_none and _is_blank(block))), block.bytes_read


def _spaces(block: Block, lines: LineIndex) -> int:
    """How many lines hold nothing but blanks, which JSON Lines takes for empty ones."""
    if not len(lines.starts):
        return 0
    data = np.frombuffer(block.data, np.uint8, block.size)
    maybe = np.flatnonzero(np.isin(data[lines.starts], _BLANK))
    spans = ((int(lines.starts[index]), int(lines.stops[index])) for index in maybe)
    return sum(not block.data[start:stop].strip(b" \t\r") for start, stop in spans)


def _is_blank(line: LongLine) -> bool:
    # Of more blanks than a block holds the reader makes a bad record, not a blank line.
    return line.data is not None and line.size <= BLOCK_BYTES + 2 and not line.data.strip(b" \t\r\n")
