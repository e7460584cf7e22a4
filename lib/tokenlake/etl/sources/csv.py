"""CSV and TSV as RFC 4180 has them: a header, cells of text, quotes where they are needed.

Every cell stays the text it is: nothing is taken for a number, a date or a null, and an empty cell is the
empty string. Rows have as many cells as the header; blank lines are passed over, also where there is one
column (writers quote an empty cell there). A row in which a quote or carriage return stands where none may
is a bad record, however other readers would repair it: they differ. Where tabs separate cells, a quote inside of a cell
that does not begin with one is a character like any other.

A file is read as blocks of whole records, in bounded memory, wherever newlines stand in quotes. pyarrow reads the
cells, but accepts silently what the standard forbids. So it is given nothing whose quotes and carriage returns were
not checked: all of a block at once, as is done for nearly every block, or, where one of them is wrong, cell by cell.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as arrow_csv

from tokenlake.base.arrays import Int64s, concat, is_utf8, no_text, text_over
from tokenlake.errors import ConfigError, DamagedFileError
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadLine, Fault
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.contents import HEAD_BYTES, check_records
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, no_column, unsuitable
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.lines import BOM
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.where import Predicate

_BLOCK_BYTES: Final = 1 << 22  # what is made of it stays in the processor's cache
_LEAST_BLOCK: Final = 64 << 10
_STEP_BYTES: Final = 1 << 20
_CHUNK: Final = 1 << 17
_FRAME: Final = 2  # carriage return and newline are not part of a record
MOST_COLUMNS: Final = 1 << 17
"""Columns of a file; each costs some kilobytes of memory for every block that is read."""

_DELIMITERS: Final = (";", "\t", ",", "|")
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'
_TAB: Final = ord("\t")
_CONTENT: Final = re.compile(rb'(?:[^"]++|"")*+')
_NUL_BYTE: Final = Fault("nul_byte", "a cell holds a NUL byte")
_BARE_RETURN: Final = Fault("bare_return", "a carriage return without a newline stands outside of quotes")
_STRAY_QUOTE: Final = Fault(
    "stray_quote", 'a quote stands inside a cell; expected a quoted cell and "" in it'
)
_ARROW: Final[Any] = pa
_CSV: Final[Any] = arrow_csv  # the stubs know few of the options


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
    """Whole records: the bytes that begin with them, the newlines before, the input bytes since the last block.

    Of a record that is over the limit, and is a block by itself, only the first 64 KiB are there.
    """

    data: bytearray
    line: int
    bytes_read: int
    bom: bool
    split: CsvSplit


def read_csv(part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None) -> Iterator[Parsed]:
    """Read the records of a file.

    Raises:
        DamagedFileError: there is no header, it names a column twice or lacks a wanted one, a quote is not
            closed, the file is UTF-16, or its compressed stream is broken.
        ConfigError: the delimiter is not one character of ASCII.
    """
    file, limit = part.file, want.max_record_bytes
    delimiter = want.delimiter or ("\t" if file.format == "tsv" else ",")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise ConfigError(
            f"delimiter: got {delimiter!r}, must be one character of ASCII, not a quote or an end of line",
            file=file.path,
        )
    # In a block that is no larger than the limit no record is over it.
    size = min(_BLOCK_BYTES, want.block_bytes, max(limit, _LEAST_BLOCK))
    stream = CsvStream(file, ByteStream(data), ord(delimiter), limit, size)
    blocks = stream.blocks()
    headers = ((_header(file, block, want, delimiter), block) for block in blocks)
    header, first = next((found for found in headers if found[0]), ((), None))
    if first is None:
        raise unsuitable(file, "it is empty, expected at least a header", "write it again")
    table, row = _Table(header, want, stream), 0

    def parsed(block: CsvBlock) -> Parsed:
        nonlocal row
        found = table.parsed(block, row)
        row += len(found) + len(found.bad)
        return found

    yield parsed(first._replace(data=bytearray(), split=first.split._replace(size=0, records=[])))
    yield from map(parsed, blocks)


def _header(file: InputFile, block: CsvBlock, want: Want, delimiter: str) -> tuple[str, ...]:
    """Return the names of the columns, () for a block of blank lines."""
    if not block.split.records:
        return ()
    record, whole = block.split.records[0], bytes(block.data[: block.split.size])
    line, cells = block.line + 1 + block.data.count(b"\n", 0, record.start), record.cells
    if cells > MOST_COLUMNS:
        told = f"its header (line {line}) has {cells} columns, more than {MOST_COLUMNS}"
        raise unsuitable(file, told, "keep fewer columns, or write a row as JSON", line=line)
    fault = _fault(block.data, record, cells, want.max_record_bytes)
    if fault:
        told = f"its header (line {line}) cannot be used: {fault.detail}"
        raise unsuitable(file, told, "correct the header", line=line)

    read = _read_cells(pa.py_buffer(whole), ord(delimiter), cells, list(map(str, range(cells))))
    names = tuple(str(cell[0]) for cell in read or ())
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        told = f"its header names columns twice: {', '.join(map(repr, twice))}"
        raise unsuitable(file, told, "give its columns different names", line=line)
    if len(names) == 1 and (other := _likely_delimiter(names[0], want.delimiter, delimiter)) is not None:
        told = f"its header is one column, {names[0]!r}; {other!r} seems to separate its cells, not {delimiter!r}"
        how = f"set delimiter: {json.dumps(other)} (delimiter: {json.dumps(delimiter)}, if it is one column)"
        raise unsuitable(file, told, how, line=line)
    there = frozenset(names)
    for name in (*want.names(names), *(() if want.text is None else (want.text,))):
        if name not in there:
            if (other := _delimiter_beside(name, names, delimiter)) is not None:
                told = f"it has no column {name!r}; {other!r} seems to separate its cells, not {delimiter!r}"
                raise unsuitable(file, told, f"set delimiter: {json.dumps(other)}", line=line)
            raise no_column(
                file, name, list(map(repr, names)), " (content_field)" if name == want.text else ""
            )
    return names


def _likely_delimiter(header: str, declared: str | None, delimiter: str) -> str | None:
    """Return what separates the cells of a header that is one column, None where it may be one.

    Args:
        declared: the delimiter that the configuration names, None for none.
        delimiter: the one that was used.
    """
    if declared is not None:
        return None
    others = [other for other in _DELIMITERS if other != delimiter and other in header]
    return max(others, key=header.count, default=None)


def _delimiter_beside(name: str, names: Sequence[str], delimiter: str) -> str | None:
    """Return what else would make a column `name` of one of the names of a header, None for nothing."""
    for cell in names:
        for other in _DELIMITERS:
            if other != delimiter and other in cell and name in cell.split(other):
                return other
    return None


def _fault(data: bytearray, record: CsvRecord, columns: int, limit: int) -> Fault | None:
    """Return what is wrong with a record of a table of so many columns."""
    raw, size = memoryview(data)[record.start : record.stop], record.stop - record.start
    if size > limit:
        return Fault("record_too_long", f"the row has {size} bytes, max_record_bytes is {limit}")
    if not _is_utf8(raw, size):
        return Fault("invalid_utf8", "the row is not valid UTF-8")
    if data.find(b"\0", record.start, record.stop) >= 0:
        return _NUL_BYTE
    if record.fault or record.cells == columns:
        return record.fault
    return Fault("ragged_row", f"the row has {record.cells} cells, the header has {columns}")


def _is_utf8(data: bytearray | memoryview, size: int) -> bool:
    return is_utf8(text_over(np.array([0, size]), _ARROW.py_buffer(data)))


@final
class _Table:
    """The columns of a file, and which of them are wanted."""

    def __init__(self, header: tuple[str, ...], want: Want, stream: CsvStream) -> None:
        self._header, self._stream, self._text = header, stream, want.text
        self._names = None if want.columns == () else want.names(header)
        self._read = (*(self._names or ()), *(() if want.text is None else (want.text,))) or header[:1]
        # pyarrow knows the columns by their numbers.
        numbers = {name: str(number) for number, name in enumerate(header)}
        self._numbers = [numbers[name] for name in self._read]

    def parsed(self, block: CsvBlock, row: int) -> Parsed:
        """Return the records of a block, the first of which has the number `row`."""
        split, faults = block.split, dict[int, Fault]()
        whole = pa.py_buffer(block.data).slice(0, split.size)
        found = self._columns(whole) if split.records is None else None
        if found is None:
            records = self._stream.records_of(block)
            columns, limit = len(self._header), self._stream.limit
            judged = enumerate(_fault(block.data, record, columns, limit) for record in records)
            if faults := {index: fault for index, fault in judged if fault}:
                good = [block.data[it.start : it.stop] for at, it in enumerate(records) if at not in faults]
                whole = pa.py_buffer(b"\n".join([*good, b""]))
            found = self._columns(whole)
            assert found is not None, "each of these records has as many cells as the header"
        rows = None
        if self._names is not None:
            schema = pa.schema([(name, pa.large_string()) for name in self._names])
            rows = Rows(_ARROW.RecordBatch.from_arrays([found[name] for name in self._names], schema=schema))
        count = len(found[self._read[0]]) + len(faults)
        return Parsed(
            text=None if self._text is None else found[self._text],
            rows=rows,
            positions=np.delete(np.arange(row, row + count), list(faults)),
            bad=self._bad(block, faults, row),
            normalized={"bom": int(block.bom), "crlf": split.crlf, "blank_line": split.blank},
            bytes_read=block.bytes_read,
            as_bad=lambda position, fault: self._bad(block, {position - row: fault}, row)[0],
        )

    def _columns(self, data: pa.Buffer) -> dict[str, pa.LargeStringArray] | None:
        """Return the wanted cells of records whose quotes are right, None if the numbers of cells differ."""
        if not data.size:
            return {name: no_text() for name in self._read}
        found = _read_cells(data, self._stream.delimiter, len(self._header), self._numbers)
        return None if found is None else dict(zip(self._read, found, strict=True))

    def _bad(self, block: CsvBlock, faults: dict[int, Fault], row: int) -> tuple[BadLine, ...]:
        bad: list[BadLine] = []
        records = self._stream.records_of(block) if faults else []
        line, at = block.line + 1, 0
        for index, fault in faults.items():
            start, stop, *_ = records[index]
            line, at = line + block.data.count(b"\n", at, start), start
            raw = bytes(block.data[start : min(stop, start + RAW_LIMIT)])
            told = replace(fault, detail=f"{fault.detail} (line {line})")
            bad.append(BadLine(row + index, None, told, raw))
        return tuple(bad)


def _read_cells(
    data: pa.Buffer, delimiter: int, columns: int, wanted: list[str]
) -> list[pa.LargeStringArray] | None:
    """Return the cells of the columns of those numbers; None if a record has not so many cells as there are columns."""
    names = list(map(str, range(columns)))
    try:
        table = _CSV.read_csv(
            _ARROW.BufferReader(data),
            _CSV.ReadOptions(column_names=names, use_threads=False, block_size=data.size + 1),
            _CSV.ParseOptions(delimiter=chr(delimiter), newlines_in_values=True),
            _CSV.ConvertOptions(
                check_utf8=False,
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.large_string()),
            ),
        )
    except pa.ArrowInvalid:
        return None
    return [concat(column.chunks or [no_text()]) for column in table.columns]


@final
class CsvStream:
    """The records of a file in blocks, in order: the header alone, then as many as fit.

    Where the quotes of a block are not all right, it is split cell by cell. A quote opens a cell only as its first
    byte. In an unquoted cell it is stray, except between tabs. After a quote that closes a cell a delimiter or a
    newline must follow; if anything else does, that quote is stray, and the cell goes on, unquoted. But where such a
    cell began on an earlier line, nobody knows where records end: its quote counts as unclosed. So does that of a cell
    over the `limit`.
    """

    def __init__(
        self, file: InputFile, stream: ByteStream, delimiter: int, limit: int, block_bytes: int
    ) -> None:
        self._file, self._stream, self._block_bytes = file, stream, block_bytes
        self.delimiter, self.limit = delimiter, limit
        # Cells between tabs need no quotes, so that one inside of a cell is a character like others: 12" vinyl.
        self._has_literal_quotes = delimiter == _TAB
        stop = re.escape(bytes([delimiter]))
        rest, end = b"[^" + stop + b"\n]*+", b"([" + stop + b"\n]|\\Z)"
        self._cell = re.compile(b'(?:"((?:[^"]++|"")*+)"(' + rest + b')|(?!")' + rest + b")" + end)
        self._within = re.compile(b"()()" + rest + end)

        head = stream.read(HEAD_BYTES)
        check_records(file, head)
        self._bom = head.startswith(BOM)
        head = head.removeprefix(BOM)
        # Blocks are read to the same place: fresh memory costs more than what is done to it.
        self._data = bytearray(head.ljust(block_bytes))
        self._size, self._line, self._final = len(head), 0, False

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the block of the header, before which there may be blank lines, and those of the other records.

        Raises:
            DamagedFileError: the stream is broken, or a quote is not closed.
        """
        header = whole = True
        while self._size or not self._final:
            # Of a record that is longer than a block twice as much is read each time.
            room = max(self._block_bytes, 0 if whole else 2 * self._size)
            if self._size < room:
                self._more(room - self._size)
            split = None
            if not header and 0 < self._size <= min(self._block_bytes, self.limit):
                split = _split_if_strict(self._data, self._size, self.delimiter, final=self._final)
            if split is None:
                split = self._split(
                    self._data, self._size, self._line, 1 if header else -1, final=self._final
                )
            whole = split.size > 0 and (not header or bool(split.records) or self._final)
            if whole:
                block = CsvBlock(self._data, self._line, self._stream.consumed(), self._bom, split)
                self._line, self._bom, header = self._line + split.newlines, False, False
                yield block
                self._drop(split.size)
            elif not self._final and self._size > self.limit + _FRAME:
                header, whole = False, True
                yield self._pass_over()

    def records_of(self, block: CsvBlock) -> list[CsvRecord]:
        """Return the records of a block of these."""
        found = block.split.records
        if found is None:
            found = self._split(block.data, block.split.size, block.line, final=True).records
        return found or []

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
        self._size = len(rest)

    def _pass_over(self) -> CsvBlock:
        """Read to the end of a record that is over the limit; nothing is held of it but a cell in quotes."""
        head, line, passed, within = bytes(self._data[: min(self._size, RAW_LIMIT)]), self._line, 0, False
        while True:
            data = self._data
            end, at, within = self._end_of_record(within=within)
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
        held = bytearray(head[:size])
        split = CsvSplit(len(held), 0, int(crlf), 0, [CsvRecord(0, size, 0, None)])
        return CsvBlock(held, line, self._stream.consumed(), False, split)

    def _end_of_record(self, *, within: bool) -> tuple[int | None, int, bool]:
        """Return where the record ends that the held bytes begin with, and the next one begins.

        Where it goes on, the first is None; then it is said how many bytes are needed no more, and whether what is
        left lies `within` a cell without quotes.
        """
        data, size, line, final, at = self._data, self._size, self._line, self._final, 0
        while True:
            found = self._within.match(data, at, size) if within else self._cell.match(data, at, size)
            if not found or not (found[3] or final):
                break
            if not within:
                self._whole(data, size, at, line, final=final)
            at, within = found.end(), False
            if found[3] == b"\n" or not found[3]:
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

    def _split(self, data: bytearray, size: int, line: int, most: int = -1, *, final: bool) -> CsvSplit:
        """Return the first `most` records of `data`, all by default, as far as they are whole.

        `line` newlines are before `data`, and nothing follows it if it is `final`; DamagedFileError for an open quote.
        """
        records: list[CsvRecord] = []
        start = at = cells = crlf = blank = 0
        fault: Fault | None = None
        while len(records) != most and (at < size or (final and cells)):
            found = self._whole(data, size, at, line, final=final)
            if found is None:
                break
            at, cells = found.end(), cells + 1
            wrong = self._misplaced(data, found)
            fault = _STRAY_QUOTE if _STRAY_QUOTE in (fault, wrong) else fault or wrong
            if found[3] and found[3] != b"\n":  # a delimiter
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

    def _whole(
        self, data: bytearray, size: int, at: int, line: int, *, final: bool
    ) -> re.Match[bytes] | None:
        """Return the cell that begins at `at`, None if its end is not there yet."""
        found = self._cell.match(data, at, size)
        if found is None:
            content = _CONTENT.match(data, at + 1, size)
            if content and content.end() - content.start() > self.limit:
                raise self._unclosed(data, at, line, f"is not closed within max_record_bytes = {self.limit}")
            if final:
                raise self._unclosed(data, at, line, "is never closed")
            return None
        if not found[3] and not final:
            return None
        if found[1] is not None:
            self._check_closed(data, found, line)
        return found

    def _misplaced(self, data: bytearray, found: re.Match[bytes]) -> Fault | None:
        """Return what is wrong with the quotes or carriage returns of a cell."""
        quoted = found[1] is not None
        start, stop = found.start(2) if quoted else found.start(), found.start(3)
        last = stop - (found[3] == b"\n" and stop > start and data[stop - 1] == _RETURN)
        if quoted and last > start and (found[3] or bytes(data[start:last]) != b"\r"):
            return _STRAY_QUOTE
        if not quoted and not self._has_literal_quotes and data.find(b'"', start, last) >= 0:
            return _STRAY_QUOTE
        return _BARE_RETURN if data.find(b"\r", start, last) >= 0 else None

    def _check_closed(self, data: bytearray, found: re.Match[bytes], line: int) -> None:
        begin, end = found.span(1)
        if end - begin > self.limit:
            why = f"is not closed within max_record_bytes = {self.limit}"
            raise self._unclosed(data, begin - 1, line, why)
        if self._misplaced(data, found) is _STRAY_QUOTE and data.find(b"\n", begin, end) >= 0:
            raise self._unclosed(data, begin - 1, line, "is closed on a later line, in the middle of a cell")

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


def _split_if_strict(data: bytearray, size: int, delimiter: int, *, final: bool) -> CsvSplit | None:
    """Return the account of whole records, None unless every quote and carriage return stands where one may.

    If that is so, every other quote opens: it is a cell's first byte, or follows one as its double. The quote after it
    closes: a cell ends behind it, or there is its double.
    """
    quotes = _places(np.frombuffer(data, np.uint8, size), _QUOTE)
    if not final:
        # The last record that is whole has an even number of quotes before its end. Where it has not, that end lies in
        # a cell in quotes: no line of that cell ends a record, nor one before a double quote in it.
        size = data.rfind(b"\n", 0, size) + 1
        while (before := int(np.searchsorted(quotes, size))) % 2:
            size = data.rfind(b"\n", 0, int(quotes[before - 1])) + 1
    quotes = quotes[: np.searchsorted(quotes, size)]
    if not size or data.find(b"\0", 0, size) >= 0 or not _is_utf8(data, size):
        return None

    view, last = np.frombuffer(data, np.uint8, size), size - 1
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
