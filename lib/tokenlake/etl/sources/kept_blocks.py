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

# A block is one request where it is missing, and one file of the cache.
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
                block_index, block_offset = divmod(offset + filled, _BLOCK_BYTES)
                if self._latest_index != block_index:
                    self._latest_block = self._read_block(block_index)
                    self._latest_index = block_index
                stretch = self._latest_block[
                    block_offset : block_offset + len(view) - filled
                ]
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
        """Return a block, from the cache or from the input.

        A block that was read from the input is kept. Blocks are numbered from 0.
        """
        file = self.file
        block_start = index * _BLOCK_BYTES
        block_bytes = min(_BLOCK_BYTES, file.size - block_start)
        if block_bytes <= 0:
            return b""
        # The version token is part of the key, so that a changed object has other
        # blocks.
        key = f"{file.url}\n{file.size}\n{file.token}\n{index}"
        cache_entry = self._cache.get(key)
        if (
            cache_entry is not None
            and isinstance(cache_entry[0], bytes)
            and len(cache_entry[0]) == block_bytes
        ):
            return cache_entry[0]
        block = self._data.pread(block_bytes, block_start)
        if len(block) == block_bytes:
            self._cache.put(key, block)
        return block
