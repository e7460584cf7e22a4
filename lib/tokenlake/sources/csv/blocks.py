"""CSV as blocks of whole records, in bounded memory, wherever newlines stand in quotes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import DamagedFileError
from tokenlake.sources.arrays import Int64s
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.csv.marks import NEWLINE, Marks, mark
from tokenlake.sources.csv.scan import Scan
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.lineindex import BOM
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.textcheck import check_marks

BLOCK_BYTES: Final = 4 << 20  # the index of bare delimiters takes 25 times as much
_STEP_BYTES: Final = 1 << 20
_HEAD: Final = 4  # bytes that tell an encoding
MOST_CELLS: Final = 1 << 20  # of a record that is longer than a block: each takes 50 bytes to note
_FRAME: Final = 2  # carriage return and newline are not part of a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a file is written, and how much of it may belong together.

    Attributes:
        delimiter: the byte between two cells.
        max_record_bytes: longer records are bad; a longer cell in quotes counts as one that is not closed.
        block_bytes: how much is read at a time.
    """

    delimiter: int
    max_record_bytes: int
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvBlock:
    """Whole records.

    Attributes:
        data: the bytes, the first record's first. They are overwritten when the next block is asked for.
        size: how many of them are the records'.
        ends: int64, where cells end: at a delimiter or newline, or, in the file's last record, at `size`.
        lasts: int64, index in `ends` of every record's last cell.
        doubled, stray: as in :class:`tokenlake.sources.csv.marks.Marks`.
        line: how many newlines the file has before the block.
        bom: whether a byte order mark stood before it.
        bytes_read: input bytes consumed since the block before.
    """

    data: bytearray
    size: int
    ends: Int64s
    lasts: Int64s
    doubled: Int64s | None
    stray: Int64s
    line: int
    bom: bool
    bytes_read: int

    @property
    def view(self) -> npt.NDArray[np.uint8]:
        """The bytes of the records."""
        return np.frombuffer(self.data, np.uint8, self.size)

    def has(self, byte: bytes) -> bool:
        """Say whether `byte` is among the bytes of the records."""
        return self.data.find(byte, 0, self.size) >= 0

    def line_of(self, position: int) -> int:
        """Return the 1-based number of the line that byte `position` of the data stands on."""
        return self.line + self.data.count(b"\n", 0, position) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRecord:
    """A record over the limit, of bytes or of cells.

    Attributes:
        head: its first 64 KiB.
        size: how many bytes it has, without its carriage return and newline.
        crlf: whether it ends in both.
        line, bytes_read: as in :class:`CsvBlock`.
    """

    head: bytes
    size: int
    crlf: bool
    line: int
    bytes_read: int


def read_records(file: InputFile, stream: ByteStream, layout: Layout) -> Iterator[CsvBlock | LongRecord]:
    """Yield the records of a stream in blocks, in order.

    Raises:
        DamagedFileError: the stream is broken, a quote is not closed, or the file is UTF-16.
    """
    head = stream.read(_HEAD)
    check_marks(file, head)
    buffer = bytearray(max(layout.block_bytes, _HEAD))
    bom, line = head.startswith(BOM), 0
    kept = _keep(buffer, head[len(BOM) :] if bom else head)
    final = False
    while not final:
        size = kept + _fill(stream, buffer, kept)
        final = size < len(buffer)
        marks = _marked(file, buffer, size, layout, line, final=final)
        ends, lasts = _records(buffer, size, marks, final=final)
        if final or len(lasts):
            cut = min(int(ends[-1]) + 1, size) if len(ends) else 0
            newlines = marks.newlines - buffer.count(b"\n", cut, size)
            yield _block(buffer, cut, ends, lasts, marks, line, stream.consumed(), bom=bom)
            kept = _keep(buffer, buffer[cut:size])
        else:
            box, rest, newlines = _gather(file, stream, buffer[:size], layout, line, bom=bom)
            kept = _keep(buffer, rest)
            yield box.pop()  # no reference stays here: the record may be large
        line, bom = line + newlines, False


def _keep(buffer: bytearray, data: bytes | bytearray) -> int:
    buffer[: len(data)] = data
    return len(data)


def _fill(stream: ByteStream, buffer: bytearray, start: int) -> int:
    with memoryview(buffer) as view, view[start:] as room:
        return stream.read_into(room)


def _marked(file: InputFile, data: bytearray, size: int, layout: Layout, line: int, *, final: bool) -> Marks:
    marks = mark(data, size, layout.delimiter)
    if marks is not None and not (final and data.count(b'"', 0, size) % 2):
        return marks
    scan = Scan(layout.delimiter, layout.max_record_bytes)
    scan.run(data, size, final=final)
    _check_closed(file, scan, data, line)
    return scan.marks(data, size)


def _check_closed(file: InputFile, scan: Scan, data: bytearray, line: int) -> None:
    if scan.unclosed is not None:
        raise unclosed(file, line + data.count(b"\n", 0, scan.unclosed) + 1, scan.reason)


def unclosed(file: InputFile, line: int, reason: str) -> DamagedFileError:
    """Return the error for a quote that swallows what follows."""
    return damaged(
        file,
        f"the quote that opens a cell on line {line} {reason}, so that it is unknown where records end; "
        'expected a quote before the next delimiter or end of line, and "" for a quote in a cell '
        "(`source.max_record_bytes` is the longest cell)",
        line=line,
    )


def _records(data: bytearray, size: int, marks: Marks, *, final: bool) -> tuple[Int64s, Int64s]:
    """Return the ends of the cells of whole records, and the index of every record's last one."""
    ends = marks.ends
    lasts = np.flatnonzero(np.frombuffer(data, np.uint8)[ends] == NEWLINE)
    whole = int(ends[lasts[-1]]) + 1 if len(lasts) else 0
    if final and whole < size:  # the last record lacks its newline
        return np.append(ends, size), np.append(lasts, len(ends))
    return ends[: lasts[-1] + 1 if len(lasts) else 0], lasts


def _block(
    data: bytearray,
    size: int,
    ends: Int64s,
    lasts: Int64s,
    marks: Marks,
    line: int,
    used: int,
    *,
    bom: bool,
) -> CsvBlock:
    return CsvBlock(
        data=data,
        size=size,
        ends=ends,
        lasts=lasts,
        doubled=marks.doubled,
        stray=marks.stray,
        line=line,
        bom=bom,
        bytes_read=used,
    )


def _gather(
    file: InputFile, stream: ByteStream, data: bytearray, layout: Layout, line: int, *, bom: bool
) -> tuple[list[CsvBlock | LongRecord], bytearray, int]:
    """Read on until the record ends; return it in a list of one, the bytes after it, and its newlines."""
    limit = layout.max_record_bytes
    scan, head = Scan(layout.delimiter, limit), bytes(data[:RAW_LIMIT])
    dropped, newlines, seen, final = 0, 0, 0, False
    while True:
        scan.run(data, len(data), final=final)
        _check_closed(file, scan, data, line + newlines)
        end = next((end for end in scan.ends[seen:] if data[end] == NEWLINE), -1)
        if end >= 0 or final:
            break
        seen = len(scan.ends)
        if dropped or len(data) > limit + _FRAME or len(scan.ends) > MOST_CELLS:
            drop, seen = scan.forget(), 0
            dropped, newlines = dropped + drop, newlines + data.count(b"\n", 0, drop)
            del data[:drop]
        chunk = stream.read(min(_STEP_BYTES, layout.block_bytes))
        head += chunk[: RAW_LIMIT - len(head)]
        data += chunk
        final = not chunk
    cut = end + 1 if end >= 0 else len(data)
    rest, newlines = data[cut:], newlines + data.count(b"\n", 0, cut)
    del data[cut:]
    used = stream.consumed()
    if dropped:
        crlf = data.endswith(b"\r\n")
        size = dropped + cut - int(end >= 0) - int(crlf)
        box = [LongRecord(head=head[:size], size=size, crlf=crlf, line=line, bytes_read=used)]
        return [*box], rest, newlines
    marks = scan.marks(data, 0)
    stop = end if end >= 0 else cut
    ends = np.append(marks.ends[marks.ends < stop], stop)
    return [_block(data, cut, ends, np.array([len(ends) - 1]), marks, line, used, bom=bom)], rest, newlines
