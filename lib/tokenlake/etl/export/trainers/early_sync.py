"""fsync of a file while it is written.

An export ends with fsync of all its files, and a disk takes about as long for that as
for the writes themselves. A thread syncs the first bytes of a large file, while rows
are decoded and further bytes are hashed, so that little is left for the end.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from tokenlake.errors import StoreError
from tokenlake.runtime.store.writes import hint_on

STEP_BYTES: Final = 1 << 24
"""Bytes after which a file is synced: a smaller file is synced at the end alone."""


@final
class EarlySync:
    """Syncs of one file, at most one at a time.

    Args:
        descriptor: Descriptor of the open file.
        path: Path of the file, for messages.
        begin: Number of bytes that the file has.
    """

    def __init__(self, descriptor: int, path: Path, begin: int = 0) -> None:
        self._descriptor = descriptor
        self._path = path
        self._synced_bytes = begin
        self._thread: ThreadPoolExecutor | None = None
        self._syncing: Future[None] | None = None

    def reach(self, end: int) -> None:
        """Let the thread sync the file, if it has grown by a step.

        Args:
            end: Number of bytes that are written.

        Raises:
            StoreError: An earlier sync has failed.
        """
        is_busy = self._syncing is not None and not self._syncing.done()
        if is_busy or end - self._synced_bytes < STEP_BYTES:
            return
        self._wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tokenlake-sync")
        self._syncing = self._thread.submit(_sync, self._descriptor)
        self._synced_bytes = end

    def finish(self) -> None:
        """Wait for the thread, after which the file may be closed.

        Raises:
            StoreError: A sync has failed.
        """
        try:
            self._wait()
        finally:
            self.discard()

    def discard(self) -> None:
        """Wait for the thread of a file that is given up."""
        if self._thread is not None:
            self._thread.shutdown()
        with suppress(BaseException):
            self._wait()

    def _wait(self) -> None:
        """Wait for the sync under way; raise its error."""
        # The system reports a failed sync once. A later fsync would not raise it again.
        if self._syncing is None:
            return
        syncing = self._syncing
        self._syncing = None
        try:
            syncing.result()
        except OSError as error:
            raise StoreError(
                f"cannot write {self._path}: {error.strerror}.{hint_on(error)}"
            ) from error


def _sync(descriptor: int) -> None:
    """Bring the bytes of a file to the disk; other facts about it follow at the end."""
    # macOS has no such call.
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)
