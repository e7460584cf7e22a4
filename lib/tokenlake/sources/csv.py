"""CSV and TSV as RFC 4180 has them: a header, cells of text, quotes where they are needed.

Every cell stays the text it is: nothing is taken for a number, a date or a null, and an empty cell is the
empty string. Rows have as many cells as the header; blank lines are passed over, also where there is one
column (writers quote an empty cell there). A row in which a quote or carriage return stands where none may
is a bad record, however other readers would mend it: they differ.

CSV as blocks of whole records, in bounded memory, wherever newlines stand in quotes.

Records and cells of a block of CSV as arrays, and what is wrong with a record.

CSV cell by cell: the judge of blocks in which a quote stands where none may, and of very long records.

Where the cells and records of CSV end, found with bit arithmetic instead of a loop over bytes.

One bit per byte says whether it is a quote, another whether it is a delimiter or newline. The running
parity of the quotes (a prefix XOR, as in simdjson) says which bytes stand between quotes. By RFC 4180
that is so exactly where every quote stands at an edge of a cell or is doubled; where a single one does
not, :func:`mark` gives up and :mod:`tokenlake.sources.csv` decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import Int64s, binary_over, is_utf8, text_over
from tokenlake.errors import ConfigError, DamagedFileError
from tokenlake.sources.batch import RAW_LIMIT, BadLine, Parsed, Want
from tokenlake.sources.inputs import FileRange, InputBytes, InputFile, damaged
from tokenlake.sources.lines import BOM
from tokenlake.sources.rows import Fault, Rows
from tokenlake.sources.stream import ByteStream, check_marks
from tokenlake.sources.where import Predicate

QUOTE: Final = 34
NEWLINE: Final = 10
RETURN: Final = 13
_CHUNK: Final = 1 << 19  # bytes compared at a time: what is made of them stays in the processor's cache
_WORD: Final = np.dtype("<u8")
_ONE: Final = np.uint64(1)
_TOP: Final = np.uint64(63)
_SHIFTS: Final = tuple(np.uint64(1 << step) for step in range(6))
_ARROW: Final[Any] = pa
_NUMBERS: Final[Any] = _ARROW.Array.from_buffers(
    pa.int32(), _CHUNK, [None, _ARROW.py_buffer(np.arange(_CHUNK, dtype=np.int32))]
)

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[
    np.uint64
]  # one bit per byte: the lowest of the first word for byte 0, zeros beyond the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What structures a stretch of bytes that begins with a record.

    Attributes:
        ends: int64, where cells end: every delimiter and newline that is not in quotes.
        doubled: int64, the second quote of every two that stand for one; None if they were not looked for.
        stray: int64, quotes where none may stand.
        unclosed: the quote that is still open at the end, or was closed on a later line where no cell can
            end; None if there is none.
        newlines: how many there are, those in quotes included.
    """

    ends: Int64s
    doubled: Int64s | None
    stray: Int64s
    unclosed: int | None
    newlines: int


def mark(data: bytearray, size: int, delimiter: int) -> Marks | None:
    """Return the marks of ``data[:size]``, None if a quote stands where none may.

    A quote that is open at the end is not looked for: what follows the last newline of `ends` may be
    the beginning of a record.
    """
    none = np.zeros(0, np.int64)
    if not size:
        return Marks(ends=none, doubled=none, stray=none, unclosed=None, newlines=0)
    view, doubled = np.frombuffer(data, np.uint8, size), none
    ends, newlines = _ends(view, delimiter)
    if data.find(b'"', 0, size) >= 0:
        quotes = _equal(view, QUOTE)
        inside = _prefix_xor(quotes)
        opening = quotes & inside
        ends &= np.invert(inside, out=inside)
        after = _next(quotes ^ opening)  # what follows closing quotes
        fine = ends | opening
        if data.find(b"\r", 0, size) >= 0:
            fine |= _crlf(view)
        if _beyond(after, fine, size) or _beyond(opening, _next(ends) | after, 0):
            return None
        doubled = _positions(np.bitwise_and(opening, after, out=opening), size)
    return Marks(ends=_positions(ends, size), doubled=doubled, stray=none, unclosed=None, newlines=newlines)


def _ends(view: Bytes, delimiter: int) -> tuple[Bits, int]:
    """Return where delimiters and newlines are, and how many newlines."""
    packed = _room(len(view))
    newlines, scratch = 0, np.empty((2, min(_CHUNK, len(view))), np.bool_)
    for at in range(0, len(view), _CHUNK):
        part = view[at : at + _CHUNK]
        newline, other = scratch[0, : len(part)], scratch[1, : len(part)]
        np.equal(part, NEWLINE, out=newline)
        newlines += int(np.count_nonzero(newline))
        np.equal(part, delimiter, out=other)
        np.logical_or(newline, other, out=newline)
        _pack(newline, packed, at)
    return packed.view(_WORD), newlines


def _equal(view: Bytes, value: int) -> Bits:
    packed = _room(len(view))
    scratch = np.empty(min(_CHUNK, len(view)), np.bool_)
    for at in range(0, len(view), _CHUNK):
        part = view[at : at + _CHUNK]
        _pack(np.equal(part, value, out=scratch[: len(part)]), packed, at)
    return packed.view(_WORD)


def _room(size: int) -> Bytes:
    return np.zeros(-(-size // 64) * 8, np.uint8)


def _pack(mask: npt.NDArray[np.bool_], packed: Bytes, at: int) -> None:
    bits = np.packbits(mask, bitorder="little")
    packed[at // 8 : at // 8 + len(bits)] = bits


def _prefix_xor(bits: Bits) -> Bits:
    """Return for every bit the parity of all up to and with it: 1 from an opening quote to before its end."""
    found, moved = bits.copy(), np.empty_like(bits)
    for shift in _SHIFTS:
        found ^= np.left_shift(found, shift, out=moved)
    np.right_shift(found, _TOP, out=moved)
    carry = np.zeros_like(bits)
    np.bitwise_xor.accumulate(moved[:-1], out=carry[1:])
    found ^= np.negative(carry, out=carry)  # all ones where an odd number of quotes came before the word
    return found


def _beyond(bits: Bits, allowed: Bits, but: int) -> bool:
    """Say whether any bit is set that is not allowed; bit `but` always is. Overwrites `allowed`."""
    if but < 64 * len(allowed):
        allowed[but // 64] |= np.uint64(1 << but % 64)
    return bool(np.bitwise_and(bits, np.invert(allowed, out=allowed), out=allowed).any())


def _next(bits: Bits) -> Bits:
    """Return the bits moved to the byte after."""
    moved = bits << _ONE
    moved[1:] |= bits[:-1] >> _TOP
    return moved


def _crlf(view: Bytes) -> Bits:
    """Return the carriage returns before a newline, or at the end: a newline may follow."""
    newlines = _equal(view, NEWLINE)
    before = newlines >> _ONE
    before[:-1] |= newlines[1:] << _TOP
    last = len(view) - 1
    before[last // 64] |= np.uint64(1 << last % 64)
    return np.bitwise_and(_equal(view, RETURN), before, out=before)


def _positions(bits: Bits, size: int) -> Int64s:
    """Return where bits are set."""
    if np.count_nonzero(bits) < len(bits) // 8:
        held = bits.view(np.uint8)
        places = np.flatnonzero(held != 0)  # numpy is faster on booleans
        found = np.flatnonzero(np.unpackbits(held[places], bitorder="little"))
        return (places[found >> 3] << 3) + (found & 7)
    return _dense_positions(bits, size)


def _dense_positions(bits: Bits, size: int) -> Int64s:
    # Arrow's filter takes packed bits as they are, several times as fast as numpy's search in booleans.
    found: list[Int64s] = []
    for at in range(0, size, _CHUNK):
        count = min(_CHUNK, size - at)
        words = bits[at // 64 : (at + _CHUNK) // 64]
        mask = _ARROW.BooleanArray.from_buffers(pa.bool_(), count, [None, _ARROW.py_buffer(words)])
        found.append(np.add(_NUMBERS.slice(0, count).filter(mask).to_numpy(), at, dtype=np.int64))
    return np.concatenate(found)


NOT_CLOSED: Final = "is never closed"
_CONTENT: Final = re.compile(rb'(?:[^"]++|"")*+')
_LINE_END: Final = (b"\r\n", b"\r")  # the latter at the end of the file: a fault, but none of the quote


@final
class Scan:
    """Reads quotes as RFC 4180 does, in bytes that may still grow at their end.

    A quote opens a cell only as its first byte. In an unquoted cell it is stray. After a quote that closes a
    cell a delimiter or a newline must follow; if anything else does, that quote is stray, and the cell goes
    on, unquoted. But where such a cell began on an earlier line, nobody knows where records end: its
    quote counts as unclosed.

    Attributes:
        ends, stray, unclosed: as in :class:`tokenlake.sources.csv.Marks`.
        reason: what is wrong with the quote at `unclosed`.
    """

    def __init__(self, delimiter: int, max_cell_bytes: int) -> None:
        self.ends: list[int] = []
        self.stray: list[int] = []
        self.unclosed: int | None = None
        self.reason = NOT_CLOSED
        self._edge = re.compile(b"[" + re.escape(bytes([delimiter])) + b"\n]")
        self._stops = (delimiter, NEWLINE)
        self._limit = max_cell_bytes
        self._cell, self._at, self._quoted = 0, 0, False

    def run(self, data: bytes | bytearray, size: int, *, final: bool) -> None:
        """Go on through ``data[:size]``; `final`: nothing will follow."""
        while self._at < size and self.unclosed is None:
            if not self._quoted and self._at == self._cell and data[self._at] == QUOTE:
                self._quoted, self._at = True, self._at + 1
            elif not self._quoted:
                self._unquoted(data, size)
            elif not self._in_quotes(data, size, final=final):
                break
        if self._quoted and self.unclosed is None:
            if self._at - self._cell - 1 > self._limit:
                self._give_up(f"is not closed within max_record_bytes = {self._limit}")
            elif final:
                self._give_up(NOT_CLOSED)

    def forget(self) -> int:
        """Make what is needed no more disappear from the positions; return how many bytes to drop."""
        at_edge = self._quoted or self._at == self._cell
        drop = self._cell if at_edge else self._at - 1  # a carriage return may be needed yet
        self.ends, self.stray = [], []
        self._at -= drop
        self._cell = 0 if at_edge else -1
        return drop

    def marks(self, data: bytes | bytearray, size: int) -> Marks:
        """Return what was found in ``data[:size]``."""
        return Marks(
            ends=np.array(self.ends, np.int64),
            doubled=None,
            stray=np.array(self.stray, np.int64),
            unclosed=self.unclosed,
            newlines=data.count(b"\n", 0, size),
        )

    def _unquoted(self, data: bytes | bytearray, size: int) -> None:
        found = self._edge.search(data, self._at, size)
        stop = size if found is None else found.start()
        quote = data.find(b'"', self._at, stop)
        if quote >= 0:
            self.stray.append(quote)
        self._at = stop
        if found is not None:
            self.ends.append(stop)
            self._cell = self._at = stop + 1

    def _in_quotes(self, data: bytes | bytearray, size: int, *, final: bool) -> bool:
        """Go to the quote that closes the cell; False if it is not there, or what follows it is not yet."""
        quote = self._at = _in_cell(data, self._at, size)
        if quote == size:
            return False
        after = data[quote + 1 : min(quote + 3, size)]
        if not final and (not after or after == b"\r"):
            return False
        self._close(data, quote, allowed=not after or after[0] in self._stops or after in _LINE_END)
        return True

    def _close(self, data: bytes | bytearray, quote: int, *, allowed: bool) -> None:
        if quote - self._cell - 1 > self._limit:
            self._give_up(f"is not closed within max_record_bytes = {self._limit}")
        elif not allowed and data.find(b"\n", self._cell, quote) >= 0:
            self._give_up("is closed on a later line, in the middle of a cell")
        elif not allowed:
            self.stray.append(quote)
        self._quoted, self._at = False, quote + 1

    def _give_up(self, reason: str) -> None:
        self.unclosed, self.reason = self._cell, reason


def _in_cell(data: bytes | bytearray, start: int, size: int) -> int:
    """Return where the first quote that is not doubled stands, `size` if there is none."""
    found = _CONTENT.match(data, start, size)
    return start if found is None else found.end()


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
        doubled, stray: as in :class:`tokenlake.sources.csv.Marks`.
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


_PIECE: Final = 1 << 20
_BARE_RETURN: Final = Fault("bare_return", "a carriage return without a newline stands outside of quotes")
_STRAY_QUOTE: Final = Fault(
    "stray_quote", 'a quote stands inside a cell; expected a quoted cell and "" in it'
)
_NUL_BYTE: Final = Fault("nul_byte", "a cell holds a NUL byte")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of a block, blank lines left out.

    Attributes:
        block: which they stand in.
        starts, stops: int64[n], the record's content, without its carriage return and newline.
        first: int64[n], index in ``block.ends`` of the end of its first cell.
        cells: int64[n], how many cells it has.
        crlf, blank: how many lines ended in CRLF, and how many were empty.
    """

    block: CsvBlock
    starts: Int64s
    stops: Int64s
    first: Int64s
    cells: Int64s
    crlf: int
    blank: int

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.starts)

    def select(self, which: Any) -> Records:
        """Return the records of a slice, mask or array of indices."""
        return replace(
            self,
            starts=self.starts[which],
            stops=self.stops[which],
            first=self.first[which],
            cells=self.cells[which],
        )

    def raw(self, index: int) -> memoryview:
        """Return the bytes of a record."""
        return memoryview(self.block.data)[self.starts[index] : self.stops[index]]


def index_records(block: CsvBlock) -> Records:
    """Return the records of a block."""
    view = block.view
    stops = block.ends[block.lasts]
    starts, first = np.zeros_like(stops), np.zeros_like(stops)
    starts[1:], first[1:] = stops[:-1] + 1, block.lasts[:-1] + 1
    cells = block.lasts - first + 1
    crlf = 0
    if block.has(b"\r"):
        returns = (stops > starts) & (view[np.maximum(stops, 1) - 1] == RETURN) & (stops < len(view))
        stops, crlf = stops - returns, int(np.count_nonzero(returns))
    found = Records(block=block, starts=starts, stops=stops, first=first, cells=cells, crlf=crlf, blank=0)
    full = stops > starts
    blank = len(full) - int(np.count_nonzero(full))
    return replace(found.select(full), blank=blank) if blank else found


def column(records: Records, index: int) -> pa.LargeStringArray:
    """Return cell `index` of every record, unquoted; not validated. Every record must have that cell."""
    starts, stops = spans(records, index)
    view = records.block.view
    quoted = (stops > starts) & (view[np.minimum(starts, len(view) - 1)] == QUOTE)
    starts, stops = starts + quoted, stops - quoted
    return _texts(records.block.data, starts, stops, records.block.doubled)


def spans(records: Records, index: int) -> tuple[Int64s, Int64s]:
    """Return where cell `index` of every record begins and ends, quotes included."""
    ends, at = records.block.ends, records.first + index
    starts = records.starts if index == 0 else ends[at - 1] + 1
    return starts, np.where(records.cells == index + 1, records.stops, ends[at])


def _texts(data: bytearray, starts: Int64s, stops: Int64s, doubled: Int64s | None) -> pa.LargeStringArray:
    if doubled is None:
        return _one_by_one(data, starts.tolist(), stops.tolist())
    sizes = stops - starts
    cuts = np.zeros(0, np.int64)
    if len(doubled) and len(starts):
        owner = np.searchsorted(starts, doubled, side="right") - 1
        inside = (owner >= 0) & (doubled < stops[owner])
        cuts, sizes = doubled[inside], sizes - np.bincount(owner[inside], minlength=len(sizes))
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return text_over(offsets, _pieces(data, starts, stops, cuts))


def _one_by_one(data: bytearray, starts: list[int], stops: list[int]) -> pa.LargeStringArray:
    joined, offsets = bytearray(), np.zeros(len(starts) + 1, np.int64)
    for index, (at, stop) in enumerate(zip(starts, stops, strict=True)):
        while at < stop:  # in pieces, for a cell can be as large as all else together
            end = min(at + _PIECE, stop)
            piece = data[at:end]
            if (len(piece) - len(piece.rstrip(b'"'))) % 2:  # never between two quotes that stand for one
                end += 1
                piece += b'"'
            joined += piece.replace(b'""', b'"')
            at = end
        offsets[index + 1] = len(joined)
    return text_over(offsets, pa.py_buffer(joined))


def _pieces(data: bytearray, starts: Int64s, stops: Int64s, cuts: Int64s) -> pa.Buffer:
    """Return the bytes between every start and stop, laid end to end, without those at `cuts`."""
    # Seen as byte strings, what is wanted and what is not take turns; Arrow copies every other one.
    if len(cuts):
        starts = np.sort(np.concatenate([starts, cuts + 1]), kind="stable")  # merges two runs
        stops = np.sort(np.concatenate([stops, cuts]), kind="stable")
    if not len(starts):
        return pa.py_buffer(b"")
    edges = np.empty(2 * len(starts), np.int64)
    edges[0::2], edges[1::2] = starts, stops
    pieces: Any = binary_over(edges, pa.py_buffer(data))
    return pieces.take(pa.array(np.arange(0, len(edges), 2))).buffers()[2] or pa.py_buffer(b"")


def faults(file: InputFile, records: Records, columns: int, max_record_bytes: int) -> dict[int, Fault]:
    """Return what is wrong with records, by their index.

    Raises:
        DamagedFileError: a cell in quotes is longer than `max_record_bytes`.
    """
    found: dict[int, Fault] = {}
    for index in np.flatnonzero(records.cells != columns).tolist():
        found[index] = Fault(
            "ragged_row", f"the row has {records.cells[index]} cells, the header has {columns}"
        )
    _note(found, records, _bare_returns(records), _BARE_RETURN)
    _note(found, records, records.block.stray, _STRAY_QUOTE)
    if records.block.has(b"\0"):
        view = records.block.view
        _note(found, records, np.flatnonzero(view == 0), _NUL_BYTE)
    for index in _not_utf8(records, 0, len(records)):
        found[index] = Fault("invalid_utf8", "the row is not valid UTF-8")
    for index in np.flatnonzero(records.stops - records.starts > max_record_bytes).tolist():
        if not len(records.block.stray):  # else the scan has seen to it
            _check_cells(file, records, index, max_record_bytes)
        found[index] = record_too_long(int(records.stops[index] - records.starts[index]), max_record_bytes)
    return found


def record_too_long(size: int, max_record_bytes: int) -> Fault:
    """Return the fault of a record that is larger than the limit."""
    return Fault("record_too_long", f"the row has {size} bytes, max_record_bytes is {max_record_bytes}")


def _note(found: dict[int, Fault], records: Records, places: Int64s, fault: Fault) -> None:
    """Give `fault` to the records that have one of `places`, which are in order."""
    owner = np.searchsorted(records.starts, places, side="right") - 1
    inside = (owner >= 0) & (places < records.stops[owner])
    found.update(dict.fromkeys(np.unique(owner[inside]).tolist(), fault))


def _bare_returns(records: Records) -> Int64s:
    """Return where carriage returns stand outside of quotes without a newline after them."""
    block = records.block
    if not block.has(b"\r"):
        return np.zeros(0, np.int64)
    view = block.view
    at = np.flatnonzero(view[: records.stops[-1]] == RETURN)
    at = at[view[np.minimum(at + 1, len(view) - 1)] != NEWLINE]
    cell = np.searchsorted(block.ends, at)
    starts = np.where(cell > 0, block.ends[np.maximum(cell, 1) - 1] + 1, 0)
    # In a quoted cell all are in quotes but one that is its last byte.
    return at[(view[starts] != QUOTE) | (at + 1 == block.ends[cell])]


def _not_utf8(records: Records, start: int, stop: int) -> list[int]:
    """Return the records in ``[start, stop)`` that are not UTF-8, by halving."""
    if start == stop:
        return []
    edges = np.array([records.starts[start], records.stops[stop - 1]], np.int64)
    if is_utf8(text_over(edges, pa.py_buffer(records.block.data))):
        return []
    if stop - start == 1:
        return [start]
    middle = (start + stop) // 2
    return _not_utf8(records, start, middle) + _not_utf8(records, middle, stop)


def _check_cells(file: InputFile, records: Records, index: int, limit: int) -> None:
    one = records.select(np.array([index]))
    view = records.block.view
    for cell in range(int(records.cells[index])):
        (start,), (stop,) = (edge.tolist() for edge in spans(one, cell))
        if stop - start - 2 > limit and view[start] == QUOTE:
            line = records.block.line_of(start)
            raise unclosed(file, line, f"is not closed within max_record_bytes = {limit}")


_NOT_A_DELIMITER: Final = frozenset('"\r\n\0')
_RECORD_BATCH: Final[Any] = pa.RecordBatch


def read_csv(part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None) -> Iterator[Parsed]:
    """Read the records of a file.

    Raises:
        DamagedFileError: there is no header, it names a column twice or lacks a wanted one, a quote is not
            closed, the file is UTF-16, or its compressed stream is broken.
        ConfigError: the delimiter is not one character of ASCII.
    """
    layout = Layout(delimiter=_delimiter(part.file, want), max_record_bytes=want.max_record_bytes)
    return parse_csv(part.file, ByteStream(data), want, layout)


def parse_csv(file: InputFile, stream: ByteStream, want: Want, layout: Layout) -> Iterator[Parsed]:
    """Parse a stream of CSV."""
    header: tuple[str, ...] | None = None
    row = 0
    for block in read_records(file, stream, layout):
        if isinstance(block, LongRecord):
            fault = _too_much(block, layout)
            if header is None:
                raise damaged(file, f"its header cannot be used: {fault.detail}", line=block.line + 1)
            yield _long(block, fault, row)
            row += 1
            continue
        records = index_records(block)
        if header is None and len(records):
            header = _header(file, records.select(slice(1)), layout, want)
            records = records.select(slice(1, None))
        box = [_parsed(file, records, header or (), want, row)]
        row += len(records)
        del block, records
        yield box.pop()
    if header is None:
        raise damaged(file, "it is empty, expected at least a header")


def _delimiter(file: InputFile, want: Want) -> int:
    text = want.delimiter or ("\t" if file.format == "tsv" else ",")
    if len(text) != 1 or not text.isascii() or text in _NOT_A_DELIMITER:
        raise ConfigError(
            f"delimiter: got {text!r}, must be one character of ASCII, not a quote or an end of line",
            file=file.path,
        )
    return ord(text)


def _header(file: InputFile, record: Records, layout: Layout, want: Want) -> tuple[str, ...]:
    columns = int(record.cells[0])
    line = record.block.line_of(int(record.starts[0]))
    for fault in faults(file, record, columns, layout.max_record_bytes).values():
        hint = "; it looks like UTF-16 or no text at all" if fault.reason == "nul_byte" else ""
        raise damaged(file, f"its header (line {line}) cannot be used: {fault.detail}{hint}", line=line)
    names = tuple(str(column(record, index)[0]) for index in range(columns))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise damaged(file, f"its header names columns twice: {', '.join(map(repr, twice))}", line=line)
    wanted = [*want.names(names), *([] if want.text is None else [want.text])]
    for name in wanted:
        if name not in names:
            raise damaged(file, _no_column(names, name, want, layout), line=line)
    return names


def _no_column(names: tuple[str, ...], name: str, want: Want, layout: Layout) -> str:
    option = " (content_field)" if name == want.text else ""
    shown = ", ".join(map(repr, names[:20]))
    told = f"it has no column {name!r}{option}; its columns are {shown}"
    if len(names) == 1:
        told += f" (the delimiter is {chr(layout.delimiter)!r}, set `delimiter` if it is another)"
    return told


def _parsed(file: InputFile, records: Records, header: tuple[str, ...], want: Want, row: int) -> Parsed:
    found = faults(file, records, len(header), want.max_record_bytes) if len(records) else {}
    every = positions = np.arange(row, row + len(records), dtype=np.int64)
    good, bad = records, _bad(records, found, positions)
    if found:
        keep = np.ones(len(records), np.bool_)
        keep[list(found)] = False
        good, positions = records.select(keep), positions[keep]
    return Parsed(
        text=None if want.text is None else _cells(good, header, want.text),
        rows=_rows(good, header, want),
        positions=positions,
        bad=bad,
        normalized={"bom": int(records.block.bom), "crlf": records.crlf, "blank_line": records.blank},
        bytes_read=records.block.bytes_read,
        as_bad=lambda position, fault: _bad(records, {position - row: fault}, every)[0],
    )


def _cells(records: Records, header: tuple[str, ...], name: str) -> pa.LargeStringArray:
    # Before the header there can only be blank lines.
    return column(records, header.index(name) if header else 0)


def _rows(records: Records, header: tuple[str, ...], want: Want) -> Rows | None:
    names = want.names(header)
    if not names and want.columns is not None:
        return None
    schema = pa.schema([(name, pa.large_string()) for name in names])
    return Rows(_RECORD_BATCH.from_arrays([_cells(records, header, name) for name in names], schema=schema))


def _bad(records: Records, found: dict[int, Fault], positions: Int64s) -> tuple[BadLine, ...]:
    bad: list[BadLine] = []
    line, at = records.block.line + 1, 0
    for index in sorted(found):
        start = int(records.starts[index])
        line, at = line + records.block.data.count(b"\n", at, start), start
        raw = bytes(records.raw(index)[:RAW_LIMIT])
        bad.append(BadLine(int(positions[index]), None, _at_line(found[index], line), raw))
    return tuple(bad)


def _long(record: LongRecord, fault: Fault, row: int) -> Parsed:
    return Parsed(
        text=None,
        positions=np.zeros(0, np.int64),
        bad=(BadLine(row, None, _at_line(fault, record.line + 1), record.head),),
        normalized={"crlf": int(record.crlf)},
        bytes_read=record.bytes_read,
    )


def _too_much(record: LongRecord, layout: Layout) -> Fault:
    if record.size > layout.max_record_bytes:
        return record_too_long(record.size, layout.max_record_bytes)
    return Fault("ragged_row", f"the row has more than {MOST_CELLS} cells")


def _at_line(fault: Fault, line: int) -> Fault:
    return replace(fault, detail=f"{fault.detail} (line {line})")
