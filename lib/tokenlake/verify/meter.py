"""How far a verification is, summed over its threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import final

from tokenlake.verify.report import VerifyProgress


@final
class Meter:
    """Counts files and bytes; any number of threads.

    Args:
        files, size: of all there is to do.
        report: is called with every step, by one thread at a time.

    Attributes:
        read: bytes that were read.
    """

    def __init__(self, files: int, size: int, report: Callable[[VerifyProgress], None] | None) -> None:
        self._files, self._size, self._report = files, size, report
        self._lock = threading.Lock()
        self._files_done = self._done = self.read = 0

    @contextlib.contextmanager
    def file(self, work: int) -> Generator[FileMeter]:
        """Count a file; when it is done, all its work is, also where damage was found first."""
        own = FileMeter(self, work)
        yield own
        own.end()

    def add(self, done: int, *, read: int = 0, files: int = 0) -> None:
        """Count work that was done, what of it was reading, and files that are done."""
        with self._lock:
            self._done += done
            self.read += read
            self._files_done += files
            if self._report is not None:
                self._report(VerifyProgress(self._files_done, self._files, self._done, self._size))


@final
class FileMeter:
    """Counts the work on one file, which is never more than was announced."""

    def __init__(self, meter: Meter, work: int) -> None:
        self._meter, self._left = meter, work

    def read(self, size: int) -> None:
        """Count bytes that were read."""
        self._meter.add(self._taken(size), read=size)

    def decoded(self, size: int) -> None:
        """Count bytes that were decoded."""
        self._meter.add(self._taken(size))

    def end(self) -> None:
        """Count the rest."""
        self._meter.add(self._taken(self._left), files=1)

    def _taken(self, size: int) -> int:
        taken = min(size, self._left)
        self._left -= taken
        return taken
