"""``tokenlake report`` without a name: the pages of a whole store."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.live import Live
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.cli.console import emit
from tokenlake.cli.serving import serve_until_interrupt
from tokenlake.etl.reports.terminal import near, stderr, stdout
from tokenlake.query.store_contents import OnProgress
from tokenlake.query.store_pages import DEFAULT_OUTPUT, StoreReport, report_store


def write_store_pages(
    store: str,
    output: Path | None,
    include: Sequence[str],
    sample_rows: int,
    *,
    serve: bool,
    port: int,
    json: bool,
) -> int:
    """Write the pages of a store, print a summary, and serve them on request.

    Args:
        store: Path or URL of the store.
        output: Folder of the pages; None for the default one.
        include: Exports and statements to show in the lineage.
        sample_rows: Number of decoded rows of a version.
        serve: True to serve the pages until Ctrl-C.
        port: Port of the server.
        json: True to print JSON.
    """
    with _phases() as on_progress:
        report = report_store(
            store,
            output or DEFAULT_OUTPUT,
            include=include,
            sample_rows=sample_rows,
            on_progress=on_progress,
        )
    record = asdict(report) | {"index": str(report.index)}
    emit(record, json, lambda: stdout().print(_summary(report), soft_wrap=True))
    # The summary must be visible before the server waits.
    if not serve:
        return 0
    sys.stdout.flush()
    return serve_until_interrupt(report.index.parent, port)


def _summary(report: StoreReport) -> str:
    """Return the lines about the pages; parts that are not there have none."""
    # Pages of versions are written once, so that most of them are often unchanged.
    unchanged = report.versions - report.written
    lines = [
        f"{near(str(report.index))}: {numbers.plural(report.versions, 'version')}, "
        f"{numbers.count(report.written)} written, {numbers.count(unchanged)} unchanged"
    ]
    if report.removed:
        lines.append(
            f"{numbers.plural(report.removed, 'version')} removed from the pages, as from the store"
        )
    if report.unfinished:
        lines.append(f"{numbers.plural(report.unfinished, 'unfinished build')}")
    if report.damaged:
        lines.append(
            f"{numbers.plural(report.damaged, 'damaged version')}: the first page names the files"
        )
    return "\n".join(lines)


@contextmanager
def _phases() -> Generator[OnProgress]:
    """Show the current phase on a terminal, as ``reading manifests: 12 of 200``."""
    console = stderr()
    # A file or a pipe gets no progress: the summary says all.
    if not console.is_terminal:
        yield lambda phase, done, total: None
        return
    with Live(console=console, transient=True) as live:

        def show(phase: str, done: int, total: int) -> None:
            line = f"{phase}: {numbers.count(done)} of {numbers.count(total)}"
            live.update(Text(line, style="dim"))

        yield show
