"""What commands share: options, and printing: results to stdout as tables or JSON, notes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, final

from cyclopts import Parameter, validators
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from tokenlake.config.stores import default_store, is_local, store_overrides
from tokenlake.markup import printable, printable_json
from tokenlake.reports.table import Column, Table, label
from tokenlake.reports.terminal import stderr, stdout
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

_GAP: Final = 2  # between columns
_FOLDED: Final = 24  # least width of a column whose cells are folded

Config: TypeAlias = Annotated[str, Parameter(help="A YAML pipeline configuration.")]


def names(context: CompletionContext) -> list[str]:
    """Return the datasets of the store on the command line, for a shell that completes; of this machine's alone."""
    store = context["store"].raw
    return catalog_of(store).datasets() if is_local(store or default_store()) else []


Name: TypeAlias = Annotated[
    str, Parameter(help="A dataset, or one version of it: NAME, NAME@v3 or NAME@TAG.", completer=names)
]
_STORE = "The store: a path, s3:// or gs://. Default: TOKENLAKE_STORE, otherwise ./artifacts."
StoreUrl: TypeAlias = Annotated[str | None, Parameter(name="--store", metavar="URL", help=_STORE)]
AsJson: TypeAlias = Annotated[bool, Parameter(name="--json", help="Print JSON with stable keys.")]
_SET = "Change one setting, e.g. pack.seq_length=1024 or datasets.code.num_rows=5. Repeatable."
Overrides: TypeAlias = Annotated[
    tuple[str, ...], Parameter(name=["--set", "-s"], metavar="KEY=VALUE", help=_SET)
]
_WORKERS = "Number of workers. Default: the number of processors."
Workers: TypeAlias = Annotated[
    int | None, Parameter(metavar="N", help=_WORKERS, validator=validators.Number(gte=1))
]


def catalog_of(store: str | None) -> Catalog:
    """Return what a store holds, that of ``--store`` or the default one."""
    return Catalog(open_store(store or default_store()))


def with_store(overrides: tuple[str, ...], store: str | None) -> list[str]:
    """``--store`` as one more override: a run's store is ``save.output_dir``."""
    return [*overrides, *store_overrides(store)] if store else list(overrides)


@final
class Data:
    """Standard output for what is data as it stands, CSV or YAML: files and pipes get it so, a terminal printable."""

    def write(self, text: str) -> int:
        return sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def print_json(value: object) -> None:
    """Print ``value`` as indented JSON on stdout; what JSON lacks (dates, decimals) becomes text."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(printable_json(text) + "\n")


def emit(value: object, json: bool, show: Callable[[], object]) -> None:
    """Print ``value`` as JSON for programs, or have ``show`` print it for people."""
    if json:
        print_json(value)
    else:
        show()


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables on stdout, an empty line between them."""
    console = stdout()
    for index, table in enumerate(tables):
        if index:
            console.print()
        print_table(table, console)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print one table: headings dim, figures right-aligned, no ruled boxes.

    On a terminal that is too narrow, the last column is folded; where that is not enough, each row becomes lines of a
    heading and a value, an empty line between rows.
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
        named = [[column.heading, cell] for column, cell in zip(table.columns, row, strict=True) if cell]
        _print_grid((label("heading", ""), label("value", "")), named, console)


def _fits(table: Table, cells: list[list[str]], width: int) -> bool:
    """Whether a row is a line, but for the folded end of its last column; a table of facts is always one."""
    headings = [column.heading for column in table.columns]
    if len(headings) < 3:
        return True
    *others, last = (
        max(cell_len(line) for row in [headings, *cells] for line in row[index].splitlines() or [""])
        for index in range(len(headings))
    )
    room = width - sum(others) - _GAP * len(others)
    return room >= (last if table.columns[-1].align == "right" else min(last, _FOLDED))


def _print_grid(columns: Sequence[Column], cells: list[list[str]], console: Console) -> None:
    headed = any(column.heading for column in columns)
    shown = Grid(box=None, show_header=headed, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        folds = index == len(columns) - 1 and column.align == "left"
        shown.add_column(Text(column.heading), justify=column.align, overflow="fold", no_wrap=not folds)
    for row in cells:
        shown.add_row(*map(Text, row))
    with console.capture() as captured:
        console.print(shown)
    # rich pads every line to the table's width, which only a terminal does not mind
    lines = captured.get().splitlines()
    console.file.writelines((line if console.is_terminal else line.rstrip()) + "\n" for line in lines)


def note(message: str) -> None:
    """One line on stderr."""
    stderr().print(Text(message))
