"""Opening an input and making sure that it is, and stays, the file that was planned."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tokenlake.errors import TokenlakeError
from tokenlake.sources.formats import format_of
from tokenlake.sources.inputs import InputBytes, InputFile, LocalBytes, is_hub_url
from tokenlake.sources.range_cache import with_kept_blocks
from tokenlake.sources.stream import LOOK, SPACE, ByteStream, has_lines


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
