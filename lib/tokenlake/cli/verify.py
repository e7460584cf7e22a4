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
from tokenlake.verify import verify as check


def verify(
    name: Name,
    /,
    *,
    deep: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Also decode every column and compare its logical hash."
        ),
    ] = False,
    workers: Workers = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Check every byte and count of a version against its manifest.

    Sizes, hashes, page checksums, row, token and segment counts, the account, the ledger, and files that
    nobody listed. Ends with 3 when anything is not as it was committed.
    """
    catalog = Catalog(open_store(store_url(store)))
    dataset, version = catalog.resolve(name)
    with counting("verifying", catalog.manifest(dataset, version).totals.bytes) as advance:
        report = check(catalog.store, dataset, version, deep=deep, workers=workers or 2, on_progress=advance)
    if json:
        print_json(asdict(report))
    else:
        where = f"{dataset} v{version}"
        checked = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}, {numbers.count(report.rows)} rows"
        if report.ok:
            stdout().print(f"{where}: all well ({checked} checked)", markup=False)
        else:
            stdout().print(
                f"{where}: {numbers.plural(len(report.problems), 'problem')} ({checked} checked)",
                markup=False,
            )
            columns = [label("path"), label("problem"), label("expected"), label("got")]
            print_tables([Table.of(columns, [asdict(problem) for problem in report.problems])])
    return 0 if report.ok else IntegrityError.exit_code
