"""``tokenlake verify``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from tokenlake.catalog import Catalog
from tokenlake.cli.options import AsJson, Name, StoreUrl, Workers, store_url
from tokenlake.cli.output import print_json, print_tables, stdout
from tokenlake.cli.progress import counting
from tokenlake.errors import IntegrityError
from tokenlake.report import numbers
from tokenlake.report.table import Table, label
from tokenlake.storage import open_store
from tokenlake.verify import VerifyReport
from tokenlake.verify import verify as check

_COLUMNS = (label("path"), label("problem"), label("expected"), label("got"))
_THREADS = 2


def verify(
    name: Name,
    /,
    *,
    deep: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Also decode every row and compare logical hashes."),
    ] = False,
    workers: Workers = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Check every byte of a version against its manifest.

    Sizes and hashes of all files, Parquet footers, the account, the ledger, and files that nobody listed;
    with --deep also page checksums, every count and every segment. Ends with 3 when anything is not as it
    was committed.
    """
    catalog = Catalog(open_store(store_url(store)))
    dataset, version = catalog.resolve(name)
    with counting("verifying") as counter:
        report = check(
            catalog.store,
            dataset,
            version,
            deep=deep,
            workers=workers or _THREADS,
            on_progress=lambda progress: counter.set(progress.bytes, progress.bytes_total),
        )
    if json:
        print_json(report.to_json())
    else:
        _print(report)
    return 0 if report.ok else IntegrityError.exit_code


def _print(report: VerifyReport) -> None:
    checked = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}"
    if report.deep:
        checked += f", {numbers.plural(report.rows, 'row')} decoded"
    found = "all well" if report.ok else numbers.plural(len(report.problems), "problem")
    stdout().print(f"{report.dataset} v{report.version}: {found} ({checked})", markup=False)
    if not report.ok:
        print_tables([Table.of(_COLUMNS, [asdict(problem) for problem in report.problems])])
