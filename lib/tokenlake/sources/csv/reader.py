"""CSV and TSV as RFC 4180 has them: a header, cells of text, quotes where they are needed.

Every cell stays the text it is: nothing is taken for a number, a date or a null, and an empty cell is the
empty string. Rows have as many cells as the header; blank lines are passed over, also where there is one
column (writers quote an empty cell there). A row in which a quote or carriage return stands where none may
is a bad record, however other readers would mend it: they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.faults import Fault
from tokenlake.predicate.where import Predicate
from tokenlake.rows import Rows
from tokenlake.sources.arrays import Int64s
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.csv.blocks import MOST_CELLS, Layout, LongRecord, read_records
from tokenlake.sources.csv.cells import Records, column, faults, index_records, record_too_long
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.parsed import BadLine, Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.want import Want

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
