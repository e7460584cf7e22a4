"""``tokenlake gc`` and ``tokenlake rm``: the commands that remove files of a store."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any

from cyclopts import Parameter

from tokenlake.cli.options import AsJson, StoreUrl, store_url
from tokenlake.cli.output import emit, note, print_json, print_tables, stdout
from tokenlake.report import numbers
from tokenlake.report.table import Table, label, number
from tokenlake.store.gc import GcReport, Kept
from tokenlake.store.gc import gc as collect
from tokenlake.store.remove import remove_version

_COLUMNS = (
    label("what"),
    label("place", "where"),
    number("files"),
    number("bytes", "size", numbers.size),
)
_WHAT = {"temporary": "never published", "abandoned": "abandoned build", "stray": "in no manifest"}


def gc(
    *names: str,
    grace: Annotated[str, Parameter(metavar="SPAN")] = "7d",
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove files that no version, no tag and no running build needs.

    These are temporary files and uploads that were never published, unfinished builds that nobody continued during the
    grace period, and files below a version that its manifest does not list. The version number of an abandoned build is
    not used again. Temporary files of processes of this machine that have ended are removed at once.

    Ages compare the storage's clock with this machine's. Committed versions are never removed.

    Args:
        names: Only these datasets. Default: all.
        grace: How long files must have been untouched: 7d, 12h, 30m, 0. Default: 7d.
        dry_run: Remove nothing; print what would be removed.
    """
    report = collect(store_url(store), names, grace=grace, dry_run=dry_run)
    emit(report.to_json(), json, lambda: _print(report))
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


def rm(
    name: str,
    /,
    *,
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove a committed version; its number is never used again.

    A version is not removed while a tag names it or another version is made from it (a mixture, or rows packed again).
    Versions that only reuse its units keep their files. Do not remove a version that a running build mixes: the build
    would fail.

    Args:
        name: A version by its number: NAME@v3.
        dry_run: Remove nothing; list what would be removed.
    """
    found = remove_version(name, store=store_url(store), dry_run=dry_run)
    if json:
        print_json(found.to_json())
    else:
        if dry_run:
            stdout().print("\n".join(each.name for each in found.removed), markup=False, highlight=False)
        what = f"{numbers.plural(len(found.removed), 'file')}, {numbers.size(found.bytes)}"
        verb = "would be removed" if dry_run else "removed"
        stdout().print(f"{found.dataset}@v{found.version}: {what} {verb}", markup=False)
    for each in found.kept:
        note(f"kept {each.name}: {each.reason}")
    return 1 if found.kept else 0
