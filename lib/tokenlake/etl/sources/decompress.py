"""The bytes of ``.bz2`` and ``.xz`` files, decompressed by the standard library.

Arrow has none for xz, and its own for bzip2 fails at a stream of no bytes that another
stream follows.
"""

from __future__ import annotations

import bz2
import lzma
from typing import Final, Literal, Protocol, final

_READ_BYTES: Final = 1 << 16  # compressed bytes that are read at a time
# Of a decompressor: ``xz -9`` needs 65 MiB, the largest dictionary 4 GiB.
_XZ_MEMORY_BYTES: Final = 512 << 20
# The zero bytes behind a stream are a multiple of this number.
_XZ_PADDING_UNIT: Final = 4


class Readable(Protocol):
    """A file of compressed bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""
        ...


@final
class StreamReader:
    """Reads all streams of a file, one after the other, in bounded memory.

    Attributes:
        errors: Exceptions that :meth:`read` raises if a file is cut, corrupt, or
            followed by something else.
    """

    errors: Final = (OSError, EOFError, lzma.LZMAError)

    def __init__(self, compressed: Readable, kind: Literal["bzip2", "xz"]) -> None:
        """Begin before the first byte.

        Args:
            compressed: The file.
            kind: Its compression.
        """
        self._compressed = compressed
        self._kind = kind
        self._stream: bz2.BZ2Decompressor | lzma.LZMADecompressor | None = None
        # Compressed bytes that were read, and are not decompressed yet.
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, at least one before the end, none there."""
        # A stream that just began or ended gives no bytes, which would look like the
        # end of the file.
        while size:
            if self._stream is None and not self._begin_stream():
                return b""
            chunk = self._decompressed(size)
            if chunk:
                return chunk
        return b""

    def _begin_stream(self) -> bool:
        """Begin the next stream; return whether there is one."""
        # Padding follows streams of xz alone. A file of bzip2 has none between its
        # streams.
        if self._kind == "xz":
            self._skip_padding()
        self._rest = self._rest or self._compressed.read(_READ_BYTES)
        if not self._rest:
            return False
        if self._kind == "xz":
            self._stream = lzma.LZMADecompressor(
                lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES
            )
        else:
            self._stream = bz2.BZ2Decompressor()
        return True

    def _skip_padding(self) -> None:
        """Pass over the zero bytes behind a stream, which are no data."""
        # The format requires a multiple of four zero bytes, so that a stray byte is an
        # error.
        padding_bytes = 0
        while True:
            self._rest = self._rest or self._compressed.read(_READ_BYTES)
            stripped = self._rest.lstrip(b"\0")
            padding_bytes += len(self._rest) - len(stripped)
            is_at_end = not self._rest
            self._rest = stripped
            if stripped or is_at_end:
                break
        if padding_bytes % _XZ_PADDING_UNIT:
            raise lzma.LZMAError(
                f"{padding_bytes} zero bytes follow a stream, expected a multiple of {_XZ_PADDING_UNIT}"
            )

    def _decompressed(self, size: int) -> bytes:
        """Return some bytes of the stream, none where it ended or only began."""
        stream = self._stream
        if stream is None:
            return b""
        compressed = self._rest
        self._rest = b""
        if stream.needs_input and not compressed:
            compressed = self._compressed.read(_READ_BYTES)
            if not compressed:
                raise EOFError("the file ends within a stream")
        # Bytes behind the end of the stream begin the next one, or its padding.
        chunk = stream.decompress(compressed, size)
        if stream.eof:
            self._rest = stream.unused_data
            self._stream = None
        return chunk
