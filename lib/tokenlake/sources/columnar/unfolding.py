"""Dictionary-encoded columns unfolded into plain ones, with a look at what they will take first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.reading.bombs import UNFOLDED_BYTES, Bomb
from tokenlake.sources.arrays import Int64s

_COMPUTE: Final[Any] = pc
_STEP_BYTES: Final = 64 << 20


def plain_type(kind: Any) -> Any:
    """Return the type of a column as it is handed over: dictionaries unfolded, extensions as their storage."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return plain_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def unfolded(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield `batch` in as many pieces as it takes, its columns of the types of `schema`.

    Raises:
        Bomb: one row alone unfolds to more than 1 GiB.
    """
    size = sum(_unfolded_bytes(column) for column in batch.columns)
    if size <= _STEP_BYTES:
        yield _cast(batch, schema)
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from unfolded(batch.slice(0, half), schema)
        yield from unfolded(batch.slice(half), schema)
    elif size > UNFOLDED_BYTES:
        raise Bomb(f"one row unfolds to {size} bytes")
    else:
        yield _cast(batch, schema)


def sizes_unfolded(column: Any) -> Int64s:
    """Return the bytes of every row of a dictionary-encoded column of strings; 0 where it is null."""
    sizes = _COMPUTE.binary_length(column.dictionary).cast(pa.int64()).fill_null(0)
    return sizes.take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_plain(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(column: Any, kind: Any) -> Any:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column if column.type == kind else column.cast(kind)


def _unfolded_bytes(column: Any) -> int:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _unfolded_bytes(column.storage)
    if pa.types.is_struct(kind):
        return sum(_unfolded_bytes(column.field(at)) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _unfolded_bytes(column.view(pa.list_(entries)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _unfolded_bytes(column.flatten())
    if not pa.types.is_dictionary(kind):
        return 0
    if not _is_binary(kind.value_type):
        return 8 * len(column)
    return int(np.sum(sizes_unfolded(column)))


def _is_binary(kind: Any) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )
