"""The log lines of a group of units: progress every ten seconds, and totals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Final, final

from tokenlake.base import numbers
from tokenlake.etl.events import UnitProgress

_EVERY_SECONDS: Final = 10.0
"""Seconds between two lines of a task run; a shorter one has its last line only."""

Log = Callable[[str], None]


@final
class ProgressLog:
    """Adds up the progress of a group of units and writes a line now and then.

    Args:
        name: Beginning of each line.
        total: Input bytes of the group.
        log: Function that gets the lines.
        form: Form of the lines: ``json``, or ``none`` for the last line alone; any
            other word is text.
        clock: Function that returns monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        total: int,
        log: Log,
        form: str = "rich",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._total = total
        self._log = log
        self._form = form
        self._clock = clock
        self._began = clock()
        self._last = self._began  # time of the last line
        self._bytes = 0
        self._documents = 0
        self._tokens = 0

    def add(self, event: UnitProgress) -> None:
        """Count an event, and write a line if it is time."""
        self._bytes += event.bytes
        self._documents += event.documents
        self._tokens += event.tokens
        current_time = self._clock()
        if current_time - self._last >= _EVERY_SECONDS and self._form != "none":
            self._last = current_time
            # Unlike the progress bars, this line does not take back the bytes of failed
            # tries. It is capped at the total.
            read_bytes = min(self._bytes, self._total)
            share = numbers.percent(read_bytes, self._total, 0)
            summary = f"{share} of {numbers.size(self._total)}"
            self._write(summary, self._documents, self._tokens, self._bytes)

    def done(
        self, documents: int, tokens: int, step_seconds: Mapping[str, float]
    ) -> None:
        """Write the last line, with totals of the group and the seconds of steps."""
        seconds_taken = numbers.duration(self._clock() - self._began)
        summary = f"{numbers.size(self._total)} in {seconds_taken}"
        if step_seconds:
            times: list[str] = []
            for step_name, seconds in step_seconds.items():
                times.append(f"{step_name} {numbers.duration(seconds)}")
            summary += f" ({', '.join(times)})"
        self._write(summary, documents, tokens, self._total)

    def _write(
        self, summary: str, documents: int, tokens: int, read_bytes: int
    ) -> None:
        """Write a line with figures: a JSON object, or a text."""
        seconds = self._clock() - self._began
        if self._form == "json":
            figures = {
                "task": self._name,
                "bytes": read_bytes,
                "all_bytes": self._total,
                "documents": documents,
                "tokens": tokens,
                "seconds": round(seconds, 3),
            }
            self._log(json.dumps(figures))
            return
        speed = numbers.rate(read_bytes, seconds)
        document_count = numbers.plural(documents, "document")
        counts = f"{document_count}, {numbers.short(tokens)} tokens"
        self._log(f"{self._name}: {summary}, {speed}, {counts}")
