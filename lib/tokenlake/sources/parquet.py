"""Parquet: one text column, row group by row group, in bounded batches, page checksums verified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.errors import NotAvailableError
from tokenlake.sources.arrays import concat, is_utf8, select, sizes_of
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.footer import reading
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.parsed import BadLine, Parsed
from tokenlake.sources.split import FileRange
from tokenlake.sources.strict import Fault
from tokenlake.sources.want import Want
from tokenlake.sources.where import Predicate

_STEP_BYTES: Final = 1 << 20  # aimed at for one step of the decoder
_STEP_ROWS: Final = 256  # long texts may stand together; short ones do not mind, a step costs 12 us
_MAX_STEP_BYTES: Final = 256 << 20  # that a dictionary may unfold to in one step
_DICTIONARY_PAGE: Final = 2
_JOIN_BYTES: Final = 16 << 20  # steps are joined up to this size
_BUFFER_BYTES: Final = 1 << 20  # a column chunk is streamed, never held compressed as a whole


def read_parquet(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the row groups of `part`.

    Raises:
        DamagedFileError: the file is empty, cut or corrupt, its row counts disagree, or it has not
            exactly one column `field` of strings.
    """
    if want.columns != () or want.text is None:
        raise NotAvailableError(f"{part.file.url}: columns of Parquet are not available in this release")
    file, field = part.file, want.text
    with reading(file, "its footer"):
        parquet = pq.ParquetFile(
            data.for_arrow(), page_checksum_verification=True, buffer_size=_BUFFER_BYTES, pre_buffer=False
        )
    with parquet:
        _check_schema(file, parquet, field)
        first = _first_rows(file, parquet)
        for group in range(part.start, part.stop):
            column = _column(parquet.metadata.row_group(group), field)
            rows = _step_rows(column, _dictionary_bytes(data, column))
            texts = _joined(_decoded(file, parquet, group, field, rows))
            yield from _read_group(
                file, parquet.metadata.row_group(group), group, texts, first[group], want.max_record_bytes
            )


def _check_schema(file: InputFile, parquet: pq.ParquetFile, field: str) -> None:
    schema: Any = parquet.schema_arrow  # the stub leaves the types of fields open
    names: list[str] = schema.names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise damaged(file, f"it has several columns of the same name: {', '.join(twice)}")
    if field not in names:
        raise damaged(file, f"it has no column {field!r} (content_field); its columns are {', '.join(names)}")
    kind: Any = schema.field(field).type
    inner: Any = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner)):
        raise damaged(file, f"column {field!r} holds {kind}, expected strings")


def _first_rows(file: InputFile, parquet: pq.ParquetFile) -> list[int]:
    meta = parquet.metadata
    rows = [meta.row_group(index).num_rows for index in range(meta.num_row_groups)]
    if sum(rows) != meta.num_rows or min(rows, default=0) < 0:
        raise damaged(
            file, f"its footer counts {meta.num_rows} rows, its {len(rows)} row groups together {sum(rows)}"
        )
    return [0, *np.cumsum(rows, dtype=np.int64).tolist()]


def _read_group(
    file: InputFile,
    meta: pq.RowGroupMetaData,
    group: int,
    texts: Iterator[pa.LargeStringArray],
    first: int,
    max_record_bytes: int,
) -> Iterator[Parsed]:
    row, done = 0, 0
    for text in texts:
        size = len(text)
        after = meta.total_byte_size * (row + size) // max(meta.num_rows, 1)
        box = [_parsed(text, first + row, after - done, max_record_bytes)]
        del text
        yield box.pop()
        row, done = row + size, after
    if row != meta.num_rows:
        raise damaged(file, f"row group {group} holds {row} rows, its footer counts {meta.num_rows}")


def _decoded(
    file: InputFile, parquet: pq.ParquetFile, group: int, field: str, rows: int
) -> Iterator[pa.LargeStringArray]:
    reader: Any = parquet  # the stub leaves the types of lists open
    with reading(file, f"row group {group}, column {field!r}"):
        for batch in reader.iter_batches(rows, row_groups=[group], columns=[field], use_threads=False):
            yield batch.column(0).cast(pa.large_string(), safe=False)


def _column(meta: pq.RowGroupMetaData, field: str) -> pq.ColumnChunkMetaData:
    columns = (meta.column(index) for index in range(meta.num_columns))
    return next(column for column in columns if column.path_in_schema == field)


def _step_rows(column: pq.ColumnChunkMetaData, dictionary_bytes: int) -> int:
    """Return how many rows to decode at a time, so that their texts stay within bounds."""
    average = column.total_uncompressed_size // max(column.num_values, 1)
    rows = min(_STEP_ROWS, _STEP_BYTES // max(average, 1))
    if dictionary_bytes:  # every row may be its largest entry
        rows = min(rows, _MAX_STEP_BYTES // dictionary_bytes)
    if "DELTA_BYTE_ARRAY" in column.encodings:  # every row may repeat a long prefix
        rows = min(rows, 16)
    return max(rows, 1)


def _dictionary_bytes(data: InputBytes, column: pq.ColumnChunkMetaData) -> int:
    """Return the uncompressed size of a column chunk's dictionary, 0 if there is none.

    It is in the header of the chunk's first page: Thrift's compact form of (1: page type, 2: size).
    """
    offset = column.dictionary_page_offset or column.data_page_offset
    header = data.pread(16, offset)
    kind, at = _thrift_int(header, 0)
    size, _ = _thrift_int(header, at)
    return size if kind == _DICTIONARY_PAGE else 0


def _thrift_int(header: bytes, at: int) -> tuple[int, int]:
    """Return the 32-bit integer of the field at `at` and where the next begins; 0 for anything else."""
    value, shift, at = 0, 0, at + 1
    while at < len(header):
        value |= (header[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if header[at - 1] < 0x80:
            break
    return (value >> 1) ^ -(value & 1), at


def _joined(arrays: Iterator[pa.LargeStringArray]) -> Iterator[pa.LargeStringArray]:
    """Join small arrays up to some 16 MB, so that what follows works on blocks."""
    held: list[pa.LargeStringArray] = []
    size = 0
    for array in arrays:
        if held and size + array.nbytes > _JOIN_BYTES:
            box, held, size = [concat(held)], [], 0
            yield box.pop()
        held.append(array)
        size += array.nbytes
    if held:
        yield concat(held)


def _parsed(text: pa.LargeStringArray, first: int, bytes_read: int, max_record_bytes: int) -> Parsed:
    positions = np.arange(first, first + len(text), dtype=np.int64)
    bad: list[BadLine] = []
    if text.null_count or not is_utf8(text) or sizes_of(text).max(initial=0) > max_record_bytes:
        bad = list(_bad_rows(text, first, max_record_bytes))
        keep = ~np.isin(positions, [line.position for line in bad])
        text, positions = select(text, keep), positions[keep]
    return Parsed(text=text, positions=positions, bad=tuple(bad), normalized={}, bytes_read=bytes_read)


def _bad_rows(text: pa.LargeStringArray, first: int, max_record_bytes: int) -> Iterator[BadLine]:
    nulls = text.is_null().to_numpy(zero_copy_only=False)
    sizes = sizes_of(text)
    whole = is_utf8(text)
    for index in np.flatnonzero(nulls | (sizes > max_record_bytes)) if whole else range(len(text)):
        row = int(index)
        if nulls[row]:
            yield BadLine(first + row, None, Fault("null_text", "the text is null, expected a string"), b"")
            continue
        fault = None if is_utf8(text[row : row + 1]) else Fault("invalid_utf8", "the text is not valid UTF-8")
        if sizes[row] > max_record_bytes:
            told = f"the text has {sizes[row]} bytes, max_record_bytes is {max_record_bytes}"
            fault = Fault("text_too_long", told)
        if fault:
            raw = text[row : row + 1].view(pa.large_binary())[0].as_py()
            yield BadLine(first + row, None, fault, raw[:RAW_LIMIT])
