"""Memory of batches, used again only when nobody can see it any more.

A fresh array of some MiB costs more time to be mapped than to be filled. A reused one is a hazard: JAX on a CPU, torch
and a careless trainer keep batches without copying them. So memory is handed out again only when its reference count
says that no array, no device buffer and no memoryview refers to it, as CPython knows at any moment.
"""

from __future__ import annotations

import sys
from threading import Lock
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

ALIGNMENT: Final = 64
"""Of every array: what XLA wants of memory that it takes over without a copy."""

_KEPT: Final = 64  # of one size


@final
class Buffers:
    """Arrays whose contents are anything; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def array(self, shape: tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array that nobody else refers to, C-contiguous and aligned."""
        wanted = np.dtype(kind)
        size = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
        block = self._block(size)
        begin = -block.ctypes.data % ALIGNMENT
        return block[begin : begin + size].view(wanted).reshape(shape)

    def _block(self, size: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            blocks = self._blocks.setdefault(size, [])
            for index in range(len(blocks)):
                if _references(blocks, index) == _UNUSED:
                    blocks.append(blocks.pop(index))  # the one used longest ago comes first
                    return blocks[-1]
            block = np.empty(size + ALIGNMENT, np.uint8)
            blocks.append(block)
            del blocks[:-_KEPT]
            return block


def _references(blocks: list[npt.NDArray[np.uint8]], index: int) -> int:
    return sys.getrefcount(blocks[index])


# How an interpreter counts what is only in a list differs between releases: it is asked, not assumed.
_UNUSED: Final = _references([np.empty(1, np.uint8)], 0)
