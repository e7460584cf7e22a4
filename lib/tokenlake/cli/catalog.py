"""``tokenlake ls`` and ``tokenlake show``: what a store holds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from tokenlake.cli.options import AsJson, Name, StoreUrl, store_url
from tokenlake.cli.output import note, print_json, print_tables, stdout
from tokenlake.report import dataset, numbers
from tokenlake.report.dataset import about_sources, account_table, remarks
from tokenlake.report.table import Table, label, number
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import unfinished
from tokenlake.store.layout import Layout
from tokenlake.store.manifest import Manifest

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
    name: Annotated[str | None, Parameter(help="Only this dataset.")] = None,
    /,
    *,
    swept: Annotated[
        bool, Parameter(negative="", show_default=False, help="Also numbers that gc or rm removed.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the datasets of a store and their versions.

    A version that is being built has no figures yet: it exists for readers when it is committed. It is running where
    something changed in the last ten minutes, failed where its last run left word why, else idle; run its build again
    to resume it. The number of what gc or rm removed stays taken.
    """
    catalog = Catalog(open_store(store_url(store)))
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
        note(f"no datasets in {catalog.store.url} yet: `tokenlake run CONFIG` makes one")
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
    return line | {"kind": manifest.kind, **asdict(manifest.totals)}


def _state(line: dict[str, Any]) -> str:
    """``idle for 3 days, 7 units done``; ``failed 5 minutes ago: the first line of its error, 7 units done``."""
    if "units_done" not in line:
        return line["state"]
    seconds, error = line["seconds_since_change"], line["error"]
    age = "an unknown time" if seconds is None else numbers.age(seconds)
    said = {
        "running": f"running, last change {age} ago",
        "idle": f"idle for {age}",
        "failed": f"failed {age} ago: {textwrap.shorten(error or '', _SHOWN_ERROR, placeholder=' ...')}",
    }
    return f"{said[line['state']]}; {numbers.plural(line['units_done'], 'unit')} done"


def show(
    name: Name,
    /,
    *,
    files: Annotated[bool, Parameter(negative="", show_default=False, help="List every shard.")] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Show a version: totals, splits, account, tokenizer, inputs and lineage.

    `--json` prints the manifest as it is stored.
    """
    catalog = Catalog(open_store(store_url(store)))
    manifest = catalog.manifest_of(name)
    if json:
        print_json(manifest.to_json())
        return 0
    tags = [tag.tag for tag in catalog.tags(manifest.dataset) if tag.version == manifest.version]
    tagged = f", tagged {', '.join(tags)}" if tags else ""
    heading = (f"{manifest.dataset} v{manifest.version}", "bold")
    stdout().print(Text.assemble(heading, f"  {manifest.kind}, committed{tagged}\n"))
    print_tables(_sections(manifest, files))
    if not files:
        note(f"\n{numbers.plural(len(manifest.files), 'shard')}: --files lists them")
    return 0


def _sections(manifest: Manifest, files: bool) -> list[Table]:
    found = [
        dataset.headline(manifest),
        dataset.splits_table(manifest),
        *about_sources(manifest),
        account_table(manifest),
        dataset.tokenizers_table(manifest),
        dataset.inputs_table(manifest),
        dataset.lineage_table(manifest),
    ]
    if notes := remarks(manifest.account):
        after = 1 + next(index for index, table in enumerate(found) if table.title == "Account")
        found.insert(after, Table((label("note", ""),), tuple((line,) for line in notes), "Notes"))
    return [*found, dataset.files_table(manifest)] if files else found
