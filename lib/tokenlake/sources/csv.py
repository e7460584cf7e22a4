"""CSV and TSV as RFC 4180 has them: a header, cells of text, quotes where they are needed.

Every cell stays the text it is: nothing is taken for a number, a date or a null, and an empty cell is the
empty string. Rows have as many cells as the header; blank lines are passed over, also where there is one
column (writers quote an empty cell there). A row in which a quote or carriage return stands where none may
is a bad record, however other readers would repair it: they differ.

pyarrow reads the cells, but accepts silently what the standard forbids. So it is given nothing whose quotes and
carriage returns were not checked: all of a block at once, or, where one of them is wrong, cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from tokenlake.arrays import concat, is_utf8, no_text, text_over
from tokenlake.errors import ConfigError, DamagedFileError
from tokenlake.sources.batch import RAW_LIMIT, BadLine, Parsed, Want
from tokenlake.sources.csv_blocks import (
    BLOCK_BYTES,
    CellSplitter,
    CsvBlock,
    CsvRecord,
    CsvStream,
    Dialect,
    OversizedRecord,
)
from tokenlake.sources.inputs import FileRange, InputBytes, InputFile, damaged
from tokenlake.sources.rows import Fault, Rows
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.where import Predicate

_LEAST_BLOCK: Final = 64 << 10
_NOT_A_DELIMITER: Final = frozenset('"\r\n\0')
_NUL_BYTE: Final = Fault("nul_byte", "a cell holds a NUL byte")
_NOT_UTF8: Final = Fault("invalid_utf8", "the row is not valid UTF-8")
_ARROW: Final[Any] = pa
_CSV: Final[Any] = arrow_csv  # the stubs know few of the options


def read_csv(part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None) -> Iterator[Parsed]:
    """Read the records of a file.

    Raises:
        DamagedFileError: there is no header, it names a column twice or lacks a wanted one, a quote is not
            closed, the file is UTF-16, or its compressed stream is broken.
        ConfigError: the delimiter is not one character of ASCII.
    """
    limit = want.max_record_bytes
    # In a block that is no larger than the limit no record is over it.
    size = min(BLOCK_BYTES, want.block_bytes, max(limit, _LEAST_BLOCK))
    dialect = Dialect(delimiter=_delimiter(part.file, want), max_record_bytes=limit, block_bytes=size)
    return parse_csv(part.file, ByteStream(data), want, dialect)


def parse_csv(file: InputFile, stream: ByteStream, want: Want, dialect: Dialect) -> Iterator[Parsed]:
    """Parse a stream of CSV."""
    cells = CellSplitter(file, dialect)
    blocks = CsvStream(file, stream, dialect, cells).blocks()
    header, first = next(
        ((header, block) for block in blocks if (header := _header(file, block, want, dialect))), ((), None)
    )
    if not isinstance(first, CsvBlock):
        raise damaged(file, "it is empty, expected at least a header")
    table, row = _Table(header, want, dialect, cells), 0
    alone = first._replace(data=bytearray(), split=first.split._replace(size=0, records=[]))

    def parsed(block: CsvBlock | OversizedRecord) -> Parsed:
        nonlocal row
        oversized = isinstance(block, OversizedRecord)
        found = _oversized(block, row, dialect) if oversized else table.parsed(block, row)
        row += len(found) + len(found.bad)
        return found

    yield table.parsed(alone, 0)
    yield from map(parsed, blocks)


def _delimiter(file: InputFile, want: Want) -> int:
    text = want.delimiter or ("\t" if file.format == "tsv" else ",")
    if len(text) != 1 or not text.isascii() or text in _NOT_A_DELIMITER:
        raise ConfigError(
            f"delimiter: got {text!r}, must be one character of ASCII, not a quote or an end of line",
            file=file.path,
        )
    return ord(text)


def _fault(data: bytearray, record: CsvRecord, columns: int, limit: int) -> Fault | None:
    """Return what is wrong with a record of a table of so many columns."""
    raw = memoryview(data)[record.start : record.stop]
    if len(raw) > limit:
        return _too_long(len(raw), limit)
    if not is_utf8(text_over(np.array([0, len(raw)]), _ARROW.py_buffer(raw))):
        return _NOT_UTF8
    if data.find(b"\0", record.start, record.stop) >= 0:
        return _NUL_BYTE
    if record.fault or record.cells == columns:
        return record.fault
    return Fault("ragged_row", f"the row has {record.cells} cells, the header has {columns}")


def _too_long(size: int, limit: int) -> Fault:
    return Fault("record_too_long", f"the row has {size} bytes, max_record_bytes is {limit}")


@final
class _Table:
    """The columns of a file, and which of them are wanted."""

    def __init__(self, header: tuple[str, ...], want: Want, dialect: Dialect, cells: CellSplitter) -> None:
        self._header, self._dialect, self._cells = header, dialect, cells
        self._text = want.text
        self._names = None if want.columns == () else want.names(header)
        self._read = (*(self._names or ()), *(() if want.text is None else (want.text,))) or header[:1]

    def parsed(self, block: CsvBlock, row: int) -> Parsed:
        """Return the records of a block, the first of which has the number `row`."""
        whole = pa.py_buffer(block.data).slice(0, block.split.size)
        found = self._columns(whole) if block.split.records is None else None
        faults: dict[int, Fault] = {}
        if found is None:
            records = self._records(block)
            faults = self._faults(block, records)
            if faults:
                good = [block.data[it.start : it.stop] for at, it in enumerate(records) if at not in faults]
                whole = pa.py_buffer(b"\n".join([*good, b""]))
            found = self._columns(whole)
            assert found is not None, "each of these records has as many cells as the header"
        count = len(found[self._read[0]]) + len(faults)
        split = block.split
        return Parsed(
            text=None if self._text is None else found[self._text],
            rows=None if self._names is None else self._rows(found),
            positions=np.delete(np.arange(row, row + count), list(faults)),
            bad=self._bad(block, faults, row),
            normalized={"bom": int(block.bom), "crlf": split.crlf, "blank_line": split.blank},
            bytes_read=block.bytes_read,
            as_bad=lambda position, fault: self._bad(block, {position - row: fault}, row)[0],
        )

    def _columns(self, data: pa.Buffer) -> dict[str, pa.LargeStringArray] | None:
        """Return the wanted cells of records whose quotes are right, None if the numbers of cells differ."""
        numbers = {name: str(self._header.index(name)) for name in self._read}
        if not data.size:
            return {name: no_text() for name in numbers}
        found = read_cells(data, self._dialect.delimiter, len(self._header), list(numbers.values()))
        return None if found is None else dict(zip(numbers, found, strict=True))

    def _rows(self, found: dict[str, pa.LargeStringArray]) -> Rows:
        schema = pa.schema([(name, pa.large_string()) for name in self._names or ()])
        arrays = [found[name] for name in self._names or ()]
        return Rows(_ARROW.RecordBatch.from_arrays(arrays, schema=schema))

    def _records(self, block: CsvBlock) -> list[CsvRecord]:
        split = block.split
        if split.records is None:
            split = self._cells.split(block.data, split.size, block.line, final=True)
        return split.records or []

    def _faults(self, block: CsvBlock, records: list[CsvRecord]) -> dict[int, Fault]:
        columns, limit = len(self._header), self._dialect.max_record_bytes
        judged = (_fault(block.data, record, columns, limit) for record in records)
        return {index: fault for index, fault in enumerate(judged) if fault}

    def _bad(self, block: CsvBlock, faults: dict[int, Fault], row: int) -> tuple[BadLine, ...]:
        bad: list[BadLine] = []
        records = self._records(block) if faults else []
        line, at = block.line + 1, 0
        for index, fault in faults.items():
            start, stop, *_ = records[index]
            line, at = line + block.data.count(b"\n", at, start), start
            raw = bytes(block.data[start : min(stop, start + RAW_LIMIT)])
            bad.append(BadLine(row + index, None, _at_line(fault, line), raw))
        return tuple(bad)


def read_cells(
    data: pa.Buffer, delimiter: int, columns: int, wanted: list[str]
) -> list[pa.LargeStringArray] | None:
    """Return the cells of the columns of those numbers; None if a record has not so many cells as there are columns."""
    try:
        table = _CSV.read_csv(
            _ARROW.BufferReader(data),
            _CSV.ReadOptions(
                column_names=list(map(str, range(columns))), use_threads=False, block_size=data.size + 1
            ),
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


def _header(
    file: InputFile, block: CsvBlock | OversizedRecord, want: Want, dialect: Dialect
) -> tuple[str, ...]:
    """Return the names of the columns, () for a block of blank lines."""
    line = block.line + 1
    if isinstance(block, OversizedRecord):
        raise _unfit(file, _too_long(block.size, dialect.max_record_bytes), line)
    if not block.split.records:
        return ()
    record = block.split.records[0]
    line += block.data.count(b"\n", 0, record.start)
    if fault := _fault(block.data, record, record.cells, dialect.max_record_bytes):
        raise _unfit(file, fault, line)
    whole = pa.py_buffer(bytes(block.data[: block.split.size]))
    cells = read_cells(whole, dialect.delimiter, record.cells, list(map(str, range(record.cells))))
    names = tuple(str(cell[0]) for cell in cells or ())
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise damaged(file, f"its header names columns twice: {', '.join(map(repr, twice))}", line=line)
    for name in (*want.names(names), *(() if want.text is None else (want.text,))):
        if name not in names:
            raise damaged(file, _no_column(names, name, want, dialect), line=line)
    return names


def _unfit(file: InputFile, fault: Fault, line: int) -> DamagedFileError:
    hint = "; it looks like UTF-16 or no text at all" if fault is _NUL_BYTE else ""
    return damaged(file, f"its header (line {line}) cannot be used: {fault.detail}{hint}", line=line)


def _no_column(names: tuple[str, ...], name: str, want: Want, dialect: Dialect) -> str:
    option = " (content_field)" if name == want.text else ""
    shown = ", ".join(map(repr, names[:20]))
    told = f"it has no column {name!r}{option}; its columns are {shown}"
    if len(names) == 1:
        told += f" (the delimiter is {chr(dialect.delimiter)!r}, set `delimiter` if it is another)"
    return told


def _oversized(record: OversizedRecord, row: int, dialect: Dialect) -> Parsed:
    fault = _at_line(_too_long(record.size, dialect.max_record_bytes), record.line + 1)
    return Parsed(
        text=None,
        positions=np.zeros(0, np.int64),
        bad=(BadLine(row, None, fault, record.head),),
        normalized={"crlf": int(record.crlf)},
        bytes_read=record.bytes_read,
    )


def _at_line(fault: Fault, line: int) -> Fault:
    return replace(fault, detail=f"{fault.detail} (line {line})")
