"""Progress of a listing: the files and bytes that each of its steps has done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, final

_REPORT_SECONDS: Final = 0.2  # between two reports

Step = Literal["listing", "hashing", "splitting", "counting"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one step of a listing.

    Attributes:
        step: ``listing`` (looking for files), ``hashing``, ``splitting`` (reading
            footers), ``counting`` (records, up to a source's `num_rows`).
        files: Number of files done so far.
        all_files: Number of all files, 0 if it is not known yet.
        bytes: Number of bytes done so far.
        all_bytes: Number of all bytes, 0 if it is not known yet.
    """

    step: Step
    files: int
    all_files: int
    bytes: int
    all_bytes: int


OnProgress = Callable[[Progress], None]
"""Function that receives the progress, from any thread."""


@final
class ProgressMeter:
    """Adds up the work of several threads.

    Reports are rare, but the last one is always made.
    """

    def __init__(
        self, step: Step, files: int, size: int, report: OnProgress | None
    ) -> None:
        """Begin a step.

        Args:
            step: Name of the step.
            files: Number of all files, 0 if it is not known yet.
            size: Number of all bytes, 0 if it is not known yet.
            report: Function that receives the progress, None for no reports.
        """
        self._step: Step = step
        self._all_files = files
        self._all_bytes = size
        self._report = report
        self._files = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._next_report = 0.0

    def add(self, files: int, size: int) -> None:
        """Count more files and bytes."""
        with self._lock:
            self._files += files
            self._bytes += size
            now = time.monotonic()
            # A step whose total is unknown has no last report.
            is_last = self._files == self._all_files > 0
            if self._report and (now >= self._next_report or is_last):
                self._next_report = now + _REPORT_SECONDS
                progress = Progress(
                    self._step,
                    self._files,
                    self._all_files,
                    self._bytes,
                    self._all_bytes,
                )
                self._report(progress)
