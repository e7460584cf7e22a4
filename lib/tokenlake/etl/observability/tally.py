"""Running sums of a build, or of the rows of a pipeline.

A unit reports its progress while it is built, and its sums once it is finished. The
part that was reported as progress is counted once: a finished unit adds the difference,
a retried unit takes its progress back, and a unit that has to be built again takes all
back. The sums are therefore always those of the units as they are now.

Example: a unit of 100 bytes reports 40 bytes and fails (-40). Its second attempt
reports 70 bytes and ends: 30 bytes are added, and the sum is 100.
"""

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
    BackendDiscarded,
    BuildPlanned,
    BuildStep,
    Event,
    UnitFinished,
    UnitProgress,
    UnitRetried,
    UnitStarted,
)
from tokenlake.runtime.store.ledger import MIXED

_MOST_BAR_COLUMNS: Final = 28  # largest width of a bar
_LEAST_BAR_COLUMNS: Final = 4  # smallest width of a bar
_FIGURE_COLUMNS: Final = 48  # width of the figures beside a bar


@final
@dataclass(slots=True)
class SourceTally:
    """Running sums of one source.

    Attributes:
        total: Input bytes of all its units.
        done: Input bytes that are done, in this run or an earlier one.
        built: Input bytes that this run worked on.
        spent: Worker seconds of the units that this run finished.
        read: Input bytes of these units.
    """

    total: int = 0
    done: int = 0
    built: int = 0
    spent: float = 0.0
    read: int = 0


# Values before the first event: a single build, and a plan without units.
_ALONE: Final = BuildStep(1, 1, "")
_UNPLANNED: Final = BuildPlanned("", 0, 0, 0, 0)


@final
@dataclass(slots=True)
class RunTally:
    """Running sums of one build.

    ``built`` counts this run alone, so that a resumed run shows its true speed.

    Attributes:
        step: Place of the build among several; without a name for a single build.
        plan: Plan of the build; without a dataset before it is known.
        finished: Number of units with a ledger record.
        retried: Number of attempts at units that failed and were repeated.
        documents: Number of documents so far, those of resumed units included.
        tokens: Number of tokens so far, those of resumed units included.
        written: Number of ids in finished units, BOS and EOS included and tokens that
            were cut away not.
        sources: Sums of each source, in plan order.
        step_seconds: Worker seconds of each step, of units that this run finished.
        began: Time at which the first unit started; None before that.
        ended: Time at which the last unit finished; None before that.
        clock: Clock of these times, in seconds.
        unit: Unit of `done` and `total`.
    """

    step: BuildStep = _ALONE
    plan: BuildPlanned = _UNPLANNED
    finished: int = 0
    retried: int = 0
    documents: int = 0
    tokens: int = 0
    written: int = 0
    sources: dict[str, SourceTally] = field(default_factory=dict[str, SourceTally])
    step_seconds: Counter[str] = field(default_factory=Counter[str])
    began: float | None = None
    ended: float | None = None
    clock: Callable[[], float] = time.monotonic
    unit: str = field(default="B", init=False)

    @property
    def name(self) -> str:
        """Dataset and version, as ``pile v3``."""
        return f"{self.plan.dataset} v{self.plan.version}"

    @property
    def total(self) -> int:
        """Number of input bytes of all sources."""
        return sum(source.total for source in self.sources.values())

    @property
    def done(self) -> int:
        """Number of input bytes that are done, in this run or an earlier one."""
        return sum(source.done for source in self.sources.values())

    @property
    def built(self) -> int:
        """Number of input bytes that this run worked on."""
        return sum(source.built for source in self.sources.values())

    def add(self, event: Event) -> None:
        """Count one event."""
        match event:
            case BuildPlanned():
                self.plan = event
                self.sources = {}
                for source, source_bytes in event.source_bytes.items():
                    self.sources[source] = SourceTally(source_bytes)
            case UnitStarted():
                # Planning and starting workers do not count toward the speed.
                if self.began is None:
                    self.began = self.clock()
            case UnitProgress():
                self._count(event.source, event.bytes, event.documents, event.tokens)
            case UnitRetried():
                self.retried += 1
                # The failed attempt takes its progress back.
                bytes_, documents, tokens = event.progressed
                self._count(event.source, -bytes_, -documents, -tokens)
            case UnitFinished():
                self._finish(event, 1)
                # A unit that has to be built again may come after the last one.
                self.ended = None
                if self.finished == self.plan.units:
                    self.ended = self.clock()
                if event.how == "built":
                    self.step_seconds.update(event.step_seconds)
                    self.sources[event.source].spent += event.seconds
                    self.sources[event.source].read += event.bytes
            case BackendDiscarded():
                for unit in event.undone:
                    self._finish(unit, -1)
            case _:
                pass

    def seconds(self) -> float:
        """Return the seconds from the first unit's start to the last one's end.

        The end is now, as long as units are missing.
        """
        if self.began is None:
            return 0.0
        end = self.ended
        if end is None:
            end = self.clock()
        return end - self.began

    def left(self) -> float | None:
        """Return the seconds until the end, at the speed so far.

        It is None before there is a speed.
        """
        if self.built <= 0:
            return None
        # seconds / built is the time of a byte in this run.
        return self.seconds() * (self.total - self.done) / self.built

    def line(self) -> str:
        """Return the sums for people.

        Example: ``7 of 9 units  3.12 M tokens  21.4 MB/s  12 s left``.
        """
        units = numbers.plural(self.plan.units, "unit")
        parts = [f"{self.finished} of {units}", f"{numbers.short(self.tokens)} tokens"]
        if self.built:
            parts.append(numbers.rate(self.built, self.seconds()))
        left = self.left()
        if left is not None and left > 0:
            parts.append(f"{numbers.duration(left)} left")
        return "  ".join(parts)

    def slowest(self) -> str:
        """Return the slowest step and source; empty before a unit is finished.

        For example: ``tokenize takes 71% of the workers' time; web is slowest, 4.10
        MB/s per worker``.
        """
        parts: list[str] = []
        if self.step_seconds:
            step_name, seconds = self.step_seconds.most_common(1)[0]
            share = numbers.percent(seconds, self.step_seconds.total(), 0)
            parts.append(f"{step_name} takes {share} of the workers' time")
        # The speed of a worker: sources that are built side by side would otherwise
        # share one time.
        bytes_per_second: dict[str, float] = {}
        for source_key, source in self.sources.items():
            if source.spent > 0:
                bytes_per_second[source_key] = source.read / source.spent
        if len(bytes_per_second) > 1:
            slowest = min(bytes_per_second, key=bytes_per_second.__getitem__)
            source = self.sources[slowest]
            rate = numbers.rate(source.read, source.spent)
            parts.append(f"{source_name(slowest)} is slowest, {rate} per worker")
        return "; ".join(parts)

    def figures(self) -> dict[str, Any]:
        """Return the sums, JSON-able; seconds to milliseconds."""
        seconds_left = self.left()
        if seconds_left is not None:
            seconds_left = round(seconds_left, 3)
        return {
            "dataset": self.plan.dataset,
            "version": self.plan.version,
            "units": self.plan.units,
            "finished": self.finished,
            "retried": self.retried,
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.done,
            "all_bytes": self.total,
            "seconds": round(self.seconds(), 3),
            "seconds_left": seconds_left,
        }

    def render(self, width: int) -> RenderableType:
        """Return a bar for each source, and the line below, in `width` columns."""
        grid = Grid.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "left", "right", "right", "right"):
            grid.add_column(no_wrap=True, justify=justify)
        # The bars take the columns that names and figures leave.
        name_columns = 0
        for source in self.sources:
            name_columns = max(name_columns, len(source_name(source)))
        free_columns = max(_LEAST_BAR_COLUMNS, width - _FIGURE_COLUMNS - name_columns)
        bar_columns = min(_MOST_BAR_COLUMNS, free_columns)
        seconds = self.seconds()
        for source, tally in self.sources.items():
            grid.add_row(*_bar_row(source_name(source), tally, seconds, bar_columns))
        line = Text(self.line(), style="dim")
        if self.step.what:
            return Group(Text(step_name(self.step), style="bold"), grid, line)
        return Group(grid, line)

    def _finish(self, event: UnitFinished, sign: int) -> None:
        """Count the part of a finished unit that was not reported as progress.

        Args:
            event: Event of the unit.
            sign: 1 to count the unit, -1 to take it back.
        """
        account = event.record.account
        self.finished += sign
        self.written += sign * (account.content_packed + account.bos + account.eos)
        reported_bytes, reported_documents, reported_tokens = event.progressed
        self._count(
            event.source,
            sign * event.bytes - reported_bytes,
            sign * account.documents - reported_documents,
            sign * account.tokens - reported_tokens,
            built=event.how == "built",
        )

    def _count(
        self,
        source: str,
        bytes_: int,
        documents: int,
        tokens: int,
        *,
        built: bool = True,
    ) -> None:
        """Count bytes, documents and tokens, which may be negative.

        Args:
            source: Name of the source.
            bytes_: Input bytes.
            documents: Number of documents.
            tokens: Number of tokens.
            built: True if this run did the work. Default: True.
        """
        # A unit that mixes sources has no source of the plan.
        tally = self.sources.setdefault(source, SourceTally())
        tally.done += bytes_
        if built:
            tally.built += bytes_
        self.documents += documents
        self.tokens += tokens


def step_name(step: BuildStep) -> str:
    """Return the place of a build among several, as ``step 2 of 4: tokens of code``."""
    return f"step {step.number} of {step.of}: {step.what}"


def source_name(source: str) -> str:
    """Return the name of a source for people."""
    if source == MIXED:
        return "all sources"
    return source


def _bar_row(
    name: str, source: SourceTally, seconds: float, width: int
) -> list[RenderableType]:
    """Return the cells of a source's row: its name, a bar and figures.

    Args:
        name: Name of the source.
        source: Sums of the source.
        seconds: Time of the build so far.
        width: Width of the bar, in columns.
    # A source that an earlier run built has no speed in this one.
    """
    rate = ""
    if source.built:
        rate = numbers.rate(source.built, seconds)
    return [
        Text(name),
        ProgressBar(total=max(source.total, 1), completed=source.done, width=width),
        Text(numbers.percent(source.done, source.total, 0)),
        Text(f"{numbers.size(source.done)} of {numbers.size(source.total)}"),
        Text(rate, style="dim"),
    ]


@final
class RunTallies:
    """The tallies of all builds of a run; thread-safe.

    Attributes:
        all: Tally of each build that began, in order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all = [RunTally()]

    @property
    def last(self) -> RunTally:
        """The tally of the current build, or of the last one."""
        return self.all[-1]

    @property
    def share(self) -> float:
        """Share of the whole run that is done, 0 to 1.

        It is a share of input bytes. Of several builds each counts the same, because
        the bytes of later ones are not known yet.
        """
        tally = self.last
        share_of_build = 0.0
        if tally.total:
            share_of_build = min(tally.done / tally.total, 1.0)
        return (tally.step.number - 1 + share_of_build) / tally.step.of

    def add(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            if isinstance(event, BuildStep):
                # A tally without a plan has no sums: the first one, before anything is
                # known, or that of a step that was never planned.
                planned_tallies = [tally for tally in self.all if tally.plan.dataset]
                self.all = [*planned_tallies, RunTally(event)]
            self.last.add(event)

    def render(self, width: int) -> RenderableType:
        """Return the bars of the current build."""
        with self._lock:
            return self.last.render(width)

    def metrics(self) -> Iterator[Metric]:
        """Yield the figures of all builds, each with the label `dataset`."""
        with self._lock:
            planned_tallies = [tally for tally in self.all if tally.plan.dataset]
            for name, (kind, help_text, value_of) in _METRICS.items():
                for tally in planned_tallies:
                    labels = {"dataset": tally.plan.dataset}
                    yield Metric(
                        f"tokenlake_build_{name}",
                        kind,
                        help_text,
                        value_of(tally),
                        labels,
                    )


_METRICS: Final[dict[str, tuple[Any, str, Callable[[RunTally], float]]]] = {
    "planned_units": ("gauge", "Units of the plan.", lambda tally: tally.plan.units),
    "finished_units": (
        "gauge",
        "Finished units, those of earlier runs included.",
        lambda tally: tally.finished,
    ),
    "retries": (
        "counter",
        "Failed attempts of units that were retried.",
        lambda tally: tally.retried,
    ),
    "input_bytes": ("gauge", "Bytes of all inputs.", lambda tally: tally.total),
    "processed_bytes": (
        "gauge",
        "Input bytes processed in this run.",
        lambda tally: tally.built,
    ),
    "documents": (
        "gauge",
        "Documents tokenized, those of earlier runs included.",
        lambda tally: tally.documents,
    ),
    "tokens": (
        "gauge",
        "Tokens produced, those of earlier runs included.",
        lambda tally: tally.tokens,
    ),
    "seconds": (
        "gauge",
        "Seconds since the first unit started.",
        lambda tally: tally.seconds(),
    ),
}
"""Kind, help text and value of each metric, by name.

Units, bytes, documents and tokens are no counters: the sums of a unit that is built
again are taken back.
"""


@final
@dataclass(slots=True)
class BatchTally:
    """Running sums of a pipeline.

    Attributes:
        batches: Number of batches that were given out; without `load` each row is a
            batch of its own.
        rows: Number of rows that were given out.
        waited: Number of seconds that the consumer waited for them.
        clock: Clock that returns seconds, monotonic.
        began: Time at which the pipeline began.
        name: Name of the work.
        unit: Unit of `done` and `total`.
        total: Number of all batches; 0, because it is not known.
    """

    batches: int = 0
    rows: int = 0
    waited: float = 0.0
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    name: str = field(default="batches", init=False)
    unit: str = field(default="batch", init=False)
    total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def done(self) -> int:
        """Number of batches that were given out."""
        return self.batches

    def line(self) -> str:
        """Return the sums for people.

        Example: ``120 batches  960 rows  48.1 rows/s  2.1 s waited``.
        """
        # Time may not have moved since the beginning.
        seconds = max(self.clock() - self.began, 1e-9)
        rate = f"{numbers.short(self.rows / seconds)} rows/s"
        counts = [
            numbers.plural(self.batches, "batch", "batches"),
            numbers.plural(self.rows, "row"),
        ]
        return "  ".join([*counts, rate, f"{numbers.duration(self.waited)} waited"])

    def figures(self) -> dict[str, Any]:
        """Return the sums, JSON-able; seconds to milliseconds."""
        return {
            "batches": self.batches,
            "rows": self.rows,
            "seconds": round(self.clock() - self.began, 3),
            "waited": round(self.waited, 3),
        }

    def render(self, width: int) -> RenderableType:
        """Return the line."""
        return Text(self.line(), style="dim")

    def metrics(self) -> Iterator[Metric]:
        """Yield the sums."""
        waited = "Seconds that the consumer waited."
        yield Metric(
            "tokenlake_pipeline_batches", "counter", "Batches delivered.", self.batches
        )
        yield Metric("tokenlake_pipeline_rows", "counter", "Rows delivered.", self.rows)
        yield Metric("tokenlake_pipeline_wait_seconds", "counter", waited, self.waited)
