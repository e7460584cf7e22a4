"""A tally and messages on standard error, in one of four forms."""

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

from tokenlake.markup import printable, printable_json

if TYPE_CHECKING:
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


class Display(Protocol):
    """One form; calls come one at a time."""

    def begin(self) -> None: ...
    def end(self) -> None: ...

    def say(self, level: str, text: str) -> None:
        """Show a message, which stays."""

    def doing(self, text: str) -> None:
        """Say what goes on now, where that can be wiped away again."""

    def show(self, tally: Tally, ticks: int) -> None:
        """Show progress, if it is time; `ticks` units or batches were done since the last call."""


class _Timer:
    """Says when the next line of progress is due: after so many ticks, or ten seconds."""

    def __init__(self, interval: int) -> None:
        self._interval, self._ticks, self._last = interval, 0, time.monotonic()

    def due(self, ticks: int) -> bool:
        self._ticks += ticks
        now = time.monotonic()
        if self._ticks < self._interval and now - self._last < _LINE_EVERY:
            return False
        self._ticks, self._last = 0, now
        return True


@final
class Bars:
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

    def show(self, tally: Tally, ticks: int) -> None:
        pass  # it is drawn by itself


@final
class Lines:
    """Messages, and between them a line of progress now and then, unless `interval` is None."""

    def __init__(self, console: Console, interval: int | None) -> None:
        self._console, self._timer = console, None if interval is None else _Timer(interval)

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def say(self, level: str, text: str) -> None:
        self._console.print(Text(printable(text)))

    def doing(self, text: str) -> None:
        pass

    def show(self, tally: Tally, ticks: int) -> None:
        if self._timer is not None and self._timer.due(ticks):
            self.say("INFO", tally.line())


@final
class JsonLines:
    """A JSON object on each line: ``time``, and either ``level`` and ``message``, or ``progress`` with the sums."""

    def __init__(self, console: Console, interval: int) -> None:
        self._console, self._timer = console, _Timer(interval)

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def say(self, level: str, text: str) -> None:
        self._write({"level": level, "message": text})

    def doing(self, text: str) -> None:
        pass

    def show(self, tally: Tally, ticks: int) -> None:
        if self._timer.due(ticks):
            self._write({"progress": tally.figures()})

    def _write(self, facts: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **facts}, ensure_ascii=False)
        self._console.file.write(printable_json(line) + "\n")
        self._console.file.flush()


@final
class TqdmBar:
    """One bar of tqdm, of the build that goes on or of the batches."""

    def __init__(self, console: Console) -> None:
        # Imported for those who ask for it: it is the Hub's, and costs time.
        from tqdm import tqdm

        self._tqdm, self._file, self._bar = tqdm, console.file, None

    def begin(self) -> None:
        pass

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def say(self, level: str, text: str) -> None:
        self._tqdm.write(printable(text), file=self._file)

    def doing(self, text: str) -> None:
        pass

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
        return JsonLines(console, options.interval)
    if options.form == "tqdm":
        return TqdmBar(console)
    if options.form == "rich" and console.is_terminal:
        return Bars(console, render, first)
    return Lines(console, options.interval if options.form == "rich" else None)
