"""Columns with every value written out, in steps of bounded memory.

Dictionaries, runs and views are unfolded.

A dictionary, a run or a view lets a few stored bytes stand for many. Before such a
column is written out, the size that it will have is computed from lengths alone, and a
batch that would be too large is cut in halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Int64s
from tokenlake.runtime.column_types import is_list
from tokenlake.runtime.reading.unfolding import UNFOLDED_BYTES, Bomb

_COMPUTE: Final[Any] = pc
_ARROW: Final[Any] = pa  # the stubs do not know all constructors
_BYTES_TYPES: Final = frozenset(
    {pa.string(), pa.large_string(), pa.binary(), pa.large_binary()}
)
_STEP_BYTES: Final = 16 << 20
_VALUE_BYTES: Final = 8  # a number, or an offset into strings


def plain_type(column_type: Any) -> Any:
    """Return the type of a column as it is handed over.

    Dictionaries and runs are unfolded, extensions are their storage, and views are
    strings, of which rows can be taken.
    """
    if isinstance(column_type, pa.BaseExtensionType):
        return plain_type(column_type.storage_type)
    if pa.types.is_string_view(column_type):
        return pa.large_string()
    if pa.types.is_binary_view(column_type):
        return pa.large_binary()
    if pa.types.is_dictionary(column_type) or pa.types.is_run_end_encoded(column_type):
        return plain_type(column_type.value_type)
    return column_type


def unfold(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of at most 16 MB, or of one row, with every value.

    Columns of a piece have the types of `schema`.

    Raises:
        Bomb: One row alone unfolds to more than 1 GiB.
    """
    batch_bytes = unfolded_bytes(batch)
    # Halved until the pieces are small: rows may be of very different sizes.
    if batch_bytes > _STEP_BYTES and batch.num_rows > 1:
        middle_row = batch.num_rows // 2
        yield from unfold(batch.slice(0, middle_row), schema)
        yield from unfold(batch.slice(middle_row), schema)
        return
    if batch_bytes > UNFOLDED_BYTES:
        raise Bomb(f"one row expands to {batch_bytes} bytes")
    yield _cast(batch, schema)


def unfolded_bytes(batch: pa.RecordBatch) -> int:
    """Return the number of bytes that rows take with every value written out."""
    return sum(_column_bytes(column) for column in batch.columns)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with columns of the types of `schema`."""
    columns: list[Any] = []
    for stored, plain in zip(batch.columns, schema.types, strict=True):
        column = _without_runs(stored)
        if column.type != plain:
            column = column.cast(plain)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _without_runs(column: Any) -> Any:
    """Return the storage of a column, with every value of a run."""
    if isinstance(column, pa.ExtensionArray):
        return _without_runs(column.storage)
    if pa.types.is_run_end_encoded(column.type):
        return _COMPUTE.run_end_decode(column)
    return column


def _column_bytes(column: Any) -> int:
    """Return the number of bytes that a column takes with every value written out."""
    types = pa.types
    column_type = column.type
    if isinstance(column, pa.ExtensionArray):
        return _column_bytes(column.storage)

    # Nested columns: the values inside.
    if types.is_struct(column_type):
        return sum(
            _column_bytes(column.field(index))
            for index in range(column_type.num_fields)
        )
    if types.is_map(column_type):
        key_field = pa.field("key", column_type.key_type)
        value_field = pa.field("value", column_type.item_type)
        return _column_bytes(column.view(pa.list_(pa.struct([key_field, value_field]))))
    if is_list(column_type):
        # Of a slice, `flatten` returns the values of its own rows alone.
        return _column_bytes(column.flatten())

    # Columns in which several rows may share stored bytes.
    if types.is_run_end_encoded(column_type):
        return _run_bytes(column)
    if types.is_string_view(column_type) or types.is_binary_view(column_type):
        return _view_bytes(column)
    if types.is_list_view(column_type) or types.is_large_list_view(column_type):
        return _list_view_bytes(column)
    if types.is_dictionary(column_type):
        return _dictionary_bytes(column)
    return column.nbytes


def _dictionary_bytes(column: Any) -> int:
    """Return the bytes of a column of indices with its values written out."""
    if column.type.value_type not in _BYTES_TYPES:
        return _VALUE_BYTES * len(column)
    return int(np.sum(_entry_sizes(column)))


def _entry_sizes(column: Any) -> Int64s:
    """Return int64[n], the bytes of every row of a dictionary of strings; 0 for a null."""
    sizes = _COMPUTE.binary_length(column.dictionary).cast(pa.int64()).fill_null(0)
    return sizes.take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)


def _run_bytes(column: Any) -> int:
    """Return the bytes of a column of runs with its values written out.

    Only the lengths of values are written out here.
    """
    values = column.values
    if not isinstance(values, pa.ExtensionArray) and values.type not in _BYTES_TYPES:
        return _VALUE_BYTES * len(column)
    lengths = _COMPUTE.binary_length(values).cast(pa.int64()).fill_null(0)
    runs = _ARROW.RunEndEncodedArray.from_arrays(column.run_ends, lengths)
    decoded = _COMPUTE.run_end_decode(runs.slice(column.offset, len(column)))
    return _VALUE_BYTES * len(column) + (_COMPUTE.sum(decoded).as_py() or 0)


def _view_bytes(column: Any) -> int:
    """Return the bytes of strings that may share them, each with bytes of its own.

    A view has 16 bytes, and its first four are the length.
    """
    validity, views = column.buffers()[:2]
    if views is None:
        return 0
    all_lengths = np.frombuffer(views, "<i4")[::4]
    lengths = all_lengths[column.offset : column.offset + len(column)]
    if validity is not None:
        lengths = lengths[column.is_valid().to_numpy(zero_copy_only=False)]
    return _VALUE_BYTES * len(column) + int(lengths.sum(dtype=np.int64))


def _list_view_bytes(column: Any) -> int:
    """Return a bound of the bytes of lists that may share values, each with its own."""
    # Lists may hold any of the values any number of times: the largest one counts for
    # all.
    value_count = _COMPUTE.sum(_COMPUTE.list_value_length(column)).as_py() or 0
    values = column.values
    largest_bytes = _VALUE_BYTES
    if values.type in _BYTES_TYPES:
        largest_bytes = _COMPUTE.max(_COMPUTE.binary_length(values)).as_py() or 0
    elif len(values):
        largest_bytes = values.nbytes // len(values) + 1
    return _VALUE_BYTES * len(column) + value_count * largest_bytes
