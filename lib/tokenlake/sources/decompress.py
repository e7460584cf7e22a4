"""Compressed files as one stream of bytes; a stream that breaks off or is corrupt is never read in part."""

from __future__ import annotations

import os
from typing import final

import pyarrow as pa

from tokenlake.sources.listing import InputFile
from tokenlake.sources.opening import damaged


@final
class DecompressedStream:
    """The bytes of a gzip (all members) or zstd (all frames) file, read once from its beginning.

    Arrow's stream raises where a member is cut, where its checksum differs and where anything but
    another member follows; zstandard's own reader ends early in silence.
    """

    def __init__(self, file: InputFile, descriptor: int) -> None:
        """Read `file`, which is open as `descriptor`; DamagedFileError if it has no bytes at all."""
        if not file.size:
            raise damaged(file, f"it is empty, not even an empty {file.compression} stream")
        os.lseek(descriptor, 0, os.SEEK_SET)
        self._file = file
        self._raw = os.fdopen(os.dup(descriptor), "rb", buffering=0)
        self._stream = pa.CompressedInputStream(
            pa.PythonFile(self._raw, mode="r"), file.compression or "gzip"
        )
        self._at, self._mark = 0, 0

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end; DamagedFileError where the stream is broken."""
        data = self._some(size)
        while len(data) < size and (more := self._some(size - len(data))):
            data += more
        return data

    def _some(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            raise damaged(
                self._file,
                f"its {self._file.compression} stream is cut or corrupt between bytes {self._at} and "
                f"{self._at + size} of the decompressed data ({error})",
                offset=self._at,
            ) from error
        self._at += len(data)
        return data

    def consumed(self) -> int:
        """Return how many compressed bytes were read since the last call."""
        at = os.lseek(self._raw.fileno(), 0, os.SEEK_CUR)
        self._mark, delta = at, at - self._mark
        return delta
