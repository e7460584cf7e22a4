"""Progress of a run on stderr: bars on a terminal, a line now and then elsewhere; and on stdout what it came to."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tokenlake import numbers
from tokenlake.cli.console import emit, print_tables
from tokenlake.config.values import default_store
from tokenlake.reports import dataset
from tokenlake.reports.mixture import mixture_table
from tokenlake.reports.table import Table, facts, label, listed, number
from tokenlake.reports.terminal import near, stderr, stdout

if TYPE_CHECKING:
    from tokenlake.etl.runner import BuildResult
    from tokenlake.observability.tally import RunTally


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
    manifest = result.manifest
    found = {
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
    emit(found, json, lambda: _print(result, tallies))


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
    console.print(Text.assemble(name, f" {_OUTCOMES.get(result.status, 'committed')}\n"))
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
    # Commands that work as printed, from this folder; and lines of Python that train, anywhere on this machine.
    root = result.path.removesuffix(f"/{result.dataset}/v{result.version}")
    usual = Path(default_store()).expanduser().resolve() == Path(root)
    store = "" if usual else f" --store {shlex.quote(near(root))}"
    commands = [f"tokenlake {command} {result.dataset}{store}" for command in ("peek", "report", "verify")]
    path = f"{result.path.removesuffix(f'/v{result.version}')}@v{result.version}"
    training = [
        "import tokenlake as tl",
        f"for batch in tl.DataLoader(tl.open({path!r}), batch_size=8, seed=0):",
        '    batch["input_ids"]  # also segment_ids, positions, loss_mask; sharding= puts them on devices',
    ]
    for title, lines in (("Next", commands), ("Train", training)):
        console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Text(line), soft_wrap=True)  # a wrapped command could not be copied


_OUTCOMES: Final = {
    "exists": "exists already with the same inputs and settings: nothing to do",
    "resumed": "committed, after resuming an earlier run",
}


def _work(result: BuildResult, tally: RunTally) -> str:
    if not result.units_built:
        return f"none, {numbers.duration(result.seconds)}"
    units = f"{numbers.plural(result.units_built, 'unit')} built"
    for many, how in ((result.units_resumed, "resumed"), (result.units_reused, "reused")):
        units += f", {numbers.plural(many, 'unit')} {how}" if many else ""
    seconds = tally.seconds()
    speed = f"{numbers.duration(seconds)}, {numbers.rate(tally.built, seconds)}"
    return f"{units}: {numbers.size(tally.built)} in {speed}; {numbers.duration(result.seconds)} in all"
