"""Opening an input, in ranges where it is remote, and making sure that it is, and stays, the file that was planned."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Final, final

from tokenlake.cache.disk import DiskCache, default_folder
from tokenlake.config.values import parse_size
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.sources.formats import format_of
from tokenlake.sources.inputs import InputBytes, InputFile, InputReader, LocalBytes, is_hub_url
from tokenlake.sources.stream import LOOK, SPACE, ByteStream, has_lines

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


@contextmanager
def opened(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> Generator[InputBytes]:
    """Yield the bytes of `file`; it must be as planned before and after it is read.

    Args:
        storage_options: options of the file system that a URL is on; credentials may be references.

    Raises:
        InputChangedError: it is gone, or not what was planned (a local file: inode, size, mtime and
            ctime; an object: size and version token).
        SourceError: it cannot be reached, after retries.
    """
    data = LocalBytes(file) if file.is_local else with_kept_blocks(_remote(file, storage_options or {}))
    try:
        yield data
        data.check_unchanged()
    finally:
        data.close()


def _remote(file: InputFile, storage_options: Mapping[str, Any]) -> InputBytes:
    # fsspec and asyncio take a sixth of a worker's start, and builds from local files need neither.
    if is_hub_url(file.url):
        from tokenlake.sources.hub import HubBytes

        return HubBytes(file, storage_options)
    from tokenlake.sources.remote import RemoteBytes

    return RemoteBytes(file, storage_options)


def as_it_begins(file: InputFile, options: Mapping[str, Any]) -> InputFile:
    """Return a file of the format ``json`` as ``jsonl`` where it holds lines; one that cannot be read as it is."""
    if file.format != "json":
        return file
    try:
        with opened(file, options) as data:
            head = _head(ByteStream(data))
    except TokenlakeError:  # who reads it will say so
        return file
    named_so = format_of(file.path) == "jsonl" and not head.startswith(b"[")
    return replace(file, format="jsonl") if named_so or has_lines(head) else file


def _head(stream: ByteStream) -> bytes:
    """Return the beginning from the first byte that is not white space."""
    while some := stream.read(LOOK):
        if found := some.lstrip(SPACE):
            return found + stream.read(LOOK)
    return b""
