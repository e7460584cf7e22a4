"""Writing to the disk that begins before a file is whole.

Written bytes wait in memory until the system writes them to the disk, at the latest for
an fsync. An export ends with fsync of all its files. Where the disk begins early, it
writes while rows are decoded and hashed, and the fsync has little to wait for.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final, final

_STEP_BYTES: Final = 1 << 23
"""Bytes that are passed on together: large enough for whole requests of any disk."""


@final
class Writeback:
    """Beginning of the writes of one file to the disk.

    Args:
        descriptor: Descriptor of the open file.
        begin: Number of its bytes that are on the disk, or that are left to fsync.
    """

    def __init__(self, descriptor: int, begin: int = 0) -> None:
        self._descriptor = descriptor
        self._begin = begin

    def reach(self, end: int) -> None:
        """Pass on the bytes up to `end`, if they are many; they must be written."""
        # Linux begins to write pages that it is advised to drop, and waits for nothing.
        # It drops none of them, because they are not on the disk yet. Other systems
        # have no such advice, and write for fsync.
        new_bytes = end - self._begin
        if sys.platform != "linux" or new_bytes < _STEP_BYTES:
            return
        # It is advice alone: file systems without it lose nothing.
        with suppress(OSError):
            os.posix_fadvise(
                self._descriptor, self._begin, new_bytes, os.POSIX_FADV_DONTNEED
            )
        self._begin = end
