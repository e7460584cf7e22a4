"""A stream as the readers of footers and pages want it."""

from __future__ import annotations

import io
from typing import BinaryIO, final


@final
class StreamSource:
    """A file, one thread at a time.

    Attributes:
        size: its bytes.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = stream.seek(0, io.SEEK_END)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        self._stream.seek(offset)
        data = self._stream.read(size)
        if len(data) != size:
            raise ValueError(f"the file ends {size - len(data)} bytes before byte {offset + size}")
        return data
