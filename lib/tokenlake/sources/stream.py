"""An input as one stream of bytes from its beginning, decompressed where it is compressed.

A stream that breaks off or is corrupt is never read in part.
"""

from __future__ import annotations

from typing import final

import pyarrow as pa

from tokenlake.sources.inputbytes import InputBytes, SequentialReader
from tokenlake.sources.inputs import damaged


@final
class ByteStream:
    """The bytes of a plain, gzip (all members) or zstd (all frames) file, read once from the beginning.

    Arrow's decompressor raises where a member is cut, where its checksum differs and where anything but
    another member follows; zstandard's own reader ends early in silence.
    """

    def __init__(self, data: InputBytes) -> None:
        """Read `data`; DamagedFileError if a compressed file has no bytes at all."""
        self._file = data.file
        if self._file.compression and not self._file.size:
            raise damaged(self._file, f"it is empty, not even an empty {self._file.compression} stream")
        self._raw = SequentialReader(data)
        source = pa.PythonFile(self._raw, mode="r")
        codec = self._file.compression
        self._stream = pa.CompressedInputStream(source, codec) if codec else source
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
        """Return how many stored bytes were read since the last call."""
        at = self._raw.tell()
        self._mark, delta = at, at - self._mark
        return delta
