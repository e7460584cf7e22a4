"""Memory that is used again and again.

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
