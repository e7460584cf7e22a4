"""What commands share: options, printing (results to stdout as tables or JSON, notes to stderr), and ``--help``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias, final

from cyclopts import Parameter, validators
from cyclopts.help import DescriptionRenderer, HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tokenlake.config.stores import store_overrides
from tokenlake.report.printable import printable
from tokenlake.report.table import Table
from tokenlake.report.terminal import printable_json, stderr, stdout

Config: TypeAlias = Annotated[str, Parameter(help="A YAML pipeline configuration.")]
Name: TypeAlias = Annotated[
    str, Parameter(help="A dataset, or one version of it: NAME, NAME@v3 or NAME@TAG.")
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
    """Print one table: headings dim, figures right-aligned, no ruled boxes."""
    console = console or stdout()
    if table.title:
        console.print(Text(table.title, style="bold"))
    headed = any(column.heading for column in table.columns)
    shown = Grid(box=None, show_header=headed, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns:
        shown.add_column(
            Text(column.heading), justify=column.align, overflow="fold", no_wrap=column.align == "right"
        )
    for row in table.cells():
        shown.add_row(*(Text(printable(cell)) for cell in row))
    with console.capture() as captured:
        console.print(shown)
    # rich pads every line to the table's width, which only a terminal does not mind
    lines = captured.get().splitlines()
    console.file.writelines((line if console.is_terminal else line.rstrip()) + "\n" for line in lines)


def note(message: str) -> None:
    """One line on stderr."""
    stderr().print(Text(message))


@final
class PlainColumns:
    """A cyclopts help formatter; cyclopts calls it once for each group of commands or parameters."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group, e.g. all options of a command."""
        if not panel.entries:
            return
        console.print(Text(f"{panel.title}:", style="bold"))
        columns = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
        columns.add_column(no_wrap=True, style="cyan")
        columns.add_column()
        describe = DescriptionRenderer()
        for entry in panel.entries:
            columns.add_row(_labels(entry), describe(entry))
        console.print(Padding(columns, (0, 0, 1, 2), expand=False))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: object) -> None:
        """Print the line that says how the command is called."""
        if usage:
            console.print(Text("Usage: ", style="bold") + Text(str(usage)))


def _labels(entry: HelpEntry) -> str:
    """``--set, -s KEY=VALUE``; a positional parameter by its name alone, not as an option too."""
    if entry.positional_label:
        return entry.positional_label
    return ", ".join(entry.display_labels_with_metavar)
