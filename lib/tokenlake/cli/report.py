"""``tokenlake report``: one HTML file about a version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenlake.cli.console import AsJson, Name, StoreUrl, emit
from tokenlake.config.stores import default_store
from tokenlake.numbers import size
from tokenlake.query.report import report as write
from tokenlake.reports.terminal import stdout


def report(
    name: Name,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["-o", "--output"], metavar="FILE")] = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Write a report of a version: one HTML file that loads nothing and runs nothing.

    It shows the account as a flow, lengths, how full rows are, shares of a mixture, bad records, decoded rows, what
    each host of a loader reads, the versions of the dataset and what differs between them, and the lineage.

    Of a large version only some row groups are read; the report says which.

    Args:
        output: The file; one that is there is replaced. Default: NAME-vN.html in this folder.
    """
    path = write(store or default_store(), output, name=name)
    written = {"path": str(path), "bytes": path.stat().st_size}
    emit(written, json, lambda: stdout().print(f"{path}: {size(path.stat().st_size)}", soft_wrap=True))
    return 0
