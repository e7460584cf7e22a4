"""Four forms of messages and progress: bars, lines, lines of JSON, and a tqdm bar.

Bars are for terminals, where they are redrawn below the messages. Lines are
for files and logs, where nothing can be wiped away. Lines of JSON are for programs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from tokenlake.base.markup import printable, printable_json

if TYPE_CHECKING:
    # These options are known before pydantic is imported, with which sections of a
    # configuration are defined.
    from tokenlake.config.stages import ObservabilityConfig

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
"""Levels of messages, ascending."""

# Largest number of seconds between two lines of progress: a log shows that a build
# runs, however large its units are.
_SECONDS_BETWEEN_LINES: Final = 10.0


@final
@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """The options of a section `observability` about messages and progress.

    Attributes:
        form: Form of the progress: ``rich``, ``tqdm``, ``json`` or ``none``.
        level: Lowest level of messages that are shown.
        interval: Number of units or batches between two lines of progress.
    """

    form: str = "rich"
    level: str = "INFO"
    interval: int = 100

    @classmethod
    def of(cls, section: ObservabilityConfig) -> Self:
        """Return the options of a section."""
        form = "none"
        if section.progress_enabled:
            form = section.progress_type
        return cls(form, section.log_level, section.log_interval)

    def tells(self, level: str) -> bool:
        """Return True if messages of a level are shown."""
        return LEVELS.index(level) >= LEVELS.index(self.level)


class Tally(Protocol):
    """Running sums that can be shown."""

    @property
    def name(self) -> str:
        """Name of the work."""
        ...

    @property
    def unit(self) -> str:
        """Unit of `done` and `total`: B for bytes, else a noun."""
        ...

    @property
    def done(self) -> int:
        """Amount that is done."""
        ...

    @property
    def total(self) -> int:
        """Amount of all work; 0 where it is not known."""
        ...

    def line(self) -> str:
        """Return the sums as a line for people."""
        ...

    def figures(self) -> dict[str, Any]:
        """Return the sums, JSON-able."""
        ...


class Display:
    """Base of all forms, which shows nothing; its methods are called one at a time."""

    def begin(self) -> None:
        """Prepare for the first call of another method."""

    def end(self) -> None:
        """Clean up after the last call."""

    def say(self, level: str, text: str) -> None:
        """Show a message, which stays.

        Args:
            level: Level of the message.
            text: Text of the message.
        """

    def doing(self, text: str) -> None:
        """Show the current activity, where it can be wiped away again."""

    def show(self, tally: Tally, ticks: int) -> None:
        """Show progress, if it is time.

        Args:
            tally: Sums to show.
            ticks: Number of units or batches since the last call.
        """


@final
class Bars(Display):
    """Bars that are drawn several times a second below the messages; for terminals.

    Args:
        console: Console of the terminal.
        render: Function of the width that returns the bars; None where there are none
            yet.
        first: Activity at the beginning.
    """

    def __init__(
        self,
        console: Console,
        render: Callable[[int], RenderableType | None],
        first: str,
    ) -> None:
        self._console = console
        self._spinner = Spinner("line", Text(first))

        # Rich asks for the picture several times a second; before the first unit there
        # is a spinner.
        def bars_or_spinner() -> RenderableType:
            return render(console.width) or self._spinner

        self._live = Live(
            console=console, get_renderable=bars_or_spinner, transient=True
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
    """Messages, and between them lines of progress.

    A line of progress comes after a number of ticks, or after ten seconds.

    As JSON each line is an object: ``time``, and either ``level`` and ``message``, or
    ``progress`` with the sums.

    Args:
        console: Console on which lines are printed.
        interval: Number of ticks between two lines of progress; None shows none.
        as_json: True for lines of JSON. Default: False.
    """

    def __init__(
        self, console: Console, interval: int | None, *, as_json: bool = False
    ) -> None:
        self._console = console
        self._interval = interval
        self._is_json = as_json
        self._ticks = 0
        self._last_line = time.monotonic()

    def say(self, level: str, text: str) -> None:
        if self._is_json:
            self._write({"level": level, "message": text})
        else:
            self._console.print(Text(printable(text)))

    def show(self, tally: Tally, ticks: int) -> None:
        if self._interval is None:
            return
        self._ticks += ticks
        now = time.monotonic()
        # A line is due after enough ticks, or after enough time.
        has_enough_ticks = self._ticks >= self._interval
        is_late = now - self._last_line >= _SECONDS_BETWEEN_LINES
        if not has_enough_ticks and not is_late:
            return
        self._ticks = 0
        self._last_line = now
        if self._is_json:
            self._write({"progress": tally.figures()})
        else:
            self.say("INFO", tally.line())

    def _write(self, facts: dict[str, Any]) -> None:
        """Write an object as a line, and flush it: a program may wait for it."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **facts}, ensure_ascii=False)
        self._console.file.write(printable_json(line) + "\n")
        self._console.file.flush()


@final
class TqdmBar(Display):
    """One bar of tqdm, of the current build or of the batches.

    Args:
        console: Console whose file the bar is written to.
    """

    def __init__(self, console: Console) -> None:
        # Its import costs time, which only those who choose tqdm pay.
        from tqdm import tqdm

        self._tqdm = tqdm
        self._file = console.file
        self._bar: Any = None

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def say(self, level: str, text: str) -> None:
        self._tqdm.write(printable(text), file=self._file)

    def show(self, tally: Tally, ticks: int) -> None:
        # tqdm adds a colon to the description.
        if self._bar is not None and self._bar.desc != f"{tally.name}: ":
            # Another build began.
            self.end()
        if self._bar is None:
            self._bar = self._tqdm(
                desc=tally.name,
                total=tally.total or None,
                unit=tally.unit,
                unit_scale=True,
                file=self._file,
            )
        self._bar.update(tally.done - self._bar.n)


def display_of(
    options: DisplayOptions,
    console: Console,
    render: Callable[[int], RenderableType | None],
    first: str,
) -> Display:
    """Return the display of some options; bars outside of a terminal are lines.

    Args:
        options: The options.
        console: Console to show it on.
        render: Function of the width that returns the bars; None where there are none
            yet.
        first: Activity at the beginning.
    """
    # JSON and tqdm were chosen by name, so that they do not depend on the terminal.
    if options.form == "json":
        return Lines(console, options.interval, as_json=True)
    if options.form == "tqdm":
        return TqdmBar(console)
    if options.form == "rich" and console.is_terminal:
        return Bars(console, render, first)
    if options.form == "rich":
        return Lines(console, options.interval)
    # The form `none` shows messages, and no progress.
    return Lines(console, None)
