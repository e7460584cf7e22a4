"""What a build's events add up to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from tokenlake.build.events import Event, Planned, UnitFinished, UnitProgress, UnitRetried, UnitStarted


@final
@dataclass(slots=True)
class SourceTally:
    """Input bytes of one source: all, done (now or earlier), and done in this run."""

    total: int = 0
    done: int = 0
    built: int = 0


@final
@dataclass(slots=True)
class Tally:
    """Running sums. ``built`` counts this run alone, so that a resumed run shows its true speed.

    Attributes:
        what: of several builds, which one this is: ``tokens of code``; empty where there is one alone.
        number, of: which one, and of how many.
        dataset, version, pending: as planned.
        units, finished: of the plan, and those with a ledger record.
        documents, tokens: so far, those of resumed units included.
        written: ids in finished units, BOS and EOS included and what was cut away not.
        sources: per source, in plan order.
        began: when the first unit started, or None.
        ended: when the last one finished, or None.
        clock: what these times are read from, in seconds.
    """

    what: str = ""
    number: int = 1
    of: int = 1
    dataset: str = ""
    version: int = 0
    pending: int = 0
    units: int = 0
    finished: int = 0
    documents: int = 0
    tokens: int = 0
    written: int = 0
    sources: dict[str, SourceTally] = field(default_factory=dict[str, SourceTally])
    began: float | None = None
    ended: float | None = None
    clock: Callable[[], float] = time.monotonic

    @property
    def total(self) -> int:
        """Input bytes of all sources."""
        return sum(source.total for source in self.sources.values())

    @property
    def done(self) -> int:
        """Input bytes finished, now or earlier."""
        return sum(source.done for source in self.sources.values())

    @property
    def built(self) -> int:
        """Input bytes worked on in this run."""
        return sum(source.built for source in self.sources.values())

    def add(self, event: Event) -> None:
        """Count one event."""
        match event:
            case Planned():
                self.dataset, self.version, self.pending = event.dataset, event.version, event.pending
                self.units = event.units
                self.sources = {name: SourceTally(total) for name, total in event.source_bytes.items()}
            case UnitStarted():
                self.began = self.clock() if self.began is None else self.began
            case UnitProgress():
                self._move(event.source, event.bytes, built=True)
                self.documents += event.documents
                self.tokens += event.tokens
            case UnitRetried():
                self._move(event.source, -event.progressed, built=True)
            case UnitFinished():
                self._finish(event)
            case _:
                pass

    def seconds(self) -> float:
        """Since the first unit started, until the last one finished."""
        return 0.0 if self.began is None else (self.clock() if self.ended is None else self.ended) - self.began

    def left(self) -> float | None:
        """Seconds until the end at the speed so far; None before there is one."""
        return self.seconds() * (self.total - self.done) / self.built if self.built > 0 else None

    def _finish(self, event: UnitFinished) -> None:
        self.finished += 1
        account = event.record.account
        self.written += account.content_packed + account.bos + account.eos
        self.ended = self.clock() if self.finished == self.units else None
        self._move(event.source, event.bytes - event.progressed, built=event.how == "built")
        if event.how != "built":
            self.documents += event.record.account.documents
            self.tokens += event.record.account.tokens

    def _move(self, source: str, bytes_: int, *, built: bool) -> None:
        counted = self.sources.setdefault(source, SourceTally())
        counted.done += bytes_
        counted.built += bytes_ if built else 0
