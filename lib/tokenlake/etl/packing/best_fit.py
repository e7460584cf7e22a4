"""Best-fit packing: as few rows as possible without cutting a document that fits a row.

1. A document longer than a row is whole rows and a rest. All rests are placed as items
   in bins.
2. Best-fit decreasing places them (:mod:`tokenlake.etl.packing.best_fit_decreasing`):
   it is fast, and mostly optimal.
3. If its rows are not full enough, rests of documents that are cut anyway fill the gaps
   (:func:`spilled`).
4. If that is not enough either, exact fit places all items anew
   (:mod:`tokenlake.etl.packing.exact_fit`). It comes first if all documents are short.

**Spilling.** A rest may be cut once more, because its document has several segments
already. The emptiest rows that hold nothing but rests are emptied into the largest gaps
of the others.

Example: rows of 8 tokens; three documents of 13 tokens leave rests of 5 each, and two
documents of 5 are not cut. No two of these five items share a row, which makes five
rows with gaps of 3. The row of one rest is emptied: 3 of its tokens go into one gap, 2
into another, and four rows remain.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.base.arrays import Bools, Int64
from tokenlake.etl.packing.best_fit_decreasing import assign_best_fit_decreasing
from tokenlake.etl.packing.exact_fit import assign_exact_fit
from tokenlake.etl.packing.segments import Rests, Segments, from_rests

_SMALLEST_GAP: Final = 64
"""A gap smaller than a row divided by this is not worth a piece of its own."""

_SLOTS_PER_PADDING: Final = 1000
"""One slot in this many may be padding before something else is tried."""


def best_fit_segments(
    lengths: Int64, capacity: int, max_segments: int | None = None
) -> Segments:
    """Plan documents into rows of `capacity` tokens.

    Args:
        lengths: Tokens of each document, at least 1, int64[n].
        capacity: Tokens per row.
        max_segments: Largest number of pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input. A document that fits a row
        is never cut. A longer one is whole rows and a rest, which is mostly one piece.
    """
    # The goal: rows are few enough if they are as few as possible, or if hardly a slot
    # is padding.
    token_count = int(lengths.sum())
    fewest_rows = -(-token_count // capacity)
    nearly_full_slots = capacity * (_SLOTS_PER_PADDING - 1)
    nearly_full_rows = token_count * _SLOTS_PER_PADDING // nearly_full_slots
    whole_rows = int((lengths // capacity).sum())
    goal = max(fewest_rows, nearly_full_rows) - whole_rows

    methods = (assign_best_fit_decreasing, assign_exact_fit)
    is_longest_short = 2 * int(lengths.max(initial=0)) <= capacity
    if is_longest_short:  # exact fit reaches the goal at once
        methods = (assign_exact_fit, assign_best_fit_decreasing)

    # The first method that reaches the goal, or else the one with the fewest rows.
    best_rests: Rests | None = None
    for method in methods:
        rests = Rests.of(
            lengths,
            capacity,
            lambda sizes, fit=method: fit(sizes, capacity, max_segments),
        )
        if rests.bins > goal:
            rests = spilled(rests, capacity, rests.bins - goal, max_segments)
        if best_rests is None or rests.bins < best_rests.bins:
            best_rests = rests
        if best_rests.bins <= goal:
            break
    assert best_rests is not None
    return from_rests(lengths, capacity, best_rests)


def spilled(
    rests: Rests, capacity: int, max_emptied: int, max_segments: int | None = None
) -> Rests:
    """Return rests of which some rows are emptied into the gaps of others.

    The rests are returned as they are if no row can be emptied.

    Args:
        rests: Rests in shared rows.
        capacity: Tokens per row.
        max_emptied: Largest number of rows to empty.
        max_segments: Largest number of pieces in a row; None: any number.
    """
    # 1. Rows that may be emptied: the emptiest of those without an uncut document.
    used = np.bincount(rests.bin, rests.length).astype(np.int64)
    has_uncut_document = np.bincount(rests.bin, rests.start == 0) > 0
    movable = np.flatnonzero(~has_uncut_document)
    emptied = movable[np.argsort(used[movable], kind="stable")][:max_emptied]
    # 2. Gaps of all rows. One that is small, or in a row with too many pieces, counts
    #    as none.
    gaps_of_all = capacity - used
    gaps_of_all[gaps_of_all < capacity // _SMALLEST_GAP] = 0
    if max_segments is not None:
        gaps_of_all[np.bincount(rests.bin) + 2 > max_segments] = 0
    # 3. Empty as many of these rows as the gaps of the other rows have room for.
    while len(emptied):
        gaps = gaps_of_all.copy()
        gaps[emptied] = 0
        if gaps.sum() >= used[emptied].sum():
            moved = _moved(rests, np.isin(rests.bin, emptied), gaps)
            # A row that takes pieces of several rests may get too many of them.
            most_pieces = int(np.bincount(moved.bin).max())
            if max_segments is not None and most_pieces > max_segments:
                return rests
            return moved
        emptied = emptied[:-1]
    return rests


def _moved(rests: Rests, is_moving: Bools, gaps: Int64) -> Rests:
    """Return rests of which some are laid into gaps.

    Args:
        rests: Rests in shared rows.
        is_moving: True for the rests that leave their rows, bool[m].
        gaps: Tokens that each row has room for, int64[rows].
    """
    # 1. Lay the moving rests end to end, and the gaps, largest first, beside them.
    length = rests.length[is_moving]
    rest_begins = np.cumsum(length) - length
    largest_first = np.argsort(-gaps, kind="stable")
    gap_begins = np.cumsum(gaps[largest_first]) - gaps[largest_first]
    gap_begins = gap_begins[: int(np.searchsorted(gap_begins, length.sum()))]
    # 2. Cut where a rest or a gap begins. Each piece is of one rest and in one gap.
    cuts = np.union1d(rest_begins, gap_begins)
    rest_of_piece = np.searchsorted(rest_begins, cuts, side="right") - 1
    gap_of_piece = np.searchsorted(gap_begins, cuts, side="right") - 1
    cut_in_rest = cuts - rest_begins[rest_of_piece]
    start_of_piece = rests.start[is_moving][rest_of_piece] + cut_in_rest
    # 3. The rests that stay, followed by the pieces.
    moving_documents = rests.document[is_moving][rest_of_piece]
    document = np.concatenate([rests.document[~is_moving], moving_documents])
    start = np.concatenate([rests.start[~is_moving], start_of_piece])
    piece_sizes = np.diff(cuts, append=length.sum())
    sizes = np.concatenate([rests.length[~is_moving], piece_sizes])
    row_of_piece = largest_first[gap_of_piece]
    rows = np.concatenate([rests.bin[~is_moving], row_of_piece])
    # 4. Sorted by document, in rows that are numbered without gaps.
    by_document = np.lexsort((start, document))
    row_numbers = np.unique(rows[by_document], return_inverse=True)[1]
    return Rests(
        document[by_document], start[by_document], sizes[by_document], row_numbers
    )
