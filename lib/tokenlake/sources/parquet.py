"""Parquet: one text column, row group by row group, in bounded batches, page checksums verified."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.sources.arrays import concat, is_utf8, select
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.listing import InputFile
from tokenlake.sources.opening import damaged
from tokenlake.sources.parsed import BadLine, Parsed
from tokenlake.sources.strict import Fault

_BATCH_BYTES: Final = 1 << 20  # aimed at for one step of the decoder
_MAX_ROWS: Final = 4096
_JOIN_BYTES: Final = 16 << 20  # steps are joined up to this size
_BUFFER_BYTES: Final = 1 << 20  # a column chunk is streamed, never held compressed as a whole


def row_group_sizes(file: InputFile) -> list[int]:
    """Return the uncompressed bytes of every row group, from the footer."""
    with _damage(file, "its footer"), pq.ParquetFile(file.url) as parquet:
        meta = parquet.metadata
        return [meta.row_group(index).total_byte_size for index in range(meta.num_row_groups)]


def read_row_groups(file: InputFile, start: int, stop: int, field: str) -> Iterator[Parsed]:
    """Yield the texts in column `field` of row groups ``[start, stop)``.

    Raises:
        DamagedFileError: the file is empty, cut or corrupt, its row counts disagree, or it has not
            exactly one column `field` of strings.
    """
    with _damage(file, "its footer"):
        parquet = pq.ParquetFile(
            file.url, page_checksum_verification=True, buffer_size=_BUFFER_BYTES, pre_buffer=False
        )
    with parquet:
        _check_schema(file, parquet, field)
        first = _first_rows(file, parquet)
        for group in range(start, stop):
            yield from _read_group(file, parquet, group, field, first[group])


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
    file: InputFile, parquet: pq.ParquetFile, group: int, field: str, first: int
) -> Iterator[Parsed]:
    meta = parquet.metadata.row_group(group)
    row, done = 0, 0
    for text in _joined(_decoded(file, parquet, group, field)):
        size = len(text)
        after = meta.total_byte_size * (row + size) // max(meta.num_rows, 1)
        box = [_parsed(text, first + row, after - done)]
        del text
        yield box.pop()
        row, done = row + size, after
    if row != meta.num_rows:
        raise damaged(file, f"row group {group} holds {row} rows, its footer counts {meta.num_rows}")


def _decoded(
    file: InputFile, parquet: pq.ParquetFile, group: int, field: str
) -> Iterator[pa.LargeStringArray]:
    meta = parquet.metadata.row_group(group)
    rows = _batch_rows(meta, field)
    reader: Any = parquet
    with _damage(file, f"row group {group}, column {field!r}"):
        for batch in reader.iter_batches(
            batch_size=rows, row_groups=[group], columns=[field], use_threads=False
        ):
            yield batch.column(0).cast(pa.large_string(), safe=False)


def _batch_rows(meta: pq.RowGroupMetaData, field: str) -> int:
    for index in range(meta.num_columns):
        column = meta.column(index)
        if column.path_in_schema == field:
            average = column.total_uncompressed_size / max(meta.num_rows, 1)
            return int(min(max(_BATCH_BYTES / max(average, 1), 1), _MAX_ROWS))
    return _MAX_ROWS


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


def _parsed(text: pa.LargeStringArray, first: int, bytes_read: int) -> Parsed:
    positions = np.arange(first, first + len(text), dtype=np.int64)
    bad: list[BadLine] = []
    if text.null_count or not is_utf8(text):
        bad = list(_bad_rows(text, first))
        keep = np.ones(len(text), bool)
        keep[[line.position - first for line in bad]] = False
        text, positions = select(text, keep), positions[keep]
    return Parsed(text=text, positions=positions, bad=tuple(bad), normalized={}, bytes_read=bytes_read)


def _bad_rows(text: pa.LargeStringArray, first: int) -> Iterator[BadLine]:
    nulls = text.is_null().to_numpy(zero_copy_only=False)
    whole = is_utf8(text)
    for index in np.flatnonzero(nulls) if whole else range(len(text)):
        row = int(index)
        if nulls[row]:
            fault = Fault("null_text", "the text is null, expected a string")
            yield BadLine(first + row, None, fault, b"")
        elif not is_utf8(text[row : row + 1]):
            raw = text[row : row + 1].view(pa.large_binary())[0].as_py()
            yield BadLine(
                first + row, None, Fault("invalid_utf8", "the text is not valid UTF-8"), raw[:RAW_LIMIT]
            )


@contextmanager
def _damage(file: InputFile, where: str) -> Generator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise damaged(file, f"{where} cannot be read ({error})", where=where) from error
