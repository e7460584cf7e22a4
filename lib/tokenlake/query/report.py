"""The report of a version: one HTML file with everything there is to see of it, which loads nothing.

::

    tl.report("artifacts/demo", "demo.html")

Figures come from the manifest and are exact, but where a section says that it looked at a sample. However large a
version is, at most so much of it is read: some row groups' provenance, some tens of rows, some files of bad records.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base import numbers
from tokenlake.base.arrays import Int64
from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, VersionConflictError
from tokenlake.etl.reports import Table, label, number, to_html
from tokenlake.etl.reports.difference import difference_tables, sentence_of
from tokenlake.etl.reports.html import (
    COLOURS,
    Sections,
    bars,
    doubling,
    folded,
    lineage,
    manifest_sections,
    page,
    tiles,
)
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.query.sequences import (
    Place,
    RowSample,
    Sequence,
    decoders_of,
    mixed_as,
    read_sequences,
    sample_rows,
    shortened,
    spread,
)
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.host_load import host_load
from tokenlake.runtime.loader.options import LoaderOptions
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.reading.file_hashes import verified_bytes
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore, Store
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.diff import compare
from tokenlake.runtime.store.layout import QUARANTINE, RUNS, Layout
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.outputs import require_outside_stores

_ROWS: Final = 24  # that are decoded
_DOCUMENTS: Final = 40  # of a row that are shown
_RUNS: Final = 40  # of a document, alike in whether they bear loss
_BAD_FILES: Final = 8
_BAD_BYTES: Final = 64 << 20  # of a file of bad records that is opened
_BAD_ROWS: Final = 256  # of it
_BAD_EACH: Final = 4  # of a reason that are shown
_BATCH: Final = 64
_HOSTS: Final = (1, 8, 64)
_LENGTHS_BYTES: Final = 256 << 20  # of a split, not packed, the lengths of whose rows a loader reads first


def data_sections(catalog: Catalog, manifest: Manifest) -> Sections:
    """Return lengths, rows, bad records, texts and loading, as far as there are any.

    Raises:
        IntegrityError: a file of the version is damaged.
    """
    store, found = catalog.store, list[tuple[str, Html]]()
    if any(manifest.account.quarantined.values()):
        found.append(("Bad records", _bad_records(store, manifest)))
    if not manifest.files:
        return found
    names = mixed_as(catalog, manifest)
    sample = sample_rows(store, manifest, names)
    rows = [("Rows", _fullness(sample, manifest.width))] if manifest.width else []
    return [
        ("Lengths", _lengths(sample)),
        *rows,
        *found,
        ("Texts", _decoded(store, manifest, names)),
        ("Loading", _loading(store, manifest)),
    ]


# -- Lengths, and how full rows are


def _sampled(sample: RowSample) -> Html:
    rows, told = numbers.plural(sample.rows, "row"), "."
    if sample.groups < sample.of:
        told = (
            f" in {numbers.count(sample.groups)} of {numbers.plural(sample.of, 'row group')}, at even distances. "
            "A document that goes on beyond them counts up to where it was seen."
        )
    return tag("p", f"Of {'all ' if told == '.' else ''}{rows}{told}", class_="dim")


def _lengths(sample: RowSample) -> Html:
    drawn: list[Html] = []
    for name, ids in sample.lengths.items():
        low, middle, high = (numbers.count(int(each)) for each in np.quantile(ids, [0.05, 0.5, 0.95]))
        documents = numbers.plural(len(ids), "document")
        told = f"{documents}: half have up to {middle} tokens, nine of ten {low} to {high}"
        drawn.append(tag("div", tag("h3", name), tag("p", told, class_="dim"), bars(doubling(_counted(ids)))))
    columns, named = (number("ids", "tokens"), label("source"), label("path", "file"), number("position")), []
    for title, some in (("Longest documents", sample.longest), ("Shortest documents", sample.shortest)):
        rows = tuple((each.ids, each.source, each.path, each.position) for each in some)
        named.append(tag("div", to_html(Table(columns, rows, title))))
    intro = tag("p", "Tokens of a document, special ones among them, by source.")
    grids = [tag("div", *parts, class_="grid") for parts in (drawn, named)]
    return together([intro, _sampled(sample), *grids])


def _counted(values: Int64) -> list[tuple[int, int]]:
    return list(Counter(values.tolist()).items())


_FULL: Final = (0, 50, 75, 90, 95, 99, 100)


def _fullness(sample: RowSample, length: int) -> Html:
    """How full rows are, and of how many pieces of documents each is made."""
    percent = 100 * sample.filled / length
    low = np.searchsorted(_FULL, percent, side="right") - 1
    names = [*(f"{a}% to {b}%" for a, b in pairwise(_FULL)), "100%"]
    full = [(name, int((low == index).sum())) for index, name in enumerate(names)]
    figures = {"Fill": full, "Documents, or pieces of them, in a row": doubling(_counted(sample.segments))}
    drawn = [tag("div", tag("h3", title), bars(values)) for title, values in figures.items()]
    return together([_sampled(sample), tag("div", *drawn, class_="grid")])


# -- Bad records


def _bad_records(store: ReadStore, manifest: Manifest) -> Html:
    counted = [
        {"source": name, "reason": reason, "records": many}
        for name, account in manifest.accounts.items()
        for reason, many in account.quarantined.items()
    ]
    table = Table.of((label("source"), label("reason"), number("records")), counted)
    shown, samples = Counter[str](), list[Html]()
    for record in _quarantined(store, manifest):
        shown[record["reason"]] += 1
        if shown[record["reason"]] <= _BAD_EACH:
            place = tag("b", f"{record['reason']}  {record['path']}:{record['position']}")
            raw = tag("pre", _short(record["raw"].decode("utf-8", "backslashreplace")))
            about = tag("p", place, f"  {record['detail']}", class_="dim")
            samples.append(tag("div", about, raw, class_="document b5"))
    return together([to_html(table), *samples])


def _quarantined(store: ReadStore, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the first records of some files; none of a copy that came without them."""
    small = [
        (path, entry.sha256)
        for path, entry in sorted(manifest.other_files.items())
        if path.startswith(f"{QUARANTINE}/") and entry.bytes <= _BAD_BYTES
    ]
    layout = Layout(manifest.dataset, manifest.version)
    for path, sha256 in (small[index] for index in spread(len(small), _BAD_FILES)):
        try:
            data = verified_bytes(store, layout, path, sha256)
        except NotFoundError:
            return
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            yield from next(file.iter_batches(_BAD_ROWS)).to_pylist()


def _short(text: str) -> str:
    head, hidden, tail = shortened(text)
    return f"{head} ... {numbers.count(hidden)} characters ... {tail}" if hidden else head


# -- Decoded rows


def _decoded(store: ReadStore, manifest: Manifest, names: Mapping[Place, str]) -> Html:
    try:
        decoders = decoders_of(store, manifest)
    except NotFoundError as error:
        return tag("p", str(error))
    each = max(1, _ROWS // len(manifest.splits))
    found = [
        row
        for split, totals in manifest.splits.items()
        for at in spread(totals.rows, each)
        for row in read_sequences(store, manifest, split, at, 1)
    ]
    rows = [_row(row, decoders, names, is_open=not index) for index, row in enumerate(found)]
    said = f"{numbers.plural(len(rows), 'row')} of {numbers.count(manifest.totals.rows)}, at even distances."
    told = "Each document has its own border; where only some tokens bear loss, they are marked."
    return together([tag("p", f"{said} {told}", class_="dim"), *rows])


def _row(
    row: Sequence, decoders: Mapping[str, Decoder], names: Mapping[Place, str], *, is_open: bool
) -> Html:
    parts, begin = list[Part](), 0
    for index, segment in enumerate(row.segments[:_DOCUMENTS]):
        runs, texts = list(segment.runs()), list[Part]()
        for learned, ids in runs[:_RUNS]:  # what bears loss is marked where only some of it does
            text, mark = _short(decoders[segment.source].text(ids)), "on" if learned else "off"
            texts.append(text if segment.learned is None else tag("span", text, class_=mark))
        if len(runs) > _RUNS:
            texts.append(f" ... {numbers.count(len(runs) - _RUNS)} more runs ...")
        name = f"{segment.part}  {segment.origin(names)}" if segment.part else segment.origin(names)
        heading = tag("p", tag("b", name), f"  {segment.place(begin)}", class_="dim")
        parts.append(tag("div", heading, tag("pre", *texts), class_=f"document b{index % (COLOURS - 1)}"))
        begin += len(segment.ids)
    if (more := len(row.segments) - _DOCUMENTS) > 0:
        parts.append(tag("p", f"{numbers.count(more)} more in this row", class_="dim"))
    for name, value in row.kept.items():
        parts.append(tag("p", tag("b", name), " ", _short(orjson.dumps(value, default=str).decode())))
    return folded(f"{row.split} row {numbers.count(row.row)}: {row.content()}", *parts, is_open=is_open)


# -- What hosts read


_LOADS: Final = (
    label("split"),
    number("hosts"),
    number("batches", "batches of an epoch"),
    number("groups", "row groups of a host"),
    number("bytes", "read by it, about", numbers.size),
    number("ratio", "rows decoded for each delivered", lambda value: f"{value:.2f}"),
    label("note", ""),
)


def _loading(store: ReadStore, manifest: Manifest) -> Html:
    """What the loader's own plan says of one epoch, shuffled with its defaults."""
    rows = [row for split in manifest.splits for row in _loads(store, manifest, split)]
    told = f"One epoch in batches of {_BATCH} rows, shuffled with seed 0; each host decodes a row group once."
    return together([tag("p", told, class_="dim"), to_html(Table.of(_LOADS, rows))])


def _loads(store: ReadStore, manifest: Manifest, split: str) -> Iterator[dict[str, Any]]:
    if manifest.kind != "packed" and manifest.splits[split].bytes > _LENGTHS_BYTES:
        yield {"split": split, "note": "not looked at: a loader reads the lengths of all rows first"}
        return
    with Dataset(store, manifest, split) as data:
        plan = BatchPlan(data, LoaderOptions(batch_size=_BATCH))
        batches = plan.batches_in(0) or 0
        for found in (host_load(plan, hosts) for hosts in _HOSTS):
            note = f"of the first {numbers.count(found.steps)}" if found.steps < batches else None
            ratio = found.decoded / found.delivered if found.delivered else None
            figures = {"hosts": found.hosts, "groups": found.groups, "bytes": found.bytes}
            yield {"split": split, "batches": batches, **figures, "ratio": ratio, "note": note}


_STORED: Final = "report.html"
_VERSIONS: Final = 20
_DIFFERENCES: Final = 5
_ANCESTORS: Final = 100


def report(
    where: str | os.PathLike[str] | Dataset | Manifest,
    output: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of a version as one HTML file, and return where it is.

    ::

        tl.report("artifacts/code@v3")  # code-v3.html in this folder

    Args:
        where: the version, as :func:`tokenlake.open` takes it; an opened dataset, whose whole version is reported; or a
            manifest alone, without what only data or other versions can tell.
        output: the file; one that is there is replaced. None: ``NAME-vN.html`` in this folder.
        name: of the dataset in the store `where`.
        storage_options: for the store, as for :func:`tokenlake.open`.

    Raises:
        NotFoundError: there is no such version.
        ConfigError: the file cannot be written, or lies in a store.
        IntegrityError: a file of the version is damaged.
    """
    if isinstance(where, Manifest):
        store, manifest = None, where
    elif isinstance(where, Dataset):
        store, manifest = where.store, where.manifest
    else:
        place, name = parted(where, name)
        store = open_read_store(place, storage_options=storage_options)
        manifest = Catalog(store).manifest_of(name)
    target = Path(output or f"{manifest.dataset}-v{manifest.version}.html").expanduser()
    require_outside_stores(target, "output")
    try:
        target.write_text(render_report(manifest, store), encoding="utf-8")
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
    texts = dict(manifest.accounts)
    if manifest.mixture is not None:  # of stored tokens that of the versions that they were made from
        sources = manifest.mixture.sources.items()
        found = {name: _parent(catalog, source.dataset, source.version) for name, source in sources}
        texts = {name: _text(catalog, parent) for name, parent in found.items() if parent is not None}
    sections = manifest_sections(manifest, texts)
    if catalog is not None:
        sections += data_sections(catalog, manifest)
        sections += [("Versions", _versions(catalog, manifest))] if catalog.store.can_list else []
    sections.append(("Lineage", lineage(manifest, _ancestors(catalog, manifest))))
    return page(
        f"{manifest.dataset} v{manifest.version}", f"of kind {manifest.kind}", tiles(manifest), sections
    )


def _text(catalog: Catalog | None, manifest: Manifest) -> Account:
    if manifest.account.text_bytes:
        return manifest.account
    parents = (_parent(catalog, each.dataset, each.version) for each in manifest.parents)
    return Account.total(_text(catalog, parent) for parent in parents if parent is not None)


def _parent(catalog: Catalog | None, dataset: str, version: int) -> Manifest | None:
    try:
        return None if catalog is None else catalog.manifest(dataset, version)
    except (NotFoundError, IntegrityError):
        return None  # it was removed, not copied with its child, or is damaged


def _ancestors(catalog: Catalog | None, manifest: Manifest) -> Table:
    """Return a table of the versions that a version was made from, and of their parents, nearest first."""
    pending = [(manifest, parent) for parent in manifest.parents]
    rows: list[dict[str, Any]] = []
    while pending and len(rows) < _ANCESTORS:
        child, parent = pending.pop(0)
        row: dict[str, Any] = {
            "name": f"{parent.dataset}@v{parent.version}",
            "of": f"{child.dataset}@v{child.version}",
            "sha256": parent.sha256[:12],
        }
        parent_manifest = _parent(catalog, parent.dataset, parent.version)
        if parent_manifest is not None:
            row["rows"] = parent_manifest.totals.rows
            row["tokens"] = parent_manifest.totals.tokens
            pending += [(parent_manifest, grandparent) for grandparent in parent_manifest.parents]
        rows.append(row)
    columns = (label("name", "version"), label("of", "parent of"), number("rows"), number("tokens"))
    return Table.of((*columns, label("sha256", "manifest")), rows, "Made from")


def _versions(catalog: Catalog, manifest: Manifest) -> Html:
    """The versions of the dataset, and what differs between each and the one before it."""
    committed = [info.version for info in catalog.versions(manifest.dataset) if info.committed]
    shown = committed[-_VERSIONS:]
    unreadable: dict[Layout, IntegrityError] = {}
    found: list[Manifest] = []
    for version in shown:
        other = catalog.readable_manifest(Layout(manifest.dataset, version), unreadable.setdefault)
        if other is not None:
            found.append(other)
    rows = [{"version": f"v{each.version}", **asdict(each.totals)} for each in found]
    columns = [number(name) for name in ("rows", "tokens", "documents")]
    table = Table.of((label("version"), *columns, number("bytes", "size", numbers.size)), rows)
    older = len(committed) - len(shown)
    damaged = [tag("p", f"v{layout.version} cannot be read: {error}") for layout, error in unreadable.items()]
    note = [tag("p", f"{numbers.plural(older, 'older version')} not listed.", class_="dim")] if older else []
    unlike = [compare(a, b) for a, b in reversed(list(pairwise(found))[-_DIFFERENCES:])]
    told = [folded(sentence_of(each), *map(to_html, difference_tables(each))) for each in unlike]
    return together([to_html(table), *damaged, *note, *told])
