"""Batches of any rows of packed datasets, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int32, Int64, UInt8, cells, offsets_of, values
from tokenlake.errors import IntegrityError
from tokenlake.runtime.reading.bits import bit_array, bit_rows, matrix, packed_bits
from tokenlake.runtime.reading.stored_columns import runs
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.reading.wanted_rows import (
    ReadGroup,
    WantedGroup,
    check_kind,
    wanted_groups,
)
from tokenlake.runtime.schema import packed_schema

_LENGTHS: Final = "segment_lengths"
_DOCUMENTS: Final = "documents"
_LOSS_MASK: Final = "loss_mask"


def take_packed(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    *,
    read: ReadGroup,
    bos_id: int | None = None,
) -> pa.RecordBatch:
    """Return sequences of packed datasets of one length.

    Args:
        sources: Datasets.
        source: Index of each wanted row's dataset, int64[n].
        group: Row group of each row in its dataset, int64[n].
        row: Row in the row group, int64[n].
        read: Function of (dataset, number of a row group) that returns the decoded row
            group, all columns.
        bos_id: Id that begins a document; None if there is none.

    Returns:
        n rows of :func:`tokenlake.runtime.schema.packed_schema`. They have a
        ``loss_mask`` if one of the datasets has. In rows of the other datasets, all ids
        of a document except its BOS count toward the loss.

    Raises:
        ConfigError: The datasets are not packed to one length, or a row does not exist.
        IntegrityError: A row group is damaged.
    """
    check_kind(sources, "packed")
    length = sources[0].manifest.width
    has_loss_mask = any(rows.has_loss_mask for rows in sources)
    ids = np.empty((len(source), length), np.int32)
    loss_bits: UInt8 | None = None
    if has_loss_mask:
        loss_bits = np.empty((len(source), -(-length // 8)), np.uint8)

    # Rows have one length: ids and loss bits go to their places at once, segments are
    # put in order at the end.
    segments: list[pa.RecordBatch] = []
    places: list[Int64] = []
    for wanted_group in wanted_groups(sources, source, group, row, read):
        wanted_segments = _segments_of(wanted_group)
        ids[wanted_group.places] = np.take(
            matrix(wanted_group.batch, "input_ids"), wanted_group.rows, axis=0
        )
        if loss_bits is not None:
            loss_bits[wanted_group.places] = _loss_bits_of(
                wanted_group, wanted_segments, ids, bos_id
            )
        segments.append(wanted_segments)
        places.append(wanted_group.places)
    schema: Any = packed_schema(length, loss_mask=has_loss_mask)
    if not segments:
        return pa.RecordBatch.from_pylist([], schema)

    # Segments were collected row group by row group; they are taken in the order of the
    # request.
    arrow: Any = pa
    in_order = arrow.array(np.argsort(np.concatenate(places)))
    ordered_segments = arrow.concat_batches(segments).take(in_order)
    columns: dict[str, Any] = {
        "input_ids": arrow.FixedSizeListArray.from_arrays(
            arrow.array(ids.reshape(-1)), type=schema.field("input_ids").type
        ),
        _LENGTHS: ordered_segments.column(_LENGTHS),
        _DOCUMENTS: ordered_segments.column(_DOCUMENTS),
    }
    if loss_bits is not None:
        columns[_LOSS_MASK] = arrow.FixedSizeListArray.from_arrays(
            bit_array(loss_bits, length), type=schema.field(_LOSS_MASK).type
        )
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in schema.names], schema=schema
    )


def _segments_of(wanted: WantedGroup) -> pa.RecordBatch:
    """Return lengths and documents of the wanted rows' segments.

    Raises:
        IntegrityError: A row has another number of lengths than of documents.
    """
    segments: Any = wanted.batch.select([_LENGTHS, _DOCUMENTS])
    _, offsets_of_lengths = runs(segments, _LENGTHS)
    _, offsets_of_documents = runs(segments, _DOCUMENTS)
    if not np.array_equal(offsets_of_lengths, offsets_of_documents):
        raise IntegrityError(
            f"{wanted.source.name}: rows with other numbers of segments than of documents. "
            "Run `tokenlake verify --deep`."
        )
    return segments.take(pa.array(wanted.rows))


def _loss_bits_of(
    wanted: WantedGroup, segments: pa.RecordBatch, ids: Int32, bos_id: int | None
) -> UInt8:
    """Return the ids that count toward the loss, as bits: uint8[m, ceil(length / 8)].

    Where the dataset stores no loss mask, all ids of segments count, except the BOS
    that begins a document.

    Args:
        wanted: Row group with its m wanted rows.
        segments: Segments of the wanted rows.
        ids: Ids of all rows of the result, int32[n, length].
        bos_id: Id that begins a document; None if there is none.
    """
    if _LOSS_MASK in wanted.batch.schema.names:
        return np.take(bit_rows(wanted.batch, _LOSS_MASK), wanted.rows, axis=0)

    # 1. The ids of segments, which are the first ids of a row; padding follows.
    lengths, limits = runs(segments, _LENGTHS)
    documents, _ = runs(segments, _DOCUMENTS)
    segment_ends = offsets_of(values(lengths))
    row_begins = segment_ends[limits[:-1]]
    used_ids = segment_ends[limits[1:]] - row_begins
    is_learned = cells(used_ids, ids.shape[1], left=False)

    # 2. Without the first id of a document where that is BOS.
    if bos_id is not None:
        row_of_segment = np.repeat(np.arange(len(wanted.rows)), np.diff(limits))
        begin_in_row = segment_ends[:-1] - row_begins[row_of_segment]
        first_ids = ids[wanted.places[row_of_segment], begin_in_row]
        is_bos = (values(documents.field("start")) == 0) & (first_ids == bos_id)
        is_learned[row_of_segment[is_bos], begin_in_row[is_bos]] = False
    return packed_bits(is_learned)
