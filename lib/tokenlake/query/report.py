"""The report of a version: one HTML file that loads nothing else.

::

    tl.report("artifacts/demo", "demo.html")

Figures come from the manifest and are exact, except in sections that say that they
describe a sample.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, tag, together
from tokenlake.errors import ConfigError, IntegrityError, VersionConflictError
from tokenlake.etl.reports import Table, label, number, to_html
from tokenlake.etl.reports.difference import difference_tables, sentence_of
from tokenlake.etl.reports.html import folded, lineage, manifest_sections, page, tiles
from tokenlake.query.data_sections import data_sections
from tokenlake.query.loss_tokens import loss_share
from tokenlake.query.texts_of_sources import parent_manifest, text_accounts
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore, Store
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.diff import compare
from tokenlake.runtime.store.layout import RUNS, Layout
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.outputs import require_outside_stores

_REPORT_FILE: Final = "report.html"  # beside the records of runs
_MOST_VERSIONS: Final = 20  # the newest ones, in the table of versions
_MOST_DIFFERENCES: Final = 5  # between versions that follow each other
_MOST_ANCESTORS: Final = 100  # in the table of ancestors


def report(
    where: str | os.PathLike[str] | Dataset | Manifest,
    output: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of a version as one HTML file.

    Args:
        where: Version, as for :func:`tokenlake.open`; an opened dataset, for a report
            of its whole version; or a manifest, for a report without the sections that
            need data or other versions.
        output: Path of the file; an existing file is replaced. None: ``NAME-vN.html``
            in this folder.
        name: Name of the dataset in the store `where`.
        storage_options: Options of the store, as for :func:`tokenlake.open`.

    Returns:
        Path of the file.

    Raises:
        NotFoundError: The version does not exist.
        ConfigError: The file cannot be written, or lies in a store.
        IntegrityError: A file of the version is damaged.

    Example:
        >>> import tokenlake as tl
        >>> tl.report("artifacts/books@v3").name
        'books-v3.html'
    """
    # A manifest may come without a store. An opened dataset is one split of its
    # version.
    store: ReadStore | None = None
    if isinstance(where, Manifest):
        manifest = where
    elif isinstance(where, Dataset):
        store = where.store
        manifest = where.manifest
    else:
        place, name = parted(where, name)
        store = open_read_store(place, storage_options=storage_options)
        manifest = Catalog(store).manifest_of(name)
    target = Path(output or f"{manifest.dataset}-v{manifest.version}.html").expanduser()
    require_outside_stores(target, "output")
    try:
        target.write_text(render_report(manifest, store), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{target}: the report cannot be written: {error.strerror or error}"
        ) from error
    return target


def store_report(store: Store, manifest: Manifest) -> str:
    """Store the report of a version beside the records of its runs.

    It is no part of the version there.

    An existing report is not replaced: it was made together with the version.

    Returns:
        Key of the report.

    Raises:
        IntegrityError: A file of the version is damaged.
        StoreError: The report cannot be written.
    """
    key = Layout(manifest.dataset, manifest.version).key(f"{RUNS}/{_REPORT_FILE}")
    if not store.exists(key):
        with suppress(VersionConflictError):  # another run of the same build was faster
            store.put_new(key, render_report(manifest, store).encode())
    return key


def render_report(manifest: Manifest, store: ReadStore | None = None) -> str:
    """Return the report of a version as the text of an HTML file.

    Args:
        manifest: Manifest of the version.
        store: Store that holds the version; None for a report from the manifest alone.

    Raises:
        IntegrityError: A file of the version is damaged.
    """
    catalog: Catalog | None = None
    loss = ""
    if store is not None:
        catalog = Catalog(store)
        share = loss_share(store, manifest)
        if share is not None:
            loss = share.in_words()
    # Sections that need only the manifest, then those that need data, then those that
    # need other versions. A web server does not list its versions.
    sections = manifest_sections(manifest, text_accounts(catalog, manifest))
    if catalog is not None:
        sections += data_sections(catalog, manifest)
        if catalog.store.can_list:
            sections.append(("Versions", _versions(catalog, manifest)))
    sections.append(("Lineage", lineage(manifest, ancestors_table(catalog, manifest))))
    title = f"{manifest.dataset} v{manifest.version}"
    return page(title, f"of kind {manifest.kind}", tiles(manifest, loss), sections)


def ancestors_table(catalog: Catalog | None, manifest: Manifest) -> Table:
    """Return a table of the versions that a version was made from, nearest first.

    It has their parents, too, and so on.
    """
    # Breadth first: an ancestor comes after all versions that are nearer.
    pending = [(manifest, parent) for parent in manifest.parents]
    rows: list[dict[str, Any]] = []
    while pending and len(rows) < _MOST_ANCESTORS:
        child, parent = pending.pop(0)
        row: dict[str, Any] = {
            "name": f"{parent.dataset}@v{parent.version}",
            "of": f"{child.dataset}@v{child.version}",
            "sha256": parent.sha256[:12],
        }
        ancestor = parent_manifest(catalog, parent.dataset, parent.version)
        if ancestor is not None:
            row["rows"] = ancestor.totals.rows
            row["tokens"] = ancestor.totals.tokens
            for grandparent in ancestor.parents:
                pending.append((ancestor, grandparent))
        rows.append(row)
    columns = (
        label("name", "version"),
        label("of", "parent of"),
        number("rows"),
        number("tokens"),
    )
    return Table.of((*columns, label("sha256", "manifest")), rows, "Made from")


def _versions(catalog: Catalog, manifest: Manifest) -> Html:
    """Return the versions of the dataset, and the differences between neighbours."""
    committed: list[int] = []
    for info in catalog.versions(manifest.dataset):
        if info.committed:
            committed.append(info.version)
    listed = committed[-_MOST_VERSIONS:]

    # A version that cannot be read is named with its error.
    errors: dict[Layout, IntegrityError] = {}
    manifests: list[Manifest] = []
    for version in listed:
        layout = Layout(manifest.dataset, version)
        readable = catalog.readable_manifest(layout, errors.setdefault)
        if readable is not None:
            manifests.append(readable)

    columns = (
        label("version"),
        number("rows"),
        number("tokens"),
        number("documents"),
        number("bytes", "size", numbers.size),
    )
    rows: list[dict[str, Any]] = []
    for readable in manifests:
        rows.append({"version": f"v{readable.version}", **asdict(readable.totals)})
    parts = [to_html(Table.of(columns, rows))]
    for layout, error in errors.items():
        parts.append(tag("p", f"v{layout.version} cannot be read: {error}"))
    unlisted = len(committed) - len(listed)
    if unlisted:
        note = f"{numbers.plural(unlisted, 'older version')} not listed."
        parts.append(tag("p", note, class_="dim"))

    # Differences, the newest first.
    newest_pairs = list(pairwise(manifests))[-_MOST_DIFFERENCES:]
    for older, newer in reversed(newest_pairs):
        difference = compare(older, newer)
        tables = [to_html(table) for table in difference_tables(difference)]
        parts.append(folded(sentence_of(difference), *tables))
    return together(parts)
