"""Blocks of memory that are used again when nobody refers to them any more."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_FREE_BYTES: Final = 128 << 20  # bytes of free blocks of one size, or two blocks
_PAGE_BYTES: Final = 1 << 12


@final
class Blocks:
    """Pool of memory blocks, each used by one owner at a time.

    Several threads may use the pool.

    The system provides new memory page by page, and each page is a fault at its first
    touch, which takes a tenth of the time of decoding a row group. A row group is
    therefore decoded to the memory of one that a cache has released.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[Any]] = {}

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Return an array of `size` bytes with any content, uint8[size].

        The memory is used again when nothing refers to this array any more, nor to any
        view of it.
        """
        block_size = _rounded(size)
        free_blocks = self._free.get(block_size)
        if free_blocks is None:
            most_blocks = max(2, _FREE_BYTES // block_size)
            free_blocks = self._free.setdefault(block_size, deque(maxlen=most_blocks))
        try:
            block: Any = free_blocks.pop()
        except IndexError:
            block = pa.allocate_buffer(block_size)
        # A view of an array refers to the array that owns the memory. A block belongs
        # to a buffer, which is no array, so that all views refer to this array.
        array = np.ndarray(size, np.uint8, block)
        # Any thread may call this at any moment, so that it takes no lock. A full deque
        # drops its oldest block.
        weakref.finalize(array, free_blocks.append, block).atexit = False
        return array


BLOCKS: Final = Blocks()
"""Pool of this process. Row groups of all datasets have similar sizes."""


def _rounded(size: int) -> int:
    """Return a size that is at most an eighth larger, so that blocks have few sizes."""
    # Sizes keep their four highest bits, rounded up, and are whole pages.
    step = max(_PAGE_BYTES, 1 << max(size.bit_length() - 4, 0))
    steps = max(-(-size // step), 1)
    return steps * step
