"""Any documents of token datasets, in any order.

Documents have many lengths. Where the ids of a document go in the result depends on the
lengths of all documents before it, so that the wanted ids are collected first and
copied to their places at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, offsets_of, values
from tokenlake.runtime.reading.copy_runs import copied_runs, copy_runs
from tokenlake.runtime.reading.stored_columns import runs
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.reading.wanted_rows import (
    ReadGroup,
    WantedGroup,
    check_kind,
    wanted_groups,
)


class StoredDocuments(NamedTuple):
    """n documents.

    Attributes:
        ids: Ids of all documents, one after the other, without padding, int32[total].
        offsets: Begin of each document in `ids` and end of the last, int64[n + 1] from
            0.
        file: Hash of the file that each document comes from, int64[n].
        position: Row index or byte offset in that file, int64[n].
        learned: True for ids that count toward the loss, bool[total]; None if no
            dataset has a mask: then all count.
    """

    ids: Int32
    offsets: Int64
    file: Int64
    position: Int64
    learned: Bools | None


def take_documents(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    *,
    read: ReadGroup,
    bos_id: int | None = None,
) -> StoredDocuments:
    """Return documents of token datasets, without the padding that some datasets store.

    Args:
        sources: Datasets.
        source: Index of each wanted document's dataset, int64[n].
        group: Row group of each document in its dataset, int64[n].
        row: Row in the row group, int64[n].
        read: Function of (dataset, number of a row group) that returns the decoded row
            group, all columns.
        bos_id: Id that begins a document; None if there is none.

    Raises:
        ConfigError: The datasets are not of kind ``tokens``, or a row does not exist.
        IntegrityError: A row group is damaged.
    """
    check_kind(sources, "tokens")
    has_loss_mask = any(rows.has_loss_mask for rows in sources)
    # Lengths and origins of documents go to their places at once, ids are collected.
    lengths = np.empty(len(source), np.int64)
    file = np.empty(len(source), np.int64)
    position = np.empty(len(source), np.int64)
    collected: list[_CollectedIds] = []
    for wanted_group in wanted_groups(sources, source, group, row, read):
        part = _collected(wanted_group, bos_id, has_loss_mask=has_loss_mask)
        lengths[wanted_group.places] = part.lengths
        file[wanted_group.places] = values(wanted_group.batch.column("file"))[
            wanted_group.rows
        ]
        position[wanted_group.places] = values(wanted_group.batch.column("position"))[
            wanted_group.rows
        ]
        collected.append(part)

    # All lengths are known: the ids go to their places.
    offsets = offsets_of(lengths)
    ids = np.empty(offsets[-1], np.int32)
    learned: Bools | None = None
    if has_loss_mask:
        learned = np.empty(offsets[-1], np.bool_)
    for part in collected:
        begin = offsets[part.places]
        copy_runs(part.ids, part.start, ids, begin, part.lengths)
        if learned is not None and part.learned is not None:
            copy_runs(part.learned, part.start, learned, begin, part.lengths)
    return StoredDocuments(ids, offsets, file, position, learned)


@final
@dataclass(frozen=True, slots=True)
class _CollectedIds:
    """Ids of the m wanted documents of a row group.

    Attributes:
        places: Place of each document in the result, int64[m].
        start: Begin of each document's ids in `ids`, int64[m].
        lengths: Number of ids of each document, int64[m].
        ids: Ids of the whole row group if at least half of them are wanted, otherwise
            only the wanted ones, int32[k].
        learned: True for elements of `ids` that count toward the loss, bool[k]; None if
            no dataset has a mask.
    """

    places: Int64
    start: Int64
    lengths: Int64
    ids: Int32
    learned: Bools | None


def _collected(
    wanted: WantedGroup, bos_id: int | None, *, has_loss_mask: bool
) -> _CollectedIds:
    """Collect the ids of the wanted documents of a row group, without padding."""
    batch = wanted.batch
    stored_ids, offsets = runs(batch, "input_ids")
    start_of_rows, length_of_rows = _without_padding(batch, offsets)
    start = start_of_rows[wanted.rows]
    lengths = length_of_rows[wanted.rows]
    ids = values(stored_ids)
    learned: Bools | None = None
    if has_loss_mask and "loss_mask" in batch.schema.names:
        stored_mask, _ = runs(batch, "loss_mask")
        learned = values(stored_mask)

    # A row group of which less than half is wanted is copied, so that its memory can be
    # released.
    if lengths.sum() * 2 < len(ids):
        ids = copied_runs(ids, start, lengths)
        if learned is not None:
            learned = copied_runs(learned, start, lengths)
        start = np.cumsum(lengths) - lengths

    # Without a stored mask all ids count, except a BOS that begins a document.
    if has_loss_mask and learned is None:
        learned = np.ones(len(ids), np.bool_)
        if bos_id is not None:
            first_ids = start[lengths > 0]
            learned[first_ids[ids[first_ids] == bos_id]] = False
    return _CollectedIds(wanted.places, start, lengths, ids, learned)


def _without_padding(batch: pa.RecordBatch, offsets: Int64) -> tuple[Int64, Int64]:
    """Return begin and number of each row's ids without padding, int64[rows] both.

    The padding is at one end of a row.

    Args:
        batch: Row group.
        offsets: Begin of each row in the values of its list columns, and end of the
            last row, int64[rows + 1].
    """
    start = offsets[:-1]
    lengths = np.diff(offsets)
    if "attention_mask" not in batch.schema.names:
        return start, lengths
    # Ids of a row are the ones of its mask; padding comes first if the mask begins with
    # a zero.
    stored_mask, _ = runs(batch, "attention_mask")
    mask = values(stored_mask)
    ids_per_row = np.diff(offsets_of(mask)[offsets])
    is_padded_before = np.append(mask, 0)[start] == 0
    return np.where(is_padded_before, start + lengths - ids_per_row, start), ids_per_row
