"""What is watched, a build or a pipeline: messages and progress on standard error, figures as metrics, times.

A tally and messages are shown in one of four forms.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast, final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.markup import printable, printable_json
from tokenlake.base.metrics import MetricsExport, Read
from tokenlake.etl.events import (
    BuildPlanned,
    BuildRequested,
    BuildStep,
    Committed,
    EngineChosen,
    EngineCondemned,
    Event,
    Listed,
    Planning,
    UnitFinished,
    UnitProgress,
    UnitRetried,
    Watcher,
)
from tokenlake.etl.observability.tally import BatchTally, RunTallies, RunTally, source_name, step_name
from tokenlake.etl.reports import Table, label, number
from tokenlake.etl.reports.dataset import planning_line
from tokenlake.etl.reports.terminal import near, stderr
from tokenlake.etl.step_clock import STAGES
from tokenlake.runtime.store.outputs import require_outside_stores

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import ObservabilityConfig


LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_LINE_EVERY: Final = 10.0  # seconds between two lines of progress at most


@final
@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """What of a section `observability` is about what is shown; it is known before pydantic is imported.

    Attributes:
        form: of the progress: rich, tqdm, json or none.
        level: of the least severe message that is shown.
        interval: units of a build, or batches, between two lines of progress.
    """

    form: str = "rich"
    level: str = "INFO"
    interval: int = 100

    @classmethod
    def of(cls, section: ObservabilityConfig) -> Self:
        """Return what a section asks for."""
        form = section.progress_type if section.progress_enabled else "none"
        return cls(form, section.log_level, section.log_interval)

    def tells(self, level: str) -> bool:
        """Return whether a message of a level is shown."""
        return LEVELS.index(level) >= LEVELS.index(self.level)


class Tally(Protocol):
    """Running sums that can be shown."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str:
        """Of what is done: B for bytes, else a noun."""
        ...

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int:
        """0 where it is not known."""
        ...

    def line(self) -> str: ...
    def figures(self) -> dict[str, Any]: ...


class Display:
    """One form, a base that shows nothing; calls come one at a time."""

    def begin(self) -> None:
        """Before all else."""

    def end(self) -> None:
        """After the last call."""

    def say(self, level: str, text: str) -> None:
        """Show a message, which stays."""

    def doing(self, text: str) -> None:
        """Say what goes on now, where that can be wiped away again."""

    def show(self, tally: Tally, ticks: int) -> None:
        """Show progress, if it is time; `ticks` units or batches were done since the last call."""


@final
class Bars(Display):
    """Bars that are drawn several times a second below the messages; for terminals."""

    def __init__(self, console: Console, render: Callable[[int], RenderableType | None], first: str) -> None:
        self._console, self._spinner = console, Spinner("line", Text(first))
        self._live = Live(
            console=console, get_renderable=lambda: render(console.width) or self._spinner, transient=True
        )

    def begin(self) -> None:
        self._live.start()

    def end(self) -> None:
        self._live.stop()

    def say(self, level: str, text: str) -> None:
        self._console.print(Text(printable(text)))

    def doing(self, text: str) -> None:
        self._spinner.update(text=Text(text))


@final
class Lines(Display):
    """Messages, and between them a line of progress now and then: after so many ticks, or ten seconds.

    As JSON each line is an object: ``time``, and either ``level`` and ``message``, or ``progress`` with the sums.

    Args:
        interval: ticks between two lines of progress; None: there are none.
    """

    def __init__(self, console: Console, interval: int | None, *, as_json: bool = False) -> None:
        self._console, self._interval, self._json = console, interval, as_json
        self._ticks, self._last = 0, time.monotonic()

    def say(self, level: str, text: str) -> None:
        if self._json:
            self._write({"level": level, "message": text})
        else:
            self._console.print(Text(printable(text)))

    def show(self, tally: Tally, ticks: int) -> None:
        self._ticks += ticks
        now, interval = time.monotonic(), self._interval
        if interval is None or (self._ticks < interval and now - self._last < _LINE_EVERY):
            return
        self._ticks, self._last = 0, now
        if self._json:
            self._write({"progress": tally.figures()})
        else:
            self.say("INFO", tally.line())

    def _write(self, facts: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **facts}, ensure_ascii=False)
        self._console.file.write(printable_json(line) + "\n")
        self._console.file.flush()


@final
class TqdmBar(Display):
    """One bar of tqdm, of the build that goes on or of the batches."""

    def __init__(self, console: Console) -> None:
        # Imported for those who ask for it: it is the Hub's, and costs time.
        from tqdm import tqdm

        self._tqdm, self._file, self._bar = tqdm, console.file, None

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def say(self, level: str, text: str) -> None:
        self._tqdm.write(printable(text), file=self._file)

    def show(self, tally: Tally, ticks: int) -> None:
        if self._bar is not None and self._bar.desc != f"{tally.name}: ":
            self.end()
        if self._bar is None:
            self._bar = self._tqdm(
                desc=tally.name, total=tally.total or None, unit=tally.unit, unit_scale=True, file=self._file
            )
        self._bar.update(tally.done - self._bar.n)


def display_of(
    options: DisplayOptions, console: Console, render: Callable[[int], RenderableType | None], first: str
) -> Display:
    """Return the form that is asked for; bars need a terminal, and are lines elsewhere.

    Args:
        render: width -> what bars show; None: nothing yet.
        first: what goes on at the beginning.
    """
    if options.form == "json":
        return Lines(console, options.interval, as_json=True)
    if options.form == "tqdm":
        return TqdmBar(console)
    if options.form == "rich" and console.is_terminal:
        return Bars(console, render, first)
    return Lines(console, options.interval if options.form == "rich" else None)


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
        if (export := metrics_export(section, tally.metrics)) is not None:
            stack.enter_context(export)
        display = display_of(options, stderr(), tally.render, "waiting for the first batch")
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
    stages = [
        number(key, "all" if key == "seconds" else None, numbers.duration) for key in ("seconds", *shown)
    ]
    tables = [Table.of([label("name", "source"), number("units"), *stages], sources, "Time by stage")]
    if len(built) > 1:
        columns = [label("unit"), label("name", "source"), *stages]
        tables.append(Table.of(columns, units, "Slowest units"))
    return tables


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

    def __call__(self, event: Event) -> None:
        """Count an event and show what a person should see of it."""
        self._shown.add(event)
        with self._lock:
            if isinstance(event, BuildRequested):
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

    def _tell(self, event: Event) -> None:
        match event:
            case BuildStep():
                self.doing(f"{step_name(event)}: planning")
                self._say(step_name(event))
            case Planning():
                # At once where it can be wiped away; as a line after half a second, and then every few seconds.
                line = f"planning: {planning_line(*astuple(event))}"
                self.doing(line)
                silent = self._drawn or self._options.form == "none"
                if not silent and (now := time.monotonic()) >= self._next_plan_line:
                    self._next_plan_line = now + _PLAN_LINE_EVERY
                    self._say(line)
            case Listed():
                listed = f"{numbers.plural(event.files, 'file')}, {numbers.size(event.bytes)}"
                self.doing(f"planning: {event.source}, {listed}")
            case BuildPlanned():
                self.doing("starting")
                what = f"{event.dataset} v{event.version}: {numbers.plural(event.units, 'unit')}"
                left = f"; {event.pending} to build, {event.units - event.pending} already built"
                told = left if event.pending < event.units else ""
                self._say(f"{what}, {numbers.size(event.input_bytes)}{told}")
            case EngineChosen():
                # Once for each tokenizer: every source of it is probed with its own texts.
                if (event.tokenizer, event.engine) not in self._engines:
                    self._engines.add((event.tokenizer, event.engine))
                    self._say(f"engine {event.engine} for {near(event.tokenizer)}: {event.reason}")
            case UnitRetried():
                where = f"unit {event.unit} ({source_name(event.source)})"
                self._say(f"{where} is retried after: {event.error}", "WARNING")
            case EngineCondemned():
                why = f"engine {event.engine} is not exact; its units are rebuilt: {event.reason}"
                self._say(why, "WARNING")
            case UnitFinished():
                account, unit = event.record.account, f"unit {event.unit} ({source_name(event.source)})"
                counts = (
                    f"{numbers.plural(account.documents, 'document')}, {numbers.short(account.tokens)} tokens"
                )
                took = f" in {numbers.duration(event.seconds)}" if event.seconds else ""
                self._say(f"{unit} is {event.how}: {counts}{took}", "DEBUG")
                self._show(1)
            case UnitProgress():
                self._show(0)
            case Committed():
                self._say(f"{event.dataset} v{event.version} is committed", "DEBUG")
            case _:
                pass

    def _say(self, line: str, level: str = "INFO") -> None:
        if self._display is not None and self._options.tells(level):
            self._display.say(level, line)

    def _show(self, ticks: int) -> None:
        if self._display is not None:
            self._display.show(self.tally, ticks)


@contextmanager
def measured(section: ObservabilityConfig, on_event: Watcher) -> Generator[Watcher]:
    """Yield what is to be told of a build's events instead: it counts them for the metrics that a section asks for."""
    export = metrics_export(section, (tallies := RunTallies()).metrics)
    if export is None:
        yield on_event
        return

    def watch(event: Event) -> None:
        tallies.add(event)
        on_event(event)

    with export:
        yield watch


def metrics_export(section: ObservabilityConfig, read: Read) -> MetricsExport | None:
    """Return what exports metrics as a section says; None where nobody asked for it."""
    if not section.metrics_enabled or not (section.metrics_file or section.opentelemetry):
        return None
    if section.metrics_file:
        require_outside_stores(section.metrics_file, "observability.metrics_file")
    return MetricsExport(read, file=section.metrics_file, opentelemetry=section.opentelemetry)


@contextmanager
def observed(config: PipelineConfig, on_event: Watcher) -> Generator[Watcher]:
    """Yield what is to be told of the events of a build that a program asked for.

    A library is silent unless it is asked: progress is shown where the configuration has a section `observability`.
    """
    section = config.observability
    with measured(section, on_event) as counted:
        if "observability" not in config.model_fields_set:
            yield counted
            return
        with RunProgress("planning", options=DisplayOptions.of(section)) as progress:

            def watch(event: Event) -> None:
                progress(event)
                counted(event)

            yield watch
