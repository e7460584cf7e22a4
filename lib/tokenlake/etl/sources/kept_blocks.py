"""Blocks of remote inputs that the reading machine keeps on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, final

from tokenlake.base.cache.disk import DiskCache
from tokenlake.etl.sources.input_bytes import InputBytes

VARIABLE: Final = "TOKENLAKE_REMOTE_CACHE"
"""Bytes of blocks that are kept, such as 20GB; not set: none."""

_BLOCK: Final = 4 << 20


@final
class KeptBytes(InputBytes):
    """Another input, of which blocks are kept; usable from threads, one read at a time."""

    def __init__(self, data: InputBytes, kept: DiskCache) -> None:
        self.file, self._data, self._kept = data.file, data, kept
        self._lock = threading.Lock()
        self._latest = -1, b""  # records are smaller than blocks

    def read_into(self, view: memoryview, offset: int) -> int:
        at = 0
        with self._lock:
            while at < len(view):
                number, start = divmod(offset + at, _BLOCK)
                if self._latest[0] != number:
                    self._latest = number, self._read(number)
                some = self._latest[1][start : start + len(view) - at]
                if not some:
                    break
                view[at : at + len(some)] = some
                at += len(some)
        return at

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:
        self._data.expect(stretches, columns)

    def check_unchanged(self) -> None:
        self._data.check_unchanged()

    def close(self) -> None:
        self._data.close()

    def _read(self, number: int) -> bytes:
        file, start = self.file, number * _BLOCK
        size = min(_BLOCK, file.size - start)
        if size <= 0:
            return b""
        key = f"{file.url}\n{file.size}\n{file.token}\n{number}"
        found = self._kept.get(key)
        if found is not None and isinstance(found[0], bytes) and len(found[0]) == size:
            return found[0]
        data = self._data.pread(size, start)
        if len(data) == size:
            self._kept.put(key, data)
        return data
