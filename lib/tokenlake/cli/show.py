"""``tokenlake show``: what a version is made of."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from tokenlake import numbers
from tokenlake.cli.console import AsJson, Name, StoreUrl, note, print_json, print_tables
from tokenlake.config.stores import default_store
from tokenlake.reading.version import stored_schema
from tokenlake.reports import dataset
from tokenlake.reports.croissant import RowFiles, metadata
from tokenlake.reports.table import Table, facts, listed
from tokenlake.reports.terminal import stdout
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import committing_run
from tokenlake.store.layout import Layout
from tokenlake.store.manifest import Manifest


def show(
    name: Name,
    /,
    *,
    files: bool = False,
    croissant: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Show a version: totals, splits, account, tokenizer, inputs, lineage, and the flow run that committed it.

    `--json` prints the manifest, indented; the file itself is one line, in the canonical form that is hashed.

    Args:
        files: List every shard.
        croissant: Print the version as Croissant metadata (JSON-LD), its paths relative to its folder.
    """
    catalog = Catalog(open_store(store or default_store()))
    manifest = catalog.manifest_of(name)
    if json or croissant:
        print_json(_croissant(manifest) if croissant else manifest.to_json())
        return 0
    tags = [tag.tag for tag in catalog.tags(manifest.dataset) if tag.version == manifest.version]
    tagged = f", tagged {', '.join(tags)}" if tags else ""
    heading = (f"{manifest.dataset} v{manifest.version}", "bold")
    stdout().print(Text.assemble(heading, f"  {manifest.kind}, committed{tagged}\n"))
    print_tables(_sections(manifest, files))
    if run := committing_run(catalog.store, Layout(manifest.dataset, manifest.version)):
        print_tables([facts(list(run.items()), "Flow run")])
    if not files:
        note(f"\n{numbers.plural(len(manifest.files), 'shard')}: --files lists them")
    return 0


def _croissant(manifest: Manifest) -> dict[str, Any]:
    schema = stored_schema(manifest)
    columns = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    said = f"Tokens, {manifest.kind}: {dataset.shape(manifest)}, written by tokenlake."
    group = RowFiles("", "parquet", columns, manifest.files)
    return metadata(
        manifest.dataset, said, [group], version=manifest.version, card=manifest.config.get("card")
    )


def _sections(manifest: Manifest, files: bool) -> list[Table]:
    found = [
        dataset.headline(manifest),
        dataset.splits_table(manifest),
        *dataset.about_sources(manifest),
        dataset.account_table(manifest),
        dataset.tokenizers_table(manifest),
        dataset.inputs_table(manifest),
        dataset.lineage_table(manifest),
    ]
    if notes := dataset.remarks(manifest.account):
        after = 1 + next(index for index, table in enumerate(found) if table.title == "Account")
        found.insert(after, listed(notes, "Notes"))
    return [*found, dataset.files_table(manifest)] if files else found
