"""Reading a little of an input, and never more than that."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile

FILE_BYTES: Final = 4 << 20
"""Stored bytes that are read of one file at most."""


class BoundReached(Exception):
    """More of a file would have to be read than is allowed; never leaves this package."""


@final
class BoundedBytes(InputBytes):
    """An open input of which at most `limit` bytes can be read, repeats counted.

    Attributes:
        bytes_read: how many were.
    """

    def __init__(self, data: InputBytes, limit: int = FILE_BYTES) -> None:
        self.file = data.file
        self._data, self._limit = data, limit
        self.bytes_read = 0

    def read_into(self, view: memoryview, offset: int) -> int:
        wanted = min(len(view), max(self.file.size - offset, 0))
        if self.bytes_read + wanted > self._limit:
            raise BoundReached(f"{self.file.url}: more than {self._limit} bytes")
        got = self._data.read_into(view, offset)
        self.bytes_read += got
        return got

    def for_arrow(self) -> Any:
        """Return a random-access file that counts, for a local input too."""
        return pa.PythonFile(_RandomAccess(self), mode="r")


@final
class MemoryBytes(InputBytes):
    """The decompressed beginning of an input, as an input of its own that is not compressed."""

    def __init__(self, file: InputFile, data: bytes) -> None:
        self.file = replace(file, size=len(data), compression=None)
        self._data = data

    def read_into(self, view: memoryview, offset: int) -> int:
        data = self._data[offset : offset + len(view)]
        view[: len(data)] = data
        return len(data)

    def for_arrow(self) -> Any:
        return pa.BufferReader(self._data)


@final
class _RandomAccess(io.RawIOBase):
    """An input as Python's own seekable raw file."""

    def __init__(self, data: InputBytes) -> None:
        super().__init__()
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._data.file.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as view, view.cast("B") as target:
            got = self._data.read_into(target, self._at)
        self._at += got
        return got
