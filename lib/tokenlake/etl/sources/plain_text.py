"""Plain text: a file that is one document, or a document on every line.

A document has the position 0. A line has the byte offset of its start, from 0, in the
decompressed file. Blank lines are no documents; they are counted with the records
before them.
"""

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
from tokenlake.etl.sources.lines import (
    BOM,
    SCAN_BYTES,
    LineBlock,
    LongLine,
    parsed_blocks,
    read_blocks,
)
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.text_checks import check_text
from tokenlake.etl.sources.where import Predicate

_ARROW: Final[Any] = pa  # whose stub of RecordBatch knows no schema


def read_text(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read a file as one document, or its lines, as its `text_mode` says.

    Its one column is ``text``.

    Raises:
        DamagedFileError: The file is no text in UTF-8, or a column other than ``text``
            is wanted.
    """
    # The only column has the name that the caller chose, and no other can be wanted.
    columns = want.names((want.plain,))
    for name in columns:
        if name != want.plain:
            raise unsuitable(
                part.file,
                f"it has no column {name!r}; text files have one column, {want.plain!r}",
                "name that column",
            )
    # Binary files and UTF-16 are refused as a whole. Otherwise each text is judged.
    check_text(data)
    limit = want.max_record_bytes
    if part.file.text_mode == "lines":
        blocks = parsed_blocks(
            read_blocks(part, data, limit, want.block_bytes),
            lambda line: _parse_long_line(line, limit),
            lambda block: iter([_parse_lines(block, limit)]),
        )
    else:
        blocks = iter([_parse_document(part, data, limit)])
    if not columns:
        return blocks
    return (_with_column(block, want) for block in blocks)


def _with_column(parsed: Parsed, want: Want) -> Parsed:
    """Return texts as rows of one column, too."""
    schema = pa.schema([(want.plain, pa.large_string())])
    text_rows = Rows(_ARROW.RecordBatch.from_arrays([parsed.text], schema=schema))
    if want.text is None:
        return replace(parsed, rows=text_rows, text=None)
    return replace(parsed, rows=text_rows)


def _parse_document(part: FileRange, source: InputBytes, limit: int) -> Parsed:
    """Read a whole file as one text.

    Line ends stay as they are; a byte order mark is left out.

    Args:
        part: The whole file.
        source: The open file.
        limit: Largest size of a document in bytes.
    """
    document_bytes = _read_document(part, source, limit)
    # Only the view is shortened: nothing of a large document is copied.
    mark_size = len(BOM) if document_bytes.startswith(BOM) else 0
    text = text_over(
        np.array([0, len(document_bytes) - mark_size]),
        pa.py_buffer(document_bytes).slice(mark_size),
    )
    fault = _fault_of(text, "file", has_nul=b"\0" in document_bytes)
    if len(document_bytes) > limit:
        fault = Fault(
            "document_too_long",
            f"the file has more than max_record_bytes = {limit} bytes",
        )

    normalized = {"bom": int(mark_size > 0)}
    if fault is None:
        positions = np.zeros(1, np.int64)
        return Parsed(
            text=text,
            positions=positions,
            bad=(),
            normalized=normalized,
            bytes_read=part.weight,
        )
    raw_bytes = bytes(document_bytes[:RAW_LIMIT])
    bad_record = BadLine(0, None, fault, raw_bytes, line=1)
    return Parsed(
        text=text[:0],
        positions=np.zeros(0, np.int64),
        bad=(bad_record,),
        normalized=normalized,
        bytes_read=part.weight,
    )


def _read_document(part: FileRange, source: InputBytes, limit: int) -> bytearray:
    """Return the bytes of a whole file, more than `limit` of them only in part."""
    if part.file.compression is None:
        # One byte more than the limit shows that the file is over it.
        document_bytes = bytearray(min(part.file.size, limit + 1))
        with memoryview(document_bytes) as view:
            bytes_read = source.read_into(view, 0)
        if bytes_read < len(document_bytes):
            document_bytes = document_bytes[:bytes_read]
        return document_bytes
    stream = ByteStream(source)
    document_bytes = bytearray()
    while chunk := stream.read(SCAN_BYTES):
        # The rest is read all the same: the stream must end well.
        if len(document_bytes) <= limit:
            document_bytes += chunk
    return document_bytes


def _parse_lines(block: LineBlock, limit: int) -> Parsed:
    """Return every line that is not empty as a text, without its end of line.

    Args:
        block: Whole lines.
        limit: Largest size of a line in bytes.
    """
    # Without their ends of line, texts lie side by side, as an Arrow array has them.
    lines = index_lines(block)
    block_view = memoryview(block.data)
    sizes = lines.stops - lines.starts
    spans = zip(lines.starts.tolist(), lines.stops.tolist(), strict=True)
    joined_lines = b"".join([block_view[start:stop] for start, stop in spans])
    text = text_over(offsets_of(sizes), pa.py_buffer(joined_lines))

    # Nearly always all lines are good. Otherwise each one is judged by itself.
    faults: dict[int, Fault] = {}
    has_nul = block.data.find(b"\0", 0, block.size) >= 0
    if has_nul or (sizes > limit).any() or not is_utf8(text):
        for line_index, line in enumerate(lines):
            fault = _fault_of(
                text[line_index : line_index + 1], "line", has_nul=b"\0" in line
            )
            if len(line) > limit:
                fault = too_long(len(line), limit)
            if fault is not None:
                faults[line_index] = fault
        text = select(text, ~np.isin(np.arange(len(lines)), list(faults)))
    return lines.parsed(faults, text=text)


def _parse_long_line(line: LongLine, limit: int) -> Parsed:
    """Return a line that is longer than a block as a text."""
    record, content_start, content_stop = long_record(line)
    line_size = content_stop - content_start
    if not line_size:
        return record.blank().parsed({}, text=no_text())
    if line.data is None or line_size > limit:
        return record.parsed({0: too_long(line_size, limit)}, text=no_text())
    text = text_over(
        np.array([0, line_size]), pa.py_buffer(line.data).slice(content_start)
    )
    fault = _fault_of(text, "line", has_nul=b"\0" in line.data)
    if fault is not None:
        return record.parsed({0: fault}, text=text[:0])
    return record.parsed({}, text=text)


def _fault_of(text: pa.LargeStringArray, noun: str, *, has_nul: bool) -> Fault | None:
    """Return the fault of a text, None for a good one.

    Args:
        text: The text alone.
        noun: Word for the text in a message.
        has_nul: Whether it holds a NUL byte.
    """
    if not is_utf8(text):
        return Fault("invalid_utf8", f"the {noun} is not valid UTF-8")
    if has_nul:
        return Fault(
            "nul_byte", f"the {noun} contains a NUL byte, which text never does"
        )
    return None
