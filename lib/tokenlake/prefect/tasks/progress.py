"""What a task run's log says while its units are being built."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

from tokenlake.build.events import UnitProgress
from tokenlake.report import numbers

#: Seconds between two lines of one task run; one that is done sooner has its last line only.
_EVERY_SECONDS: Final = 10.0

Log = Callable[[str], None]


@final
class ProgressLog:
    """Adds up the progress of a group of units and writes a line now and then.

    Args:
        name: what the lines begin with.
        total: input bytes of the group.
        log: gets the lines.
        clock: seconds, monotonic.
    """

    def __init__(self, name: str, total: int, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._total = total
        self._log = log
        self._clock = clock
        self._began = self._last = clock()
        self._bytes = self._documents = self._tokens = 0

    def add(self, event: UnitProgress) -> None:
        """Count an event; maybe write a line."""
        self._bytes += event.bytes
        self._documents += event.documents
        self._tokens += event.tokens
        now = self._clock()
        if now - self._last >= _EVERY_SECONDS:
            self._last = now
            done = numbers.percent(min(self._bytes, self._total), self._total, 0)
            self._write(f"{done} of {numbers.size(self._total)}", self._documents, self._tokens, self._bytes)

    def done(self, documents: int, tokens: int) -> None:
        """Write the last line, with the figures that count."""
        took = numbers.duration(self._clock() - self._began)
        self._write(f"{numbers.size(self._total)} in {took}", documents, tokens, self._total)

    def _write(self, what: str, documents: int, tokens: int, read: int) -> None:
        speed = numbers.rate(read, self._clock() - self._began)
        counts = f"{numbers.plural(documents, 'document')}, {numbers.short(tokens)} tokens"
        self._log(f"{self._name}: {what}, {speed}, {counts}")
