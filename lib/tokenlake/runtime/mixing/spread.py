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

**Waves.** A source in a cell needs two results: its own in the cell before, and that of
the next lighter source in the same cell. Therefore wave w computes source k (0 is the
lightest) in cell w - k, for all k at once. C cells and K lighter sources take C + K - 1
waves in place of C K single steps::

    cell        0  1  2  3
    source 0    0  1  2  3     number of the wave
    source 1    1  2  3  4
    source 2    2  3  4  5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64

_LARGEST: Final = (1 << 63) - 1


def spread(rows_before: Int64, shares: Int64, wanted: Int64, size: int) -> Int64:
    """Return the rows that each lane has taken before each cell, int64[C, J, L].

    Args:
        rows_before: Rows that each lane has taken of each source before the first cell,
            int64[J, L].
        shares: Rows of each source in each lane, int64[J, L]; those of a lane fill its
            slots of all cells.
        wanted: Rows of each source in each cell, all lanes together, int64[C, J].
        size: Number of slots of a lane in a cell.
    """
    cells = len(wanted)
    sources, lanes = shares.shape
    rows_taken = np.empty((cells, sources, lanes), np.int64)
    by_weight = np.argsort(shares.sum(axis=1), kind="stable")
    lighter_sources = by_weight[:-1]
    heaviest = by_weight[-1]

    # Slots of each cell that the sources so far left free: each wave takes from them.
    free_slots = np.full((cells, lanes), size, np.int64)
    state = _LighterSources.at_first_cell(
        rows_before[lighter_sources], shares[lighter_sources], cells * size
    )
    wanted_of_lighter = wanted[:, lighter_sources]
    for wave in range(cells + len(lighter_sources) - 1):
        # Sources whose cell in this wave exists, and these cells, which descend.
        first_source = max(0, wave - cells + 1)
        end_source = min(len(lighter_sources), wave + 1)
        active = slice(first_source, end_source)
        ascending_cells = slice(wave - end_source + 1, wave - first_source + 1)
        source_numbers = np.arange(first_source, end_source)
        cell_numbers = wave - source_numbers
        rows_taken[cell_numbers, lighter_sources[active]] = state.taken[active]
        state.take(
            active,
            wanted_of_lighter[cell_numbers, source_numbers],
            free_slots[ascending_cells][::-1],
        )

    # The heaviest source takes the rest.
    rows_taken[:, heaviest] = rows_before[heaviest]
    rows_taken[1:, heaviest] += np.cumsum(free_slots[:-1], axis=0)
    return rows_taken


@final
@dataclass(slots=True)
class _LighterSources:
    """All sources but the heaviest, each before its next cell.

    Attributes:
        taken: Rows that each lane has taken, int64[K, L].
        missing: Rows that each lane still has to take, int64[K, L].
        missing_rows: Rows that all lanes still have to take, int64[K].
        later_slots: Free slots of each lane from the next cell on, int64[K, L].
        owed: Rows that earlier cells took too few, int64[K]; negative for too many.
    """

    taken: Int64
    missing: Int64
    missing_rows: Int64
    later_slots: Int64
    owed: Int64

    @classmethod
    def at_first_cell(cls, rows_before: Int64, shares: Int64, slots: int) -> Self:
        """Return the sources before the first cell.

        Args:
            rows_before: Rows that each lane has taken, int64[K, L].
            shares: Rows that each lane takes in all cells, int64[K, L].
            slots: Number of slots of a lane in all cells.
        """
        # Each source takes its whole share, which the next ones find occupied.
        later_slots = np.full_like(shares, slots)
        later_slots[1:] -= np.cumsum(shares[:-1], axis=0)
        return cls(
            taken=rows_before,
            missing=shares.copy(),
            missing_rows=shares.sum(axis=1),
            later_slots=later_slots,
            owed=np.zeros(len(shares), np.int64),
        )

    def take(self, active: slice, wanted: Int64, free_slots: Int64) -> None:
        """Take the rows of n sources, each in its next cell.

        Args:
            active: The n sources.
            wanted: Rows that all lanes together should take of each source, int64[n].
            free_slots: Slots of the cell that lighter sources left to each source,
                int64[n, L]; the rows are subtracted from them.
        """
        missing = self.missing[active]
        later_slots = self.later_slots[active]
        owed = self.owed[active]
        later_slots -= free_slots
        owed += wanted

        # 1. Limits. A lane has `spare_slots` later. Below 0, it must take the rows that
        #    later cells have no slots for.
        spare_slots = later_slots - missing
        lower = np.maximum(0, -spare_slots)
        upper = np.minimum(missing, free_slots)

        # 2. Rows in proportion, rounded down: `products / divisors`.
        products = missing * owed[:, None]
        divisors = np.maximum(1, self.missing_rows[active])[:, None]
        rows = np.minimum(np.maximum(products // divisors, lower), upper)

        # 3. Rounding and limits leave rows over.
        lacking_rows = owed - rows.sum(axis=1)
        if lacking_rows.any():
            limits = _Limits(lower, upper, spare_slots)
            surplus = rows * divisors - products
            lacking_rows = _round_to(lacking_rows, rows, limits, surplus, divisors)

        free_slots -= rows
        missing -= rows
        self.taken[active] += rows
        self.missing_rows[active] -= owed - lacking_rows
        owed[:] = lacking_rows


@final
@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of the rows that lanes take of n sources; all int64[n, L].

    Attributes:
        lower: Lower limit of each lane.
        upper: Upper limit of each lane.
        spare_slots: Slots that a lane has to spare later. Lanes with the fewest get the
            rows that rounding leaves over.
    """

    lower: Int64
    upper: Int64
    spare_slots: Int64


def _round_to(
    lacking_rows: Int64, rows: Int64, limits: _Limits, surplus: Int64, divisors: Int64
) -> Int64:
    """Change numbers of rows so that those of a source sum to a total.

    They come as close to it as their limits allow.

    Lanes that are the furthest behind take one more, or those that are the furthest
    ahead one less, until the sum is right.

    Args:
        lacking_rows: Total of each source less the sum of its rows, int64[n].
        rows: Number of rows of each source and lane, int64[n, L]; they are written to.
        limits: Limits of each source and lane.
        surplus: Number of rows less the exact one, times the source's divisor,
            int64[n, L]; it is written to.
        divisors: Divisor of each source, int64[n, 1].

    Returns:
        Total of each source less the sum of its changed rows, int64[n].
    """
    while True:
        # 1. The sign of the change of each source, and the lanes that it can change.
        sign = np.sign(lacking_rows)[:, None]
        can_change = np.where(sign > 0, rows < limits.upper, rows > limits.lower)
        changes = np.minimum(np.abs(lacking_rows), can_change.sum(axis=1))
        # 2. The first lanes by spare slots, then by surplus, then by number.
        is_changed = _first_lanes(
            changes, can_change, sign * limits.spare_slots, sign * surplus
        )
        # 3. One row more, or one less, until the sums are right or nothing can change.
        change = sign * is_changed
        rows += change
        lacking_rows = lacking_rows - sign[:, 0] * changes
        if not (changes.any() and lacking_rows.any()):
            return lacking_rows
        surplus += change * divisors


def _first_lanes(
    counts: Int64, is_allowed: Bools, first_key: Int64, second_key: Int64
) -> Bools:
    """Return the first lanes of each source, by two keys and the number of the lane.

    Args:
        counts: Number of lanes to choose of each source, at most those that are
            allowed, int64[n].
        is_allowed: True for lanes that may be chosen, bool[n, L].
        first_key: Key that decides, the smallest first, int64[n, L].
        second_key: Key that decides between equal ones, int64[n, L].
    """
    lanes = is_allowed.shape[1]
    lane_numbers = np.arange(lanes)
    source_numbers = np.arange(len(counts))
    lowest = int(second_key.min())
    width = int(second_key.max()) - lowest + 1
    highest = max(int(first_key.max()), -int(first_key.min())) + 1
    if highest * width * lanes <= _LARGEST:
        # All keys in one number, different for each lane. The numbers up to the
        # count-th smallest one are chosen, which takes no order of the lanes: sorting
        # numbers is twenty times as fast as sorting lanes by several keys.
        key = (first_key * width + (second_key - lowest)) * lanes + lane_numbers
        key[~is_allowed] = _LARGEST
        last_chosen = np.sort(key, axis=1)[source_numbers, counts - 1]
        return (key <= last_chosen[:, None]) & (counts > 0)[:, None]
    # Keys that do not fit together into 64 bits, in huge groups.
    lane_at_rank = np.lexsort((second_key, first_key, ~is_allowed), axis=1)
    is_first = np.zeros(is_allowed.shape, np.bool_)
    is_first[source_numbers[:, None], lane_at_rank] = lane_numbers < counts[:, None]
    return is_first
