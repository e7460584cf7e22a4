"""Opening an input: it must be the planned file before it is read and after it."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from tokenlake.base.cache.disk import DiskCache, default_folder
from tokenlake.base.sizes import parse_size
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.input_bytes import InputBytes, LocalBytes
from tokenlake.etl.sources.inputs import InputFile, is_hub_url
from tokenlake.etl.sources.kept_blocks import VARIABLE, KeptBytes


@contextmanager
def opened(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> Generator[InputBytes]:
    """Yield the bytes of `file`; it must be as planned before and after it is read.

    Args:
        storage_options: options of the file system that a URL is on; credentials may be references.

    Raises:
        InputChangedError: it is gone, or not what was planned (a local file: inode, size, mtime and
            ctime; an object: size and version token).
        SourceError: it cannot be reached, after retries.
        ConfigError: :data:`VARIABLE` holds no size.
    """
    data = LocalBytes(file) if file.is_local else _remote(file, storage_options or {})
    try:
        yield data
        data.check_unchanged()
    finally:
        data.close()


def _remote(file: InputFile, storage_options: Mapping[str, Any]) -> InputBytes:
    """Open an object; its blocks are kept, and taken from there, where configuration or environment ask for it."""
    kept = file.kept_bytes
    if kept is None and (asked := os.environ.get(VARIABLE)):
        try:
            kept = parse_size(asked)
        except ConfigError as error:
            raise ConfigError(f"{VARIABLE}: {error}") from error
    # fsspec and asyncio take a sixth of a worker's start, and builds from local files need neither.
    if is_hub_url(file.url):
        from tokenlake.etl.sources.hub_bytes import HubBytes as Bytes
    else:
        from tokenlake.etl.sources.remote import RemoteBytes as Bytes
    data = Bytes(file, storage_options)
    return data if kept is None else KeptBytes(data, _blocks(str(default_folder() / "remote"), kept))


@cache
def _blocks(folder: str, size: int) -> DiskCache:
    return DiskCache(folder, max_bytes=size)
