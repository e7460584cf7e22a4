"""Progress of a listing: how many files and bytes each of its steps has done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, final

_EVERY: Final = 0.2  # seconds between two reports

Step = Literal["listing", "hashing", "splitting", "counting"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one step of a listing is.

    Attributes:
        step: ``listing`` (looking for files), ``hashing``, ``splitting`` (reading footers), ``counting``
            (records, up to a source's `num_rows`).
        files, bytes: done so far.
        all_files, all_bytes: in all; 0 where that is not known yet.
    """

    step: Step
    files: int
    all_files: int
    bytes: int
    all_bytes: int


OnProgress = Callable[[Progress], None]


@final
class ProgressMeter:
    """Adds up what several threads have done; reports are rare, but the last one is always made."""

    def __init__(self, step: Step, files: int, size: int, report: OnProgress | None) -> None:
        self._step: Step = step
        self._all_files, self._all_bytes, self._report = files, size, report
        self._files = self._bytes = 0
        self._lock = threading.Lock()
        self._next = 0.0

    def add(self, files: int, size: int) -> None:
        """Count more files and bytes."""
        with self._lock:
            self._files += files
            self._bytes += size
            now = time.monotonic()
            last = self._files == self._all_files > 0
            if self._report and (now >= self._next or last):
                self._next = now + _EVERY
                done = Progress(self._step, self._files, self._all_files, self._bytes, self._all_bytes)
                self._report(done)
