"""Blocks of remote inputs that the reading machine keeps on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, final

from tokenlake.base.cache.disk import DiskCache
from tokenlake.etl.sources.input_bytes import InputBytes

VARIABLE: Final = "TOKENLAKE_REMOTE_CACHE"
"""Environment variable with the size of all kept blocks, such as 20GB; not set: no
block is kept.
"""

_BLOCK_BYTES: Final = 4 << 20


@final
class KeptBytes(InputBytes):
    """Another input, whose blocks are kept; usable from threads, one read at a time."""

    def __init__(self, data: InputBytes, cache: DiskCache) -> None:
        """Read through a cache.

        Args:
            data: The open input.
            cache: Blocks that are kept.
        """
        self.file = data.file
        self._data = data
        self._cache = cache
        self._lock = threading.Lock()
        # The latest block: records are smaller than blocks.
        self._latest_index = -1
        self._latest_block = b""

    def read_into(self, view: memoryview, offset: int) -> int:
        filled = 0
        with self._lock:
            while filled < len(view):
                index, start = divmod(offset + filled, _BLOCK_BYTES)
                if self._latest_index != index:
                    self._latest_block = self._read_block(index)
                    self._latest_index = index
                stretch = self._latest_block[start : start + len(view) - filled]
                if not stretch:
                    break
                view[filled : filled + len(stretch)] = stretch
                filled += len(stretch)
        return filled

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:
        self._data.expect(stretches, columns)

    def check_unchanged(self) -> None:
        self._data.check_unchanged()

    def close(self) -> None:
        self._data.close()

    def _read_block(self, index: int) -> bytes:
        """Return the block with an index, from 0: from the cache, or from the input,
        and then kept.
        """
        file = self.file
        start = index * _BLOCK_BYTES
        size = min(_BLOCK_BYTES, file.size - start)
        if size <= 0:
            return b""
        key = f"{file.url}\n{file.size}\n{file.token}\n{index}"
        entry = self._cache.get(key)
        if entry is not None and isinstance(entry[0], bytes) and len(entry[0]) == size:
            return entry[0]
        block = self._data.pread(size, start)
        if len(block) == size:
            self._cache.put(key, block)
        return block
