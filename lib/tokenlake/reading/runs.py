"""Runs of ids as Arrow holds them, and how they are moved from one array to another."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrowvalues import values
from tokenlake.ragged import places

Int64 = npt.NDArray[np.int64]

__all__ = [
    "bit_array",
    "bit_rows",
    "matrix",
    "move",
    "numbers",
    "one_batch",
    "packed_bits",
    "runs",
    "values",
]

LONG: Final = 16
"""Ids a run from which on copying run by run is faster than looking up each id (measured)."""


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch, without a copy where its columns are whole, as those of a row group are."""
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]


def numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """Return a column of numbers."""
    column: Any = batch.column(name)
    return values(column)


def runs(batch: pa.RecordBatch, name: str) -> tuple[Any, Int64]:
    """Return the values of a list column (an Arrow array) and where each row's begin, int64[rows + 1]."""
    column: Any = batch.column(name)
    return column.values, values(column.offsets).astype(np.int64)


def matrix(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """Return a column of rows of one length as [rows, length], a view of it but for bits."""
    column: Any = batch.column(name)
    size = column.type.list_size
    return values(column.values.slice(column.offset * size, len(column) * size)).reshape(-1, size)


def bit_rows(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.uint8]:
    """Return a column of rows of bits of one length as [rows, ceil(length / 8)], a view of it if 8 divides that."""
    column: Any = batch.column(name)
    size = column.type.list_size
    bits = column.values.slice(column.offset * size, len(column) * size)
    if size % 8 or bits.offset % 8:
        return packed_bits(values(bits).reshape(-1, size))
    return np.frombuffer(bits.buffers()[1], np.uint8, len(bits) // 8, bits.offset // 8).reshape(-1, size // 8)


def packed_bits(rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return rows of bits, eight in a byte, the first lowest: uint8[rows, ceil(length / 8)]."""
    return np.packbits(rows, axis=1, bitorder="little")


def bit_array(rows: npt.NDArray[np.uint8], length: int) -> Any:
    """Return the bits of all rows, `length` of each, as one Arrow array; a view of them if 8 divides the length."""
    if length % 8:
        return pa.array(
            np.unpackbits(rows, axis=1, count=length, bitorder="little").reshape(-1).view(np.bool_)
        )
    return pa.Array.from_buffers(pa.bool_(), len(rows) * length, [None, pa.py_buffer(rows.data)])


def move(
    source: npt.NDArray[Any], start: Int64, target: npt.NDArray[Any], begin: Int64, lengths: Int64
) -> None:
    """Copy ``source[start[i]:start[i] + lengths[i]]`` to ``target[begin[i]:]`` for each of n runs."""
    if lengths.sum() < LONG * len(lengths):
        target[places(begin, lengths)] = source[places(start, lengths)]
        return
    # Slices of memory views are the cheapest copies that Python has.
    there, here = target.view(np.uint8).data, source.view(np.uint8).data
    width = source.itemsize
    for first, to, size in zip(
        (start * width).tolist(), (begin * width).tolist(), (lengths * width).tolist(), strict=True
    ):
        there[to : to + size] = here[first : first + size]
