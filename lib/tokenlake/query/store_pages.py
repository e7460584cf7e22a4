"""The pages of a store: a folder that a browser opens, without server or network.

::

    tl.report_store("artifacts", "store-report")

==============================  =======================================================
``index.html``                  datasets, versions, unfinished builds, damage
``lineage.html``                inputs, versions, exports and statements as a graph
``datasets/NAME/vN.html``       report of a version
``datasets/NAME/vN-rows.html``  browser of its decoded rows
``.tokenlake-pages.json``       identity of every page that is there
==============================  =======================================================

A version does not change, so that its pages are written once. Every call compares the
sizes of its files with the manifest, and shows a file that is missing or has
another size. Pages are written again if their identity is another one: the seals of the
manifests that they show, the release of Tokenlake, the style sheets and scripts, and
the number of sampled rows. Every file is written beside its place and then renamed, and
the record of new identities is written last: an interrupted call leaves whole pages,
and the next call writes those that are missing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

from tokenlake._version import __version__
from tokenlake.base.fingerprint import fingerprint
from tokenlake.base.threads import in_order
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.etl.reports.store_pages import (
    INDEX,
    LINEAGE,
    STYLE,
    StoreContents,
    VersionName,
    VersionSummary,
    render_index,
    render_lineage,
    render_rows,
    rows_page,
    version_page,
)
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.query.decoded_rows import decode_sample
from tokenlake.query.page_folder import (
    RECORD,
    Identities,
    check_folder,
    remove_leftovers,
    remove_pages,
    write_page,
    write_record,
)
from tokenlake.query.sequences import decoders_of, mixed_as
from tokenlake.query.store_contents import OnProgress, read_contents
from tokenlake.query.version_page import render_version
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.local import LocalStore
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.outputs import require_outside_stores

DEFAULT_OUTPUT: Final = "store-report"
"""Folder of the pages, in this folder."""

SAMPLE_ROWS: Final = 64
"""Default number of decoded rows of a version."""

_REMOTE_PAGES: Final = 4  # versions of a bucket whose pages are made at a time

# Tokenizers that are kept in memory; versions of a store often have the same one.
_MOST_DECODERS: Final = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """Result of :func:`report_store`.

    Attributes:
        index: Path of the first page.
        versions: Number of versions with pages.
        written: Number of versions whose pages were written.
        removed: Number of versions whose pages were removed, because they are not in
            the store any more.
        unfinished: Number of builds that are not committed.
        damaged: Number of versions with damage that the pages name.

    Example:
        >>> import tokenlake as tl
        >>> report = tl.report_store("artifacts", "pages")
        >>> report.written == report.versions, report.damaged
        (True, 0)
    """

    index: Path
    versions: int
    written: int
    removed: int
    unfinished: int
    damaged: int


def report_store(
    store: str | os.PathLike[str],
    output: str | os.PathLike[str] = DEFAULT_OUTPUT,
    *,
    include: Sequence[str | os.PathLike[str]] = (),
    sample_rows: int = SAMPLE_ROWS,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> StoreReport:
    """Write the pages of a store: index, lineage, and a report and rows per version.

    A folder that holds pages already is brought up to date: only pages of versions that
    changed are written. The sizes of all files are compared with the manifests
    each time, so that a version with a missing or cut file is shown as damaged.

    Args:
        store: Path or URL of the store; it must be able to list its objects.
        output: Folder of the pages. Default: ``store-report`` in this folder.
        include: Exports (paths or URLs of folders) and statements (paths of files) to
            show in the lineage, beside the exports in the store's own folder
            ``_exports``.
        sample_rows: Number of decoded rows of a version, about; 0 for none.
        storage_options: Options of the store, as for :func:`tokenlake.open`.
        on_progress: Function of (phase, finished parts, all parts). Default: none is
            called.

    Returns:
        Path of the first page, and numbers of versions.

    Raises:
        ConfigError: The folder lies in a store, holds other files, or cannot be
            written; or a place of `include` is neither an export nor a statement.
        NotFoundError: The store has no datasets.
        IntegrityError: An export or a statement of `include` is damaged. Damage of
            versions is shown on the pages.
        StoreError: The store cannot be read.

    Example:
        >>> import tokenlake as tl
        >>> report = tl.report_store("artifacts", "pages", sample_rows=8)
        >>> report.index.as_posix()
        'pages/index.html'
    """
    if sample_rows < 0:
        raise ConfigError(
            f"sample_rows: got {sample_rows}; expected a number of rows, 0 or more"
        )
    report_progress = on_progress or _ignore_progress
    # Everything is checked before anything is written: the folder, and the store.
    catalog = Catalog(open_read_store(store, storage_options=storage_options))
    folder = Path(output).expanduser()
    require_outside_stores(folder, "output")
    old_identities = check_folder(folder, catalog.store.url)
    contents = read_contents(catalog, include, report_progress)
    if not contents.versions:
        # Pages that exist stay: the store may be a disk that is not mounted.
        raise NotFoundError(
            f"there are no datasets in {contents.url} yet, and no pages were written: `tokenlake run CONFIG` builds a "
            "dataset; or give the store, `--store STORE`"
        )
    # First of all the record: without it the next call would refuse the folder of a
    # call that was killed.
    if not (folder / RECORD).is_file():
        write_record(folder, contents.url, {})
    return _write_pages(
        folder, catalog, contents, old_identities, sample_rows, report_progress
    )


def _write_pages(
    folder: Path,
    catalog: Catalog,
    contents: StoreContents,
    old_identities: Identities,
    sample_rows: int,
    on_progress: OnProgress,
) -> StoreReport:
    """Write all pages that are not up to date, and remove those of missing versions.

    The record of the pages is written last.
    """
    # 1. Pages of versions.
    previous = _previous_versions(contents)
    identities = _identities(contents, previous, sample_rows)
    pending = _outdated_versions(folder, contents, identities, old_identities)
    writer = _PageWriter(folder, catalog, previous, sample_rows)
    contents = _write_versions(writer, contents, pending, on_progress)
    for version in contents.versions:
        if version.name in identities and version.state != "committed":
            # Written again by the next call, when the damage may be repaired.
            identities[version.name] = ""

    # 2. The pages of the whole store, after those that they link to.
    write_page(folder, LINEAGE, render_lineage(contents))
    produced_by = f"tokenlake {__version__}"
    write_page(folder, INDEX, render_index(contents, time.time(), produced_by))
    # 3. Pages of versions that are gone, and the record.
    removed_names = [name for name in old_identities if name not in identities]
    for name in removed_names:
        remove_pages(folder, name)
    write_record(folder, contents.url, identities)
    remove_leftovers(folder)
    unfinished = 0
    damaged = 0
    for version in contents.versions:
        if version.is_unfinished:
            unfinished += 1
        if version.is_damaged:
            damaged += 1
    return StoreReport(
        index=folder / INDEX,
        versions=len(identities),
        written=len(pending),
        removed=len(removed_names),
        unfinished=unfinished,
        damaged=damaged,
    )


def _ignore_progress(phase: str, done: int, total: int) -> None:
    """Do nothing: the caller wants no progress."""


def _outdated_versions(
    folder: Path,
    contents: StoreContents,
    identities: Identities,
    old_identities: Identities,
) -> list[VersionSummary]:
    """Return the versions without pages of their identity, and those with damage.

    Damage that the sizes of files show is judged anew each time.
    """
    outdated: list[VersionSummary] = []
    for version in contents.versions:
        name = version.name
        if name not in identities:
            continue
        has_report = (folder / version_page(name)).is_file()
        has_rows = (folder / rows_page(name)).is_file()
        is_clean = version.state == "committed"
        is_current = is_clean and old_identities.get(name) == identities[name]
        if not has_report or not has_rows or not is_current:
            outdated.append(version)
    return outdated


def _write_versions(
    writer: _PageWriter,
    contents: StoreContents,
    pending: Sequence[VersionSummary],
    on_progress: OnProgress,
) -> StoreContents:
    """Write the pages of versions, and return the contents with their damage."""
    threads = _REMOTE_PAGES
    if isinstance(writer.catalog.store, LocalStore):
        threads = 1  # the work is computation, not waiting
    summary_by_name = {version.name: version for version in contents.versions}
    written_versions = in_order(writer.write_version, pending, threads)
    for written_count, version in enumerate(written_versions, start=1):
        summary_by_name[version.name] = version
        on_progress("writing pages", written_count, len(pending))
    return replace(contents, versions=tuple(summary_by_name.values()))


# -- Pages of a version


@final
@dataclass(slots=True)
class _PageWriter:
    """Writes the two pages of a version.

    Attributes:
        folder: Folder of all pages.
        catalog: Catalog of the store.
        previous: Version before each version.
        sample_rows: Number of decoded rows of a version.
        decoders: Decoders by the hash of their tokenizer.json.
    """

    folder: Path
    catalog: Catalog
    previous: Mapping[VersionName, VersionSummary]
    sample_rows: int
    decoders: dict[str, Decoder] = field(default_factory=dict[str, Decoder])

    def write_version(self, version: VersionSummary) -> VersionSummary:
        """Write the pages of a version, and return its summary.

        The state is ``damaged`` if they lack some of its data. A version with damaged
        data has pages, too: the sections that need its manifest alone.
        """
        name = version.name
        try:
            manifest = self.catalog.manifest(name.dataset, name.version)
        # Damaged or removed since the contents were read.
        except (IntegrityError, NotFoundError) as error:
            return replace(version, state="unreadable", error=str(error), totals=None)
        previous = self._previous_manifest(name)
        # The report, without data if it is damaged; then the rows, which are other
        # files.
        problem = version.error
        page = ""
        if not problem:
            try:
                page = render_version(self.catalog, manifest, previous)
            except IntegrityError as error:
                problem = str(error)
        if problem:
            page = render_version(self.catalog, manifest, previous, problem=problem)
        try:
            rows = self._rows_page(name, manifest)
        except IntegrityError as error:
            problem = problem or str(error)
            rows = render_rows(name, [], manifest.totals.rows, str(error))
        # Nothing is written before both pages are whole.
        write_page(self.folder, version_page(name), page)
        write_page(self.folder, rows_page(name), rows)
        if problem:
            return replace(version, state="damaged", error=problem)
        return version

    def _previous_manifest(self, name: VersionName) -> Manifest | None:
        """Return the manifest of the committed version before a version.

        It is None if there is none that can be read.
        """
        previous = self.previous.get(name)
        if previous is None:
            return None
        try:
            return self.catalog.manifest(previous.name.dataset, previous.name.version)
        except (IntegrityError, NotFoundError):
            return None

    def _rows_page(self, name: VersionName, manifest: Manifest) -> str:
        """Return the browser of rows; without rows or without a tokenizer it says so.

        Raises:
            IntegrityError: A shard or the tokenizer is damaged.
        """
        total_rows = manifest.totals.rows
        if self.sample_rows == 0:
            return render_rows(name, [], total_rows, "No rows were sampled.")
        # Decoders of many tokenizers would fill the memory.
        if len(self.decoders) > _MOST_DECODERS:
            self.decoders.clear()
        store = self.catalog.store
        try:
            decoders = decoders_of(store, manifest, self.decoders)
        except NotFoundError as error:
            return render_rows(name, [], total_rows, str(error))
        names = mixed_as(self.catalog, manifest)
        rows = decode_sample(store, manifest, decoders, names, self.sample_rows)
        return render_rows(name, rows, total_rows)


# -- Identities


def _previous_versions(contents: StoreContents) -> dict[VersionName, VersionSummary]:
    """Return the version before each version.

    It is the next older one of its dataset that has a readable manifest.
    """
    previous: dict[VersionName, VersionSummary] = {}
    newest: dict[str, VersionSummary] = {}
    for version in contents.versions:  # ascending
        dataset = version.name.dataset
        if dataset in newest:
            previous[version.name] = newest[dataset]
        if version.has_page:
            newest[dataset] = version
    return previous


def _identities(
    contents: StoreContents,
    previous: Mapping[VersionName, VersionSummary],
    sample_rows: int,
) -> Identities:
    """Return the identity of the pages of each version.

    It is a hash over everything that they depend on.
    """
    # The same for all versions: release, style sheets, scripts and number of rows.
    common = {
        "release": __version__,
        "assets": _assets_digest(),
        "sample_rows": sample_rows,
    }
    by_name = {version.name: version for version in contents.versions}
    identities: Identities = {}
    for version in contents.versions:
        if not version.has_page:
            continue
        # Of each version: its own manifest, and those of other versions that its page
        # shows.
        previous_seal = ""
        if version.name in previous:
            previous_seal = previous[version.name].sha256
        facts = {
            **common,
            "sha256": version.sha256,
            "previous": previous_seal,
            "ancestors": _ancestor_seals(version, by_name),
        }
        identities[version.name] = fingerprint(facts)
    return identities


def _assets_digest() -> str:
    """Return a hash over the style sheets and scripts of the pages."""
    digest = hashlib.sha256()
    for path in sorted(STYLE.parent.parent.rglob("*")):
        if path.suffix in (".css", ".js"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _ancestor_seals(
    version: VersionSummary, by_name: Mapping[VersionName, VersionSummary]
) -> list[str]:
    """Return ``code@v1 SEAL`` for each ancestor of a version.

    The seal is missing if the store lacks it.
    """
    seals: dict[VersionName, str] = {}
    pending = list(version.parents)
    while pending:
        parent = pending.pop()
        name = VersionName(parent.dataset, parent.version)
        if name in seals:
            continue
        ancestor = by_name.get(name)
        seals[name] = ""
        if ancestor is not None and ancestor.has_page:
            seals[name] = ancestor.sha256
            pending += ancestor.parents
    return [f"{name} {seal}" for name, seal in sorted(seals.items())]
