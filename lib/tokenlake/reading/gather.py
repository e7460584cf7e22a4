"""Any rows of several datasets, in any order, as one batch.

Each row group is decoded once for a call, and let go unless the cache keeps it: what is wanted of it is taken to its
places at once. Only what has many lengths is collected first, since where a run goes depends on those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.ragged import offsets_of
from tokenlake.reading.cache import GroupCache
from tokenlake.reading.pieces import Pieces, learned_rows
from tokenlake.reading.runs import bit_array, matrix, numbers
from tokenlake.reading.texts import Texts
from tokenlake.reading.version import StoredRows
from tokenlake.reading.wanted import check_kind, wanted_parts
from tokenlake.schema import DOCUMENT, packed_schema

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NO_ID: Final = -1


class Documents(NamedTuple):
    """n documents.

    Attributes:
        ids: int32[total], without padding.
        offsets: where each document begins and the last ends, int64[n + 1] from 0.
        file, position: where each comes from, int64[n].
        learned: which ids bear loss, bool[total]; None where no dataset says so, and all do.
    """

    ids: Int32
    offsets: Int64
    file: Int64
    position: Int64
    learned: Bools | None


def take_packed(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    *,
    cache: GroupCache[pa.RecordBatch],
    bos_id: int | None = None,
) -> pa.RecordBatch:
    """Return sequences of packed datasets of one length.

    Args:
        sources: the datasets.
        source, group, row: of each wanted row, int64[n]: index of its dataset, row group in it, row in that.
        cache: where row groups are decoded.
        bos_id: what begins a document; None where nothing does.

    Returns:
        n rows of :func:`tokenlake.schema.packed_schema`. They have a ``loss_mask`` if one of the datasets has; in rows
        of another, all ids of a document bear loss but its BOS.

    Raises:
        ConfigError: the datasets are not packed to one length, or have no such row.
        IntegrityError: a row group is damaged.
    """
    check_kind(sources, "packed")
    length, masked = sources[0].manifest.seq_length or 0, any(rows.has_loss_mask for rows in sources)
    ids = np.empty((len(source), length), np.int32)
    learned = np.empty((len(source), -(-length // 8)), np.uint8) if masked else None
    pieces: list[Pieces] = []
    for part in wanted_parts(sources, source, group, row, cache):
        wanted = Pieces.of(part)
        ids[part.places] = np.take(matrix(part.batch, "input_ids"), part.rows, axis=0)
        if learned is not None:
            learned[part.places] = learned_rows(part, wanted, ids, _NO_ID if bos_id is None else bos_id)
        pieces.append(wanted)
    return _packed_batch(ids, learned, Pieces.joined(pieces))


def take_documents(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    *,
    cache: GroupCache[pa.RecordBatch],
    bos_id: int | None = None,
) -> Documents:
    """Return documents of token datasets, without the padding that some have; arguments as of :func:`take_packed`.

    Raises:
        ConfigError: the datasets are not of kind ``tokens``, or have no such row.
        IntegrityError: a row group is damaged.
    """
    check_kind(sources, "tokens")
    masked = any(rows.has_loss_mask for rows in sources)
    lengths, file, position = np.empty((3, len(source)), np.int64)
    parts: list[Texts] = []
    for part in wanted_parts(sources, source, group, row, cache):
        found = Texts.of(part, _NO_ID if bos_id is None else bos_id, masked=masked)
        lengths[part.places] = found.lengths
        file[part.places] = numbers(part.batch, "file")[part.rows]
        position[part.places] = numbers(part.batch, "position")[part.rows]
        parts.append(found)
    offsets = offsets_of(lengths)
    ids = np.empty(offsets[-1], np.int32)
    learned = np.empty(offsets[-1], np.bool_) if masked else None
    for found in parts:
        found.put(offsets, ids, learned)
    return Documents(ids, offsets, file, position, learned)


def _packed_batch(ids: Int32, learned: npt.NDArray[np.uint8] | None, pieces: Pieces) -> pa.RecordBatch:
    """Rows as Arrow, without copying the ids."""
    schema = packed_schema(ids.shape[1], loss_mask=learned is not None)
    offsets: Any = pa.array(offsets_of(pieces.counts).astype(np.int32))
    fields: list[Any] = [pa.array(pieces.columns[child.name]) for child in DOCUMENT]
    ragged: dict[str, Any] = {
        "segment_lengths": pa.array(pieces.columns["length"]),
        "documents": pa.StructArray.from_arrays(fields, fields=list(DOCUMENT)),
    }
    fixed: dict[str, Any] = {"input_ids": pa.array(ids.reshape(-1))}
    if learned is not None:
        fixed["loss_mask"] = bit_array(learned, ids.shape[1])
    columns: list[Any] = []
    for column in schema:
        kind: Any = column.type
        if column.name in ragged:
            columns.append(pa.ListArray.from_arrays(offsets, ragged[column.name], type=kind))
        else:
            columns.append(pa.FixedSizeListArray.from_arrays(fixed[column.name], type=kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
