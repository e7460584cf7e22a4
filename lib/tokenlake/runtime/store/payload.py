"""Bytes of an object that is to be written.

They are in memory or a file, and are sent whole or in parts.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from tokenlake.errors import StoreError
from tokenlake.runtime.store.durable_files import open_regular

LARGE: Final = 32 << 20
"""Bytes from which on an object is sent in parts, if the storage has parts.

A smaller one is held in memory.
"""

PIECE: Final = 8 << 20
"""Bytes of a part.

As much of a file is held in memory while it is sent.
"""

_MOST_PARTS: Final = 9_000  # S3 takes 10,000
_READ: Final = 1 << 20  # bytes that are hashed at a time


@final
class Payload:
    """Bytes that are to be sent.

    Attributes:
        size: Number of all bytes.
        sha256: Hash of all bytes, hex.
        in_parts: The bytes are sent in parts, if the storage has parts.
        part_bytes: Bytes of a part; the last part may be shorter.
        md5s: MD5 of each part, base64.
    """

    def __init__(
        self, source: bytes | int, size: int, *, in_parts: bool = False
    ) -> None:
        """
        Args:
            source: Bytes, or the descriptor of a file, which must stay open.
            size: Number of bytes.
            in_parts: Send the bytes in parts, if the storage has parts.
        """
        self._source = source
        self.size = size
        self.in_parts = in_parts
        self.part_bytes = max(size, 1)  # one part, also of an empty object
        if in_parts:
            self.part_bytes = max(PIECE, -(-size // _MOST_PARTS))

        # Read everything once for both hashes.
        whole_hash = hashlib.sha256()
        md5s: list[str] = []
        for part_start in range(0, max(size, 1), self.part_bytes):
            part_stop = min(part_start + self.part_bytes, size)
            part_hash = hashlib.md5(usedforsecurity=False)
            for chunk_start in range(part_start, part_stop, _READ):
                chunk = self.read(chunk_start, min(_READ, part_stop - chunk_start))
                whole_hash.update(chunk)
                part_hash.update(chunk)
            md5s.append(base64.b64encode(part_hash.digest()).decode())
        self.sha256: str = whole_hash.hexdigest()
        self.md5s: tuple[str, ...] = tuple(md5s)

    @classmethod
    @contextmanager
    def of_file(cls, path: Path, *, in_parts: bool) -> Generator[Payload]:
        """Read a file, and keep it open to be sent.

        Args:
            path: Path of the file.
            in_parts: Send a large file in parts.
        """
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            yield cls(stream.fileno(), size, in_parts=in_parts and size >= LARGE)

    @classmethod
    def of(cls, data: bytes, *, in_parts: bool = False) -> Payload:
        """Return bytes as a payload."""
        return cls(data, len(data), in_parts=in_parts)

    def part(self, index: int) -> bytes:
        """Return the bytes of a part, counted from 0."""
        return self.read(index * self.part_bytes, self.part_bytes)

    def read(self, start: int, size: int) -> bytes:
        """Return bytes from `start` on; fewer only at the end of the payload.

        Args:
            start: Offset of the first byte.
            size: Number of bytes.

        Raises:
            StoreError: The file has become shorter.
        """
        length = min(size, self.size - start)
        if isinstance(self._source, bytes):
            # All bytes together are returned without a copy.
            if length == self.size:
                return self._source
            return self._source[start : start + length]
        # One call may read less than it was asked for.
        data = os.pread(self._source, length, start)
        while len(data) < length:
            chunk = os.pread(self._source, length - len(data), start + len(data))
            if not chunk:
                break
            data += chunk
        if len(data) < length:
            raise StoreError(
                f"a temporary file has become shorter than its {self.size} bytes; nothing was published"
            )
        return data
