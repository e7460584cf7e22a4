"""The hash of a file that another library writes, computed while the file grows.

The library must append to the file, and never change bytes that it has written.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, final

from tokenlake.etl.export.trainers.early_sync import EarlySync

READ_BYTES: Final = 1 << 20
"""Bytes of the file that are read and hashed at a time."""


@final
class GrowingHash:
    """sha256 of a file whose new bytes a thread reads and hashes.

    Args:
        path: Path of the file, which exists.

    Attributes:
        bytes: Number of bytes that are hashed.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._early_sync = EarlySync(self._file.fileno(), path)
        self._hash = hashlib.sha256()
        self._block = memoryview(bytearray(READ_BYTES))
        self._thread = ThreadPoolExecutor(1, "tokenlake-hash")
        self._reading: Future[None] | None = None
        self.bytes = 0

    def follow(self) -> None:
        """Let the thread hash the bytes that were appended, unless it still does.

        Raises:
            OSError: The file cannot be read.
            StoreError: It cannot be synced.
        """
        if self._reading is not None:
            if not self._reading.done():
                return
            self._reading.result()
        self._reading = self._thread.submit(self._read_blocks)

    def finish(self) -> str:
        """Hash the rest of the file, which is whole, and return the hex sha256.

        Raises:
            OSError: The file cannot be read.
            StoreError: It cannot be synced.
        """
        if self._reading is not None:
            self._reading.result()
        while block_bytes := self._file.readinto(self._block):
            self._add(block_bytes)
        self._early_sync.finish()
        self.discard()
        return self._hash.hexdigest()

    def discard(self) -> None:
        """End the thread, and close the file."""
        self._thread.shutdown()
        self._early_sync.discard()
        self._file.close()

    def _read_blocks(self) -> None:
        """Hash whole blocks that were appended; part of a block waits for its rest."""
        file_bytes = os.fstat(self._file.fileno()).st_size
        while file_bytes - self.bytes >= READ_BYTES:
            block_bytes = self._file.readinto(self._block)
            if not block_bytes:
                return
            self._add(block_bytes)
            file_bytes = os.fstat(self._file.fileno()).st_size

    def _add(self, block_bytes: int) -> None:
        self._hash.update(self._block[:block_bytes])
        self.bytes += block_bytes
        self._early_sync.reach(self.bytes)
