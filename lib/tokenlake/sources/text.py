"""Plain text: a file as one document, or every line a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import is_utf8, select, text_over
from tokenlake.sources.batch import RAW_LIMIT, BadLine, Parsed, Want
from tokenlake.sources.inputs import FileRange, InputBytes
from tokenlake.sources.lines import (
    BOM,
    LineBlock,
    LineIndex,
    LongLine,
    index_lines,
    parsed_blocks,
    read_blocks,
)
from tokenlake.sources.rows import Fault, Rows, too_long
from tokenlake.sources.stream import ByteStream, check_column, check_text
from tokenlake.sources.where import Predicate

_CHUNK: Final = 1 << 20
_RECORD_BATCH: Final[Any] = pa.RecordBatch  # its stub knows no schema


def read_text(part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None) -> Iterator[Parsed]:
    """Read a file as one document, or its lines, as its `text_mode` says; its one column is ``text``.

    Raises:
        DamagedFileError: it is no text in UTF-8, or a column other than ``text`` is wanted.
    """
    check_column(part.file, want)
    check_text(data)
    if part.file.text_mode == "lines":
        lines = read_blocks(part, data, want.max_record_bytes, want.block_bytes)
        blocks = read_lines(lines, want.max_record_bytes)
    else:
        blocks = iter([read_document(part, data, want.max_record_bytes)])
    wanted = want.names((want.plain,))
    return (_with_column(block, want) for block in blocks) if wanted else blocks


def _with_column(parsed: Parsed, want: Want) -> Parsed:
    schema = pa.schema([(want.plain, pa.large_string())])
    rows = _RECORD_BATCH.from_arrays([parsed.text], schema=schema)
    return replace(parsed, rows=Rows(rows), text=None if want.text is None else parsed.text)


def read_document(part: FileRange, source: InputBytes, max_record_bytes: int) -> Parsed:
    """Read a whole file as one text; line ends stay as they are, a byte order mark goes."""
    data = _read_whole(part, source, max_record_bytes)
    skip = len(BOM) if data.startswith(BOM) else 0
    text = text_over(np.array([0, len(data) - skip]), pa.py_buffer(data).slice(skip))
    too_big = Fault(
        "document_too_long", f"the file has more than max_record_bytes = {max_record_bytes} bytes"
    )
    fault = too_big if len(data) > max_record_bytes else _fault(text, "file", nul=b"\0" in data)
    return Parsed(
        text=text[:0] if fault else text,
        positions=np.zeros(0 if fault else 1, np.int64),
        bad=(BadLine(0, None, fault, bytes(data[:RAW_LIMIT])),) if fault else (),
        normalized={"bom": int(skip > 0)},
        bytes_read=part.weight,
    )


def _read_whole(part: FileRange, source: InputBytes, limit: int) -> bytes | bytearray:
    if part.file.compression is None:
        data = bytearray(min(part.file.size, limit + 1))
        with memoryview(data) as view:
            got = source.read_into(view, 0)
        return data[:got] if got < len(data) else data
    stream, data = ByteStream(source), bytearray()
    while chunk := stream.read(_CHUNK):
        if len(data) <= limit:  # what is beyond is read all the same: the stream must end well
            data += chunk
    return data


def read_lines(blocks: Iterator[LineBlock | LongLine], max_record_bytes: int) -> Iterator[Parsed]:
    """Read every line that is not empty as a text, without its end of line."""
    return parsed_blocks(
        blocks,
        lambda line: _long_line(line, max_record_bytes),
        lambda block: iter([_lines(block, max_record_bytes)]),
    )


def _lines(block: LineBlock, max_record_bytes: int) -> Parsed:
    lines = index_lines(block)
    text = _join(block, lines)
    bad: list[BadLine] = []
    positions = lines.positions(block)
    sizes = lines.stops - lines.starts
    nul = block.data.find(b"\0", 0, block.size) >= 0
    if nul or (sizes > max_record_bytes).any() or not is_utf8(text):
        bad = _bad_lines(block, lines, text, max_record_bytes)
        keep = ~np.isin(positions, [line.position for line in bad])
        text, positions = select(text, keep), positions[keep]
    return Parsed(
        text=text,
        positions=positions,
        bad=tuple(bad),
        normalized={"bom": lines.bom, "crlf": lines.crlf, "blank_line": lines.blank},
        bytes_read=block.bytes_read,
        lines=lines.count,
        as_bad=lambda position, fault: _bad_line(block, lines, position, fault),
    )


def _join(block: LineBlock, lines: LineIndex) -> pa.LargeStringArray:
    """Return the lines' contents laid end to end; not validated."""
    data = memoryview(block.data)
    spans = zip(lines.starts.tolist(), lines.stops.tolist(), strict=True)
    joined = b"".join([data[start:stop] for start, stop in spans])
    offsets = np.zeros(len(lines.starts) + 1, np.int64)
    np.cumsum(lines.stops - lines.starts, out=offsets[1:])
    return text_over(offsets, pa.py_buffer(joined))


def _bad_lines(
    block: LineBlock, lines: LineIndex, text: pa.LargeStringArray, max_record_bytes: int
) -> list[BadLine]:
    bad: list[BadLine] = []
    positions = lines.positions(block)
    for index in range(len(text)):
        start, stop = int(lines.starts[index]), int(lines.stops[index])
        fault = _fault(text[index : index + 1], "line", nul=block.data.find(b"\0", start, stop) >= 0)
        if stop - start > max_record_bytes:
            fault = too_long(stop - start, max_record_bytes)
        if fault:
            bad.append(_bad_line(block, lines, int(positions[index]), fault))
    return bad


def _bad_line(block: LineBlock, lines: LineIndex, position: int, fault: Fault) -> BadLine:
    index = int(np.searchsorted(lines.positions(block), position))
    start, stop = int(lines.starts[index]), int(lines.stops[index])
    return BadLine(position, int(lines.numbers[index]), fault, block.data[start:stop][:RAW_LIMIT])


def _long_line(line: LongLine, max_record_bytes: int) -> Parsed:
    data = line.data if line.data is not None else bytearray(line.head)
    skip = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    crlf = int(data.endswith(b"\r\n"))
    size = line.size - skip - int(data.endswith(b"\n")) - crlf
    text = text_over(np.array([0, min(size, len(data) - skip)]), pa.py_buffer(data).slice(skip))
    too_big = line.data is None or size > max_record_bytes
    fault = too_long(size, max_record_bytes) if too_big else _fault(text, "line", nul=b"\0" in data)
    kept = int(fault is None and size > 0)
    return Parsed(
        text=text[:kept],
        positions=np.full(kept, line.offset, np.int64),
        bad=(BadLine(line.offset, 0, fault, line.head),) if fault else (),
        normalized={"bom": int(skip > 0), "crlf": crlf, "blank_line": int(size == 0)},
        bytes_read=line.bytes_read,
        lines=1,
        as_bad=lambda position, fault: BadLine(position, 0, fault, line.head),
    )


def _fault(text: pa.LargeStringArray, whole: str, *, nul: bool) -> Fault | None:
    if not is_utf8(text):
        return Fault("invalid_utf8", f"the {whole} is not valid UTF-8")
    return Fault("nul_byte", f"the {whole} holds a NUL byte, which is in no text") if nul else None
