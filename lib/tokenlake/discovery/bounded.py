"""Reading a little of an input, and never more than that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.sources.inputbytes import InputBytes, InputReader
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
        return pa.PythonFile(InputReader(self), mode="r")


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
