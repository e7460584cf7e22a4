"""Arrow's columns as numpy arrays, runs of ids moved between arrays, and memory that is used again and again.

Fresh memory is dear: the system gives it page by page, and each page is a fault at its first touch, which for a row
group comes to a tenth of decoding it. What a cache lets go of is therefore written again by the next row group.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import Int64, places, values

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


_KEPT: Final = 128 << 20  # bytes of free blocks of one size, or two blocks


@final
class Blocks:
    """Blocks of memory, each of them used by one owner at a time; may be used by several threads."""

    def __init__(self) -> None:
        self._free: dict[int, deque[Any]] = {}

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes of any content, uint8[size].

        They are given to others when nothing refers to this array any more, nor to any view of it.
        """
        whole = _rounded(size)
        free = self._free.get(whole)
        if free is None:
            free = self._free.setdefault(whole, deque(maxlen=max(2, _KEPT // whole)))
        try:
            block: Any = free.pop()
        except IndexError:
            block = pa.allocate_buffer(whole)
        # A view of an array refers to the array that the memory belongs to. Since that of a block belongs to a
        # buffer, which is no array, all views refer to this one.
        taken = np.ndarray(size, np.uint8, block)
        # May be called at any moment, by any thread: it takes no lock. What does not fit pushes the oldest out.
        weakref.finalize(taken, free.append, block).atexit = False
        return taken


BLOCKS: Final = Blocks()
"""Those of this process: row groups of all datasets have much the same size."""


def _rounded(size: int) -> int:
    """Return at most an eighth more, so that there are few sizes."""
    step = max(1 << 12, 1 << max(size.bit_length() - 4, 0))
    return max(-(-size // step), 1) * step
