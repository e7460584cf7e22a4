"""Running sums of a build, or of the rows of a pipeline, while it goes on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.metrics import Metric
from tokenlake.etl.events import (
    BuildPlanned,
    BuildStep,
    EngineCondemned,
    Event,
    UnitFinished,
    UnitProgress,
    UnitRetried,
    UnitStarted,
)
from tokenlake.runtime.store.ledger import MIXED

_BAR, _FIGURES = 28, 48  # columns of a bar at most, and of what stands beside it


@final
@dataclass(slots=True)
class SourceTally:
    """Input bytes of one source: all, done (now or earlier), and done in this run; worker seconds and bytes of its
    units that are finished in this run."""

    total: int = 0
    done: int = 0
    built: int = 0
    spent: float = 0.0
    read: int = 0


_ALONE: Final = BuildStep(1, 1, "")
_UNPLANNED: Final = BuildPlanned("", 0, 0, 0, 0)


@final
@dataclass(slots=True)
class RunTally:
    """Running sums. ``built`` counts this run alone, so that a resumed run shows its true speed.

    Attributes:
        step: of several builds, which one this is; of nothing where there is one alone.
        plan: what is to be done; of no dataset before it is known.
        finished: units with a ledger record.
        retried: tries of units that failed and were worth another one.
        documents, tokens: so far, those of resumed units included.
        written: ids in finished units, BOS and EOS included and what was cut away not.
        sources: per source, in plan order.
        stages: worker seconds by stage, of units finished in this run.
        began: when the first unit started, or None.
        ended: when the last one finished, or None.
        clock: what these times are read from, in seconds.
    """

    step: BuildStep = _ALONE
    plan: BuildPlanned = _UNPLANNED
    finished: int = 0
    retried: int = 0
    documents: int = 0
    tokens: int = 0
    written: int = 0
    sources: dict[str, SourceTally] = field(default_factory=dict[str, SourceTally])
    stages: Counter[str] = field(default_factory=Counter[str])
    began: float | None = None
    ended: float | None = None
    clock: Callable[[], float] = time.monotonic
    unit: str = field(default="B", init=False)

    @property
    def name(self) -> str:
        """``pile v3``."""
        return f"{self.plan.dataset} v{self.plan.version}"

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
            case BuildPlanned():
                self.plan = event
                self.sources = {name: SourceTally(total) for name, total in event.source_bytes.items()}
            case UnitStarted():
                self.began = self.clock() if self.began is None else self.began
            case UnitProgress():
                self._count(event.source, event.bytes, event.documents, event.tokens)
            case UnitRetried():
                self.retried += 1
                self._count(event.source, *(-reported for reported in event.progressed))
            case UnitFinished():
                self._finish(event, 1)
                self.ended = self.clock() if self.finished == self.plan.units else None
                if event.how == "built":
                    self.stages.update(event.stages)
                    self.sources[event.source].spent += event.seconds
                    self.sources[event.source].read += event.bytes
            case EngineCondemned():
                for unit in event.undone:
                    self._finish(unit, -1)
            case _:
                pass

    def seconds(self) -> float:
        """Since the first unit started, until the last one finished."""
        if self.began is None:
            return 0.0
        return (self.clock() if self.ended is None else self.ended) - self.began

    def left(self) -> float | None:
        """Seconds until the end at the speed so far; None before there is one."""
        return self.seconds() * (self.total - self.done) / self.built if self.built > 0 else None

    def line(self) -> str:
        """``7 of 9 units  3.12 M tokens  21.4 MB/s  12 s left``."""
        units = numbers.plural(self.plan.units, "unit")
        parts = [f"{self.finished} of {units}", f"{numbers.short(self.tokens)} tokens"]
        if self.built:
            parts.append(numbers.rate(self.built, self.seconds()))
        left = self.left()
        if left is not None and left > 0:
            parts.append(f"{numbers.duration(left)} left")
        return "  ".join(parts)

    def slowest(self) -> str:
        """``tokenize takes 71% of the workers' time; web is slowest, 4.10 MB/s per worker``; empty before a unit is."""
        parts: list[str] = []
        if self.stages:
            stage, seconds = self.stages.most_common(1)[0]
            share = numbers.percent(seconds, self.stages.total(), 0)
            parts.append(f"{stage} takes {share} of the workers' time")
        timed = {name: source for name, source in self.sources.items() if source.spent > 0}
        if len(timed) > 1:
            name = min(timed, key=lambda each: timed[each].read / timed[each].spent)
            rate = numbers.rate(timed[name].read, timed[name].spent)
            parts.append(f"{source_name(name)} is slowest, {rate} per worker")
        return "; ".join(parts)

    def figures(self) -> dict[str, Any]:
        """Return the sums, JSON-able; seconds to milliseconds."""
        own = ("finished", "retried", "documents", "tokens")
        left = self.left()
        return {
            "dataset": self.plan.dataset,
            "version": self.plan.version,
            "units": self.plan.units,
            **{name: getattr(self, name) for name in own},
            "bytes": self.done,
            "all_bytes": self.total,
            "seconds": round(self.seconds(), 3),
            "seconds_left": None if left is None else round(left, 3),
        }

    def render(self, width: int) -> RenderableType:
        """Return a bar for each source, and the line below them, in at most `width` columns."""
        grid = Grid.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "left", "right", "right", "right"):
            grid.add_column(no_wrap=True, justify=justify)
        heading = [Text(step_name(self.step), style="bold")] if self.step.what else []
        room = width - _FIGURES - max((len(source_name(name)) for name in self.sources), default=0)
        for name, source in self.sources.items():
            grid.add_row(*_bar(source_name(name), source, self.seconds(), min(_BAR, max(room, 4))))
        return Group(*heading, grid, Text(self.line(), style="dim"))

    def _finish(self, event: UnitFinished, sign: int) -> None:
        """Count a finished unit; take it back with `sign` -1."""
        account = event.record.account
        self.finished += sign
        self.written += sign * (account.content_packed + account.bos + account.eos)
        whole = event.bytes, account.documents, account.tokens
        rest = (sign * done - reported for done, reported in zip(whole, event.progressed, strict=True))
        self._count(event.source, *rest, built=event.how == "built")

    def _count(self, source: str, bytes_: int, documents: int, tokens: int, *, built: bool = True) -> None:
        counted = self.sources.setdefault(source, SourceTally())
        counted.done += bytes_
        counted.built += bytes_ if built else 0
        self.documents += documents
        self.tokens += tokens


def step_name(step: BuildStep) -> str:
    """``step 2 of 4: tokens of code``."""
    return f"step {step.number} of {step.of}: {step.what}"


def source_name(source: str) -> str:
    """What people call a source of a plan."""
    return "all sources" if source == MIXED else source


def _bar(name: str, source: SourceTally, seconds: float, width: int) -> list[RenderableType]:
    return [
        Text(name),
        ProgressBar(total=max(source.total, 1), completed=source.done, width=width),
        Text(numbers.percent(source.done, source.total, 0)),
        Text(f"{numbers.size(source.done)} of {numbers.size(source.total)}"),
        Text(numbers.rate(source.built, seconds) if source.built else "", style="dim"),
    ]


@final
class RunTallies:
    """The tallies of each build of a run, in order; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all = [RunTally()]

    @property
    def last(self) -> RunTally:
        """Of the build that goes on, or was the last."""
        return self.all[-1]

    @property
    def share(self) -> float:
        """How much of the whole run is done, 0 to 1: of the input bytes, each of several builds counting the same."""
        tally = self.last
        done = min(tally.done / tally.total, 1.0) if tally.total else 0.0
        return (tally.step.number - 1 + done) / tally.step.of

    def add(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            if isinstance(event, BuildStep):
                self.all = [*(tally for tally in self.all if tally.plan.dataset), RunTally(event)]
            self.last.add(event)

    def render(self, width: int) -> RenderableType:
        """Return the bars of the build that goes on."""
        with self._lock:
            return self.last.render(width)

    def metrics(self) -> Iterator[Metric]:
        """Yield the figures of all builds, each with the label `dataset`."""
        with self._lock:
            found = [(tally, {"dataset": tally.plan.dataset}) for tally in self.all if tally.plan.dataset]
            for name, (kind, help, value) in _METRICS.items():
                for tally, labels in found:
                    yield Metric(f"tokenlake_build_{name}", kind, help, value(tally), labels)


_METRICS: Final[dict[str, tuple[Any, str, Callable[[RunTally], float]]]] = {
    "planned_units": ("gauge", "Units of the plan.", lambda tally: tally.plan.units),
    "finished_units": ("gauge", "Units that are finished, earlier ones too.", lambda tally: tally.finished),
    "retries": ("counter", "Tries of units that failed and were retried.", lambda tally: tally.retried),
    "input_bytes": ("gauge", "Bytes of all inputs.", lambda tally: tally.total),
    "processed_bytes": ("gauge", "Input bytes worked on in this run.", lambda tally: tally.built),
    "documents": ("gauge", "Documents tokenized, in earlier runs too.", lambda tally: tally.documents),
    "tokens": ("gauge", "Tokens made, those of earlier runs included.", lambda tally: tally.tokens),
    "seconds": ("gauge", "Seconds since the first unit started.", lambda tally: tally.seconds()),
}
"""Units, bytes, documents and tokens are no counters: what was told of a unit that is built again is taken back."""


@final
@dataclass(slots=True)
class BatchTally:
    """What a pipeline has given out.

    Attributes:
        batches, rows: given out; after no `load` a row is a batch of its own.
        waited: seconds that the consumer waited for them.
        clock: seconds, monotonic.
    """

    batches: int = 0
    rows: int = 0
    waited: float = 0.0
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    name: str = field(default="batches", init=False)
    unit: str = field(default="batch", init=False)
    total: int = field(default=0, init=False)  # nobody knows

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def done(self) -> int:
        return self.batches

    def line(self) -> str:
        """``120 batches  960 rows  48.1 rows/s  2.1 s waited``."""
        seconds = max(self.clock() - self.began, 1e-9)
        rate = f"{numbers.short(self.rows / seconds)} rows/s"
        counts = [numbers.plural(self.batches, "batch", "batches"), numbers.plural(self.rows, "row")]
        return "  ".join([*counts, rate, f"{numbers.duration(self.waited)} waited"])

    def figures(self) -> dict[str, Any]:
        """Return the sums, JSON-able; seconds to milliseconds."""
        seconds = round(self.clock() - self.began, 3)
        counts = {"batches": self.batches, "rows": self.rows}
        return {**counts, "seconds": seconds, "waited": round(self.waited, 3)}

    def render(self, width: int) -> RenderableType:
        """Return the line."""
        return Text(self.line(), style="dim")

    def metrics(self) -> Iterator[Metric]:
        """Yield the sums."""
        waited = "Seconds that the consumer waited."
        yield Metric("tokenlake_pipeline_batches", "counter", "Batches given out.", self.batches)
        yield Metric("tokenlake_pipeline_rows", "counter", "Rows given out.", self.rows)
        yield Metric("tokenlake_pipeline_wait_seconds", "counter", waited, self.waited)
