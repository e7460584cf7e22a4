"""``tokenlake show``, ``verify`` and ``repair``: what a version is made of, and whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.cli.console import (
    AsJson,
    Name,
    Overrides,
    StoreUrl,
    Workers,
    catalog_of,
    counting,
    emit,
    note,
    print_json,
)
from tokenlake.errors import ConfigError, IntegrityError, TokenlakeError
from tokenlake.etl.engines import EngineName
from tokenlake.etl.integrity.findings import RepairProgress, RepairReport, VerifyReport
from tokenlake.etl.integrity.repair import repair as repair_version
from tokenlake.etl.integrity.verify import named_version
from tokenlake.etl.integrity.verify import verify as check
from tokenlake.etl.reports import Table, facts, label, listed
from tokenlake.etl.reports import dataset as tables
from tokenlake.etl.reports.croissant import RowFiles, metadata
from tokenlake.etl.reports.terminal import print_tables, stdout
from tokenlake.runtime.reading.stored_columns import stored_schema
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.runs import committing_run
from tokenlake.runtime.store.schemes import default_store


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
    if croissant:
        schema = stored_schema(manifest)
        columns = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
        said = f"Tokens, {manifest.kind}: {tables.shape(manifest)}, written by tokenlake."
        group, card = RowFiles("", "parquet", columns, manifest.files), manifest.config.get("card")
        print_json(metadata(manifest.dataset, said, [group], version=manifest.version, card=card))
        return 0
    if json:
        print_json(manifest.to_json())
        return 0
    tags = [tag.tag for tag in catalog.tags(manifest.dataset) if tag.version == manifest.version]
    tagged = f", tagged {', '.join(tags)}" if tags else ""
    heading = (f"{manifest.dataset} v{manifest.version}", "bold")
    stdout().print(Text.assemble(heading, f"  {manifest.kind}, committed{tagged}\n"))
    notes = tables.remarks(manifest.account)
    sections = [
        tables.headline(manifest),
        tables.splits_table(manifest),
        *tables.about_sources(manifest),
        tables.account_table(manifest),
        *([listed(notes, "Notes")] if notes else []),
        tables.tokenizers_table(manifest),
        tables.inputs_table(manifest),
        tables.lineage_table(manifest),
    ]
    print_tables([*sections, tables.files_table(manifest)] if files else sections)
    if run := committing_run(catalog.store, Layout(manifest.dataset, manifest.version)):
        print_tables([facts(list(run.items()), "Flow run")])
    if not files:
        note(f"\n{numbers.plural(len(manifest.files), 'shard')}: --files lists them")
    return 0


_PROBLEMS = (label("path"), label("problem"), label("expected"), label("got"))
_REPAIRS = (label("version"), label("path"), label("damage"), label("how", "result"), label("note", "how"))


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
    is 3 if anything differs from what was committed. A missing second copy of the manifest (runs/manifest-copy.json),
    as in versions of older releases, is a note on stderr. --json prints one report for one NAME, otherwise
    {"ok": ..., "reports": [...]}.

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
            _print_verified(report)
    ok = not any(report.problems for report in reports)
    if json:
        found = [report.to_json() for report in reports]
        print_json(found[0] if len(names) == 1 else {"ok": ok, "reports": found})
    elif not reports:
        stdout().print("no committed version")
    return 0 if ok else IntegrityError.exit_code


def _committed(catalog: Catalog) -> Iterator[tuple[str, int]]:
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            layout = Layout(dataset, info.version)
            # Also where something that is no file lies at the manifest's place.
            if info.committed or any(
                each.key == layout.manifest for each in catalog.store.list(layout.prefix)
            ):
                yield dataset, info.version


def _print_verified(report: VerifyReport) -> None:
    checked = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}"
    if report.deep:
        checked += f", {numbers.plural(report.rows, 'row')} decoded"
    if not report.listed:
        checked += "; unlisted files and tags were not looked for"
    found = "intact" if report.ok else numbers.plural(len(report.problems), "problem")
    stdout().print(f"{report.dataset} v{report.version}: {found} ({checked})")
    if not report.ok:
        print_tables([Table.of(_PROBLEMS, [asdict(problem) for problem in report.problems])])
        note(f"`tokenlake repair {report.dataset}@v{report.version}` repairs what can be repaired")
    for remark in report.notes:
        note(printable(remark))


def repair(
    name: Name,
    /,
    *,
    config: Annotated[str | None, Parameter(metavar="FILE")] = None,
    set_: Overrides = (),
    dry_run: bool = False,
    workers: Workers = None,
    store: StoreUrl = None,
    engine: EngineName | None = None,
    json: AsJson = False,
) -> int:
    """Repair the damaged files of a version, byte for byte.

    A damaged file is copied from another version that holds it, or built again from the recorded inputs; it is compared
    with the manifest and then replaced as a whole. Other versions that share the file are repaired, too. If an input
    has changed, the file stays as it is and the input is named. If a unit comes out with the same rows in other bytes,
    as with another release of pyarrow, a new version is committed beside the damaged one. A damaged manifest is
    restored from its second copy, runs/manifest-copy.json; a copy that is missing or damaged is written again.

    The exit code is 0 if no damage is left, 1 if nothing could be repaired, and 3 if some damage remains.

    Args:
        config: The configuration that built the version. Default: the one recorded by its newest run.
        dry_run: Print what would be repaired, and write nothing.
        engine: Where units are built again: local, on this machine (default); store, wherever `tokenlake work` runs;
            ray or dask, on a cluster.
    """

    def tell(progress: RepairProgress) -> None:
        if progress.doing.startswith("waiting"):
            note(progress.doing)
        counter.set(progress.bytes, progress.bytes_total)

    with counting("repairing") as counter:
        report = repair_version(
            store or default_store(),
            name,
            config=config,
            overrides=set_,
            dry_run=dry_run,
            workers=workers,
            engine=engine,
            on_progress=tell,
        )
    emit(report.to_json(), json, lambda: _print_repaired(report))
    if report.ok:
        return 0
    return IntegrityError.exit_code if report.repaired else TokenlakeError.exit_code


def _print_repaired(report: RepairReport) -> None:
    done = f"{numbers.plural(report.repaired, 'file')} {'would be ' * report.dry_run}repaired"
    if lost := len(report.files) - report.repaired:
        done += f", {lost} not"
    if not report.files:
        problems = f"{numbers.plural(len(report.problems), 'problem')} that repair cannot solve"
        done = "nothing is damaged" if report.ok else problems
    stdout().print(f"{report.dataset} v{report.version}: {done}")
    if report.files:
        print_tables([Table.of(_REPAIRS, [asdict(one) for one in report.files])])
    left = [problem for problem in report.problems if problem.path not in {one.path for one in report.files}]
    if left and not report.dry_run:
        print_tables([Table.of(_PROBLEMS, [asdict(problem) for problem in left])])
    if report.intact:
        note(f"the same bytes are intact elsewhere: {', '.join(report.intact)}")
    if report.unlisted:
        note(
            f"no manifest lists {numbers.plural(len(report.unlisted), 'file')}; `tokenlake gc` removes such files"
        )
    if report.new_version is not None:
        note(
            f"v{report.new_version} holds the same rows, undamaged; v{report.version} stays damaged. Move tags and "
            "trainers that name it"
        )
