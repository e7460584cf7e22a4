"""``tokenlake show`` and ``verify``: what a version is made of, and whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from tokenlake import numbers
from tokenlake.cli.console import AsJson, Name, StoreUrl, Workers, catalog_of, note, print_json, print_tables
from tokenlake.cli.progress import counting
from tokenlake.config.stores import default_store
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.integrity.findings import VerifyReport
from tokenlake.integrity.verify import named_version
from tokenlake.integrity.verify import verify as check
from tokenlake.reading.version import stored_schema
from tokenlake.reports import dataset as tables
from tokenlake.reports.card import RowFiles, metadata
from tokenlake.reports.table import Table, facts, label, listed
from tokenlake.reports.terminal import stdout
from tokenlake.store.address import open_read_store
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
    catalog = catalog_of(store)
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
    said = f"Tokens, {manifest.kind}: {tables.shape(manifest)}, written by tokenlake."
    group = RowFiles("", "parquet", columns, manifest.files)
    return metadata(
        manifest.dataset, said, [group], version=manifest.version, card=manifest.config.get("card")
    )


def _sections(manifest: Manifest, files: bool) -> list[Table]:
    found = [
        tables.headline(manifest),
        tables.splits_table(manifest),
        *tables.about_sources(manifest),
        tables.account_table(manifest),
        tables.tokenizers_table(manifest),
        tables.inputs_table(manifest),
        tables.lineage_table(manifest),
    ]
    if notes := tables.remarks(manifest.account):
        after = 1 + next(index for index, table in enumerate(found) if table.title == "Account")
        found.insert(after, listed(notes, "Notes"))
    return [*found, tables.files_table(manifest)] if files else found


_COLUMNS = (label("path"), label("problem"), label("expected"), label("got"))


def verify(
    *names: Annotated[str, Parameter(name="NAME")],
    all: bool = False,
    deep: bool = False,
    workers: Workers = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Check every byte of versions against their manifests.

    This checks the sizes and hashes of all files, Parquet footers, the account, the ledger, the claim and tags, and
    finds files that no manifest lists. --deep also checks page checksums, every count and every segment. The exit code
    is 3 if anything differs from what was committed. --json prints one report for one NAME, otherwise {"ok": ...,
    "reports": [...]}.

    Args:
        names: Datasets, or versions of them: NAME, NAME@v3 or NAME@TAG.
        all: Check every committed version of the store.
        deep: Decode every row and compare logical hashes, too.
        workers: Number of threads. Default: the number of processors.
    """
    if all == bool(names):
        raise ConfigError("verify needs the names of datasets or --all, and not both")
    catalog = Catalog(open_read_store(store or default_store()))
    versions = list(_committed(catalog)) if all else [named_version(catalog, name) for name in names]
    reports: list[VerifyReport] = []
    for dataset, version in versions:
        with counting(f"verifying {dataset} v{version}") as counter:
            report = check(
                catalog.store,
                dataset,
                version,
                deep=deep,
                workers=workers,
                on_progress=lambda progress: counter.set(progress.bytes, progress.bytes_total),
            )
        reports.append(report)
        if not json:
            _print(report)
    if json:
        print_json(_json(reports, single=len(names) == 1))
    elif not reports:
        stdout().print("no committed version")
    return 0 if _ok(reports) else IntegrityError.exit_code


def _committed(catalog: Catalog) -> Iterator[tuple[str, int]]:
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            if info.committed or _has_manifest(catalog, dataset, info.version):
                yield dataset, info.version


def _has_manifest(catalog: Catalog, dataset: str, version: int) -> bool:
    """Whether something that is no file lies where the manifest belongs."""
    layout = Layout(dataset, version)
    return any(info.key == layout.manifest for info in catalog.store.list(layout.prefix))


def _ok(reports: list[VerifyReport]) -> bool:
    return not any(report.problems for report in reports)


def _json(reports: list[VerifyReport], *, single: bool) -> dict[str, Any]:
    found = [report.to_json() for report in reports]
    return found[0] if single else {"ok": _ok(reports), "reports": found}


def _print(report: VerifyReport) -> None:
    checked = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}"
    if report.deep:
        checked += f", {numbers.plural(report.rows, 'row')} decoded"
    if not report.listed:
        checked += "; unlisted files and tags were not looked for"
    found = "intact" if report.ok else numbers.plural(len(report.problems), "problem")
    stdout().print(f"{report.dataset} v{report.version}: {found} ({checked})")
    if not report.ok:
        print_tables([Table.of(_COLUMNS, [asdict(problem) for problem in report.problems])])
        note(f"`tokenlake repair {report.dataset}@v{report.version}` repairs what can be repaired")
