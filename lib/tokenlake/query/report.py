"""The report of a version: one HTML file with everything there is to see of it, which loads nothing.

::

    tl.write_report(tl.open("artifacts/demo"), "demo.html")

Figures come from the manifest and are exact, but where a section says that it looked at a sample. However large a
version is, at most so much of it is read: some row groups' provenance, some tens of rows, some files of bad records.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tokenlake.errors import ConfigError, NotFoundError, VersionConflictError
from tokenlake.loader.dataset import Dataset
from tokenlake.query.report_data import data_sections
from tokenlake.report import numbers
from tokenlake.report.difference import difference_tables, sentence_of
from tokenlake.report.html import Html, folded, page, tag, together
from tokenlake.report.sections import lineage, manifest_sections, tiles
from tokenlake.report.table import Table, label, number, to_html
from tokenlake.store.account import Account
from tokenlake.store.base import ReadStore, Store
from tokenlake.store.catalog import Catalog
from tokenlake.store.diff import compare
from tokenlake.store.layout import RUNS, Layout
from tokenlake.store.manifest import Manifest

_STORED: Final = "report.html"
_VERSIONS: Final = 20
_DIFFERENCES: Final = 5
_ANCESTORS: Final = 100


def write_report(
    data: Dataset | Manifest, path: str | os.PathLike[str], *, store: ReadStore | None = None
) -> Path:
    """Write the report of a version as one HTML file, and return where it is.

    Args:
        data: an opened dataset, whose whole version is reported; or a manifest.
        path: of the file; one that is there is replaced.
        store: that holds the version of a manifest; None: what only data or other versions can tell is left out.

    Raises:
        ConfigError: `data` is something else, or the file cannot be written.
        IntegrityError: a file of the version is damaged.
    """
    if isinstance(data, Dataset):
        text = render_report(data.manifest, data.store)
    elif isinstance(data, Manifest):  # pyright: ignore[reportUnnecessaryIsInstance]
        text = render_report(data, store)
    else:
        raise ConfigError(f"data: got a {type(data).__name__}, must be a Dataset (tl.open) or a Manifest")
    target = Path(path).expanduser()
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target}: the report cannot be written: {error.strerror or error}") from error
    return target


def store_report(store: Store, manifest: Manifest) -> str:
    """Keep the report of a version beside the records of its runs, where it is no part of the version.

    One that is there stays: it was made when the version was.

    Returns:
        its key.

    Raises:
        IntegrityError: a file of the version is damaged.
        StoreError: it cannot be written.
    """
    key = Layout(manifest.dataset, manifest.version).key(f"{RUNS}/{_STORED}")
    if not store.exists(key):
        with suppress(VersionConflictError):  # another run of the same build was faster
            store.put_new(key, render_report(manifest, store).encode())
    return key


def render_report(manifest: Manifest, store: ReadStore | None = None) -> str:
    """Return the report of a version as the text of an HTML file.

    Args:
        store: that holds it; None: of its manifest alone.

    Raises:
        IntegrityError: a file of the version is damaged.
    """
    catalog = None if store is None else Catalog(store)
    sections = manifest_sections(manifest, _texts(catalog, manifest))
    if catalog is not None:
        sections += data_sections(catalog, manifest)
        sections += [("Versions", _versions(catalog, manifest))] if catalog.store.can_list else []
    sections.append(("Lineage", lineage(manifest, _ancestors(catalog, manifest))))
    return page(
        f"{manifest.dataset} v{manifest.version}", f"of kind {manifest.kind}", tiles(manifest), sections
    )


def _texts(catalog: Catalog | None, manifest: Manifest) -> dict[str, Account]:
    """The account of each source's text; of stored tokens that of the versions that they were made from."""
    if manifest.mixture is None:
        return manifest.accounts
    sources = manifest.mixture.sources.items()
    found = {name: _parent(catalog, source.dataset, source.version) for name, source in sources}
    return {name: _text(catalog, parent) for name, parent in found.items() if parent is not None}


def _text(catalog: Catalog | None, manifest: Manifest) -> Account:
    if manifest.account.text_bytes:
        return manifest.account
    parents = (_parent(catalog, each.dataset, each.version) for each in manifest.parents)
    return Account.total(_text(catalog, parent) for parent in parents if parent is not None)


def _parent(catalog: Catalog | None, dataset: str, version: int) -> Manifest | None:
    try:
        return None if catalog is None else catalog.manifest(dataset, version)
    except NotFoundError:
        return None  # it was removed, or not copied with its child


def _ancestors(catalog: Catalog | None, manifest: Manifest) -> Table:
    """The versions that it was made from, those that these were made from, and so on."""
    waiting, rows = [(manifest, parent) for parent in manifest.parents], list[dict[str, Any]]()
    while waiting and len(rows) < _ANCESTORS:
        child, parent = waiting.pop(0)
        found = _parent(catalog, parent.dataset, parent.version)
        figures = {} if found is None else {"rows": found.totals.rows, "tokens": found.totals.tokens}
        name, of = f"{parent.dataset}@v{parent.version}", f"{child.dataset}@v{child.version}"
        rows.append({"name": name, "of": of, "sha256": parent.sha256[:12], **figures})
        waiting += [] if found is None else [(found, each) for each in found.parents]
    columns = (label("name", "version"), label("of", "parent of"), number("rows"), number("tokens"))
    return Table.of((*columns, label("sha256", "manifest")), rows, "Made from")


def _versions(catalog: Catalog, manifest: Manifest) -> Html:
    """The versions of the dataset, and what differs between each and the one before it."""
    committed = [info.version for info in catalog.versions(manifest.dataset) if info.committed]
    found = [catalog.manifest(manifest.dataset, version) for version in committed[-_VERSIONS:]]
    rows = [{"version": f"v{each.version}", **asdict(each.totals)} for each in found]
    columns = [number(name) for name in ("rows", "tokens", "documents")]
    table = Table.of((label("version"), *columns, number("bytes", "size", numbers.size)), rows)
    older = len(committed) - len(found)
    note = [tag("p", f"{numbers.plural(older, 'older version')} not listed.", class_="dim")] if older else []
    pairs = list(pairwise(found))[-_DIFFERENCES:]
    return together([to_html(table), *note, *(_difference(a, b) for a, b in reversed(pairs))])


def _difference(a: Manifest, b: Manifest) -> Html:
    found = compare(a, b)
    return folded(sentence_of(found), *map(to_html, difference_tables(found)))
