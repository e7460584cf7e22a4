"""A sample of a version's rows as text, for its browser of rows.

The sample has blocks of neighbouring rows at even distances, because reading one row
costs as much as reading the row group around it. A version with 1,000 rows and a sample
of 3 blocks of 8 rows gives rows 0 to 7, 496 to 503 and 992 to 999.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.etl.reports.store_pages import DecodedDocument, DecodedRow
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.query.row_sample import spread
from tokenlake.query.sequences import Place, Segment, Sequence, read_sequences
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.manifest import Manifest

BLOCK_ROWS: Final = 8
"""Number of neighbouring rows in a block."""

# Limits of a row, so that a page of some hundred rows opens at once.
_MOST_CHARACTERS: Final = 12_000
_MOST_DOCUMENTS: Final = 60
# Runs of a document: neighbouring tokens that are alike in whether they count toward
# the loss.
_MOST_RUNS: Final = 200


def decode_sample(
    store: ReadStore,
    manifest: Manifest,
    decoders: Mapping[str, Decoder],
    names: Mapping[Place, str],
    sample_rows: int,
) -> list[DecodedRow]:
    """Return rows of every split at even distances.

    Args:
        store: Store that holds the version.
        manifest: Manifest of the version.
        decoders: Source -> decoder of its tokens.
        names: Mixture's source name of each input file; a file that is missing has its
            own source's name.
        sample_rows: Number of rows, about; each split has one block at least.

    Raises:
        IntegrityError: A shard is missing or damaged.
    """
    # Blocks are divided evenly among the splits, however many rows these have.
    rows: list[DecodedRow] = []
    sampled_blocks = sample_rows // BLOCK_ROWS
    blocks_per_split = max(1, sampled_blocks // max(1, len(manifest.splits)))
    for split, totals in manifest.splits.items():
        block_count = -(-totals.rows // BLOCK_ROWS)
        for block in spread(block_count, blocks_per_split):
            first_row = block * BLOCK_ROWS
            sequences = read_sequences(store, manifest, split, first_row, BLOCK_ROWS)
            for sequence in sequences:
                rows.append(_decoded_row(sequence, decoders, names))
    return rows


def _decoded_row(
    sequence: Sequence, decoders: Mapping[str, Decoder], names: Mapping[Place, str]
) -> DecodedRow:
    """Return a row as text, whose first documents share the limit of characters."""
    # Documents take from the limit in their order, until nothing is left.
    documents: list[DecodedDocument] = []
    remaining = _MOST_CHARACTERS
    first_id = 0
    for segment in sequence.segments[:_MOST_DOCUMENTS]:
        document = _decoded_document(
            segment, decoders[segment.source], names, first_id, remaining
        )
        documents.append(document)
        remaining -= sum(len(field_text) for field_text, _ in document.runs)
        first_id += len(segment.ids)
        if remaining <= 0:
            break
    hidden = ""
    if len(documents) < len(sequence.segments):
        hidden = f"{numbers.count(len(sequence.segments) - len(documents))} more documents are not shown."

    # Values that are no texts are shown as JSON. Names and values come from the data
    # and may hold control characters.
    kept_texts: dict[str, str] = {}
    for field_name, field_value in sequence.kept.items():
        field_text = field_value
        if not isinstance(field_value, str):
            field_text = orjson.dumps(field_value, default=str).decode()
        kept_texts[printable(field_name)] = printable(field_text[:_MOST_CHARACTERS])
    return DecodedRow(
        split=sequence.split,
        row=sequence.row,
        shard=sequence.shard,
        content=sequence.content(),
        documents=tuple(documents),
        kept=kept_texts,
        hidden=hidden,
    )


def _decoded_document(
    segment: Segment,
    decoder: Decoder,
    names: Mapping[Place, str],
    begin: int,
    most_characters: int,
) -> DecodedDocument:
    """Return a segment as text, with at most `most_characters` characters.

    Args:
        segment: Segment of a row.
        decoder: Decoder of its tokens.
        names: Mixture's source name of each input file.
        begin: Index of the segment's first id within its row.
        most_characters: Limit of the text; a longer text is cut.
    """
    # A version without a loss mask has one run.
    runs: list[tuple[str, bool | None]] = []
    remaining = most_characters
    is_cut = False
    for is_learned, ids in segment.runs():
        if remaining <= 0 or len(runs) >= _MOST_RUNS:
            is_cut = True
            break
        # Nearly every token has a character or more: ids beyond the limit need not be
        # decoded.
        decoded_ids = ids[:remaining]
        run_text = printable(decoder.text(decoded_ids))
        mark: bool | None = None
        if segment.learned is not None:
            mark = is_learned
        runs.append((run_text[:remaining], mark))
        is_cut = len(decoded_ids) < len(ids) or len(run_text) > remaining
        remaining -= len(run_text)
    hidden = ""
    if is_cut:
        hidden = "The rest of the document is not shown."
    origin = segment.origin(names)
    if segment.part:
        origin = f"{segment.part}  {origin}"
    return DecodedDocument(
        source=names.get((segment.source, segment.path), segment.source),
        origin=printable(origin),
        place=segment.place(begin),
        runs=tuple(runs),
        hidden=hidden,
    )
