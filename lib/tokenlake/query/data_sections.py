"""The sections of a report that come from a version's data.

These are lengths, rows, bad records, texts and loading.

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
from tokenlake.etl.sources.position_kinds import place_of, position_kinds_of
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

# Limits of decoded rows. A run is a sequence of ids of a document that are alike in
# whether they count toward the loss.
_DECODED_ROWS: Final = 24
_SHOWN_DOCUMENTS: Final = 40  # of a row
_SHOWN_RUNS: Final = 40  # of a document

# Limits of bad records.
_BAD_RECORD_FILES: Final = 8
_BAD_RECORD_BYTES: Final = 64 << 20  # of a file that is opened
_READ_BAD_RECORDS: Final = 256  # of a file
_SHOWN_BAD_RECORDS: Final = 4  # of a reason

# The loader whose reads are estimated.
_BATCH_SIZE: Final = 64
_HOST_COUNTS: Final = (1, 8, 64)
# Bytes of a split without packing. A loader reads the lengths of all its rows first,
# which takes long for more.
_SPLIT_BYTES: Final = 256 << 20

_FILL_LEVELS: Final = (0, 50, 75, 90, 95, 99, 100)  # in percent of the sequence length


def data_sections(
    catalog: Catalog, manifest: Manifest, *, with_texts: bool = True
) -> Sections:
    """Return the sections of a version's data, as far as the version has them.

    Args:
        catalog: Catalog of the store that holds the version.
        manifest: Manifest of the version.
        with_texts: False to leave out the decoded rows.

    Raises:
        IntegrityError: A file of the version is damaged.
    """
    store = catalog.store
    sections: Sections = []
    # A mixture may name its sources otherwise than its rows.
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
        note = f"Counted in all {numbers.plural(sample.rows, 'row')}."
        return tag("p", note, class_="dim")
    all_groups = numbers.plural(sample.of, "row group")
    groups = f"{numbers.count(sample.groups)} of {all_groups}"
    note = (
        f"{_basis(sample).capitalize()}, in {groups} at equal distances. "
        "A document that continues beyond them counts up to its last piece in the sample."
    )
    return tag("p", note, class_="dim")


def _basis(sample: RowSample) -> str:
    """Return the rows of an estimate: ``estimated from 7,881 of 29,085 rows``."""
    all_rows = numbers.plural(sample.all_rows, "row")
    return f"estimated from {numbers.count(sample.rows)} of {all_rows}"


def _lengths(sample: RowSample) -> Html:
    """Draw the lengths of each source's documents, and list the extreme ones."""
    histograms: list[Html] = []
    for source, ids in sample.lengths.items():
        quantiles: list[str] = []
        for quantile in np.quantile(ids, [0.05, 0.5, 0.95]):
            quantiles.append(numbers.count(int(quantile)))
        shortest, median, longest = quantiles
        documents = numbers.plural(len(ids), "document")
        summary = f"{documents}: median {median}; 90% between {shortest} and {longest}"
        if not sample.is_exact:
            summary += f"; {_basis(sample)}"
        summary_line = tag("p", summary, class_="dim")
        histogram = bars(doubling(_counts(ids)))
        histograms.append(tag("div", tag("h3", source), summary_line, histogram))

    # A sample has its own longest documents, which are not those of the version.
    sampled = ""
    if not sample.is_exact:
        sampled = f" of {numbers.plural(sample.rows, 'sampled row')}"
    lists = [
        tag("div", _document_table(f"Longest documents{sampled}", sample.longest)),
        tag("div", _document_table(f"Shortest documents{sampled}", sample.shortest)),
    ]
    introduction = tag("p", "Tokens per document, including special tokens, by source.")
    grids = [tag("div", *histograms, class_="grid"), tag("div", *lists, class_="grid")]
    return together([introduction, _sample_note(sample), *grids])


def _document_table(title: str, documents: tuple[DocumentLength, ...]) -> Html:
    """Return a table of documents, with the files and positions to find them by."""
    columns = (
        number("ids", "tokens"),
        label("source"),
        label("path", "file"),
        number("position"),
    )
    rows: list[tuple[Any, ...]] = []
    for document in documents:
        rows.append((document.ids, document.source, document.path, document.position))
    return to_html(Table(columns, tuple(rows), title))


def _counts(values: Int64) -> list[tuple[int, int]]:
    """Return pairs (value, number of times it occurs)."""
    return list(Counter(values.tolist()).items())


def _fullness(sample: RowSample, sequence_length: int) -> Html:
    """Draw how full the rows are, and of how many pieces of documents they consist."""
    # Level k is from its own limit to the next one; the last is that of full rows.
    fill = 100 * sample.filled / sequence_length
    level_of_row = np.searchsorted(_FILL_LEVELS, fill, side="right") - 1
    level_names = [f"{low}% to {high}%" for low, high in pairwise(_FILL_LEVELS)]
    level_names.append("100%")
    rows_by_level: list[tuple[str, int]] = []
    for level, level_name in enumerate(level_names):
        rows_by_level.append((level_name, int((level_of_row == level).sum())))
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
    """Return the bad records by source and reason, and some of each reason."""
    rows: list[dict[str, Any]] = []
    for source, account in manifest.accounts.items():
        for reason, records in account.quarantined.items():
            rows.append({"source": source, "reason": reason, "records": records})
    table = Table.of((label("source"), label("reason"), number("records")), rows)

    # A place is written as the view of the bad records has it.
    position_kinds = position_kinds_of(manifest)
    shown_by_reason: Counter[str] = Counter()
    examples: list[Html] = []
    for record in _quarantined_records(store, manifest):
        reason = record["reason"]
        if shown_by_reason[reason] < _SHOWN_BAD_RECORDS:
            shown_by_reason[reason] += 1
            position_kind = position_kinds.get(record["file"], "")
            examples.append(_bad_record(record, position_kind))
    return together([to_html(table), *examples])


def _bad_record(record: Mapping[str, Any], position_kind: str) -> Html:
    """Return a bad record: its reason and place, and its beginning.

    Args:
        record: Record, by columns of the quarantine.
        position_kind: Meaning of its position.
    """
    place = place_of(record["path"], record["position"], record["line"], position_kind)
    reason_and_place = tag("b", f"{record['reason']}  {place}")
    heading = tag("p", reason_and_place, f"  {record['detail']}", class_="dim")
    # The bytes may be no text: that is why some records are bad.
    raw_text = record["raw"].decode("utf-8", "backslashreplace")
    raw = tag("pre", _shortened_text(raw_text))
    return tag("div", heading, raw, class_="document b5")


def _quarantined_records(
    store: ReadStore, manifest: Manifest
) -> Iterator[dict[str, Any]]:
    """Yield the first records of some files; a copy without these files has none."""
    # A file that is too large is not read for a few records of it.
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
        reader = pa.BufferReader(data)
        with pq.ParquetFile(reader, page_checksum_verification=True) as file:
            first_batch = next(file.iter_batches(_READ_BAD_RECORDS))
            yield from first_batch.to_pylist()


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
    # Without its tokenizer a version has no texts to show.
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
    first_id = 0
    for index, segment in enumerate(row.segments[:_SHOWN_DOCUMENTS]):
        origin = segment.origin(names)
        if segment.part:
            origin = f"{segment.part}  {origin}"
        place = segment.place(first_id)
        heading = tag("p", tag("b", origin), f"  {place}", class_="dim")
        text = tag("pre", *_decoded_runs(segment, decoders[segment.source]))
        # Neighbouring documents have borders of different colours.
        border_class = f"document b{index % (COLOURS - 1)}"
        parts.append(tag("div", heading, text, class_=border_class))
        first_id += len(segment.ids)
    hidden_documents = len(row.segments) - _SHOWN_DOCUMENTS
    if hidden_documents > 0:
        note = f"{numbers.count(hidden_documents)} more in this row"
        parts.append(tag("p", note, class_="dim"))

    # Fields that were kept from the input.
    for field_name, value in row.kept.items():
        value_text = _shortened_text(orjson.dumps(value, default=str).decode())
        parts.append(tag("p", tag("b", field_name), " ", value_text))
    return folded(
        f"{row.split} row {numbers.count(row.row)}: {row.content()}",
        *parts,
        is_open=is_open,
    )


def _decoded_runs(segment: Segment, decoder: Decoder) -> list[Part]:
    """Return the text of a segment.

    With a loss mask, runs of tokens that count toward the loss are marked.
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
        color = "off"
        if is_learned:
            color = "on"
        texts.append(tag("span", text + line_ends, class_=color))
    hidden_runs = len(runs) - _SHOWN_RUNS
    if hidden_runs > 0:
        texts.append(f" ... {numbers.count(hidden_runs)} more runs ...")
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
    """Return the cost of one epoch, by the loader's own plan and its defaults."""
    rows: list[dict[str, Any]] = []
    for split in manifest.splits:
        rows += _host_loads(store, manifest, split)
    note = f"One epoch in batches of {_BATCH_SIZE} rows, shuffled with seed 0; each host decodes a row group once."
    table = to_html(Table.of(_LOADING_COLUMNS, rows))
    return together([tag("p", note, class_="dim"), table])


def _host_loads(
    store: ReadStore, manifest: Manifest, split: str
) -> list[dict[str, Any]]:
    """Return a row for each number of hosts."""
    # Packed rows have one length, so that a plan needs no data.
    if manifest.kind != "packed" and manifest.splits[split].bytes > _SPLIT_BYTES:
        note = "not estimated: a loader first reads the lengths of all rows"
        return [{"split": split, "note": note}]
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
            # Row groups at the border of two hosts are decoded by both.
            if load.delivered:
                row["ratio"] = load.decoded / load.delivered
            # Only the beginning of a long epoch is estimated.
            if load.steps < batches:
                row["note"] = f"of the first {numbers.count(load.steps)}"
            rows.append(row)
    return rows
