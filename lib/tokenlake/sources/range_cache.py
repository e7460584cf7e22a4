"""Remote inputs read by way of blocks that are kept on this machine.

How many, says ``cache.remote_cache_bytes`` of the configuration, which inputs carry with them to whoever opens them,
else ``TOKENLAKE_REMOTE_CACHE`` of the environment.

A block's key holds the URL, the size and the version token of the object, so that another version has other blocks;
whoever opens an input still asks the storage whether it is the planned one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, final

from tokenlake.cache.disk import DiskCache, default_folder
from tokenlake.config.values import parse_size
from tokenlake.errors import ConfigError
from tokenlake.sources.inputs import InputBytes, InputReader

VARIABLE: Final = "TOKENLAKE_REMOTE_CACHE"
"""Bytes of blocks that are kept, such as 20GB; not set: none."""

_BLOCK: Final = 4 << 20


def with_kept_blocks(data: InputBytes, environ: Mapping[str, str] = os.environ) -> InputBytes:
    """Return an input whose blocks are kept and taken from there, where configuration or environment ask for it.

    Raises:
        ConfigError: the variable holds no size.
    """
    size = _bytes_of(environ) if data.file.kept_bytes is None else data.file.kept_bytes
    return data if size is None else KeptBytes(data, _blocks(str(default_folder() / "remote"), size))


def _bytes_of(environ: Mapping[str, str]) -> int | None:
    if not (asked := environ.get(VARIABLE)):
        return None
    try:
        return parse_size(asked)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error


@cache
def _blocks(folder: str, size: int) -> DiskCache:
    return DiskCache(folder, max_bytes=size)


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
                some = self._block(number)[start : start + len(view) - at]
                if not some:
                    break
                view[at : at + len(some)] = some
                at += len(some)
        return at

    def for_arrow(self) -> Any:
        return InputReader(self)

    def expect(self, stretches: Iterable[tuple[int, int]], columns: int) -> None:
        self._data.expect(stretches, columns)

    def check_unchanged(self) -> None:
        self._data.check_unchanged()

    def close(self) -> None:
        self._data.close()

    def _block(self, number: int) -> bytes:
        if self._latest[0] != number:
            self._latest = number, self._read(number)
        return self._latest[1]

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
