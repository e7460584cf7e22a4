"""Plain text: a file that is one document, or a document on every line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import is_utf8, no_text, offsets_of, select, text_over
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadLine, Fault, too_long
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import unsuitable
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.line_records import index_lines, long_record
from tokenlake.etl.sources.lines import BOM, SCAN_BYTES, LineBlock, LongLine, parsed_blocks, read_blocks
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.text_checks import check_text
from tokenlake.etl.sources.where import Predicate

_ARROW: Final[Any] = pa  # whose stub of RecordBatch knows no schema


def read_text(part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None) -> Iterator[Parsed]:
    """Read a file as one document, or its lines, as its `text_mode` says; its one column is ``text``.

    Raises:
        DamagedFileError: it is no text in UTF-8, or a column other than ``text`` is wanted.
    """
    wanted = want.names((want.plain,))
    if others := [name for name in wanted if name != want.plain]:
        told = f"it has no column {others[0]!r}; text files have one column, {want.plain!r}"
        raise unsuitable(part.file, told, "name that column")
    check_text(data)
    limit = want.max_record_bytes
    if part.file.text_mode == "lines":
        blocks = parsed_blocks(
            read_blocks(part, data, limit, want.block_bytes),
            lambda line: _long_line(line, limit),
            lambda block: iter([_text_lines(block, limit)]),
        )
    else:
        blocks = iter([_document(part, data, limit)])
    return (_with_column(block, want) for block in blocks) if wanted else blocks


def _with_column(parsed: Parsed, want: Want) -> Parsed:
    schema = pa.schema([(want.plain, pa.large_string())])
    rows = _ARROW.RecordBatch.from_arrays([parsed.text], schema=schema)
    return replace(parsed, rows=Rows(rows), text=None if want.text is None else parsed.text)


def _document(part: FileRange, source: InputBytes, max_record_bytes: int) -> Parsed:
    """Read a whole file as one text; line ends stay as they are, a byte order mark goes."""
    if part.file.compression is None:
        data = bytearray(min(part.file.size, max_record_bytes + 1))
        with memoryview(data) as view:
            got = source.read_into(view, 0)
        data = data[:got] if got < len(data) else data
    else:
        stream, data = ByteStream(source), bytearray()
        while chunk := stream.read(SCAN_BYTES):
            if len(data) <= max_record_bytes:  # what is beyond is read all the same: the stream must end well
                data += chunk

    skip = len(BOM) if data.startswith(BOM) else 0
    text = text_over(np.array([0, len(data) - skip]), pa.py_buffer(data).slice(skip))
    fault = _fault(text, "file", nul=b"\0" in data)
    if len(data) > max_record_bytes:
        told = f"the file has more than max_record_bytes = {max_record_bytes} bytes"
        fault = Fault("document_too_long", told)
    return Parsed(
        text=text[:0] if fault else text,
        positions=np.zeros(0 if fault else 1, np.int64),
        bad=(BadLine(0, None, fault, bytes(data[:RAW_LIMIT])),) if fault else (),
        normalized={"bom": int(skip > 0)},
        bytes_read=part.weight,
    )


def _text_lines(block: LineBlock, max_record_bytes: int) -> Parsed:
    """Return every line that is not empty as a text, without its end of line."""
    lines, data = index_lines(block), memoryview(block.data)
    sizes = lines.stops - lines.starts
    spans = zip(lines.starts.tolist(), lines.stops.tolist(), strict=True)
    joined = b"".join([data[start:stop] for start, stop in spans])
    text = text_over(offsets_of(sizes), pa.py_buffer(joined))
    nul = block.data.find(b"\0", 0, block.size) >= 0
    faults: dict[int, Fault] = {}
    if nul or (sizes > max_record_bytes).any() or not is_utf8(text):
        for index, line in enumerate(lines):
            fault = _fault(text[index : index + 1], "line", nul=b"\0" in line)
            if len(line) > max_record_bytes:
                fault = too_long(len(line), max_record_bytes)
            if fault:
                faults[index] = fault
        text = select(text, ~np.isin(np.arange(len(lines)), list(faults)))
    return lines.parsed(faults, text=text)


def _long_line(line: LongLine, max_record_bytes: int) -> Parsed:
    record, start, stop = long_record(line)
    if stop == start:
        return record.blank().parsed({}, text=no_text())
    fault, text = too_long(stop - start, max_record_bytes), no_text()
    if line.data is not None and stop - start <= max_record_bytes:
        text = text_over(np.array([0, stop - start]), pa.py_buffer(line.data).slice(start))
        fault = _fault(text, "line", nul=b"\0" in line.data)
    return record.parsed({0: fault} if fault else {}, text=text[:0] if fault else text)


def _fault(text: pa.LargeStringArray, whole: str, *, nul: bool) -> Fault | None:
    if not is_utf8(text):
        return Fault("invalid_utf8", f"the {whole} is not valid UTF-8")
    return Fault("nul_byte", f"the {whole} holds a NUL byte, which is in no text") if nul else None
