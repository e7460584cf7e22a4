"""``tokenlake gc``: what builds left behind."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any

from cyclopts import Parameter

from tokenlake.cli.options import AsJson, StoreUrl, store_url
from tokenlake.cli.output import note, print_json, print_tables, stdout
from tokenlake.report import numbers
from tokenlake.report.table import Table, label, number
from tokenlake.store.gc import GcReport, Kept
from tokenlake.store.gc import gc as collect

_COLUMNS = (
    label("what"),
    label("place", "where"),
    number("files"),
    number("bytes", "size", numbers.size),
)
_WHAT = {"temporary": "never published", "abandoned": "abandoned build", "stray": "in no manifest"}


def gc(
    *names: Annotated[str, Parameter(help="Only these datasets. Default: all.")],
    grace: Annotated[
        str, Parameter(metavar="SPAN", help="How long it must have lain untouched: 7d, 12h, 30m, 0.")
    ] = "7d",
    dry_run: Annotated[
        bool, Parameter(negative="", show_default=False, help="Remove nothing; say what would be removed.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove what no version, no tag and no build that goes on needs.

    That is: temporary files and uploads that were never published, unfinished builds on which nobody worked for the
    grace period, and files below a version that its manifest does not name. The number of an abandoned build stays
    taken. Temporary files of dead processes of this machine go at once.

    Ages are by the storage's clock against this machine's. Committed versions are never removed.
    """
    report = collect(store_url(store), names, grace=grace, dry_run=dry_run)
    if json:
        print_json(report.to_json())
    else:
        _print(report)
    return 1 if any(each.failed for each in report.kept) else 0


def _print(report: GcReport) -> None:
    if rows := list(_rows(report)):
        print_tables([Table.of(_COLUMNS, rows)])
        stdout().print()
    files, size = numbers.plural(len(report.removed), "file"), numbers.size(report.bytes)
    verb = "would be removed" if report.dry_run else "removed"
    stdout().print(f"{files}, {size} {verb}" if rows else "nothing to remove")
    _notes(report.kept)


def _rows(report: GcReport) -> Iterable[dict[str, Any]]:
    found = sorted(report.removed, key=lambda each: (each.place, each.kind))
    seen: set[str] = set()
    for (place, kind), group in groupby(found, key=lambda each: (each.place, each.kind)):
        files = list(group)
        seen |= {place} if kind == "abandoned" else set()
        size = sum(each.bytes for each in files)
        yield {"what": _WHAT[kind], "place": place, "files": len(files), "bytes": size}
    for swept in report.swept:
        place = f"{swept.dataset}@v{swept.version}"
        if place not in seen:  # a claim of which nothing was built yet
            yield {"what": _WHAT["abandoned"], "place": place, "files": 0, "bytes": 0}


def _notes(kept: Iterable[Kept]) -> None:
    for each in kept:
        note(f"kept {each.name}: {each.reason}")
