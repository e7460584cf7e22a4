"""Rows that can be done without: rests of documents that are cut anyway go into the room that other rows have left.

A rest may be cut once more, for its document has several pieces already. So the emptiest rows that hold nothing but
such rests are emptied into the largest gaps of the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tokenlake.packing.segments import Rests

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LEAST_GAP: Final = 64
"""A gap smaller than a row divided by this is not worth a piece of its own."""


def spilled(rests: Rests, seq_length: int, too_many: int, max_segments: int | None = None) -> Rests:
    """Empty up to `too_many` rows; return the rests as they are where none can be.

    Args:
        rests: in shared rows of `seq_length` tokens.
        max_segments: at most so many pieces in a row; None: any number.
    """
    used = np.bincount(rests.bin, rests.length).astype(np.int64)
    whole = np.bincount(rests.bin, rests.start == 0) > 0  # rows with a document that is not cut
    movable = np.flatnonzero(~whole)
    emptied = movable[np.argsort(used[movable], kind="stable")][:too_many]
    room = seq_length - used
    room[room < seq_length // _LEAST_GAP] = 0
    if max_segments is not None:
        room[np.bincount(rests.bin) + 2 > max_segments] = 0
    while len(emptied):
        gaps = room.copy()
        gaps[emptied] = 0
        if gaps.sum() >= used[emptied].sum():
            moved = _moved(rests, np.isin(rests.bin, emptied), gaps)
            most = int(np.bincount(moved.bin).max())
            return moved if max_segments is None or most <= max_segments else rests
        emptied = emptied[:-1]
    return rests


def _moved(rests: Rests, moving: Bools, gaps: Int64) -> Rests:
    """Lay the rests that are moving end to end, and cut them where a gap is full and the next one begins."""
    length = rests.length[moving]
    begins = np.cumsum(length) - length
    order = np.argsort(-gaps, kind="stable")
    starts = np.cumsum(gaps[order]) - gaps[order]
    starts = starts[: int(np.searchsorted(starts, length.sum()))]
    cuts = np.union1d(begins, starts)
    rest = np.searchsorted(begins, cuts, side="right") - 1
    document = np.concatenate([rests.document[~moving], rests.document[moving][rest]])
    start = np.concatenate([rests.start[~moving], rests.start[moving][rest] + cuts - begins[rest]])
    sizes = np.concatenate([rests.length[~moving], np.diff(cuts, append=length.sum())])
    rows = np.concatenate([rests.bin[~moving], order[np.searchsorted(starts, cuts, side="right") - 1]])
    by_document = np.lexsort((start, document))
    bins = np.unique(rows[by_document], return_inverse=True)[1]
    return Rests(document[by_document], start[by_document], sizes[by_document], bins)
