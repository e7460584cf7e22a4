"""Whether a file of JSON is an array or has an object on every line: its beginning tells, because names do not."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
import pyarrow as pa

from tokenlake.errors import TokenlakeError
from tokenlake.sources.formats import compression_of, format_of
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.opening import opened
from tokenlake.sources.stream import ByteStream

LOOK: Final = 4096  # bytes
_SPACE: Final = b" \t\r\n\xef\xbb\xbf"  # white space of JSON, and a byte order mark


def has_lines(head: bytes) -> bool:
    """Say whether a file that begins with `head` has an object on its first line, as far as that is seen."""
    line, newline, _ = head.lstrip(_SPACE).partition(b"\n")
    if not line.startswith(b"{"):
        return False
    try:
        return not newline or isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def plain(start: bytes, path: str) -> bytes:
    """Decompress as much of the beginning of a file as there is; what is broken is for the reader to report."""
    codec = compression_of(path)
    try:
        if codec == "gzip":
            return zlib.decompressobj(wbits=31).decompress(start)
        if codec == "zstd":
            return pa.CompressedInputStream(pa.BufferReader(start), "zstd").read(LOOK)
    except (zlib.error, OSError, pa.ArrowException):
        return b""
    return start


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
        if found := some.lstrip(_SPACE):
            return found + stream.read(LOOK)
    return b""
