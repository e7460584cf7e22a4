"""The ids of documents, on their way from a row group to their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.ragged import offsets_of
from tokenlake.reading.runs import move, runs, values
from tokenlake.reading.wanted import Part

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True)
class Texts:
    """m documents.

    Attributes:
        places: where each goes, int64[m].
        start: where its ids begin in `ids`, int64[m].
        lengths: how many there are, int64[m].
        ids: of the whole row group if half of them or more are wanted, else only those: int32[k].
        learned: which of `ids` bear loss, bool[k]; None where it is not asked for.
    """

    places: Int64
    start: Int64
    lengths: Int64
    ids: Int32
    learned: Bools | None

    @classmethod
    def of(cls, part: Part, bos_id: int, *, masked: bool) -> Texts:
        """Take the wanted documents of a row group, without padding; a row group that little is wanted of is let go."""
        flat, offsets = runs(part.batch, "input_ids")
        start, lengths = _unpadded(part.batch, offsets)
        start, lengths, ids = start[part.rows], lengths[part.rows], values(flat)
        learned = _stored(part.batch) if masked else None
        if lengths.sum() * 2 < len(ids):
            begin = offsets_of(lengths)
            ids = _moved(ids, start, begin, lengths)
            learned = None if learned is None else _moved(learned, start, begin, lengths)
            start = begin[:-1]
        if masked and learned is None:
            learned = _all_but_bos(ids, start[lengths > 0], bos_id)
        return cls(part.places, start, lengths, ids, learned)

    def put(self, offsets: Int64, ids: Int32, learned: Bools | None) -> None:
        """Copy them to where `offsets` (int64[n + 1]) says that documents begin."""
        begin = offsets[self.places]
        move(self.ids, self.start, ids, begin, self.lengths)
        if learned is not None and self.learned is not None:
            move(self.learned, self.start, learned, begin, self.lengths)


def _unpadded(batch: pa.RecordBatch, offsets: Int64) -> tuple[Int64, Int64]:
    """Return where the ids of each row of a row group begin and how many there are; padding is at one end of a row."""
    start, lengths = offsets[:-1], np.diff(offsets)
    if "attention_mask" not in batch.schema.names:
        return start, lengths
    mask = values(runs(batch, "attention_mask")[0])
    counts = np.diff(offsets_of(mask)[offsets])
    before = np.append(mask, 0)[start] == 0
    return np.where(before, start + lengths - counts, start), counts


def _stored(batch: pa.RecordBatch) -> Bools | None:
    return values(runs(batch, "loss_mask")[0]) if "loss_mask" in batch.schema.names else None


def _all_but_bos(ids: Int32, first: Int64, bos_id: int) -> Bools:
    learned = np.ones(len(ids), np.bool_)
    learned[first[ids[first] == bos_id]] = False
    return learned


def _moved(source: npt.NDArray[Any], start: Int64, begin: Int64, lengths: Int64) -> npt.NDArray[Any]:
    target = np.empty(begin[-1], source.dtype)
    move(source, start, target, begin[:-1], lengths)
    return target
