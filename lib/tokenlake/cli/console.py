"""What commands share: options, and printing.

Results go to stdout as tables or JSON, notes to stderr, and so does progress: bars on a terminal, lines elsewhere.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, final

from cyclopts import Parameter, validators
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from tokenlake import numbers
from tokenlake.config.stores import default_store, is_local, store_overrides
from tokenlake.printable import printable, printable_json
from tokenlake.reports import dataset
from tokenlake.reports.mixture import mixture_table
from tokenlake.reports.table import Column, Table, facts, label, listed, number
from tokenlake.reports.terminal import near, stderr, stdout
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from tokenlake.etl.runner import BuildResult
    from tokenlake.observability.tally import RunTally

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


_LINE_EVERY: Final = 10.0  # seconds between lines where there is no terminal
_QUIET: Final = 0.5  # seconds before a counter shows itself


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
        **({"exports": list(result.exports)} if result.exports else {}),
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
    exports = [("export", near(place)) for place in result.exports]
    tables = [facts([*dataset.headline(manifest).rows, work, ("path", near(result.path)), *exports])]
    if len(tallies) > 1:
        tables.append(_steps(tallies))
    if manifest.mixture is not None:
        tables.append(mixture_table(manifest.mixture))
    tables.append(dataset.account_table(manifest))
    if notes := [*dataset.remarks(manifest.account), *result.notes]:
        tables.append(listed(notes, "Notes"))
    print_tables(tables)
    for title, lines in (("Next", _next(result)), ("Train", _training(result))):
        console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Text(line), soft_wrap=True)  # a wrapped command could not be copied


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
    return [f"tokenlake {command} {name}{store}" for command in ("peek", "report", "verify")]


def _training(result: BuildResult) -> list[str]:
    """Lines of Python that train on what was built, wherever they run on this machine."""
    path = f"{result.path.removesuffix(f'/v{result.version}')}@v{result.version}"
    return [
        "import tokenlake as tl",
        f"for batch in tl.DataLoader(tl.open({path!r}), batch_size=8, seed=0):",
        '    batch["input_ids"]  # also segment_ids, positions, loss_mask; sharding= puts them on devices',
    ]
