"""An input as one stream of bytes from its beginning, decompressed where it is compressed.

A stream that breaks off or is corrupt is never read in part.
"""

from __future__ import annotations

import io
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.errors import DamagedFileError
from tokenlake.sources.inputbytes import InputBytes, InputReader
from tokenlake.sources.inputs import damaged
from tokenlake.sources.magic import check_compressed, check_content

FREE_BYTES: Final = 256 << 20  # so much a stream may unfold to, however small it is
_READ_AHEAD: Final = 1 << 20  # Arrow asks for 64 KiB at a time, which may be a request each
_HEAD: Final = 16


@final
class ByteStream:
    """The bytes of a plain, gzip (all members) or zstd (all frames) file, read once from the beginning.

    Arrow's decompressor raises where a member is cut, where its checksum differs and where anything but
    another member follows; zstandard's own reader ends early in silence. What a stream unfolds to is
    bounded by the input's `max_expansion` times the stored bytes that were read of it.
    """

    def __init__(self, data: InputBytes) -> None:
        """Read `data`.

        Raises:
            DamagedFileError: a compressed file is not compressed, or otherwise than its extension says, or
                has no bytes at all.
        """
        self._file, self._data = data.file, data
        self._at, self._mark = 0, 0
        self._raw = InputReader(data)
        self._stream: Any = None
        if data.file.compression:
            check_compressed(data.file, data.pread(_HEAD, 0))
            ahead = io.BufferedReader(self._raw, _READ_AHEAD)
            self._stream = pa.CompressedInputStream(pa.PythonFile(ahead, mode="r"), data.file.compression)

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end; DamagedFileError where the stream is broken."""
        if self._stream is None:
            data = self._data.pread(size, self._at)
            self._at += len(data)
            return data
        data = self._some(size)
        while len(data) < size and (more := self._some(size - len(data))):
            data += more
        return data

    def read_into(self, view: memoryview) -> int:
        """Fill `view`; return how many bytes came, fewer only at the end; errors as in :meth:`read`."""
        if self._stream is None:
            got = self._data.read_into(view, self._at)
            self._at += got
            return got
        at = 0
        while at < len(view) and (data := self._some(len(view) - at)):
            view[at : at + len(data)] = data
            at += len(data)
        return at

    def consumed(self) -> int:
        """Return how many stored bytes were read since the last call."""
        at = self._at if self._stream is None else self._raw.tell()
        self._mark, delta = at, at - self._mark
        return delta

    def _some(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            raise damaged(
                self._file,
                f"its {self._file.compression} stream is cut or corrupt between bytes {self._at} and "
                f"{self._at + size} of the decompressed data ({error})",
                offset=self._at,
            ) from error
        if not self._at:
            check_content(self._file, data[:_HEAD])
        self._at += len(data)
        if self._at > FREE_BYTES and self._at > self._data.max_expansion * self._raw.tell():
            raise self._bomb()
        return data

    def _bomb(self) -> DamagedFileError:
        read = self._raw.tell()
        return damaged(
            self._file,
            f"{read} stored bytes unfold to {self._at} and more, more than source.max_expansion = "
            f"{self._data.max_expansion} times as many (it may be raised, if the content is meant to be "
            "so repetitive)",
            stored=read,
            unfolded=self._at,
        )
