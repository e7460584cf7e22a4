"""Opening an input and making sure that it is, and stays, the file that was planned."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from tokenlake.sources.hubapi import PREFIX
from tokenlake.sources.hubbytes import HubBytes
from tokenlake.sources.inputbytes import InputBytes, LocalBytes
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.remote import RemoteBytes


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
    data = _open(file, storage_options or {})
    try:
        yield data
        data.check_unchanged()
    finally:
        data.close()


def _open(file: InputFile, storage_options: Mapping[str, Any]) -> LocalBytes | HubBytes | RemoteBytes:
    if file.is_local:
        return LocalBytes(file)
    return (HubBytes if file.url.startswith(PREFIX) else RemoteBytes)(file, storage_options)
