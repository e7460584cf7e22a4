"""Best-fit packing: as few rows as possible without cutting a document that fits a row.

1. A document longer than a row is whole rows and a rest. All rests are placed as items in bins.
2. Best-fit decreasing places them (:mod:`tokenlake.etl.packing.best_fit_decreasing`): it is fast, and mostly optimal.
3. If its rows are not full enough, rests of documents that are cut anyway fill the gaps (:func:`spilled`).
4. If that is not enough either, exact fit places all items anew (:mod:`tokenlake.etl.packing.exact_fit`). It
   comes first where all documents are short.

**Spilling.** A rest may be cut once more, because its document has several segments already. The emptiest rows that
hold nothing but rests are emptied into the largest gaps of the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.base.arrays import Bools, Int64
from tokenlake.etl.packing.best_fit_decreasing import assign_best_fit_decreasing
from tokenlake.etl.packing.exact_fit import assign_exact_fit
from tokenlake.etl.packing.segments import Rests, Segments, from_rests

_LEAST_GAP: Final = 64  # a gap smaller than a row divided by this is not worth a piece of its own


def spilled(rests: Rests, capacity: int, too_many: int, max_segments: int | None = None) -> Rests:
    """Empty up to `too_many` rows; return the rests as they are where none can be.

    Args:
        rests: in shared rows of `capacity` tokens.
        max_segments: at most so many pieces in a row; None: any number.
    """
    used = np.bincount(rests.bin, rests.length).astype(np.int64)
    whole = np.bincount(rests.bin, rests.start == 0) > 0  # rows with a document that is not cut
    movable = np.flatnonzero(~whole)
    emptied = movable[np.argsort(used[movable], kind="stable")][:too_many]
    room = capacity - used
    room[room < capacity // _LEAST_GAP] = 0
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


_PADDING: Final = 1000  # one slot in so many may be padding before something else is tried


def best_fit_segments(lengths: Int64, capacity: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `capacity` tokens.

    Args:
        max_segments: at most so many pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input. A document that fits a row is never cut. A longer one is
        whole rows and a rest, which is mostly one piece.
    """
    tokens = int(lengths.sum())
    # Rows are few enough where they are as few as is possible, or where hardly a slot is padding.
    enough = max(-(-tokens // capacity), tokens * _PADDING // (capacity * (_PADDING - 1)))
    goal = enough - int((lengths // capacity).sum())
    methods = (assign_best_fit_decreasing, assign_exact_fit)
    if 2 * int(lengths.max(initial=0)) <= capacity:  # nothing large: exact fit will do, and at once
        methods = (assign_exact_fit, assign_best_fit_decreasing)
    best: Rests | None = None
    for method in methods:
        rests = Rests.of(lengths, capacity, lambda sizes, fit=method: fit(sizes, capacity, max_segments))
        if rests.bins > goal:
            rests = spilled(rests, capacity, rests.bins - goal, max_segments)
        best = rests if best is None or rests.bins < best.bins else best
        if best.bins <= goal:
            break
    assert best is not None
    return from_rests(lengths, capacity, best)
