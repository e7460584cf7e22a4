"""What is watched, a build or a pipeline: messages and progress on standard error, figures as metrics, times."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast, final

from rich.console import Console, RenderableType

from tokenlake import numbers
from tokenlake.etl import events
from tokenlake.etl.events import UnitFinished
from tokenlake.etl.job import STAGES
from tokenlake.metrics import Metric, MetricsExport
from tokenlake.observability.display import Display, DisplayOptions, display_of
from tokenlake.observability.tally import BatchTally, RunTallies, RunTally, source_name, step_name
from tokenlake.reports.dataset import planning_line
from tokenlake.reports.table import Table, label, number
from tokenlake.reports.terminal import near, stderr

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig


def observed_batches(items: Iterable[Any], config: PipelineConfig, *, batched: bool) -> Iterator[Any]:
    """Return an iterator of the same items, which is watched if the configuration has a section `observability`.

    Args:
        batched: items are batches, dicts of columns; else each is a row.
    """
    if "observability" not in config.model_fields_set:
        return iter(items)
    return _watched(items, config, batched)


def _watched(items: Iterable[Any], config: PipelineConfig, batched: bool) -> Generator[Any]:
    section, tally = config.observability, BatchTally()
    options = DisplayOptions.of(section)
    with ExitStack() as stack:
        if (export := metrics_export(section, tally)) is not None:
            stack.enter_context(export)
        display: Display = display_of(options, stderr(), tally.render, "waiting for the first batch")
        display.begin()
        stack.callback(display.end)
        iterator, end = iter(items), cast("Any", object())
        while True:
            asked = time.monotonic()
            item = next(iterator, end)
            tally.waited += time.monotonic() - asked
            if item is end:
                break
            tally.batches += 1
            tally.rows += len(next(iter(item.values()), ())) if batched else 1
            display.show(tally, 1)
            yield item
        if options.tells("INFO"):
            display.say("INFO", tally.line())


_SHOWN: Final = 10  # units


def time_tables(built: Sequence[UnitFinished]) -> list[Table]:
    """Return two tables of the units that a run built: seconds of each stage by source, and the slowest units.

    Seconds are those of the worker processes, so that two workers spend two seconds in one.
    """
    if not any(event.stages for event in built):
        return []
    by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in built:
        by_source[event.source].update({"units": 1, "seconds": event.seconds, **event.stages})
    sources = [{"name": source_name(name), **spent} for name, spent in by_source.items()]
    slowest = sorted(built, key=lambda event: -event.seconds)[:_SHOWN]
    units = [
        {
            "unit": f"{event.unit:05d}",
            "name": source_name(event.source),
            "seconds": event.seconds,
            **event.stages,
        }
        for event in slowest
    ]
    shown = [stage for stage in STAGES if any(stage in event.stages for event in built)]
    stages = [_seconds("seconds", "all"), *map(_seconds, shown)]
    tables = [Table.of([label("name", "source"), number("units"), *stages], sources, "Time by stage")]
    if len(built) > 1:
        columns = [label("unit"), label("name", "source"), *stages]
        tables.append(Table.of(columns, units, "Slowest units"))
    return tables


def _seconds(key: str, heading: str | None = None) -> Any:
    return number(key, heading, numbers.duration)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import ObservabilityConfig

_PLAN_LINE_EVERY: Final = 5.0  # seconds while it is planned, after a first line
_QUIET: Final = 0.5  # seconds before that


@final
class RunProgress:
    """Watches a build, or several: call it with every event, from any thread, inside its ``with`` block.

    Until the first event comes it is not known what the configuration wants to be shown: a terminal shows what goes on,
    anything else gets no line yet.
    """

    def __init__(
        self, first: str, console: Console | None = None, options: DisplayOptions | None = None
    ) -> None:
        """Show nothing yet.

        Args:
            first: what goes on at the beginning.
            console: None: standard error.
            options: None: those of the first event that has some, else the defaults.
        """
        self._console = console or stderr()
        self._lock, self._shown = threading.RLock(), RunTallies()
        self._next_plan_line = time.monotonic() + _QUIET
        self._first, self._options, self._chosen = first, options or DisplayOptions(), options is not None
        self._engines: set[tuple[str, str]] = set()
        self._display: Display | None = None

    def __enter__(self) -> Self:
        if self._chosen:
            self._choose(self._options)
        elif self._drawn:
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.end()

    @property
    def tallies(self) -> Sequence[RunTally]:
        """Of each build that began, in order."""
        return self._shown.all

    @property
    def tally(self) -> RunTally:
        """Of the build that goes on, or was the last."""
        return self._shown.last

    def __call__(self, event: events.Event) -> None:
        """Count an event and show what a person should see of it."""
        self._shown.add(event)
        with self._lock:
            if isinstance(event, events.BuildRequested):
                self._choose(DisplayOptions.of(event.observability))
                self._next_plan_line = time.monotonic() + _QUIET
            elif not self._chosen:
                self._choose(self._options)
            self._tell(event)

    def doing(self, what: str) -> None:
        """Say what is being done now, where that can be wiped away again; at the beginning, what is shown first."""
        if self._display is None:
            self._first = what
        else:
            self._display.doing(what)

    def render(self, width: int) -> RenderableType | None:
        """Return what bars show in `width` columns; None before a unit started."""
        return None if self.tally.began is None else self._shown.render(width)

    def _choose(self, options: DisplayOptions) -> None:
        if self._chosen and self._display is not None and options == self._options:
            return
        self._options, self._chosen = options, True
        if self._drawn and self._display is not None:
            return  # the bars that were shown before anything was known
        if self._display is not None:
            self._display.end()
        self._begin()
        if not self._drawn:
            self._say(self._first)

    def _begin(self) -> None:
        self._display = display_of(self._options, self._console, self.render, self._first)
        self._display.begin()

    @property
    def _drawn(self) -> bool:
        """Whether there are bars."""
        return self._options.form == "rich" and self._console.is_terminal

    def _tell(self, event: events.Event) -> None:
        match event:
            case events.BuildStep():
                self.doing(f"{step_name(event)}: planning")
                self._say(step_name(event))
            case events.Planning():
                self._tell_planning(event)
            case events.Listed():
                listed = f"{numbers.plural(event.files, 'file')}, {numbers.size(event.bytes)}"
                self.doing(f"planning: {event.source}, {listed}")
            case events.BuildPlanned():
                self.doing("starting")
                self._say(_planned(event))
            case events.EngineChosen():
                self._tell_engine(event)
            case events.UnitRetried():
                where = f"unit {event.unit} ({source_name(event.source)})"
                self._say(f"{where} is retried after: {event.error}", "WARNING")
            case events.EngineCondemned():
                why = f"engine {event.engine} is not exact; its units are rebuilt: {event.reason}"
                self._say(why, "WARNING")
            case events.UnitFinished():
                self._say(_finished(event), "DEBUG")
                self._show(1)
            case events.UnitProgress():
                self._show(0)
            case events.Committed():
                self._say(f"{event.dataset} v{event.version} is committed", "DEBUG")
            case _:
                pass

    def _tell_planning(self, event: events.Planning) -> None:
        """At once where it can be wiped away; as a line after half a second, and then every few seconds."""
        line = f"planning: {planning_line(*astuple(event))}"
        self.doing(line)
        now, silent = time.monotonic(), self._drawn or self._options.form == "none"
        if not silent and now >= self._next_plan_line:
            self._next_plan_line = now + _PLAN_LINE_EVERY
            self._say(line)

    def _tell_engine(self, event: events.EngineChosen) -> None:
        """Once for each tokenizer: every source of it is probed with its own texts."""
        if (event.tokenizer, event.engine) not in self._engines:
            self._engines.add((event.tokenizer, event.engine))
            self._say(f"engine {event.engine} for {near(event.tokenizer)}: {event.reason}")

    def _say(self, line: str, level: str = "INFO") -> None:
        if self._display is not None and self._options.tells(level):
            self._display.say(level, line)

    def _show(self, ticks: int) -> None:
        if self._display is not None:
            self._display.show(self.tally, ticks)


def _planned(event: events.BuildPlanned) -> str:
    """``demo v1: 9 units, 22.1 MB; 7 to build, 2 already built``."""
    there = event.units - event.pending
    what = f"{event.dataset} v{event.version}: {numbers.plural(event.units, 'unit')}, {numbers.size(event.input_bytes)}"
    return f"{what}; {event.pending} to build, {there} already built" if there else what


def _finished(event: events.UnitFinished) -> str:
    """``unit 3 (web) is built: 1,204 documents, 5.20 M tokens in 3.1 s``."""
    account, took = event.record.account, f" in {numbers.duration(event.seconds)}" if event.seconds else ""
    counts = f"{numbers.plural(account.documents, 'document')}, {numbers.short(account.tokens)} tokens"
    return f"unit {event.unit} ({source_name(event.source)}) is {event.how}: {counts}{took}"


class HasMetrics(Protocol):
    """A tally, or whatever else has figures."""

    def metrics(self) -> Iterable[Metric]: ...


@contextmanager
def measured(section: ObservabilityConfig, on_event: events.Watcher) -> Generator[events.Watcher]:
    """Yield what is to be told of a build's events instead: it counts them for the metrics that a section asks for."""
    export = metrics_export(section, tallies := RunTallies())
    if export is None:
        yield on_event
        return

    def watch(event: events.Event) -> None:
        tallies.add(event)
        on_event(event)

    with export:
        yield watch


def metrics_export(section: ObservabilityConfig, tally: HasMetrics) -> MetricsExport | None:
    """Return what exports a tally's metrics as a section says; None where nobody asked for it."""
    if not section.metrics_enabled or not (section.metrics_file or section.opentelemetry):
        return None
    return MetricsExport(tally.metrics, file=section.metrics_file, opentelemetry=section.opentelemetry)


@contextmanager
def observed(config: PipelineConfig, on_event: events.Watcher) -> Generator[events.Watcher]:
    """Yield what is to be told of the events of a build that a program asked for.

    A library is silent unless it is asked: progress is shown where the configuration has a section `observability`.
    """
    section = config.observability
    with measured(section, on_event) as counted:
        if "observability" not in config.model_fields_set:
            yield counted
            return
        with RunProgress("planning", options=DisplayOptions.of(section)) as progress:

            def watch(event: events.Event) -> None:
                progress(event)
                counted(event)

            yield watch
