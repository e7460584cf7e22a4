"""Columns of rows of one length as matrices, and bits with eight in a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import UInt8, values


def matrix(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """Return a column of rows of one length as [rows, length].

    It is a view, except for a column of bits.
    """
    column: Any = batch.column(name)
    length = column.type.list_size
    flat = column.values.slice(column.offset * length, len(column) * length)
    return values(flat).reshape(-1, length)


def bit_rows(batch: pa.RecordBatch, name: str) -> UInt8:
    """Return a column of rows of bits: uint8[rows, ceil(length / 8)].

    Each byte holds eight bits. All rows have one length.

    It is a view of the column if rows are whole bytes.
    """
    # A slice begins at its own offset in the values, which may be inside a byte.
    column: Any = batch.column(name)
    length = column.type.list_size
    bits = column.values.slice(column.offset * length, len(column) * length)
    if length % 8 or bits.offset % 8:
        return packed_bits(values(bits).reshape(-1, length))
    _, data = bits.buffers()
    stored_bytes = np.frombuffer(data, np.uint8, len(bits) // 8, bits.offset // 8)
    return stored_bytes.reshape(-1, length // 8)


def packed_bits(rows: npt.NDArray[np.bool_]) -> UInt8:
    """Return rows of bits with eight in a byte: uint8[rows, ceil(length / 8)].

    The first bit is the lowest.
    """
    return np.packbits(rows, axis=1, bitorder="little")


def bit_array(rows: UInt8, length: int) -> Any:
    """Return rows of bits as one Arrow array of booleans.

    It is a view if rows are whole bytes.

    Args:
        rows: Bits as :func:`packed_bits` returns them.
        length: Number of bits of each row.
    """
    if length % 8:
        bits = np.unpackbits(rows, axis=1, count=length, bitorder="little")
        return pa.array(bits.reshape(-1).view(np.bool_))
    return pa.Array.from_buffers(
        pa.bool_(), len(rows) * length, [None, pa.py_buffer(rows.data)]
    )
