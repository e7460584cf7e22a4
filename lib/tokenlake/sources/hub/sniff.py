"""Whether a ``.json`` file of the Hub holds one object per line, as many do, or one array."""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from tokenlake.sources.formats import compression_of
from tokenlake.sources.hub.api import HubFile, HubRepo

_BYTES: Final = 4096
_BLANK: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"


def has_lines(repo: HubRepo, file: HubFile) -> bool:
    """Say whether a file begins with an object rather than an array; one small request."""
    if not file.size:
        return False
    start = repo.start(file.path, min(file.size, _BYTES))
    return _plain(start, file.path).removeprefix(_BOM).lstrip(_BLANK).startswith(b"{")


def _plain(start: bytes, path: str) -> bytes:
    """Decompress as much of the beginning as there is; what is broken is for the reader to report."""
    codec = compression_of(path)
    try:
        if codec == "gzip":
            return zlib.decompressobj(wbits=31).decompress(start)
        if codec == "zstd":
            return pa.CompressedInputStream(pa.BufferReader(start), "zstd").read(64)
    except (zlib.error, OSError, pa.ArrowException):
        return b""
    return start
