"""Messages and progress of a build on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.etl.events.of_builds import (
    BackendChosen,
    BackendDiscarded,
    BuildPlanned,
    BuildRequested,
    BuildStep,
    Committed,
    Listed,
    Phase,
    Planning,
)
from tokenlake.etl.events.of_units import UnitFinished, UnitProgress, UnitRetried
from tokenlake.etl.events.watcher import Event, Watcher
from tokenlake.etl.observability.displays import Display, DisplayOptions, display_of
from tokenlake.etl.observability.metrics import measured
from tokenlake.etl.observability.tally import (
    RunTallies,
    RunTally,
    source_name,
    step_name,
)
from tokenlake.etl.reports.dataset import planning_line
from tokenlake.etl.reports.terminal import near, stderr

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig

# Seconds between two lines of a plan, after the first one.
_SECONDS_BETWEEN_PLAN_LINES: Final = 5.0

# Seconds before the first line of a plan: a small one is ready before that.
_QUIET_SECONDS: Final = 0.5

# Seconds after which a phase gets a line that stays. A shorter phase is not worth one.
_LONG_SECONDS: Final = 1.0


@final
class RunProgress:
    """Progress of one or several builds.

    It is called with every event, from any thread, in its ``with`` block. Before the
    first event the options of the configuration are not known. Until then a terminal
    shows the current activity, and anything else gets no line.

    Args:
        first: Activity at the beginning.
        console: Console to show it on; None for standard error.
        options: Options of the display; None for those of the first event that has
            some, else the defaults.
    """

    def __init__(
        self,
        first: str,
        console: Console | None = None,
        options: DisplayOptions | None = None,
    ) -> None:
        self._console = console or stderr()
        self._activity = first
        self._options = options or DisplayOptions()
        self._has_options = options is not None
        self._tallies = RunTallies()
        self._display: Display | None = None
        # Phase of the build, and of the flow around it; and the timer of the line about
        # them.
        self._phases: dict[str, str] = {}
        self._long_phase: threading.Timer | None = None
        # The lock guards the display: events come from several threads.
        self._lock = threading.RLock()
        self._next_plan_line = time.monotonic() + _QUIET_SECONDS
        # Tokenizer and backend of each choice that was reported.
        self._reported_backends: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        if self._has_options:
            self._set_options(self._options)
        elif self._has_bars:
            self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The timer would print after the end.
        self._forget_phase_line()
        if self._display is not None:
            self._display.end()

    @property
    def tallies(self) -> Sequence[RunTally]:
        """The tally of each build that began, in order."""
        return self._tallies.all

    @property
    def tally(self) -> RunTally:
        """The tally of the current build, or of the last one."""
        return self._tallies.last

    def __call__(self, event: Event) -> None:
        """Count an event, and show the parts of it that matter to people."""
        self._tallies.add(event)
        with self._lock:
            # A build brings the options of its configuration. Without that event, the
            # options are those of the caller, or the defaults.
            if isinstance(event, BuildRequested):
                self._set_options(DisplayOptions.of(event.observability))
                self._next_plan_line = time.monotonic() + _QUIET_SECONDS
            elif not self._has_options:
                self._set_options(self._options)
            self._show_event(event)

    def doing(self, what: str) -> None:
        """Show the current activity, in a place that can be wiped away again.

        Args:
            what: Description of the activity. Before the first event it is shown first.
        """
        if self._display is None:
            self._activity = what
        else:
            self._display.doing(what)

    def render(self, width: int) -> RenderableType | None:
        """Return the bars in `width` columns, with the current phase below.

        It is None before a unit started.
        """
        if self.tally.began is None:
            return None
        bars = self._tallies.render(width)
        phase = self._phase
        if not phase:
            return bars
        return Group(bars, Text(phase, style="dim"))

    def _set_options(self, options: DisplayOptions) -> None:
        """Show progress in the form of some options from now on."""
        if self._has_options and self._display is not None and options == self._options:
            return
        self._options = options
        self._has_options = True
        if self._display is not None:
            if self._has_bars:
                # A terminal has shown these bars before the options were known.
                return
            self._display.end()
        self._begin()
        if not self._has_bars:
            self._say(self._activity)

    def _begin(self) -> None:
        """Open the display of the options."""
        self._display = display_of(
            self._options, self._console, self.render, self._activity
        )
        self._display.begin()

    @property
    def _has_bars(self) -> bool:
        """True if progress is drawn in a terminal, where it can be wiped away."""
        return self._options.form == "rich" and self._console.is_terminal

    def _show_event(self, event: Event) -> None:
        """Show the part of an event that matters to people; most matter to none."""
        match event:
            case UnitProgress():
                self._show_tally(0)
            case UnitFinished():
                self._show_finished(event)
            case BuildStep():
                self.doing(f"{step_name(event)}: planning")
                self._say(step_name(event))
            case Planning():
                self._show_planning(event)
            case Phase():
                self._show_phase(event)
            case Listed():
                files = numbers.plural(event.files, "file")
                self.doing(
                    f"planning: {event.source}, {files}, {numbers.size(event.bytes)}"
                )
            case BuildPlanned():
                self._show_plan(event)
            case BackendChosen():
                self._show_backend(event)
            case UnitRetried():
                unit = f"unit {event.unit} ({source_name(event.source)})"
                self._say(f"{unit} is retried after: {event.error}", "WARNING")
            case BackendDiscarded():
                self._say(
                    f"tokenizer backend {event.engine} is not exact; its units are rebuilt: {event.reason}",
                    "WARNING",
                )
            case Committed():
                self._say(f"{event.dataset} v{event.version} is committed", "DEBUG")
            case _:
                pass

    @property
    def _phase(self) -> str:
        """The phases of build and flow: ``starting 2 workers; starting Prefect``."""
        return "; ".join(phase for phase in self._phases.values() if phase)

    def _show_phase(self, event: Phase) -> None:
        """Show a phase: in bars at once, otherwise in a line once it took a second."""
        self._phases[event.of] = printable(event.what)
        phase = self._phase
        self.doing(phase or "starting")
        # A new phase replaces the line of the one before.
        self._forget_phase_line()
        if not phase or self._has_bars or self._options.form == "none":
            return
        self._long_phase = threading.Timer(_LONG_SECONDS, self._say_phase, [phase])
        self._long_phase.daemon = True
        self._long_phase.start()

    def _say_phase(self, phase: str) -> None:
        """Print the line of a phase, if it is still the current one."""
        with self._lock:
            if phase == self._phase:
                self._say(phase)

    def _forget_phase_line(self) -> None:
        """Cancel the line of a phase that has ended."""
        if self._long_phase is not None:
            self._long_phase.cancel()
            self._long_phase = None

    def _show_planning(self, event: Planning) -> None:
        """Show the plan's progress: in bars at once, otherwise every few seconds."""
        line = f"planning: {planning_line(*astuple(event))}"
        self.doing(line)
        if self._has_bars or self._options.form == "none":
            return
        now = time.monotonic()
        if now >= self._next_plan_line:
            self._next_plan_line = now + _SECONDS_BETWEEN_PLAN_LINES
            self._say(line)

    def _show_plan(self, event: BuildPlanned) -> None:
        """Show the size of a plan, and how much of it is done already."""
        self.doing(self._phase or "starting")
        units = numbers.plural(event.units, "unit")
        line = f"{event.dataset} v{event.version}: {units}, {numbers.size(event.input_bytes)}"
        built_units = event.units - event.pending
        if built_units:
            line += f"; {event.pending} to build, {built_units} already built"
        self._say(line)

    def _show_backend(self, event: BackendChosen) -> None:
        """Show the choice of a backend, once for each tokenizer.

        Every source of a tokenizer is probed with its own texts, so that the same
        choice comes several times.
        """
        choice = (event.tokenizer, event.engine)
        if choice not in self._reported_backends:
            self._reported_backends.add(choice)
            self._say(
                f"tokenizer backend {event.engine} for {near(event.tokenizer)}: {event.reason}"
            )

    def _show_finished(self, event: UnitFinished) -> None:
        """Show a finished unit: a line for those who debug, and the progress."""
        account = event.record.account
        documents = numbers.plural(account.documents, "document")
        line = f"unit {event.unit} ({source_name(event.source)}) is {event.how}: {documents}"
        line += f", {numbers.short(account.tokens)} tokens"
        if event.seconds:
            line += f" in {numbers.duration(event.seconds)}"
        self._say(line, "DEBUG")
        self._show_tally(1)

    def _say(self, line: str, level: str = "INFO") -> None:
        """Show a line that stays, if messages of its level are shown."""
        if self._display is not None and self._options.tells(level):
            self._display.say(level, line)

    def _show_tally(self, ticks: int) -> None:
        """Show the progress, after a number of finished units."""
        if self._display is not None:
            self._display.show(self.tally, ticks)


@contextmanager
def observed(config: PipelineConfig, on_event: Watcher) -> Generator[Watcher]:
    """Yield a watcher of a build that a program runs.

    It counts and shows the events, and passes them on. A library is silent by default:
    progress is shown if the configuration has a section `observability`.

    Args:
        config: Configuration of the build.
        on_event: Function that gets the events.
    """
    section = config.observability
    with measured(section, on_event) as count_event:
        if "observability" not in config.model_fields_set:
            yield count_event
            return
        with RunProgress("planning", options=DisplayOptions.of(section)) as progress:

            def watch(event: Event) -> None:
                progress(event)
                count_event(event)

            yield watch
