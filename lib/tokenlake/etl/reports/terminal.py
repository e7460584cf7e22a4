"""Consoles of standard output and standard error, on which data cannot drive the
reader's terminal; tables on them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from tokenlake.base.markup import printable
from tokenlake.etl.reports import Column, Table, label

_UNBOUNDED: Final = 1_000_000
_GAP: Final = 2  # between columns
_FOLDED: Final = 24  # least width of a column whose cells are folded


@final
class _Terminal(Console):
    """Whatever is printed comes by here: what is not rich's own is made visible,
    wherever it came from.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else segment._replace(text=printable(segment.text))
            )


def stdout() -> Console:
    """The console of results. Without a terminal nothing is wrapped, cut or
    coloured.
    """
    return _console(stderr=False)


def stderr() -> Console:
    """The console of progress and notes."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # highlight: rich would colour every number and path it believes to see
    return _Terminal(
        stderr=stderr,
        highlight=False,
        emoji=False,
        markup=False,
        width=None if terminal else _UNBOUNDED,
    )


def near(path: str) -> str:
    """A path as seen from the current folder where it lies below it, else as it is."""
    here = Path.cwd()
    return (
        str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
    )


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables on stdout, an empty line between them."""
    console = stdout()
    for index, table in enumerate(tables):
        if index:
            console.print()
        print_table(table, console)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print one table: headings dim, figures right-aligned, no ruled boxes.

    On a terminal that is too narrow, the last column is folded; where that is not
    enough, each row becomes lines of a heading and a value, an empty line between rows.
    """
    console = console or stdout()
    if table.title:
        console.print(Text(table.title, style="bold"))
    cells = [[printable(cell) for cell in row] for row in table.cells()]
    if not console.is_terminal or _fits(table, cells, console.width):
        _print_grid(table.columns, cells, console)
        return
    for index, row in enumerate(cells):
        if index:
            console.print()
        named = [
            [column.heading, cell]
            for column, cell in zip(table.columns, row, strict=True)
            if cell
        ]
        _print_grid((label("heading", ""), label("value", "")), named, console)


def _fits(table: Table, cells: list[list[str]], width: int) -> bool:
    """Whether a row is a line, but for the folded end of its last column; a table of
    facts is always one.
    """
    headings = [column.heading for column in table.columns]
    if len(headings) < 3:
        return True
    *others, last = (
        max(
            cell_len(line)
            for row in [headings, *cells]
            for line in row[index].splitlines() or [""]
        )
        for index in range(len(headings))
    )
    room = width - sum(others) - _GAP * len(others)
    return room >= (last if table.columns[-1].align == "right" else min(last, _FOLDED))


def _print_grid(
    columns: Sequence[Column], cells: list[list[str]], console: Console
) -> None:
    headed = any(column.heading for column in columns)
    shown = Grid(
        box=None,
        show_header=headed,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="dim",
    )
    for index, column in enumerate(columns):
        folds = index == len(columns) - 1 and column.align == "left"
        shown.add_column(
            Text(column.heading),
            justify=column.align,
            overflow="fold",
            no_wrap=not folds,
        )
    for row in cells:
        shown.add_row(*map(Text, row))
    with console.capture() as captured:
        console.print(shown)
    # rich pads every line to the table's width, which only a terminal does not mind
    lines = captured.get().splitlines()
    console.file.writelines(
        (line if console.is_terminal else line.rstrip()) + "\n" for line in lines
    )
