"""Consoles of standard output and standard error, on which data cannot drive the reader's terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tokenlake.markup import printable

_UNBOUNDED: Final = 1_000_000


@final
class _Terminal(Console):
    """Whatever is printed comes by here: what is not rich's own is made visible, wherever it came from."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def stdout() -> Console:
    """The console of results. Without a terminal nothing is wrapped, cut or coloured."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console of progress and notes."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # highlight: rich would colour every number and path it believes to see
    return _Terminal(
        stderr=stderr, highlight=False, emoji=False, markup=False, width=None if terminal else _UNBOUNDED
    )


def near(path: str) -> str:
    """A path as seen from the current folder where it lies below it, else as it is."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
