"""``tokenlake ls``: what a store holds."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tokenlake import numbers
from tokenlake.cli.console import AsJson, StoreUrl, note, print_json, print_tables
from tokenlake.config.stores import default_store
from tokenlake.reports.table import Table, label, number
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import unfinished
from tokenlake.store.layout import RUNS, Layout

_LISTED = (
    label("dataset"),
    label("version"),
    label("kind"),
    number("rows"),
    number("tokens"),
    number("documents"),
    number("bytes", "size", numbers.size),
    label("state"),
)
_TAGS = label("tags")
_SHOWN_ERROR = 160


def ls(
    name: str | None = None,
    /,
    *,
    swept: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the datasets of a store and their versions.

    A version that is still being built has no figures: readers see it once it is committed. Its state is `running` if
    something changed in the last ten minutes, `failed` if its last run recorded an error, otherwise `idle`. To resume
    it, run its build again. The version numbers that gc or rm removed are not used again.

    Args:
        name: Only this dataset.
        swept: List the version numbers that gc or rm removed, too.
    """
    catalog = Catalog(open_store(store or default_store()))
    names = catalog.datasets(swept=swept) if name is None else [name]
    lines = [line for each in names for line in _lines(catalog, each, swept)]
    if json:
        print_json(lines)
    elif lines:
        shown = [
            line | {"version": f"v{line['version']}", "tags": ", ".join(line["tags"]), "state": _state(line)}
            for line in lines
        ]
        tagged = any(line["tags"] for line in lines)
        print_tables([Table.of((*_LISTED, _TAGS) if tagged else _LISTED, shown)])
    else:
        note(f"no datasets in {catalog.store.url} yet: `tokenlake run CONFIG` builds one")
    return 0


def _lines(catalog: Catalog, name: str, swept: bool) -> Iterator[dict[str, Any]]:
    infos = catalog.versions(name, swept=swept)
    tags = [] if all(info.swept for info in infos) else catalog.tags(name)
    for info in infos:
        if info.swept:
            yield {"dataset": name, "version": info.version, "state": "swept", "tags": []}
            continue
        names = [tag.tag for tag in tags if tag.version == info.version]
        yield _line(catalog, name, info.version, info.committed) | {"tags": names}


def _line(catalog: Catalog, name: str, version: int, committed: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"dataset": name, "version": version, "state": "committed"}
    if not committed:
        found = unfinished(catalog.store, Layout(name, version))
        return line | {
            "state": found.state,
            "units_done": found.units,
            "seconds_since_change": found.seconds,
            "error": found.error,
        }
    manifest = catalog.manifest(name, version)
    age = {"seconds_since_change": _seconds(catalog, Layout(name, version))}
    return line | {"kind": manifest.kind, **asdict(manifest.totals)} | age


def _seconds(catalog: Catalog, layout: Layout) -> float | None:
    """Return how long ago the last run of a version ended, by the storage's clock; None where it does not say."""
    changes = [each.modified for each in catalog.store.list(layout.key(RUNS)) if each.modified is not None]
    return max(0.0, time.time() - max(changes)) if changes else None


def _state(line: dict[str, Any]) -> str:
    """``idle for 3 days, 7 units done``; ``failed 5 minutes ago: the first line of its error, 7 units done``."""
    seconds = line.get("seconds_since_change")
    if "units_done" not in line:
        return line["state"] if seconds is None else f"{line['state']} {numbers.age(seconds)} ago"
    error = line["error"]
    age = "an unknown time" if seconds is None else numbers.age(seconds)
    said = {
        "running": f"running, last change {age} ago",
        "idle": f"idle for {age}",
        "failed": f"failed {age} ago: {textwrap.shorten(error or '', _SHOWN_ERROR, placeholder=' ...')}",
    }
    return f"{said[line['state']]}; {numbers.plural(line['units_done'], 'unit')} done"
