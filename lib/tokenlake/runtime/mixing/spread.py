"""Spread of the rows that lanes take in a group over the cells of that group.

Given are the rows of each source in each lane (``shares``), and how many rows of each
source all lanes together should take in each cell (``wanted``). Every lane fills all
slots of every cell. The lightest source chooses first; the heaviest takes the slots
that are left. For each lighter source, cell by cell:

1. ``owed`` is the number of rows that the cell should take, plus what earlier cells
   took too few (or too many).
2. A lane must take what does not fit in its later cells, and can take what fits in this
   cell.
3. Between these limits lanes take in proportion to the rows that they still have to
   take.

Example: 2 lanes, 3 cells of 2 slots, shares ``a: 4 5, b: 2 1``, wanted 3 rows of a and
1 of b in each cell. For b the first cell owes 1 row; lane 0 has the most rows of b left
and takes it. The result for b is ``1 0 | 1 0 | 0 1``, and a takes the other slots: ``1
2 | 1 2 | 2 1``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenlake.base.arrays import Int64


def spread(shares: Int64, wanted: Int64, size: int) -> Int64:
    """Return the slots of each source in each cell and lane, int64[C, J, L].

    Args:
        shares: Rows of each source in each lane, int64[J, L]; those of a lane fill its
            slots of all cells.
        wanted: Rows of each source in each cell, all lanes together, int64[C, J].
        size: Number of slots of a lane in a cell.
    """
    cells = len(wanted)
    sources, lanes = shares.shape
    free_slots = np.full((cells, lanes), size, np.int64)
    slots = np.zeros((cells, sources, lanes), np.int64)
    # The lightest source first; free slots become fewer with each source.
    *lighter_sources, heaviest = np.argsort(shares.sum(axis=1), kind="stable").tolist()
    for source in lighter_sources:
        if shares[source].any():
            slots[:, source] = _spread_source(
                shares[source], wanted[:, source], free_slots
            )
            free_slots -= slots[:, source]
    slots[:, heaviest] = free_slots
    return slots


def _spread_source(share: Int64, wanted: Int64, free_slots: Int64) -> Int64:
    """Return the slots of one source in each cell and lane, int64[C, L].

    Args:
        share: Rows of the source in each lane, int64[L].
        wanted: Rows of the source in each cell, int64[C].
        free_slots: Slots that lighter sources left, int64[C, L].
    """
    slots = np.zeros_like(free_slots)
    # Rows and slots that are left behind the current cell, lane by lane.
    missing = share.copy()  # rows that each lane still has to take
    missing_rows = int(share.sum())  # those of all lanes
    later_slots = free_slots.sum(axis=0)
    owed = 0
    for cell, rows in enumerate(wanted.tolist()):
        later_slots -= free_slots[cell]
        owed += rows
        # Slots that a lane has to spare later. Below 0, it must take the rows that
        # later cells have no slots for.
        room = later_slots - missing
        if owed == 0 and room.min() >= 0:
            continue
        lower = np.maximum(0, -room)
        upper = np.minimum(missing, free_slots[cell])
        # Exact numbers of rows of lanes, times `missing_rows`
        products = missing * owed
        rows_of_lanes = np.minimum(
            np.maximum(products // max(1, missing_rows), lower), upper
        )
        taken_rows = int(np.add.reduce(rows_of_lanes))
        if taken_rows != owed:
            limits = _Limits(lower, upper, room)
            taken_rows = _round_to(
                owed, taken_rows, rows_of_lanes, limits, products, max(1, missing_rows)
            )
        slots[cell] = rows_of_lanes
        missing -= rows_of_lanes
        missing_rows -= taken_rows
        owed -= taken_rows
    return slots


class _Limits(NamedTuple):
    """Limits of the rows that lanes take in a cell; all int64[L].

    Attributes:
        lower: Lower limit of each lane.
        upper: Upper limit of each lane.
        room: Slots that a lane has to spare later. Lanes with the least room get the
            rows that rounding leaves over.
    """

    lower: Int64
    upper: Int64
    room: Int64


def _round_to(
    total: int,
    taken_rows: int,
    rows: Int64,
    limits: _Limits,
    products: Int64,
    missing_rows: int,
) -> int:
    """Change numbers of rows, one per lane, so that they sum to a total or come as
    close to it as their limits allow.

    Rounding down, and limits, leave rows over: one more or one less for the lanes that
    are the furthest behind.

    Args:
        total: Number of rows of all lanes.
        taken_rows: Sum of `rows`.
        rows: Number of rows of each lane, int64[L]; they are written to.
        limits: Limits of each lane.
        products: Exact numbers of rows of lanes, times `missing_rows`, int64[L].
        missing_rows: Rows that all lanes still have to take.

    Returns:
        Sum of the rows.
    """
    while taken_rows != total:
        if taken_rows < total:
            (lanes,) = (rows < limits.upper).nonzero()
            surplus = rows[lanes] * missing_rows - products[lanes]
            order = np.lexsort((surplus, limits.room[lanes]))
            step = 1
        else:
            (lanes,) = (rows > limits.lower).nonzero()
            surplus = rows[lanes] * missing_rows - products[lanes]
            order = np.lexsort((-surplus, -limits.room[lanes]))
            step = -1
        if not len(lanes):
            return taken_rows
        changed_lanes = lanes[order[: abs(total - taken_rows)]]
        rows[changed_lanes] += step
        taken_rows += step * len(changed_lanes)
    return taken_rows
