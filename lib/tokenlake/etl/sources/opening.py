"""Opening an input: it must be the planned file before it is read and after it."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from tokenlake.base.cache.disk import DiskCache, default_folder
from tokenlake.base.sizes import parse_size
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.input_bytes import InputBytes, LocalBytes
from tokenlake.etl.sources.inputs import InputFile, is_hub_url
from tokenlake.etl.sources.kept_blocks import VARIABLE, KeptBytes


@contextmanager
def opened(
    file: InputFile, storage_options: Mapping[str, Any] | None = None
) -> Generator[InputBytes]:
    """Yield the bytes of `file`; it must be as planned before and after it is read.

    Args:
        file: The planned file.
        storage_options: Options of the file system that a URL is on; credentials may be
            references.

    Raises:
        InputChangedError: The file is gone, or not as planned (a local file: inode,
            size, mtime and ctime; an object: size and version token).
        SourceError: The file cannot be reached, after retries.
        ConfigError: :data:`VARIABLE` holds no size.
    """
    if file.is_local:
        data: InputBytes = LocalBytes(file)
    else:
        data = _open_remote(file, storage_options or {})
    # Checked again after the last read: the file may have been replaced meanwhile.
    try:
        yield data
        data.check_unchanged()
    finally:
        data.close()


def open_companions(
    file: InputFile, storage_options: Mapping[str, Any] | None, stack: ExitStack
) -> dict[str, InputBytes]:
    """Return the open companions of a file by the names that its format has for them.

    Args:
        file: The planned file.
        storage_options: Options of the file system that a URL is on.
        stack: Stack that closes them.
    """
    companions: dict[str, InputBytes] = {}
    for companion in file.companions:
        companions[companion.companion] = stack.enter_context(
            opened(companion, storage_options)
        )
    return companions


def _open_remote(file: InputFile, storage_options: Mapping[str, Any]) -> InputBytes:
    """Open an object.

    Its blocks are kept on disk if the configuration or the environment set a size for
    them.
    """
    cache_bytes = file.kept_bytes
    if cache_bytes is None:
        cache_bytes = _cache_bytes_of_environment()
    # fsspec and asyncio take a sixth of a worker's start, and builds from local files
    # need neither.
    if is_hub_url(file.url):
        from tokenlake.etl.sources.hub_bytes import HubBytes

        data: InputBytes = HubBytes(file, storage_options)
    else:
        from tokenlake.etl.sources.remote import RemoteBytes

        data = RemoteBytes(file, storage_options)
    if cache_bytes is None:
        return data
    return KeptBytes(data, _block_cache(str(default_folder() / "remote"), cache_bytes))


def _cache_bytes_of_environment() -> int | None:
    """Return the size that the environment sets for kept blocks, None if it sets none."""
    size = os.environ.get(VARIABLE)
    if not size:
        return None
    try:
        return parse_size(size)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error


@cache
def _block_cache(folder: str, size: int) -> DiskCache:
    return DiskCache(folder, max_bytes=size)
