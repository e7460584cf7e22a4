"""The log lines of a group of units: how far it is, now and then, and its totals at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Final, final

from tokenlake.base import numbers
from tokenlake.etl.events import UnitProgress

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
        form: of the lines: json, or none for the last line alone; anything else is text.
        clock: seconds, monotonic.
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
        self._log, self._form = log, form
        self._clock = clock
        self._began = self._last = clock()
        self._bytes = self._documents = self._tokens = 0

    def add(self, event: UnitProgress) -> None:
        """Count an event; maybe write a line."""
        self._bytes += event.bytes
        self._documents += event.documents
        self._tokens += event.tokens
        now = self._clock()
        if now - self._last >= _EVERY_SECONDS and self._form != "none":
            self._last = now
            done = numbers.percent(min(self._bytes, self._total), self._total, 0)
            self._write(f"{done} of {numbers.size(self._total)}", self._documents, self._tokens, self._bytes)

    def done(self, documents: int, tokens: int, stages: Mapping[str, float]) -> None:
        """Write the last line, with the figures that count, and the seconds of each stage."""
        took = numbers.duration(self._clock() - self._began)
        parts = ", ".join(f"{stage} {numbers.duration(seconds)}" for stage, seconds in stages.items())
        what = f"{numbers.size(self._total)} in {took}" + (f" ({parts})" if parts else "")
        self._write(what, documents, tokens, self._total)

    def _write(self, what: str, documents: int, tokens: int, read: int) -> None:
        if self._form == "json":
            seconds = round(self._clock() - self._began, 3)
            facts = {"task": self._name, "bytes": read, "all_bytes": self._total, "documents": documents}
            self._log(json.dumps({**facts, "tokens": tokens, "seconds": seconds}))
            return
        speed = numbers.rate(read, self._clock() - self._began)
        counts = f"{numbers.plural(documents, 'document')}, {numbers.short(tokens)} tokens"
        self._log(f"{self._name}: {what}, {speed}, {counts}")
