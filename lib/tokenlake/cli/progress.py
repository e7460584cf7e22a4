"""Progress of a run on stderr: bars on a terminal, a line now and then elsewhere; and on stdout what it came to."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table as Grid
from rich.text import Text

from tokenlake.cli.console import emit, near, print_tables, stderr, stdout
from tokenlake.config.stores import default_store
from tokenlake.etl import events
from tokenlake.report import dataset, numbers
from tokenlake.report.mixture import mixture_table
from tokenlake.report.plan import planning_line
from tokenlake.report.printable import printable
from tokenlake.report.table import Table, facts, label, listed, number
from tokenlake.store.ledger import MIXED

if TYPE_CHECKING:
    from tokenlake.etl.runner import BuildResult


@final
@dataclass(slots=True)
class SourceTally:
    """Input bytes of one source: all, done (now or earlier), and done in this run."""

    total: int = 0
    done: int = 0
    built: int = 0


_ALONE: Final = events.BuildStep(1, 1, "")
_UNPLANNED: Final = events.BuildPlanned("", 0, 0, 0, 0)


@final
@dataclass(slots=True)
class RunTally:
    """Running sums. ``built`` counts this run alone, so that a resumed run shows its true speed.

    Attributes:
        step: of several builds, which one this is; of nothing where there is one alone.
        plan: what is to be done; of no dataset before it is known.
        finished: units with a ledger record.
        documents, tokens: so far, those of resumed units included.
        written: ids in finished units, BOS and EOS included and what was cut away not.
        sources: per source, in plan order.
        began: when the first unit started, or None.
        ended: when the last one finished, or None.
        clock: what these times are read from, in seconds.
    """

    step: events.BuildStep = _ALONE
    plan: events.BuildPlanned = _UNPLANNED
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

    def add(self, event: events.Event) -> None:
        """Count one event."""
        match event:
            case events.BuildPlanned():
                self.plan = event
                self.sources = {name: SourceTally(total) for name, total in event.source_bytes.items()}
            case events.UnitStarted():
                self.began = self.clock() if self.began is None else self.began
            case events.UnitProgress():
                self._move(event.source, event.bytes, built=True)
                self.documents += event.documents
                self.tokens += event.tokens
            case events.UnitRetried():
                self._move(event.source, -event.progressed, built=True)
            case events.UnitFinished():
                self._finish(event)
            case _:
                pass

    def seconds(self) -> float:
        """Since the first unit started, until the last one finished."""
        return (
            0.0 if self.began is None else (self.clock() if self.ended is None else self.ended) - self.began
        )

    def left(self) -> float | None:
        """Seconds until the end at the speed so far; None before there is one."""
        return self.seconds() * (self.total - self.done) / self.built if self.built > 0 else None

    def _finish(self, event: events.UnitFinished) -> None:
        self.finished += 1
        account = event.record.account
        self.written += account.content_packed + account.bos + account.eos
        self.ended = self.clock() if self.finished == self.plan.units else None
        self._move(event.source, event.bytes - event.progressed, built=event.how == "built")
        if event.how != "built":
            self.documents += event.record.account.documents
            self.tokens += event.record.account.tokens

    def _move(self, source: str, bytes_: int, *, built: bool) -> None:
        counted = self.sources.setdefault(source, SourceTally())
        counted.done += bytes_
        counted.built += bytes_ if built else 0


_LINE_EVERY: Final = 10.0  # seconds between lines where there is no terminal
_BAR, _FIGURES = 28, 48  # columns of a bar at most, and of what stands beside it
_PLAN_LINE_EVERY: Final = 5.0  # and while it is planned, after a first one within a second
_QUIET: Final = 0.5  # seconds before a counter shows itself


@final
class RunProgress:
    """Watches a build, or several: call it with every event, from any thread, inside its ``with`` block.

    Attributes:
        tallies: of each build that began, in order.
    """

    def __init__(self, first: str, console: Console | None = None) -> None:
        self._console = console or stderr()
        self._lock = threading.Lock()
        self._last_line = time.monotonic()
        self._next_plan_line = time.monotonic() + _QUIET
        self._first = first
        self._engines: set[tuple[str, str]] = set()
        self._spinner = Spinner("line", Text(first))
        self.tallies = [RunTally()]
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, transient=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        else:
            self._say(self._first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    @property
    def tally(self) -> RunTally:
        """Of the build that goes on, or was the last."""
        return self.tallies[-1]

    def __call__(self, event: events.Event) -> None:
        """Count an event and show what a person should see of it."""
        with self._lock:
            if isinstance(event, events.BuildStep):
                begun = [tally for tally in self.tallies if tally.plan.dataset]
                self.tallies = [*begun, RunTally(event)]
            self.tally.add(event)
        self._tell(event)

    def say_now(self, what: str) -> None:
        """Say what is being done now, on a terminal only."""
        self._spinner.update(text=Text(what))

    def _tell(self, event: events.Event) -> None:
        match event:
            case events.BuildStep():
                self._spinner.update(text=Text(f"{_step(event)}: planning"))
                self._say(_step(event))
            case events.Planning():
                self._tell_planning(event)
            case events.Listed():
                listed = f"{numbers.plural(event.files, 'file')}, {numbers.size(event.bytes)}"
                self._spinner.update(text=Text(f"planning: {event.source}, {listed}"))
            case events.BuildPlanned():
                self._spinner.update(text=Text("starting"))
                self._say(_planned(event))
            case events.EngineChosen():
                self._tell_engine(event)
            case events.UnitRetried():
                self._say(f"unit {event.unit} ({_shown(event.source)}) is retried after: {event.error}")
            case events.EngineCondemned():
                self._say(f"engine {event.engine} is not exact; its units are rebuilt: {event.reason}")
            case events.UnitFinished() | events.UnitProgress() if self._live is None:
                self._now_and_then()
            case _:
                pass

    def _tell_planning(self, event: events.Planning) -> None:
        """On a terminal at once; in a log after half a second, and then every few seconds."""
        line = planning_line(*astuple(event))
        self._spinner.update(text=Text(f"planning: {line}"))
        now = time.monotonic()
        if self._live is None and now >= self._next_plan_line:
            self._next_plan_line = now + _PLAN_LINE_EVERY
            self._say(f"planning: {line}")

    def _tell_engine(self, event: events.EngineChosen) -> None:
        """Once for each tokenizer: every source of it is probed with its own texts."""
        if (event.tokenizer, event.engine) not in self._engines:
            self._engines.add((event.tokenizer, event.engine))
            self._say(f"engine {event.engine} for {near(event.tokenizer)}: {event.reason}")

    def _say(self, line: str) -> None:
        self._console.print(Text(printable(line)))

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._last_line >= _LINE_EVERY:
            self._last_line = now
            done, total = self.tally.done, self.tally.total
            self._say(f"{numbers.percent(done, total, 0)} of {numbers.size(total)}  {_status(self.tally)}")

    def _render(self) -> RenderableType:
        """What `Live` draws several times a second."""
        if self.tally.began is None:
            return self._spinner
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        for _ in range(3):
            grid.add_column(no_wrap=True, justify="right")
        with self._lock:
            heading = [Text(_step(self.tally.step), style="bold")] if self.tally.step.what else []
            names = map(_shown, self.tally.sources)
            room = self._console.width - _FIGURES - max(map(len, names), default=0)
            for name, source in self.tally.sources.items():
                grid.add_row(*_bar(_shown(name), source, self.tally.seconds(), min(_BAR, max(room, 4))))
            status = Text(_status(self.tally), style="dim")
        return Group(*heading, grid, status)


def _step(step: events.BuildStep) -> str:
    """``step 2 of 4: tokens of code``."""
    return f"step {step.number} of {step.of}: {step.what}"


def _shown(source: str) -> str:
    return "all sources" if source == MIXED else source


def _planned(event: events.BuildPlanned) -> str:
    """``demo v1: 9 units, 22.1 MB; 7 to build, 2 already built``."""
    there = event.units - event.pending
    what = f"{event.dataset} v{event.version}: {numbers.plural(event.units, 'unit')}, {numbers.size(event.input_bytes)}"
    return f"{what}; {event.pending} to build, {there} already built" if there else what


def _bar(name: str, source: SourceTally, seconds: float, width: int) -> list[RenderableType]:
    return [
        Text(name),
        ProgressBar(total=max(source.total, 1), completed=source.done, width=width),
        Text(numbers.percent(source.done, source.total, 0)),
        Text(f"{numbers.size(source.done)} of {numbers.size(source.total)}"),
        Text(numbers.rate(source.built, seconds) if source.built else "", style="dim"),
    ]


def _status(tally: RunTally) -> str:
    """``7 of 9 units  3.12 M tokens  21.4 MB/s  12 s left``."""
    parts = [
        f"{tally.finished} of {numbers.plural(tally.plan.units, 'unit')}",
        f"{numbers.short(tally.tokens)} tokens",
    ]
    if tally.built:
        parts.append(numbers.rate(tally.built, tally.seconds()))
    left = tally.left()
    if left is not None and left > 0:
        parts.append(f"{numbers.duration(left)} left")
    return "  ".join(parts)


@final
class Counter:
    """Bytes worked through, of a total that may come to be known only later; thread-safe.

    Args:
        what: is being done.
        lines: where a line is printed now and then; None: whoever made it asks for :meth:`line`.
    """

    def __init__(self, what: str, lines: Console | None = None) -> None:
        self._what, self._console, self._lock = what, lines, threading.Lock()
        self._began = time.monotonic()
        self._next_line = self._began + _LINE_EVERY
        self.done, self.total = 0, 0

    def add(self, more: int) -> None:
        """Count more bytes."""
        with self._lock:
            self.done += more
            self._tell()

    def set(self, done: int, total: int) -> None:
        """Say how far it is."""
        with self._lock:
            self.done, self.total = done, total
            self._tell()

    def line(self) -> str:
        """``verifying: 1.20 GiB of 3.41 GiB, 912 MB/s``; nothing during the first half second."""
        seconds = time.monotonic() - self._began
        if seconds < _QUIET:
            return ""
        of = f" of {numbers.size(self.total)}" if self.total else ""
        return f"{self._what}: {numbers.size(self.done)}{of}, {numbers.rate(self.done, seconds)}"

    def _tell(self) -> None:
        if self._console is not None and (now := time.monotonic()) >= self._next_line:
            self._next_line = now + _LINE_EVERY
            self._console.print(Text(self.line()))


@contextmanager
def counting(what: str) -> Generator[Counter]:
    """Show bytes being worked through, when it takes a while: on a terminal as they are, elsewhere by lines."""
    console = stderr()
    if not console.is_terminal:
        yield Counter(what, console)
        return
    counter = Counter(what)
    with Live(console=console, get_renderable=lambda: Text(counter.line(), style="dim"), transient=True):
        yield counter


def print_summary(result: BuildResult, tallies: Sequence[RunTally], json: bool) -> None:
    """Print a finished run on stdout, for people or as JSON.

    Args:
        tallies: of each build that it was, the result's own last.
    """
    emit(_as_json(result, tallies), json, lambda: _print(result, tallies))


def _as_json(result: BuildResult, tallies: Sequence[RunTally]) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "dataset": result.dataset,
        "version": result.version,
        "path": result.path,
        "status": result.status,
        "units": {
            "built": result.units_built,
            "resumed": result.units_resumed,
            "reused": result.units_reused,
        },
        "seconds": round(result.seconds, 3),
        "input_bytes_built": tallies[-1].built,
        "totals": asdict(manifest.totals),
        "account": manifest.account.to_json(),
        "fingerprint": manifest.fingerprint,
        "notes": list(result.notes),
        **({} if manifest.mixture is None else {"mixture": mixture_table(manifest.mixture).records()}),
        **({"steps": _steps(tallies).records()} if len(tallies) > 1 else {}),
    }


def _steps(tallies: Sequence[RunTally]) -> Table:
    columns = [
        label("what", "step"),
        label("dataset"),
        number("version", "version", lambda version: f"v{version}"),
        number("units"),
        number("built", "built now"),
        number("written", "tokens"),
        number("seconds", "time", numbers.duration),
    ]
    records = [
        {
            "what": tally.step.what,
            **{name: getattr(tally.plan, name) for name in ("dataset", "version", "units")},
            "built": tally.plan.pending,
            # Of a version that was there nobody counted.
            "written": tally.written or None,
            "seconds": round(tally.seconds(), 3),
        }
        for tally in tallies
    ]
    return Table.of(columns, records, "Steps")


def _print(result: BuildResult, tallies: Sequence[RunTally]) -> None:
    manifest, console = result.manifest, stdout()
    name = (f"{result.dataset} v{result.version}", "bold")
    console.print(Text.assemble(name, f" {_outcome(result)}\n"))
    work = ("work", _work(result, tallies[-1]))
    tables = [facts([*dataset.headline(manifest).rows, work, ("path", near(result.path))])]
    if len(tallies) > 1:
        tables.append(_steps(tallies))
    if manifest.mixture is not None:
        tables.append(mixture_table(manifest.mixture))
    tables.append(dataset.account_table(manifest))
    if notes := [*dataset.remarks(manifest.account), *result.notes]:
        tables.append(listed(notes, "Notes"))
    print_tables(tables)
    console.print(Text("\nNext", style="bold"))
    for command in _next(result):
        console.print(Text(command), soft_wrap=True)  # a wrapped command could not be copied


def _outcome(result: BuildResult) -> str:
    if result.status == "exists":
        return "exists already with the same inputs and settings: nothing to do"
    return "committed, after resuming an earlier run" if result.status == "resumed" else "committed"


def _work(result: BuildResult, tally: RunTally) -> str:
    if not result.units_built:
        return f"none, {numbers.duration(result.seconds)}"
    others = [
        f", {numbers.plural(number, 'unit')} {how}"
        for number, how in ((result.units_resumed, "resumed"), (result.units_reused, "reused"))
        if number
    ]
    seconds = tally.seconds()
    speed = (
        f"{numbers.size(tally.built)} in {numbers.duration(seconds)}, {numbers.rate(tally.built, seconds)}"
    )
    units = f"{numbers.plural(result.units_built, 'unit')} built{''.join(others)}"
    return f"{units}: {speed}; {numbers.duration(result.seconds)} in all"


def _next(result: BuildResult) -> list[str]:
    """Commands that work as printed, from this folder."""
    root = result.path.removesuffix(f"/{result.dataset}/v{result.version}")
    usual = Path(default_store()).expanduser().resolve() == Path(root)
    store = "" if usual else f" --store {shlex.quote(near(root))}"
    name = result.dataset
    question = shlex.quote(f'from "{name}/documents" limit 5')
    return [
        f"tokenlake peek {name} -n 2{store}",
        f"tokenlake sql {question}{store}",
        f"tokenlake verify {name}{store}",
    ]
