"""Records of several parts, joined without a Python loop.

For the parts [a, b] and [x, y] of two rows, the records are [ax, by].
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Int64, binary_over

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc


def fixed_parts(numbers: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """Return the bytes of each row of a matrix, as one part of each record.

    Args:
        numbers: Numbers of the rows, [rows, n]; little-endian.
    """
    # All rows have one size, from which the offsets follow.
    row_count, numbers_per_row = numbers.shape
    row_bytes = numbers_per_row * numbers.dtype.itemsize
    offsets = np.arange(row_count + 1, dtype=np.int64) * row_bytes
    return binary_over(offsets, _ARROW.py_buffer(np.ascontiguousarray(numbers)))


def ragged_parts(numbers: npt.NDArray[Any], row_offsets: Int64) -> pa.LargeBinaryArray:
    """Return the bytes of each run of numbers, as one part of each record.

    Args:
        numbers: Numbers of all runs; little-endian.
        row_offsets: Offset of each run, int64[rows + 1].
    """
    return binary_over(
        row_offsets * numbers.dtype.itemsize,
        _ARROW.py_buffer(np.ascontiguousarray(numbers)),
    )


def joined(parts: list[pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    """Return the records, each of them the parts of one row in order."""
    # Arrow puts its last argument between the parts: no bytes.
    separator = _ARROW.scalar(b"", pa.large_binary())
    return _COMPUTE.binary_join_element_wise(*parts, separator)


def record_bytes(records: pa.LargeBinaryArray) -> memoryview:
    """Return the bytes of all records, end to end, without copying them."""
    # An array that is a slice begins inside of its buffer.
    offsets, data_bytes = _buffers(records)
    return data_bytes[int(offsets[0]) : int(offsets[-1])]


def record_sizes(records: pa.LargeBinaryArray) -> Int64:
    """Return the number of bytes of each record, int64[rows]."""
    offsets, _data = _buffers(records)
    return np.diff(offsets)


def _buffers(records: pa.LargeBinaryArray) -> tuple[Int64, memoryview]:
    """Return views of the offsets of records, int64[rows + 1], and of their bytes."""
    # Arrow leaves buffers out that would be empty. Offsets of large binaries have 8
    # bytes each, and those of a slice begin at its first record.
    _validity, offset_buffer, data_buffer = records.buffers()
    if offset_buffer is None or data_buffer is None:
        return np.zeros(len(records) + 1, np.int64), memoryview(b"")
    offsets = np.frombuffer(
        memoryview(offset_buffer), np.int64, len(records) + 1, records.offset * 8
    )
    return offsets, memoryview(data_buffer)
