"""The contents of a store for its pages: versions, builds, exports and statements.

Damage does not stop the reading. A version that cannot be read has a state that says
so, and anything else that cannot be read is a sentence in
:attr:`StoreContents.problems`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from tokenlake.base.threads import in_order
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from tokenlake.etl.export.flat_manifest import FOLDER, MANIFEST, FlatManifest
from tokenlake.etl.export.plan import EXPORTS
from tokenlake.etl.reports.store_pages import (
    ExportSummary,
    InputSet,
    StatementSummary,
    StoreContents,
    VersionName,
    VersionState,
    VersionSummary,
)
from tokenlake.runtime.proof.statement import read_statement
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.claims import VersionInfo
from tokenlake.runtime.store.damage import require_sizes
from tokenlake.runtime.store.layout import RUNS, Layout
from tokenlake.runtime.store.ledger import InputFileEntry
from tokenlake.runtime.store.local import LocalStore
from tokenlake.runtime.store.manifest import Kind, Manifest
from tokenlake.runtime.store.runs import unfinished

OnProgress: TypeAlias = Callable[[str, int, int], object]
"""Called with the name of a phase, the number of finished parts, and the number of
all parts.
"""

_REMOTE_THREADS: Final = 16  # that wait for a bucket
_MOST_STATEMENT_BYTES: Final = 1 << 30  # of a file that is read as a statement
_EXPORT_MANIFEST: Final = f"{FOLDER}/{MANIFEST}"  # below the folder of an export


def read_contents(
    catalog: Catalog,
    include: Sequence[str | os.PathLike[str]],
    on_progress: OnProgress,
) -> StoreContents:
    """Read the manifests of all versions, and everything that was made from them.

    Args:
        catalog: Catalog of the store.
        include: Exports elsewhere (paths or URLs of folders) and statements (paths of
            files).
        on_progress: Function that is called after each version.

    Raises:
        ConfigError: The store cannot be listed, or a place of `include` is neither an
            export nor a statement.
        IntegrityError: An export or a statement of `include` is damaged.
    """
    store = catalog.store
    if not store.can_list:
        raise ConfigError(
            f"{store.url}: a web server does not list its files, and the pages of a store need a list of its versions; "
            "expected a folder or a bucket. `tokenlake report NAME` writes the report of one version."
        )
    # 1. All versions and builds, and the tags that name them.
    problems: list[str] = []
    pending: list[tuple[str, VersionInfo]] = []
    tags: dict[VersionName, list[str]] = {}
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            pending.append((dataset, info))
        _read_tags(catalog, dataset, tags, problems)

    # 2. A summary of each. In a folder reading is computation, in a bucket waiting.
    def read_summary(entry: tuple[str, VersionInfo]) -> VersionSummary:
        dataset, info = entry
        return _summary(catalog, dataset, info, tags)

    versions: list[VersionSummary] = []
    threads = _REMOTE_THREADS
    if isinstance(store, LocalStore):
        threads = 1
    summaries = in_order(read_summary, pending, threads)
    for summary in summaries:
        versions.append(summary)
        on_progress("reading manifests", len(versions), len(pending))

    # 3. Exports in the store's own folder, and those that the caller names.
    exports = _stored_exports(store, problems)
    statements: list[StatementSummary] = []
    for place in include:
        derived = _read_derived(os.fspath(place))
        if isinstance(derived, ExportSummary):
            exports.append(derived)
        else:
            statements.append(derived)
    return StoreContents(
        url=store.url,
        versions=tuple(versions),
        exports=tuple(exports),
        statements=tuple(statements),
        problems=tuple(problems),
    )


# -- Versions


def _read_tags(
    catalog: Catalog,
    dataset: str,
    tags: dict[VersionName, list[str]],
    problems: list[str],
) -> None:
    """Add the tags of a dataset to those of its versions.

    Damaged tags are a problem.
    """
    try:
        for tag in catalog.tags(dataset):
            tags.setdefault(VersionName(dataset, tag.version), []).append(tag.tag)
    except IntegrityError as error:
        problems.append(f"The tags of {dataset} are left out: {error}")


def _summary(
    catalog: Catalog,
    dataset: str,
    info: VersionInfo,
    tags: dict[VersionName, list[str]],
) -> VersionSummary:
    """Return the summary of a version or of a build that is not committed."""
    name = VersionName(dataset, info.version)
    layout = Layout(dataset, info.version)
    version_tags = tuple(sorted(tags.get(name, [])))
    # A build has no manifest: its state follows from the records of its runs.
    if not info.committed:
        build = unfinished(catalog.store, layout)
        changed: float | None = None
        if build.seconds is not None:
            changed = time.time() - build.seconds
        return VersionSummary(
            name=name,
            state=build.state,
            changed=changed,
            units=build.units,
            error=build.error or "",
        )
    # A damaged manifest is shown, and does not stop the reading of the others.
    try:
        manifest = catalog.manifest(dataset, info.version)
    except (IntegrityError, NotFoundError) as error:
        return VersionSummary(
            name=name, state="unreadable", tags=version_tags, error=str(error)
        )

    kind: Kind | Literal["mixture"] = manifest.kind
    if manifest.mixture is not None:
        kind = "mixture"
    # The end of the last run, by the storage's clock.
    run_files = catalog.store.list(layout.key(RUNS))
    changes = [file.modified for file in run_files if file.modified is not None]
    state: VersionState = "committed"
    problem = ""
    try:
        require_sizes(catalog.store, manifest)
    except IntegrityError as error:
        state = "damaged"
        problem = str(error)
    return VersionSummary(
        name=name,
        state=state,
        error=problem,
        kind=kind,
        sha256=manifest.sha256,
        totals=manifest.totals,
        tags=version_tags,
        changed=max(changes, default=None),
        inputs=_input_sets(manifest),
        parents=manifest.parents,
    )


def _input_sets(manifest: Manifest) -> tuple[InputSet, ...]:
    """Return the input files of each source.

    A version that was made from others has their inputs, and none of its own.
    """
    if manifest.parents:
        return ()
    entries_by_source: dict[str, list[InputFileEntry]] = {}
    for entry in manifest.inputs:
        entries_by_source.setdefault(entry.source, []).append(entry)
    sets: list[InputSet] = []
    for source, entries in entries_by_source.items():
        size = sum(entry.size for entry in entries)
        sets.append(InputSet(source, len(entries), size, _digest(entries)))
    return tuple(sets)


def _digest(entries: Iterable[InputFileEntry]) -> str:
    """Return a hash of the paths, sizes and tokens of files, in any order."""
    digest = hashlib.sha256()
    # Sorted, so that the order of a listing has no effect. Paths may hold bytes that
    # are no text, which Python keeps as surrogates.
    digest = hashlib.sha256()
    file_texts = [f"{entry.path}\0{entry.size}\0{entry.token}\0" for entry in entries]
    for file_text in sorted(file_texts):
        digest.update(file_text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


# -- Exports and statements


def _stored_exports(store: ReadStore, problems: list[str]) -> list[ExportSummary]:
    """Return the exports in the store's own folder.

    Those that cannot be read are a problem.
    """
    exports: list[ExportSummary] = []
    for dataset in store.list_dirs(EXPORTS):
        for version in store.list_dirs(f"{EXPORTS}/{dataset}"):
            folder = f"{EXPORTS}/{dataset}/{version}"
            try:
                manifest_bytes = store.read(f"{folder}/{_EXPORT_MANIFEST}")
                exports.append(_export(folder, manifest_bytes))
            except NotFoundError:
                continue  # an export that was interrupted, or another folder
            except (IntegrityError, ConfigError) as error:
                problems.append(f"The export {folder} is left out: {error}")
    return exports


def _export(place: str, data: bytes) -> ExportSummary:
    """Return an export by the bytes of its manifest.

    Raises:
        IntegrityError: The manifest is damaged.
        ConfigError: The directory was written by a pipeline, and is no export of a
            version.
    """
    flat = FlatManifest.from_bytes(data, f"{place}/{_EXPORT_MANIFEST}")
    facts = flat.made_of.get("export")
    if not isinstance(facts, dict):
        raise ConfigError(
            f"{place}: its rows were not exported from a version of a store"
        )
    sha256 = str(facts.get("manifest", ""))
    form = f"{flat.format}, {flat.compression}"
    return ExportSummary(place, sha256, form, len(flat.files), flat.rows)


def _read_derived(place: str) -> ExportSummary | StatementSummary:
    """Return the export or the statement at a place.

    Raises:
        ConfigError: The place is neither.
        IntegrityError: It is damaged.
    """
    # A file is a statement; a folder or a URL is an export.
    path = Path(place).expanduser()
    if "://" not in place and path.is_file():
        return _statement(place, path)
    try:
        manifest_bytes = open_read_store(place).read(_EXPORT_MANIFEST)
    except (NotFoundError, StoreError) as error:
        raise ConfigError(
            f"include: {place!r} is neither the folder of an export nor the file of a statement ({error}); expected a "
            "folder that `tokenlake export` wrote, or a file that `tokenlake prove` wrote",
            got=place,
        ) from error
    return _export(place, manifest_bytes)


def _statement(place: str, path: Path) -> StatementSummary:
    """Return a statement, after a check that its signature is that of the key in it.

    Raises:
        IntegrityError: The file is no statement, or was changed after it was signed.
    """
    if path.stat().st_size > _MOST_STATEMENT_BYTES:
        raise IntegrityError(
            f"{place}: it is too large for a statement (more than 1 GiB)", file=place
        )
    statement_bytes = path.read_bytes()
    # The key is that of the file itself: the signature proves only that nothing was
    # changed since. Any error means that the file has another form.
    try:
        stated: dict[str, Any] = json.loads(statement_bytes)
        key = bytes.fromhex(stated["public_key"])
        statement = read_statement(statement_bytes, key)
        claims = statement["datasets"].values()
        sha256s = tuple(dict.fromkeys(claim["manifest"] for claim in claims))
        first_step, end_step = statement["steps"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            f"{place}: not a statement: {error!r}", file=place
        ) from error
    except IntegrityError as error:
        raise IntegrityError(f"{place}: {error}", file=place) from error
    return StatementSummary(place, key.hex(), (int(first_step), int(end_step)), sha256s)
