"""What a run's log says while units are being built."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

from tokenlake.account import Account
from tokenlake.build.events import UnitProgress
from tokenlake.report import numbers

#: Seconds between two lines about one unit; a unit that is done sooner has its last line only.
_EVERY_SECONDS: Final = 10.0

Log = Callable[[str], None]


@final
class ProgressLog:
    """Adds up one unit's progress and writes a line now and then.

    Args:
        unit: its index.
        total: input bytes of the unit.
        log: gets the lines.
        clock: seconds, monotonic.
    """

    def __init__(self, unit: int, total: int, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
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
            self._log(
                f"unit {self._unit:05d}: {numbers.percent(self._bytes, self._total, 0)} of"
                f" {numbers.size(self._total)}, {numbers.rate(self._bytes, now - self._began)},"
                f" {numbers.count(self._documents)} documents, {numbers.short(self._tokens)} tokens"
            )

    def done(self, source: str, account: Account) -> None:
        """Write the last line."""
        seconds = self._clock() - self._began
        self._log(
            f"unit {self._unit:05d} of {source}: {numbers.count(account.documents)} documents,"
            f" {numbers.short(account.tokens)} tokens, {numbers.size(self._total)} in"
            f" {numbers.duration(seconds)} ({numbers.rate(self._total, seconds)})"
        )
