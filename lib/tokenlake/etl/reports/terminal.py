"""Consoles of standard output and standard error, and tables on them.

Data cannot drive the reader's terminal: control characters are shown, not sent.
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

# Width without a terminal: nothing is wrapped, because programs read the lines.
_UNBOUNDED: Final = 1_000_000
_GAP: Final = 2  # spaces between columns
_FOLDED: Final = 24  # least width of a column whose cells are folded


@final
class _Terminal(Console):
    """A console that makes control characters of data visible.

    All output passes through :meth:`render`, whatever its origin: tables, messages of
    errors, names of files. Only rich's own segments of control pass unchanged.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=printable(segment.text))


def stdout() -> Console:
    """Return the console of results.

    Without a terminal nothing is wrapped, cut or coloured.
    """
    return _console(stderr=False)


def stderr() -> Console:
    """Return the console of progress and notes."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    """Return a console of standard output or standard error."""
    stream = sys.stdout
    if stderr:
        stream = sys.stderr
    width = None
    if not stream.isatty():
        width = _UNBOUNDED
    # Without `highlight=False` rich would colour every number and path that it believes
    # to see; emoji and markup would change texts that contain `:name:` or `[name]`.
    return _Terminal(
        stderr=stderr,
        highlight=False,
        emoji=False,
        markup=False,
        width=width,
    )


def near(path: str) -> str:
    """Return a path below the current folder as relative to it; others as they are."""
    current_folder = Path.cwd()
    if not Path(path).is_relative_to(current_folder):
        return path
    return str(Path(path).relative_to(current_folder))


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables on standard output, with an empty line between them."""
    console = stdout()
    for index, table in enumerate(tables):
        if index:
            console.print()
        print_table(table, console)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print one table: headings dim, figures right-aligned, no ruled boxes.

    On a terminal that is too narrow, the last column is folded. If that is not enough,
    each row becomes lines of a heading and a value, with an empty line between rows.
    """
    console = console or stdout()
    if table.title:
        console.print(Text(table.title, style="bold"))
    cells = [[printable(cell) for cell in row] for row in table.cells()]
    if not console.is_terminal or _fits(table, cells, console.width):
        _print_grid(table.columns, cells, console)
        return
    # The narrow form: one line for each cell of a row that is not empty.
    for index, row in enumerate(cells):
        if index:
            console.print()
        named_cells: list[list[str]] = []
        for column, cell in zip(table.columns, row, strict=True):
            if cell:
                named_cells.append([column.heading, cell])
        columns = (label("heading", ""), label("value", ""))
        _print_grid(columns, named_cells, console)


def _fits(table: Table, cells: list[list[str]], width: int) -> bool:
    """Return True if the columns stand side by side, perhaps with a folded last one.

    A table of two columns always does: its narrow form would be the same table.
    """
    if len(table.columns) < 3:
        return True
    widths: list[int] = []
    for index, column in enumerate(table.columns):
        column_cells = [column.heading]
        column_cells += [row[index] for row in cells]
        widths.append(max(_cell_width(cell) for cell in column_cells))

    # Figures cannot be folded; texts need at least _FOLDED columns of the terminal.
    last_width = widths.pop()
    if table.columns[-1].align == "left":
        last_width = min(last_width, _FOLDED)
    free_width = width - sum(widths) - _GAP * len(widths)
    return free_width >= last_width


def _cell_width(cell: str) -> int:
    """Return the width of the longest line of a cell, in columns of the terminal."""
    lines = cell.splitlines() or [""]
    return max(cell_len(line) for line in lines)


def _print_grid(
    columns: Sequence[Column], cells: list[list[str]], console: Console
) -> None:
    """Print cells under headings; only a last column of text is folded."""
    has_headings = any(column.heading for column in columns)
    grid = Grid(
        box=None,
        show_header=has_headings,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="dim",
    )
    for index, column in enumerate(columns):
        is_last = index == len(columns) - 1
        is_folded = is_last and column.align == "left"
        grid.add_column(
            Text(column.heading),
            justify=column.align,
            overflow="fold",
            no_wrap=not is_folded,
        )
    for row in cells:
        grid.add_row(*map(Text, row))

    # Rich pads every line to the table's width. A terminal does not show it; files and
    # programs would get trailing spaces.
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().splitlines():
        if not console.is_terminal:
            line = line.rstrip()
        console.file.write(line + "\n")
