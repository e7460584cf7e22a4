"""CSV as blocks of whole records, in bounded memory, wherever newlines stand in quotes, and what is wrong in them.

In nearly every block all quotes and carriage returns stand where RFC 4180 has them, which is found out for all of it at
once. Where one does not, the block is split cell by cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import Int64s, is_utf8, text_over
from tokenlake.errors import DamagedFileError
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.lines import BOM
from tokenlake.sources.rows import Fault
from tokenlake.sources.stream import ByteStream, check_marks

BLOCK_BYTES: Final = 1 << 22  # what is made of it stays in the processor's cache
_STEP_BYTES: Final = 1 << 20
_CHUNK: Final = 1 << 17
_HEAD: Final = 4  # bytes that tell an encoding
_FRAME: Final = 2  # carriage return and newline are not part of a record
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'
_CONTENT: Final = re.compile(rb'(?:[^"]++|"")*+')
_BARE_RETURN: Final = Fault("bare_return", "a carriage return without a newline stands outside of quotes")
_STRAY_QUOTE: Final = Fault(
    "stray_quote", 'a quote stands inside a cell; expected a quoted cell and "" in it'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a file is written, and how much of it may belong together.

    Attributes:
        delimiter: the byte between two cells.
        max_record_bytes: longer records are bad; a longer cell in quotes counts as one that is not closed.
        block_bytes: how much is read at a time.
    """

    delimiter: int
    max_record_bytes: int
    block_bytes: int = BLOCK_BYTES


class CsvRecord(NamedTuple):
    """Where a record that is not blank lies, its end of line left out; its cells, and what is wrong with its quotes."""

    start: int
    stop: int
    cells: int
    fault: Fault | None


class CsvSplit(NamedTuple):
    """Whole records: how many bytes and newlines they take, how many lines end in CRLF, and how many are blank.

    `records` is None where all quotes and carriage returns were found to be right, and nobody split anything.
    """

    size: int
    newlines: int
    crlf: int
    blank: int
    records: list[CsvRecord] | None = None


class CsvBlock(NamedTuple):
    """Whole records: the bytes that begin with them, the newlines before, the input bytes since the last block."""

    data: bytearray
    line: int
    bytes_read: int
    bom: bool
    split: CsvSplit


class OversizedRecord(NamedTuple):
    """A record over the limit: its first 64 KiB, its size, whether it ends in CRLF, and the same as of a block."""

    head: bytes
    size: int
    crlf: bool
    line: int
    bytes_read: int


@final
class CsvStream:
    """The records of a stream in blocks, in order: the header alone, then as many as fit."""

    def __init__(self, file: InputFile, stream: ByteStream, dialect: Dialect, cells: CellSplitter) -> None:
        """Begin to read; DamagedFileError if the file is UTF-16."""
        self._stream, self._dialect, self._cells = stream, dialect, cells
        head = stream.read(_HEAD)
        check_marks(file, head)
        self._bom = head.startswith(BOM)
        head = head.removeprefix(BOM)
        # Blocks are read to the same place: fresh memory costs more than what is done to it.
        self._data = bytearray(head.ljust(dialect.block_bytes))
        self._size, self._used = len(head), 0
        self._line, self._final = 0, False

    def blocks(self) -> Iterator[CsvBlock | OversizedRecord]:
        """Yield the block of the header, before which there may be blank lines, and those of the other records.

        Raises:
            DamagedFileError: the stream is broken, or a quote is not closed.
        """
        header = whole = True
        while self._size or not self._final:
            # Of a record that is longer than a block twice as much is read each time.
            room = max(self._dialect.block_bytes, 0 if whole else 2 * self._size)
            if self._size < room:
                self._more(room - self._size)
            block = self._block(header=header)
            if block is None and not self._final and self._size > self._dialect.max_record_bytes + _FRAME:
                block = self._pass_over()
            whole = block is not None
            if block is not None:
                header = False
                yield block
                self._drop(self._used)

    def _more(self, count: int) -> None:
        """Read `count` bytes, fewer only at the end."""
        room = self._size + count
        self._data += bytes(max(room - len(self._data), 0))
        with memoryview(self._data) as view, view[self._size : room] as target:
            got = self._stream.read_into(target)
        self._size, self._final = self._size + got, got < count

    def _drop(self, count: int) -> None:
        rest = self._data[count : self._size]
        self._data[: len(rest)] = rest
        self._size, self._used = len(rest), 0

    def _block(self, *, header: bool) -> CsvBlock | None:
        split = None if header else self._strict()
        split = split or self._cells.split(
            self._data, self._size, self._line, 1 if header else -1, final=self._final
        )
        if not split.size or (header and not split.records and not self._final):
            return None
        block = CsvBlock(self._data, self._line, self._stream.consumed(), self._bom, split)
        self._line, self._used, self._bom = self._line + split.newlines, split.size, False
        return block

    def _strict(self) -> CsvSplit | None:
        """Return the whole records if none is over the limit, and all their quotes are right."""
        if not 0 < self._size <= min(self._dialect.block_bytes, self._dialect.max_record_bytes):
            return None
        return _split_if_strict(self._data, self._size, self._dialect.delimiter, final=self._final)

    def _pass_over(self) -> OversizedRecord:
        """Read to the end of a record that is over the limit; nothing is held of it but a cell in quotes."""
        head, line, passed, within = bytes(self._data[: min(self._size, RAW_LIMIT)]), self._line, 0, False
        while True:
            data, size = self._data, self._size
            end, at, within = self._cells.end_of_record(
                data, size, self._line, within=within, final=self._final
            )
            crlf = end is not None and at > end > 0 and data[end - 1] == _RETURN
            self._line += data.count(b"\n", 0, at)
            self._drop(at)
            if end is not None:
                break
            passed += at
            before = self._size
            self._more(_STEP_BYTES)
            head += self._data[before : min(self._size, before + RAW_LIMIT - len(head))]
        size = passed + end - crlf
        return OversizedRecord(head[:size], size, crlf, line, self._stream.consumed())


def _split_if_strict(data: bytearray, size: int, delimiter: int, *, final: bool) -> CsvSplit | None:
    """Return the account of whole records, None unless every quote and carriage return stands where one may.

    If that is so, every other quote opens: it is a cell's first byte, or follows one as its double. The quote after it
    closes: a cell ends behind it, or there is its double.
    """
    quotes = _places(np.frombuffer(data, np.uint8, size), _QUOTE)
    size = size if final else _last_border(data, size, quotes)
    view, last, quotes = (
        np.frombuffer(data, np.uint8, size),
        size - 1,
        quotes[: np.searchsorted(quotes, size)],
    )
    if (
        not size
        or data.find(b"\0", 0, size) >= 0
        or not is_utf8(text_over(np.array([0, size]), pa.py_buffer(data)))
    ):
        return None
    edge = np.zeros(256, np.bool_)
    edge[[delimiter, _NEWLINE, _QUOTE]] = True
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing) or not (edge[view[opening - 1]] | (opening == 0)).all():
        return None
    edge[_RETURN] = True
    if not edge[view[np.minimum(closing + 1, last)]].all():
        return None
    found = data.find(b"\r", 0, size) >= 0  # searched at the speed of memory; nearly no file has any
    returns = _outside(_places(view, _RETURN), quotes) if found else quotes[:0]
    if not (view[np.minimum(returns + 1, last)] == _NEWLINE).all():
        return None
    # A blank line ends right behind the end of the line before it, or is its own carriage return and newline.
    blanks = len(_outside(_places(view[:-1], _NEWLINE, view[1:]), quotes)) + data.startswith(b"\n")
    blanks += int(np.count_nonzero((view[returns - 1] == _NEWLINE) | (returns == 0)))
    newlines = sum(int(np.count_nonzero(view[at : at + _CHUNK] == _NEWLINE)) for at in range(0, size, _CHUNK))
    return CsvSplit(size, newlines, len(returns), blanks)


def _last_border(data: bytearray, size: int, quotes: Int64s) -> int:
    """Return where the last record ends that is whole, if all quotes are right: an even number is before it."""
    end = data.rfind(b"\n", 0, size) + 1
    while (before := int(np.searchsorted(quotes, end))) % 2:
        # It lies in a cell in quotes: no line of that cell ends a record, nor one before a double quote in it.
        end = data.rfind(b"\n", 0, int(quotes[before - 1])) + 1
    return end


def _places(view: npt.NDArray[np.uint8], byte: int, behind: npt.NDArray[np.uint8] | None = None) -> Int64s:
    """Return where `byte` is, in `behind` as well; a little at a time, for fresh memory costs more than the search."""
    scratch = np.empty((2, min(_CHUNK, len(view))), np.bool_)
    found: list[Int64s] = []
    for at in range(0, len(view), _CHUNK):
        part = view[at : at + _CHUNK]
        here = np.equal(part, byte, out=scratch[0, : len(part)])
        if behind is not None:
            here &= np.equal(behind[at : at + _CHUNK], byte, out=scratch[1, : len(part)])
        found.append(np.flatnonzero(here) + at)
    return np.concatenate([*found, np.zeros(0, np.int64)])


def _outside(places: Int64s, quotes: Int64s) -> Int64s:
    """Return those of `places` that are not in quotes."""
    return places[np.searchsorted(quotes, places) % 2 == 0] if len(places) else places


@final
class CellSplitter:
    """Splits bytes that may still grow into records, cell by cell.

    A quote opens a cell only as its first byte. In an unquoted cell it is stray. After a quote that closes a
    cell a delimiter or a newline must follow; if anything else does, that quote is stray, and the cell goes
    on, unquoted. But where such a cell began on an earlier line, nobody knows where records end: its
    quote counts as unclosed.
    """

    def __init__(self, file: InputFile, dialect: Dialect) -> None:
        self._file, self._limit = file, dialect.max_record_bytes
        self._delimiter = bytes([dialect.delimiter])
        stop = re.escape(self._delimiter)
        rest = b"[^" + stop + b"\n]*+"
        end = b"([" + stop + b"\n]|\\Z)"
        self._cell = re.compile(b'(?:"((?:[^"]++|"")*+)"(' + rest + b')|(?!")' + rest + b")" + end)
        self._within = re.compile(b"()()" + rest + end)

    def split(self, data: bytearray, size: int, line: int, most: int = -1, *, final: bool) -> CsvSplit:
        """Return the first `most` records of `data`, all by default, as far as they are whole.

        Args:
            line: how many newlines the file has before `data`.
            final: nothing follows `data`.

        Raises:
            DamagedFileError: a quote is not closed.
        """
        records: list[CsvRecord] = []
        start = at = cells = crlf = blank = 0
        fault: Fault | None = None
        while len(records) != most and (at < size or (final and cells)):
            found = self._whole(data, size, at, line, final=final)
            if found is None:
                break
            at, cells, fault = found.end(), cells + 1, _worse(fault, _misplaced(data, found))
            if found[3] == self._delimiter:
                continue
            stop = found.start(3)
            returned = at > stop > start and data[stop - 1] == _RETURN
            stop -= returned
            crlf += returned
            if stop > start:
                records.append(CsvRecord(start, stop, cells, fault))
            else:
                blank += 1
            start, cells, fault = at, 0, None
        return CsvSplit(start, data.count(b"\n", 0, start), crlf, blank, records)

    def end_of_record(
        self, data: bytearray, size: int, line: int, *, within: bool, final: bool
    ) -> tuple[int | None, int, bool]:
        """Return where the record ends that `data` begins with, and the next one begins.

        Where it goes on, the first is None; then it is said how many bytes are needed no more, and whether what is
        left lies `within` a cell without quotes.
        """
        at = 0
        while True:
            found = self._within.match(data, at, size) if within else self._cell.match(data, at, size)
            if not found or not (found[3] or final):
                break
            if not within:
                self._whole(data, size, at, line, final=final)
            at, within = found.end(), False
            if found[3] != self._delimiter:
                return found.start(3), at, False
        if not within and self._whole(data, size, at, line, final=final) is None and not found:
            return None, at, False  # a cell in quotes, which must be held
        if at == size and not within:
            return None, at, False  # a cell of which nothing is there yet: it may be one in quotes
        if found and not within and found[1] is not None:
            if found[2] in (b"", b"\r"):  # perhaps it is not closed yet
                return None, at, False
            self._check_closed(data, found, line)
        return None, max(at, size - 1), True  # the last byte may be a carriage return

    def _whole(
        self, data: bytearray, size: int, at: int, line: int, *, final: bool
    ) -> re.Match[bytes] | None:
        """Return the cell that begins at `at`, None if its end is not there yet."""
        found = self._cell.match(data, at, size)
        if found is None:
            content = _CONTENT.match(data, at + 1, size)
            if content and content.end() - content.start() > self._limit:
                raise self._too_long(data, at, line)
            if final:
                raise self._unclosed(data, at, line, "is never closed")
            return None
        if not found[3] and not final:
            return None
        if found[1] is not None:
            self._check_closed(data, found, line)
        return found

    def _check_closed(self, data: bytearray, found: re.Match[bytes], line: int) -> None:
        begin, end = found.span(1)
        if end - begin > self._limit:
            raise self._too_long(data, begin - 1, line)
        if _misplaced(data, found) is _STRAY_QUOTE and data.find(b"\n", begin, end) >= 0:
            raise self._unclosed(data, begin - 1, line, "is closed on a later line, in the middle of a cell")

    def _too_long(self, data: bytearray, at: int, line: int) -> DamagedFileError:
        return self._unclosed(data, at, line, f"is not closed within max_record_bytes = {self._limit}")

    def _unclosed(self, data: bytearray, at: int, line: int, why: str) -> DamagedFileError:
        """Return the error for a quote that swallows what follows."""
        line += data.count(b"\n", 0, at) + 1
        return damaged(
            self._file,
            f"the quote that opens a cell on line {line} {why}, so that it is unknown where records end; "
            'expected a quote before the next delimiter or end of line, and "" for a quote in a cell '
            "(`source.max_record_bytes` is the longest cell)",
            line=line,
        )


def _misplaced(data: bytearray, found: re.Match[bytes]) -> Fault | None:
    """Return what is wrong with the quotes or carriage returns of a cell."""
    quoted = found[1] is not None
    start, stop = found.start(2) if quoted else found.start(), found.start(3)
    last = stop - (found[3] == b"\n" and stop > start and data[stop - 1] == _RETURN)
    if quoted and last > start and (found[3] or bytes(data[start:last]) != b"\r"):
        return _STRAY_QUOTE
    if not quoted and data.find(b'"', start, last) >= 0:
        return _STRAY_QUOTE
    return _BARE_RETURN if data.find(b"\r", start, last) >= 0 else None


def _worse(a: Fault | None, b: Fault | None) -> Fault | None:
    return _STRAY_QUOTE if _STRAY_QUOTE in (a, b) else a or b
