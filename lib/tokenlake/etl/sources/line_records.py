"""The records of a block of lines: where each begins, and the columns and faults made of them."""

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

CARRIAGE_RETURN: Final = 13
NEWLINE: Final = 10
PIECE_RECORDS: Final = 1 << 15  # a bad one of two bytes takes 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecords:
    """Consecutive records in a buffer: lines that hold something, or elements of an array.

    Attributes:
        data: the block's bytes.
        starts, stops: int64[n], where each record lies in `data`, a line without its newline, carriage return and
            byte order mark.
        positions: int64[n], as in :class:`tokenlake.etl.sources.bad_records.BadRecord`.
        line_indices: int64[n], index of the line of each record, from 0 at the first line of these records; None where
            there are no lines.
        lines: number of lines, including blank ones. Blank lines belong to the records before them, and those at the
            start of a block to its first records.
        open_end: the file ends with the last of these records, without an end of line.
        bytes_read, normalized: as in :class:`tokenlake.etl.sources.parsed.Parsed`.
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
        """How many records there are."""
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes of every record."""
        data = self.data
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield data[start:stop]

    def pieces(self, size: int) -> Iterator[RawRecords]:
        """Yield the records in pieces of about `size` bytes, fewer where they are very short."""
        at = 0
        while at < len(self):
            end = int(np.searchsorted(self.stops, self.starts[at] + size, side="right"))
            end = min(max(end, at + 1), at + PIECE_RECORDS)
            yield self if end - at == len(self) else self.part(at, end)
            at = end
        if not len(self):
            yield self

    def part(self, start: int, stop: int) -> RawRecords:
        """Return the records from `start` to `stop`; parts that make up the whole account for all of it."""
        size = len(self)
        is_last = stop == size
        line_indices = self.line_indices
        first_line = 0
        end_line = 0
        if line_indices is not None:
            first_line = 0 if start == 0 else int(line_indices[start])
            end_line = self.lines if is_last else int(line_indices[stop])
            line_indices = line_indices[start:stop] - first_line
        return replace(
            self,
            starts=self.starts[start:stop],
            stops=self.stops[start:stop],
            positions=self.positions[start:stop],
            line_indices=line_indices,
            lines=end_line - first_line,
            open_end=self.open_end and is_last,
            bytes_read=self.bytes_read * stop // size - self.bytes_read * start // size,
            normalized=self.normalized if start == 0 else {},
        )

    def blank(self) -> RawRecords:
        """Return none of the records, one line, which holds nothing."""
        none = self.starts[:0]
        normalized = {**self.normalized, "blank_line": 1}
        return replace(
            self, starts=none, stops=none, positions=none, line_indices=none, normalized=normalized
        )

    def bad_at(self, position: int, fault: Fault) -> BadLine:
        """Return the record at a position as one that has `fault`."""
        return self.bad(int(np.searchsorted(self.positions, position)), fault)

    def bad(self, index: int, fault: Fault) -> BadLine:
        """Return record `index` as one that has `fault`."""
        start, stop = int(self.starts[index]), int(self.stops[index])
        line_index = None if self.line_indices is None else int(self.line_indices[index])
        raw = self.data[start : min(stop, start + RAW_LIMIT)]
        return BadLine(int(self.positions[index]), line_index, fault, raw)

    def parsed(self, faults: Mapping[int, Fault], **found: Any) -> Parsed:
        """Return what was found in all records but those with a fault, in order, with the account of all of them."""
        return Parsed(
            positions=np.delete(self.positions, list(faults)) if faults else self.positions,
            bad=tuple(self.bad(index, fault) for index, fault in faults.items()),
            bytes_read=self.bytes_read,
            normalized=self.normalized,
            lines=self.lines,
            as_bad=self.bad_at,
            **found,
        )


def index_lines(block: LineBlock, blank: bytes = b"") -> RawRecords:
    """Return the lines of a block that hold more than a carriage return, or bytes of `blank`."""
    data = np.frombuffer(block.data, np.uint8, block.size)
    # Iterating over BytesIO finds newlines with memchr and frees each line at once: 5 GB/s on lines of
    # 200 bytes, 20 GB/s on long ones, several times what comparing and searching with numpy reaches.
    lengths = np.fromiter(map(len, io.BytesIO(block.data)), np.int64)
    edges = offsets_of(lengths)
    edges = edges[: np.searchsorted(edges, block.size) + 1]

    starts, stops = edges[:-1].copy(), edges[1:] - 1
    open_end = block.size > 0 and bool(data[-1] != NEWLINE)
    if open_end:
        stops[-1] += 1
    bom = block.offset == 0 and block.data.startswith(BOM)
    if bom:
        starts[0] += len(BOM)
    returns = 0
    if block.data.find(b"\r", 0, block.size) >= 0:
        crlf = (stops > starts) & (data[np.maximum(stops, 1) - 1] == CARRIAGE_RETURN)
        if open_end:
            crlf[-1] = False
        stops -= crlf
        returns = int(np.count_nonzero(crlf))
    full = np.flatnonzero(stops > starts)
    if blank:
        first = data[starts[full]] <= ord(" ")
        only = [at for at in full[first].tolist() if not block.data[starts[at] : stops[at]].strip(blank)]
        full = np.setdiff1d(full, only, assume_unique=True) if only else full
    nothing = open_end and stops[-1] == starts[-1]  # the end of the file after a byte order mark, not a line
    return RawRecords(
        data=block.data,
        starts=starts[full],
        stops=stops[full],
        positions=block.offset + edges[full],
        line_indices=full,
        lines=len(edges) - 1,
        open_end=open_end,
        normalized={
            "bom": int(bom),
            "crlf": returns,
            "blank_line": len(starts) - len(full) - int(nothing),
        },
        bytes_read=block.bytes_read,
    )


def long_record(line: LongLine) -> tuple[RawRecords, int, int]:
    """Return a long line as one record, of its first bytes alone, and where its content starts and stops."""
    tail = line.data or (line.head if len(line.head) == line.size else b"")
    start = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    crlf, newline = int(tail.endswith(b"\r\n")), int(tail.endswith(b"\n"))
    record = RawRecords(
        data=line.head,
        starts=np.zeros(1, np.int64),
        stops=np.array([len(line.head)]),
        positions=np.array([line.offset]),
        line_indices=np.zeros(1, np.int64),
        lines=1,
        open_end=line.data is not None and not newline,
        normalized={"bom": int(start > 0), "crlf": crlf},
        bytes_read=line.bytes_read,
    )
    return record, start, line.size - newline - crlf


def record_starts(
    part: FileRange, source: InputBytes, max_record_bytes: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[Int64s, LineBlock | LongLine]]:
    """Yield where the records of each block begin, without parsing them: a line that holds anything is a record.

    Of JSON, white space is nothing; but of more of it than a block holds the reader makes a bad record.
    """
    space = b" \t\r" if part.file.format == "jsonl" else b""
    for block in read_blocks(part, source, max_record_bytes, block_bytes):
        if isinstance(block, LineBlock):
            yield index_lines(block, space).positions, block
            continue
        skip = len(BOM) if block.offset == 0 and block.head.startswith(BOM) else 0
        # `head` first: a long record is not copied to find out what its first byte tells.
        blank = space and not block.head[skip:].strip(b" \t\r\n") and block.size <= BLOCK_BYTES + 2
        blank = blank and block.data is not None and not block.data[skip:].strip(b" \t\r\n")
        yield np.full(int(not blank), block.offset, np.int64), block
