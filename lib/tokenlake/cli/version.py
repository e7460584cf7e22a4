"""``tokenlake show``, ``verify`` and ``repair``: a version, and its integrity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.cli.console import (
    AsJson,
    Counter,
    Executor,
    FormerExecutor,
    Name,
    Overrides,
    StoreUrl,
    Workers,
    catalog_of,
    counting,
    emit,
    executor_of,
    note,
    print_json,
)
from tokenlake.errors import ConfigError, IntegrityError, TokenlakeError
from tokenlake.etl.export.flat_manifest import FOLDER
from tokenlake.etl.export.verification import ExportReport, verify_export
from tokenlake.etl.integrity.findings import (
    RepairProgress,
    RepairReport,
    VerifyReport,
)
from tokenlake.etl.integrity.repair import repair as repair_version
from tokenlake.etl.integrity.verify import named_version
from tokenlake.etl.integrity.verify import verify as check
from tokenlake.etl.reports import Table, facts, label, listed
from tokenlake.etl.reports import dataset as tables
from tokenlake.etl.reports.croissant import RowFiles, metadata
from tokenlake.etl.reports.terminal import near, print_tables, stdout
from tokenlake.query.texts_of_sources import text_accounts
from tokenlake.runtime.reading.stored_columns import stored_schema
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.file_check import VerifyProgress
from tokenlake.runtime.store.layout import MANIFEST, Layout
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.runs import committing_run
from tokenlake.runtime.store.schemes import OBJECT_STORES, default_store, scheme_of


def show(
    name: Name,
    /,
    *,
    files: bool = False,
    croissant: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Show a version: totals, splits, audit, tokenizer, inputs, lineage, and the flow
    run that committed it.

    `--json` prints the manifest, indented; the file itself is one line, in the
    canonical form that is hashed.

    Args:
        files: List every shard.
        croissant: Print the version as Croissant metadata (JSON-LD), with paths
            relative to its folder.
    """
    catalog = catalog_of(store)
    manifest = catalog.manifest_of(name)
    if croissant:
        _print_croissant(manifest)
        return 0
    if json:
        print_json(manifest.to_json())
        return 0
    # For people: a heading, the tables, and the flow run that committed the version.
    state = "committed"
    tags: list[str] = []
    for tag in catalog.tags(manifest.dataset):
        if tag.version == manifest.version:
            tags.append(tag.tag)
    if tags:
        state += f", tagged {', '.join(tags)}"
    heading = (f"{manifest.dataset} v{manifest.version}", "bold")
    stdout().print(Text.assemble(heading, f"  {manifest.kind}, {state}\n"))
    print_tables(_tables_of(catalog, manifest, files))
    run = committing_run(catalog.store, Layout(manifest.dataset, manifest.version))
    if run:
        print_tables([facts(list(run.items()), "Flow run")])
    if not files:
        note(f"\n{numbers.plural(len(manifest.files), 'shard')}: --files lists them")
    return 0


def _tables_of(catalog: Catalog, manifest: Manifest, with_files: bool) -> list[Table]:
    """Return the tables about a version, with one of all shards on request."""
    version_tables = [
        tables.headline(manifest),
        tables.splits_table(manifest, with_fill=True),
        *tables.about_sources(manifest),
    ]
    # A mixture has no text of its own: the figures are those of its parents.
    if manifest.mixture is not None:
        texts = text_accounts(catalog, manifest)
        text_table = tables.mixed_text_table(manifest.mixture, texts)
        if text_table.rows:
            version_tables.append(text_table)
    version_tables.append(tables.account_table(manifest))
    notes = tables.remarks(manifest.account)
    if notes:
        version_tables.append(listed(notes, "Notes"))

    # Its origin, and its files.
    version_tables += [
        tables.tokenizers_table(manifest),
        tables.inputs_table(manifest),
        tables.lineage_table(manifest),
    ]
    if with_files:
        version_tables.append(tables.files_table(manifest))
    return version_tables


def _print_croissant(manifest: Manifest) -> None:
    """Print a version as Croissant metadata, with Arrow types of columns."""
    schema = stored_schema(manifest)
    columns: dict[str, str] = {}
    for column, arrow_type in zip(schema.names, schema.types, strict=True):
        columns[column] = str(arrow_type)
    rows = tables.shape(manifest)
    description = f"Tokens, {manifest.kind}: {rows}, written by tokenlake."
    shards = RowFiles("", "parquet", columns, manifest.files)
    card = manifest.config.get("card")
    content = metadata(
        manifest.dataset, description, [shards], version=manifest.version, card=card
    )
    print_json(content)


# Columns of the tables of problems and of repaired files.
_PROBLEMS = (label("path"), label("problem"), label("expected"), label("got"))
_REPAIRS = (
    label("version"),
    label("path"),
    label("damage"),
    label("how", "result"),
    label("note", "how"),
)


def verify(
    *names: Annotated[str, Parameter(name="NAME")],
    all: bool = False,
    deep: bool = False,
    workers: Workers = None,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Check every byte of versions, or of exports, against their manifests.

    Of a version this checks the sizes and hashes of all files, Parquet footers, the
    audit, the ledger, the claim and tags, and finds files that no manifest lists.
    --deep also checks page checksums, every count and every segment. Of an export
    (`tokenlake export`), named by its folder, it checks the sizes and hashes of all data
    files, without a store. The exit code is 3 if anything differs from what was
    committed or exported. A missing second copy of the manifest
    (runs/manifest-copy.json), as in versions of older releases, is a note on stderr.
    --json prints one report for one NAME, otherwise {"ok": ..., "reports": [...]}.

    Args:
        names: Datasets, or versions of them: NAME, NAME@v3 or NAME@TAG; or folders of
            exports: ./FOLDER, s3://bucket/folder or gs://bucket/folder.
        all: Check every committed version of the store.
        deep: Decode every row and compare logical hashes, too.
        workers: Number of threads. Default: the number of processors.
    """
    if all == bool(names):
        raise ConfigError(
            "verify needs the names of datasets, folders of exports, or --all, and not both"
        )
    # 1. Exports, which need no store. All names are looked at before the first check.
    store_url = store or default_store()
    export_names = [name for name in names if _is_export(name, store_url)]
    if export_names and deep:
        raise ConfigError(
            f"--deep decodes the rows of versions, and {export_names[0]} is an export, whose every byte is compared "
            "with its hash; leave --deep out"
        )
    # 2. Versions.
    versions: list[tuple[str, int]] = []
    catalog: Catalog | None = None
    if all or len(export_names) < len(names):
        catalog = Catalog(open_read_store(store_url))
        if all:
            versions = list(_committed_versions(catalog))
        for name in names:
            if name not in export_names:
                versions.append(named_version(catalog, name))
    # Reports are printed as they are made; JSON needs all of them.
    reports: list[VerifyReport | ExportReport] = []
    for name in export_names:
        with counting(f"verifying {name}") as counter:
            export_report = verify_export(
                name, workers=workers, on_progress=partial(_count, counter)
            )
        reports.append(export_report)
        if not json:
            _print_verified_export(name, export_report)
    for dataset, version in versions:
        assert catalog is not None
        with counting(f"verifying {dataset} v{version}") as counter:
            report = check(
                catalog.store,
                dataset,
                version,
                deep=deep,
                workers=workers,
                on_progress=partial(_count, counter),
            )
        reports.append(report)
        if not json:
            _print_verified(report)
    # One name gives one report, several give a list with a common verdict.
    is_intact = not any(report.problems for report in reports)
    if json:
        records = [report.to_json() for report in reports]
        if len(names) == 1:
            print_json(records[0])
        else:
            print_json({"ok": is_intact, "reports": records})
    elif not reports:
        stdout().print("no committed version")
    if is_intact:
        return 0
    return IntegrityError.exit_code


def _is_export(name: str, store_url: str) -> bool:
    """Return True for the folder of an export, false for the name of a dataset.

    Args:
        name: Name or path.
        store_url: Store of the datasets, which may be missing.
    """
    if scheme_of(name) in OBJECT_STORES:
        return True
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return False
    # A path is no name of a dataset. That of a dataset or version in a store has an
    # answer of its own, which names the store.
    has_manifest = (folder / FOLDER).is_dir()
    if "/" in name or name in (".", ".."):
        is_version = (folder / MANIFEST).exists() or any(folder.glob("v[0-9]*"))
        return has_manifest or not is_version
    # A plain name is that of a dataset, if there is one.
    dataset_names: list[str] = []
    with suppress(TokenlakeError):
        dataset_names = Catalog(open_read_store(store_url)).datasets()
    return has_manifest and name not in dataset_names


def _print_verified_export(name: str, report: ExportReport) -> None:
    """Print the outcome of a check of an export, and notes on stderr."""
    outcome = "intact"
    if not report.ok:
        outcome = numbers.plural(len(report.problems), "problem")
    contents = "rows"
    if report.dataset is not None:
        contents = f"{report.dataset} v{report.version}"
    if report.format:
        contents += f" as {report.format}"
    checked = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}"
    stdout().print(printable(f"{name}: {outcome} ({contents}; {checked})"))
    if not report.ok:
        problems = [asdict(problem) for problem in report.problems]
        print_tables([Table.of(_PROBLEMS, problems)])
    if report.dataset is not None and not report.ok:
        note(
            f"`tokenlake export {report.dataset}@v{report.version} {near(name)} --format {report.format} --overwrite`, "
            "with the options of the export, writes it again"
        )
    for remark in report.notes:
        note(f"note: {printable(remark)}")


def _count(counter: Counter, progress: VerifyProgress) -> None:
    """Show the bytes that a verification has done."""
    counter.set(progress.bytes, progress.bytes_total)


def _committed_versions(catalog: Catalog) -> Iterator[tuple[str, int]]:
    """Yield the dataset and the number of each version with a manifest.

    A manifest that is no file, such as a link, counts too: it is damage.
    """
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            layout = Layout(dataset, info.version)
            keys = [entry.key for entry in catalog.store.list(layout.prefix)]
            if info.committed or layout.manifest in keys:
                yield dataset, info.version


def _print_verified(report: VerifyReport) -> None:
    """Print the outcome of a check, its problems, and its notes on stderr."""
    checked = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}"
    if report.deep:
        checked += f", {numbers.plural(report.rows, 'row')} decoded"
    # A web server does not list its files.
    if not report.listed:
        checked += "; unlisted files and tags were not checked"
    outcome = "intact"
    if not report.ok:
        outcome = numbers.plural(len(report.problems), "problem")
    stdout().print(f"{report.dataset} v{report.version}: {outcome} ({checked})")
    if not report.ok:
        problems = [asdict(problem) for problem in report.problems]
        print_tables([Table.of(_PROBLEMS, problems)])
        note(
            f"`tokenlake repair {report.dataset}@v{report.version}` repairs what can be repaired"
        )
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
    executor: Executor = None,
    engine: FormerExecutor = None,
    json: AsJson = False,
) -> int:
    """Repair the damaged files of a version, byte for byte.

    A damaged file is copied from another version that holds it, or built again from the
    recorded inputs; it is compared with the manifest and then replaced as a whole.
    Other versions that share the file are repaired, too. If an input has changed, the
    file stays as it is and the input is named. If a unit comes out with the same rows
    in other bytes, as with another release of pyarrow, a new version is committed
    beside the damaged one. A damaged manifest is restored from its second copy,
    runs/manifest-copy.json; a copy that is missing or damaged is written again.

    The exit code is 0 if no damage is left, 1 if nothing could be repaired, and 3 if
    some damage remains.

    Args:
        config: The configuration that built the version. Default: the one recorded by
            its newest run.
        dry_run: Print what would be repaired, and write nothing.
        executor: Where units are built again: local, on this machine (default); store,
            wherever `tokenlake work` runs; ray or dask, on a cluster.
    """
    executor = executor_of(executor, engine)

    # Waiting for workers has no limit, so that it gets a line of its own.
    def show_progress(progress: RepairProgress) -> None:
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
            executor=executor,
            on_progress=show_progress,
        )
    emit(report.to_json(), json, lambda: _print_repaired(report))
    if report.ok:
        return 0
    # Some files are right now; without any, the repair has failed.
    if report.repaired:
        return IntegrityError.exit_code
    return TokenlakeError.exit_code


def _print_repaired(report: RepairReport) -> None:
    """Print the outcome of a repair, the problems that remain, and notes on stderr."""
    stdout().print(f"{report.dataset} v{report.version}: {_repair_in_words(report)}")
    if report.files:
        print_tables([Table.of(_REPAIRS, [asdict(file) for file in report.files])])
    # Problems that no repaired file explains.
    # A file that was repaired, or could not be, has a row in the table above.
    repaired_paths = {file.path for file in report.files}
    remaining: list[dict[str, str]] = []
    for problem in report.problems:
        if problem.path not in repaired_paths:
            remaining.append(asdict(problem))
    # A dry run repairs nothing, so that all problems remain.
    if remaining and not report.dry_run:
        print_tables([Table.of(_PROBLEMS, remaining)])
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


def _repair_in_words(report: RepairReport) -> str:
    """Return the number of repaired files, or the reason why there are none."""
    if report.files:
        verb = "repaired"
        if report.dry_run:
            verb = "would be repaired"
        words = f"{numbers.plural(report.repaired, 'file')} {verb}"
        unrepaired = len(report.files) - report.repaired
        if unrepaired:
            words += f", {unrepaired} not"
        return words
    if report.ok:
        return "nothing is damaged"
    return f"{numbers.plural(len(report.problems), 'problem')} that repair cannot fix"
