"""The texts of a large Arrow batch that is not compressed, piece by piece: no more of it is ever in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.reading.bombs import Bomb
from tokenlake.sources.arrays import Int64s

_PIECE_BYTES: Final = 16 << 20
_PIECE_ROWS: Final = 1 << 16
_MAX_TEXT: Final = 1 << 30
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns


def sliced_texts(
    pread: Callable[[int, int], bytes], buffers: list[tuple[int, ...]], rows: int, *, large: bool
) -> Iterator[pa.LargeStringArray]:
    """Yield the texts of a column of strings.

    Args:
        pread: (size, offset) -> bytes of the batch's body.
        buffers: (offset, length) of validity, offsets and data.
        rows: how many there are.
        large: whether offsets have 64 bits.

    Raises:
        ValueError: offsets do not ascend or leave the data, or the buffers are too short.
        Bomb: one text has more than 1 GiB.
    """
    width = np.dtype("<i8" if large else "<i4")
    (bits, bits_size), (places, places_size), (data, data_size) = buffers
    if places_size < width.itemsize * (rows + 1) or 0 < bits_size < (rows + 7) // 8:
        raise ValueError(f"its buffers are too short for {rows} rows")
    at = 0
    while at < rows:
        count = min(_PIECE_ROWS, rows - at)
        raw = pread(width.itemsize * (count + 1), places + width.itemsize * at)
        offsets = np.frombuffer(raw, width, count + 1).astype(np.int64)
        count = _fitting(offsets, data_size)
        offsets = offsets[: count + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        # Pieces begin at multiples of eight rows only by chance: the bits are unpacked and packed anew.
        valid = pread(at % 8 + count + 7 >> 3, bits + at // 8) if bits_size else b""
        yield _texts(offsets - first, pread(last - first, data + first), valid, at % 8)
        at += count


def _fitting(offsets: Int64s, size: int) -> int:
    """Return how many of the texts between `offsets` make a piece; all offsets are checked."""
    if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > size:
        raise ValueError("an offset descends, or lies outside the data")
    count = max(1, int(np.searchsorted(offsets, offsets[0] + _PIECE_BYTES, side="right")) - 1)
    if offsets[count] - offsets[0] > _MAX_TEXT:
        raise Bomb(f"one text has {offsets[count] - offsets[0]} bytes, more than {_MAX_TEXT}")
    return count


def _texts(offsets: Int64s, data: bytes, valid: bytes, skip: int) -> pa.LargeStringArray:
    count = len(offsets) - 1
    bits = None
    if valid:
        unpacked = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[skip : skip + count]
        bits = _ARROW.py_buffer(np.packbits(unpacked, bitorder="little").tobytes())
    buffers = _ARROW.py_buffer(offsets), _ARROW.py_buffer(data), bits
    return _ARROW.LargeStringArray.from_buffers(count, *buffers)
