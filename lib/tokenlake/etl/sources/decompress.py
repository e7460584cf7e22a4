"""The bytes of ``.bz2`` and ``.xz`` files, by the decompressors of the standard library.

Arrow has none for xz, and its own for bzip2 fails at a stream of no bytes that another stream follows.
"""

from __future__ import annotations

import bz2
import lzma
from typing import Final, Literal, Protocol, final

_ASKED_BYTES: Final = 1 << 16  # of compressed bytes at a time
_XZ_MEMORY_BYTES: Final = 512 << 20  # of a decompressor: ``xz -9`` needs 65 MiB, the largest dictionary 4 GiB
_XZ_PADDING_UNIT: Final = 4  # behind a stream may stand a multiple of so many zero bytes


class Readable(Protocol):
    """What compressed bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""
        ...


@final
class StreamReader:
    """Reads all streams of a file, one after the other, in bounded memory.

    Attributes:
        errors: what :meth:`read` raises where a file is cut, corrupt, or followed by something else.
    """

    errors: Final = (OSError, EOFError, lzma.LZMAError)

    def __init__(self, compressed: Readable, kind: Literal["bzip2", "xz"]) -> None:
        """Read the file of a compression from its beginning; nothing is read yet."""
        self._compressed = compressed
        self._kind = kind
        self._stream: bz2.BZ2Decompressor | lzma.LZMADecompressor | None = None
        self._rest = b""  # compressed bytes that were read, and of which nothing was decompressed

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, at least one before the end, none there."""
        while size:
            if self._stream is None and not self._begin_stream():
                return b""
            data = self._decompressed(size)
            if data:
                return data
        return b""

    def _begin_stream(self) -> bool:
        """Begin the next stream; return whether there is one."""
        if self._kind == "xz":
            self._skip_padding()
        self._rest = self._rest or self._compressed.read(_ASKED_BYTES)
        if not self._rest:
            return False
        if self._kind == "xz":
            self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        else:
            self._stream = bz2.BZ2Decompressor()
        return True

    def _skip_padding(self) -> None:
        """Pass over the zero bytes behind a stream, which are no data."""
        padding = 0
        while True:
            self._rest = self._rest or self._compressed.read(_ASKED_BYTES)
            stripped = self._rest.lstrip(b"\0")
            padding += len(self._rest) - len(stripped)
            is_at_end = not self._rest
            self._rest = stripped
            if stripped or is_at_end:
                break
        if padding % _XZ_PADDING_UNIT:
            raise lzma.LZMAError(
                f"{padding} zero bytes follow a stream, expected a multiple of {_XZ_PADDING_UNIT}"
            )

    def _decompressed(self, size: int) -> bytes:
        """Return some bytes of the stream, none where it ended or only began."""
        stream = self._stream
        if stream is None:
            return b""
        compressed = self._rest
        self._rest = b""
        if stream.needs_input and not compressed:
            compressed = self._compressed.read(_ASKED_BYTES)
            if not compressed:
                raise EOFError("the file ends within a stream")
        data = stream.decompress(compressed, size)
        if stream.eof:
            self._rest = stream.unused_data
            self._stream = None
        return data
