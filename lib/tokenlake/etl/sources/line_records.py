"""The records of a block of lines: their places, and the columns and faults of them.

A record is a line that is not blank. Offsets in a block and line indices count from 0.
Example, a block at byte 100 of the file::

    {"a":1}\\n \\n\\n{"a":2}\\n        starts 0, 11    stops 7, 18    positions 100, 111
                                    line_indices 0, 3    lines 4    blank_line 2

Blank lines belong to the records before them, and those at the start of a block to its
first records: a part of a block counts the lines from its first record to the first
record of the next part.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tokenlake.base.arrays import Int64s, offsets_of
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadLine, Fault
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.lines import BOM, LineBlock, LongLine, read_blocks
from tokenlake.etl.sources.parsed import BLOCK_BYTES, Parsed

CARRIAGE_RETURN: Final = ord("\r")
NEWLINE: Final = ord("\n")
PIECE_RECORDS: Final = 1 << 15
"""Largest number of records in a piece: a bad record of two bytes takes 500 in
memory.
"""

_JSON_SPACE: Final = b" \t\r"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecords:
    """Consecutive records in a buffer: lines that are not blank, or elements.

    Attributes:
        data: Bytes of the block.
        starts: Offset of each record in `data`, int64[n]; a byte order mark is left
            out.
        stops: End of each record in `data`, int64[n]; newline and carriage return are
            left out.
        positions: Position of each record, int64[n], as in
            :class:`tokenlake.etl.sources.bad_records.BadRecord`.
        bytes_read: Number of input bytes read since the block before.
        line_indices: Index of each record's line, int64[n], from 0 at the first line of
            these records; None for elements of an array.
        lines: Number of lines, blank ones included.
        open_end: Whether the file ends with the last of these records, without an end
            of line.
        normalized: Number of harmless repairs, by name, as of
            :class:`tokenlake.etl.sources.parsed.Parsed`.
    """

    data: bytes
    starts: Int64s
    stops: Int64s
    positions: Int64s
    bytes_read: int
    line_indices: Int64s | None = None
    lines: int = 0
    open_end: bool = False
    normalized: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes of every record."""
        data = self.data
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield data[start:stop]

    def pieces(self, size: int) -> Iterator[RawRecords]:
        """Yield the records in pieces of about `size` bytes, at least one piece.

        Pieces of very short records are smaller.
        """
        first_record = 0
        while first_record < len(self):
            size_limit = self.starts[first_record] + size
            end_record = int(np.searchsorted(self.stops, size_limit, side="right"))
            # At least one record, however long it is, and not too many short ones.
            end_record = max(end_record, first_record + 1)
            end_record = min(end_record, first_record + PIECE_RECORDS)
            if end_record - first_record == len(self):
                yield self
            else:
                yield self.part(first_record, end_record)
            first_record = end_record
        if not len(self):
            yield self

    def part(self, start: int, stop: int) -> RawRecords:
        """Return the records from index `start` to `stop`.

        The counts of all parts sum up to those of the whole.
        """
        # A part owns the lines from its first record to the first record of the next
        # part. Lines before the first record belong to the first part.
        record_count = len(self)
        is_last = stop == record_count
        line_indices = self.line_indices
        first_line = 0
        end_line = 0
        if line_indices is not None:
            first_line = 0 if start == 0 else int(line_indices[start])
            end_line = self.lines if is_last else int(line_indices[stop])
            line_indices = line_indices[start:stop] - first_line
        # Shares of the bytes are differences of rounded sums, so that they add up.
        bytes_until_start = self.bytes_read * start // record_count
        bytes_until_stop = self.bytes_read * stop // record_count
        return replace(
            self,
            starts=self.starts[start:stop],
            stops=self.stops[start:stop],
            positions=self.positions[start:stop],
            line_indices=line_indices,
            lines=end_line - first_line,
            open_end=self.open_end and is_last,
            bytes_read=bytes_until_stop - bytes_until_start,
            normalized=self.normalized if start == 0 else {},
        )

    def blank(self) -> RawRecords:
        """Return no records, and the line of the only one as a blank line."""
        no_records = self.starts[:0]
        normalized = {**self.normalized, "blank_line": 1}
        return replace(
            self,
            starts=no_records,
            stops=no_records,
            positions=no_records,
            line_indices=no_records,
            normalized=normalized,
        )

    def bad_at(self, position: int, fault: Fault) -> BadLine:
        """Return the record at a position as one that has `fault`."""
        return self.bad(int(np.searchsorted(self.positions, position)), fault)

    def bad(self, index: int, fault: Fault) -> BadLine:
        """Return the record with an index, from 0, as one that has `fault`."""
        start = int(self.starts[index])
        stop = int(self.stops[index])
        line_index: int | None = None
        if self.line_indices is not None:
            line_index = int(self.line_indices[index])
        raw_bytes = self.data[start : min(stop, start + RAW_LIMIT)]
        return BadLine(int(self.positions[index]), line_index, fault, raw_bytes)

    def parsed(self, faults: Mapping[int, Fault], **fields: Any) -> Parsed:
        """Return the records without a fault, in order, with the counts of all of them.

        Args:
            faults: Index of each bad record, from 0, to its fault.
            fields: Texts and rows of the good records.
        """
        positions = self.positions
        line_indices = self.line_indices
        if faults:
            positions = np.delete(positions, list(faults))
            if line_indices is not None:
                line_indices = np.delete(line_indices, list(faults))
        return Parsed(
            positions=positions,
            line_indices=line_indices,
            bad=tuple(self.bad(index, fault) for index, fault in faults.items()),
            bytes_read=self.bytes_read,
            normalized=self.normalized,
            lines=self.lines,
            as_bad=self.bad_at,
            **fields,
        )


def index_lines(block: LineBlock, blank: bytes = b"") -> RawRecords:
    """Return the lines of a block that are not blank.

    Args:
        block: Whole lines.
        blank: Bytes that a blank line may hold besides a carriage return.
    """
    data = np.frombuffer(block.data, np.uint8, block.size)
    # 1. The edges between lines. Iterating over BytesIO finds newlines with memchr and
    #    frees each line at once: 5 GB/s on lines of 200 bytes, 20 GB/s on long ones,
    #    several times the speed of comparing and searching with numpy.
    lengths = np.fromiter(map(len, io.BytesIO(block.data)), np.int64)
    edges = offsets_of(lengths)
    edges = edges[: np.searchsorted(edges, block.size) + 1]

    # 2. Starts and stops without byte order mark, newline and carriage return.
    starts = edges[:-1].copy()
    stops = edges[1:] - 1
    has_open_end = block.size > 0 and bool(data[-1] != NEWLINE)
    if has_open_end:
        stops[-1] += 1
    has_bom = block.offset == 0 and block.data.startswith(BOM)
    if has_bom:
        starts[0] += len(BOM)
    crlf_count = 0
    if block.data.find(b"\r", 0, block.size) >= 0:
        is_crlf = (stops > starts) & (data[np.maximum(stops, 1) - 1] == CARRIAGE_RETURN)
        # A carriage return at the end of the file ends no line.
        if has_open_end:
            is_crlf[-1] = False
        stops -= is_crlf
        crlf_count = int(np.count_nonzero(is_crlf))

    # 3. The lines that are not blank.
    line_indices = np.flatnonzero(stops > starts)
    if blank:
        line_indices = _without_blank(block.data, starts, stops, line_indices, blank)
    blank_lines = len(starts) - len(line_indices)
    if has_open_end and stops[-1] == starts[-1]:
        blank_lines -= 1  # the end of the file behind a byte order mark, not a line
    return RawRecords(
        data=block.data,
        starts=starts[line_indices],
        stops=stops[line_indices],
        positions=block.offset + edges[line_indices],
        line_indices=line_indices,
        lines=len(edges) - 1,
        open_end=has_open_end,
        normalized={"bom": int(has_bom), "crlf": crlf_count, "blank_line": blank_lines},
        bytes_read=block.bytes_read,
    )


def _without_blank(
    block_bytes: bytes,
    starts: Int64s,
    stops: Int64s,
    line_indices: Int64s,
    blank: bytes,
) -> Int64s:
    """Return the lines that hold other bytes than `blank`.

    Only lines that begin with white space are searched.
    """
    begins_with_space = np.frombuffer(block_bytes, np.uint8)[
        starts[line_indices]
    ] <= ord(" ")
    suspects = line_indices[begins_with_space].tolist()
    blank_lines: list[int] = []
    for line_index in suspects:
        if not block_bytes[starts[line_index] : stops[line_index]].strip(blank):
            blank_lines.append(line_index)
    if not blank_lines:
        return line_indices
    return np.setdiff1d(line_indices, blank_lines, assume_unique=True)


def long_record(line: LongLine) -> tuple[RawRecords, int, int]:
    """Return a long line as one record, and the start and stop of its content.

    The record holds the first bytes of the line alone.

    The content is the line without byte order mark, newline and carriage return.
    """
    # The end of the line is in its bytes, or in its first bytes if these are all of it.
    line_end: bytes | bytearray = b""
    if line.data:
        line_end = line.data
    elif len(line.head) == line.size:
        line_end = line.head
    content_start = 0
    if line.offset == 0 and line.head.startswith(BOM):
        content_start = len(BOM)
    has_crlf = line_end.endswith(b"\r\n")
    has_newline = line_end.endswith(b"\n")
    record = RawRecords(
        data=line.head,
        starts=np.zeros(1, np.int64),
        stops=np.array([len(line.head)]),
        positions=np.array([line.offset]),
        line_indices=np.zeros(1, np.int64),
        lines=1,
        open_end=line.data is not None and not has_newline,
        normalized={"bom": int(content_start > 0), "crlf": int(has_crlf)},
        bytes_read=line.bytes_read,
    )
    return record, content_start, line.size - int(has_newline) - int(has_crlf)


def record_starts(
    part: FileRange,
    source: InputBytes,
    max_record_bytes: int,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[Int64s, LineBlock | LongLine]]:
    """Yield the positions of the records in each block, int64[n], without parsing them.

    A record is every line that is not blank.

    In JSON a line of white space is blank. One that is longer than a block is a bad
    record, as the reader counts it.

    Args:
        part: Range of a file of lines.
        source: The open file.
        max_record_bytes: Size of a line in bytes above which it is not held.
        block_bytes: Size of a block in bytes.
    """
    blank_bytes = _JSON_SPACE if part.file.format == "jsonl" else b""
    for block in read_blocks(part, source, max_record_bytes, block_bytes):
        if isinstance(block, LineBlock):
            yield index_lines(block, blank_bytes).positions, block
            continue
        record_count = 0 if blank_bytes and _is_blank_long_line(block) else 1
        yield np.full(record_count, block.offset, np.int64), block


def _is_blank_long_line(line: LongLine) -> bool:
    """Say whether a long line of JSON Lines is white space.

    One that is too long for a blank line is not.
    """
    mark_size = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    blank_bytes = _JSON_SPACE + b"\n"
    # `head` first: a long record is not copied to find out a fact that its first byte
    # tells.
    if line.head[mark_size:].strip(blank_bytes) or line.size > BLOCK_BYTES + 2:
        return False
    return line.data is not None and not line.data[mark_size:].strip(blank_bytes)
