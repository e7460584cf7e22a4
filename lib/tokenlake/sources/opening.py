"""Opening an input and making sure that it is, and stays, the file that was planned."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tokenlake.sources.inputs import InputBytes, InputFile, LocalBytes
from tokenlake.sources.local.patterns import is_hub_url

if TYPE_CHECKING:
    from tokenlake.sources.hub.reader import HubBytes
    from tokenlake.sources.remote.reader import RemoteBytes


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
    data = LocalBytes(file) if file.is_local else _remote(file, storage_options or {})
    try:
        yield data
        data.check_unchanged()
    finally:
        data.close()


def _remote(file: InputFile, storage_options: Mapping[str, Any]) -> HubBytes | RemoteBytes:
    # fsspec and asyncio take a sixth of a worker's start, and builds from local files need neither.
    if is_hub_url(file.url):
        from tokenlake.sources.hub.reader import HubBytes

        return HubBytes(file, storage_options)
    from tokenlake.sources.remote.reader import RemoteBytes

    return RemoteBytes(file, storage_options)
