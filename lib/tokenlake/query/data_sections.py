"""The sections of a report that come from a version's data: lengths, rows, bad records,
texts and loading.

A section says if it describes a sample. The amount that is read is limited, however
large the version is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base import numbers
from tokenlake.base.arrays import Int64
from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.errors import NotFoundError
from tokenlake.etl.reports import Table, label, number, to_html
from tokenlake.etl.reports.html import COLOURS, Sections, bars, doubling, folded
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.query.group_choice import spread
from tokenlake.query.row_sample import DocumentLength, RowSample, sample_rows
from tokenlake.query.sequences import (
    Place,
    Segment,
    Sequence,
    decoders_of,
    mixed_as,
    read_sequences,
    shortened,
)
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.host_load import host_load
from tokenlake.runtime.loader.options import LoaderOptions
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.reading.file_hashes import verified_bytes
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import QUARANTINE, Layout
from tokenlake.runtime.store.manifest import Manifest

_DECODED_ROWS: Final = 24
_SHOWN_DOCUMENTS: Final = 40  # of a row
_SHOWN_RUNS: Final = (
    # Of a document: neighbouring ids that are alike in whether they count toward the
    # loss.
    40
)

_BAD_RECORD_FILES: Final = 8
_BAD_RECORD_BYTES: Final = 64 << 20  # limit of a file of bad records that is opened
_READ_BAD_RECORDS: Final = 256  # of a file
_SHOWN_BAD_RECORDS: Final = 4  # of a reason

_BATCH_SIZE: Final = 64
_HOST_COUNTS: Final = (1, 8, 64)
_SPLIT_BYTES: Final = (
    256 << 20
)  # limit of a split without packing: a loader reads the lengths of all its rows first

_FILL_LEVELS: Final = (0, 50, 75, 90, 95, 99, 100)  # in percent of the sequence length


def data_sections(
    catalog: Catalog, manifest: Manifest, *, with_texts: bool = True
) -> Sections:
    """Return the sections lengths, rows, bad records, texts and loading, as far as the
    version has them.

    Args:
        catalog: Catalog of the store that holds the version.
        manifest: Manifest of the version.
        with_texts: False to leave out the decoded rows.

    Raises:
        IntegrityError: A file of the version is damaged.
    """
    store = catalog.store
    sections: Sections = []
    names: Mapping[Place, str] = {}
    if manifest.files:
        names = mixed_as(catalog, manifest)
        sample = sample_rows(store, manifest, names)
        sections.append(("Lengths", _lengths(sample)))
        if manifest.width:
            sections.append(("Rows", _fullness(sample, manifest.width)))
    if any(manifest.account.quarantined.values()):
        sections.append(("Bad records", _bad_records(store, manifest)))
    if manifest.files and with_texts:
        sections.append(("Texts", _decoded_rows(store, manifest, names)))
    if manifest.files:
        sections.append(("Loading", _loading(store, manifest)))
    return sections


# -- Lengths of documents, and fullness of rows


def _sample_note(sample: RowSample) -> Html:
    """Return the sentence that says which rows were measured."""
    if sample.is_exact:
        return tag(
            "p", f"Counted in all {numbers.plural(sample.rows, 'row')}.", class_="dim"
        )
    groups = (
        f"{numbers.count(sample.groups)} of {numbers.plural(sample.of, 'row group')}"
    )
    note = (
        f"{_basis(sample).capitalize()}, in {groups} at equal distances. "
        "A document that continues beyond them counts up to its last piece in the sample."
    )
    return tag("p", note, class_="dim")


def _basis(sample: RowSample) -> str:
    """Return the rows that an estimate is from, such as ``estimated from 7,881 of
    29,085 rows``.
    """
    return f"estimated from {numbers.count(sample.rows)} of {numbers.plural(sample.all_rows, 'row')}"


def _lengths(sample: RowSample) -> Html:
    """Draw the lengths of the documents of each source, and list the longest and the
    shortest documents.
    """
    histograms: list[Html] = []
    for name, ids in sample.lengths.items():
        low, median, high = (
            numbers.count(int(length)) for length in np.quantile(ids, [0.05, 0.5, 0.95])
        )
        documents = numbers.plural(len(ids), "document")
        summary = f"{documents}: median {median}; 90% between {low} and {high}"
        if not sample.is_exact:
            summary += f"; {_basis(sample)}"
        bars_of_source = bars(doubling(_counts(ids)))
        histograms.append(
            tag("div", tag("h3", name), tag("p", summary, class_="dim"), bars_of_source)
        )

    # A sample has its own longest documents, which are not those of the version.
    which = (
        "" if sample.is_exact else f" of {numbers.plural(sample.rows, 'sampled row')}"
    )
    lists = [
        tag("div", _document_table(f"Longest documents{which}", sample.longest)),
        tag("div", _document_table(f"Shortest documents{which}", sample.shortest)),
    ]
    introduction = tag("p", "Tokens per document, including special tokens, by source.")
    grids = [tag("div", *histograms, class_="grid"), tag("div", *lists, class_="grid")]
    return together([introduction, _sample_note(sample), *grids])


def _document_table(title: str, documents: tuple[DocumentLength, ...]) -> Html:
    columns = (
        number("ids", "tokens"),
        label("source"),
        label("path", "file"),
        number("position"),
    )
    rows = tuple(
        (document.ids, document.source, document.path, document.position)
        for document in documents
    )
    return to_html(Table(columns, rows, title))


def _counts(values: Int64) -> list[tuple[int, int]]:
    """Return pairs (value, number of times it occurs)."""
    return list(Counter(values.tolist()).items())


def _fullness(sample: RowSample, sequence_length: int) -> Html:
    """Draw how full the rows are, and of how many pieces of documents they consist."""
    percent = 100 * sample.filled / sequence_length
    level_of_row = np.searchsorted(_FILL_LEVELS, percent, side="right") - 1
    names = [f"{low}% to {high}%" for low, high in pairwise(_FILL_LEVELS)]
    names.append("100%")
    rows_by_level = [
        (name, int((level_of_row == level).sum())) for level, name in enumerate(names)
    ]
    parts = [
        tag("div", tag("h3", "Fill"), bars(rows_by_level)),
        tag(
            "div",
            tag("h3", "Documents, or pieces of them, in a row"),
            bars(doubling(_counts(sample.segments))),
        ),
    ]
    return together([_sample_note(sample), tag("div", *parts, class_="grid")])


# -- Bad records


def _bad_records(store: ReadStore, manifest: Manifest) -> Html:
    """Return the number of bad records by source and reason, and some records of
    each reason.
    """
    rows: list[dict[str, Any]] = []
    for name, account in manifest.accounts.items():
        for reason, records in account.quarantined.items():
            rows.append({"source": name, "reason": reason, "records": records})
    table = Table.of((label("source"), label("reason"), number("records")), rows)

    shown_by_reason: Counter[str] = Counter()
    examples: list[Html] = []
    for record in _quarantined_records(store, manifest):
        reason = record["reason"]
        if shown_by_reason[reason] < _SHOWN_BAD_RECORDS:
            shown_by_reason[reason] += 1
            examples.append(_bad_record(record))
    return together([to_html(table), *examples])


def _bad_record(record: Mapping[str, Any]) -> Html:
    place = tag("b", f"{record['reason']}  {record['path']}:{record['position']}")
    heading = tag("p", place, f"  {record['detail']}", class_="dim")
    raw = tag("pre", _shortened_text(record["raw"].decode("utf-8", "backslashreplace")))
    return tag("div", heading, raw, class_="document b5")


def _quarantined_records(
    store: ReadStore, manifest: Manifest
) -> Iterator[dict[str, Any]]:
    """Yield the first records of some files; a copy without these files has none."""
    small_files: list[tuple[str, str]] = []
    for path, entry in sorted(manifest.other_files.items()):
        if path.startswith(f"{QUARANTINE}/") and entry.bytes <= _BAD_RECORD_BYTES:
            small_files.append((path, entry.sha256))

    layout = Layout(manifest.dataset, manifest.version)
    for index in spread(len(small_files), _BAD_RECORD_FILES):
        path, sha256 = small_files[index]
        try:
            data = verified_bytes(store, layout, path, sha256)
        except NotFoundError:
            return
        with pq.ParquetFile(
            pa.BufferReader(data), page_checksum_verification=True
        ) as file:
            yield from next(file.iter_batches(_READ_BAD_RECORDS)).to_pylist()


def _shortened_text(text: str) -> str:
    """Return a text, without the middle of a long one."""
    head, hidden, tail = shortened(text)
    if not hidden:
        return head
    return f"{head} ... {numbers.count(hidden)} characters ... {tail}"


# -- Decoded rows


def _decoded_rows(
    store: ReadStore, manifest: Manifest, names: Mapping[Place, str]
) -> Html:
    """Return some rows of each split as text, the first one open."""
    try:
        decoders = decoders_of(store, manifest)
    except NotFoundError as error:
        return tag("p", str(error))
    rows_per_split = max(1, _DECODED_ROWS // len(manifest.splits))
    rows: list[Html] = []
    for split, totals in manifest.splits.items():
        for position in spread(totals.rows, rows_per_split):
            for row in read_sequences(store, manifest, split, position, 1):
                rows.append(_decoded_row(row, decoders, names, is_open=not rows))
    note = (
        f"{numbers.plural(len(rows), 'row')} of {numbers.count(manifest.totals.rows)}, at equal distances. Each "
        "document has its own border. If only some tokens count toward the loss, they are marked."
    )
    return together([tag("p", note, class_="dim"), *rows])


def _decoded_row(
    row: Sequence,
    decoders: Mapping[str, Decoder],
    names: Mapping[Place, str],
    *,
    is_open: bool,
) -> Html:
    """Return a row as text: its documents, then its additional fields."""
    parts: list[Part] = []
    begin = 0
    for index, segment in enumerate(row.segments[:_SHOWN_DOCUMENTS]):
        name = segment.origin(names)
        if segment.part:
            name = f"{segment.part}  {name}"
        heading = tag("p", tag("b", name), f"  {segment.place(begin)}", class_="dim")
        text = tag("pre", *_decoded_runs(segment, decoders[segment.source]))
        parts.append(
            tag("div", heading, text, class_=f"document b{index % (COLOURS - 1)}")
        )
        begin += len(segment.ids)
    hidden_documents = len(row.segments) - _SHOWN_DOCUMENTS
    if hidden_documents > 0:
        parts.append(
            tag(
                "p", f"{numbers.count(hidden_documents)} more in this row", class_="dim"
            )
        )

    for name, value in row.kept.items():
        text = _shortened_text(orjson.dumps(value, default=str).decode())
        parts.append(tag("p", tag("b", name), " ", text))
    return folded(
        f"{row.split} row {numbers.count(row.row)}: {row.content()}",
        *parts,
        is_open=is_open,
    )


def _decoded_runs(segment: Segment, decoder: Decoder) -> list[Part]:
    """Return the text of a segment; with a loss mask, runs of tokens that count
    toward the loss are marked.
    """
    runs = list(segment.runs())
    texts: list[Part] = []
    for is_learned, ids in runs[:_SHOWN_RUNS]:
        whole_text = decoder.text(ids)
        text = _shortened_text(whole_text)
        if segment.learned is None:
            texts.append(text)
            continue
        # The last token of a run may end a line, after which the next run begins.
        line_ends = whole_text[len(whole_text.rstrip("\n")) :]
        color = "on" if is_learned else "off"
        texts.append(tag("span", text + line_ends, class_=color))
    if len(runs) > _SHOWN_RUNS:
        texts.append(f" ... {numbers.count(len(runs) - _SHOWN_RUNS)} more runs ...")
    return texts


# -- Reads of each host


_LOADING_COLUMNS: Final = (
    label("split"),
    number("hosts"),
    number("batches", "batches of an epoch"),
    number("groups", "row groups of a host"),
    number("bytes", "read by it, about", numbers.size),
    number("ratio", "rows decoded for each delivered", lambda value: f"{value:.2f}"),
    label("note", ""),
)


def _loading(store: ReadStore, manifest: Manifest) -> Html:
    """Return the cost of one epoch by the loader's own plan, shuffled with its
    defaults.
    """
    rows: list[dict[str, Any]] = []
    for split in manifest.splits:
        rows += _host_loads(store, manifest, split)
    note = f"One epoch in batches of {_BATCH_SIZE} rows, shuffled with seed 0; each host decodes a row group once."
    return together(
        [tag("p", note, class_="dim"), to_html(Table.of(_LOADING_COLUMNS, rows))]
    )


def _host_loads(
    store: ReadStore, manifest: Manifest, split: str
) -> list[dict[str, Any]]:
    """Return a row for each number of hosts."""
    if manifest.kind != "packed" and manifest.splits[split].bytes > _SPLIT_BYTES:
        return [
            {
                "split": split,
                "note": "not estimated: a loader first reads the lengths of all rows",
            }
        ]
    rows: list[dict[str, Any]] = []
    with Dataset(store, manifest, split) as data:
        plan = BatchPlan(data, LoaderOptions(batch_size=_BATCH_SIZE))
        batches = plan.batches_in(0) or 0
        for host_count in _HOST_COUNTS:
            load = host_load(plan, host_count)
            row: dict[str, Any] = {
                "split": split,
                "batches": batches,
                "hosts": load.hosts,
                "groups": load.groups,
                "bytes": load.bytes,
            }
            if load.delivered:
                row["ratio"] = load.decoded / load.delivered
            if load.steps < batches:
                row["note"] = f"of the first {numbers.count(load.steps)}"
            rows.append(row)
    return rows
