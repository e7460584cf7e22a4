"""Spread of the rows that lanes take in a group over the cells of that group.

Given are the rows of each source in each lane (``shares``), and how many rows of each
source all lanes together should take in each cell (``target_rows``). Every lane fills
all slots of every cell. The lightest source chooses first; the heaviest takes the slots
that are left. For each lighter source, cell by cell:

1. ``owed`` is the number of rows that the cell should take, plus what earlier cells
   took too few (or too many).
2. A lane must take what does not fit in its later cells, and can take what fits in this
   cell.
3. Between these limits lanes take in proportion to the rows that they still have to
   take.

Example: 2 lanes, 3 cells of 2 slots, shares ``a: 4 5, b: 2 1``, target 3 rows of a and
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

No wave needs a later one. The rows before cell c are known after wave c + K - 1. A
reader that seeks computes no more waves; a reader that continues from there computes
only the waves that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64

_LARGEST: Final = (1 << 63) - 1


@final
class Spread:
    """Rows that lanes take in the cells of a group, computed as far as they are read.

    Several threads may read at the same time.

    Args:
        rows_before: Rows that each lane has taken of each source before the first cell,
            int64[J, L].
        shares: Rows of each source in each lane, int64[J, L]; those of a lane fill its
            slots of all cells.
        target_rows: Function that returns the rows of each source in each of n cells, all
            lanes together, int64[n, J].
        cells: Number of cells.
        size: Number of slots of a lane in a cell.
    """

    def __init__(
        self,
        rows_before: Int64,
        shares: Int64,
        target_rows: Callable[[range], Int64],
        *,
        cells: int,
        size: int,
    ) -> None:
        by_weight = np.argsort(shares.sum(axis=1), kind="stable")
        self._lighter_sources = by_weight[:-1]
        self._heaviest = int(by_weight[-1])
        self._rows_before = rows_before
        self._rows_after = rows_before + shares
        self._target_rows_of = target_rows
        self._cells = cells
        self._size = size
        # Of each cell and lighter source: the rows that all lanes should take, and the
        # rows that each lane still has to take before the cell. Each cell has room for
        # K + 1 sources: then the cells of a wave are every K-th row of all cells'
        # sources, laid end to end.
        lighter_shares = shares[self._lighter_sources]
        lighter, lanes = lighter_shares.shape
        self._target_rows = np.zeros((cells, lighter + 1), np.int64)
        largest = np.min_scalar_type(int(lighter_shares.max(initial=0)))
        self._missing = np.empty((cells, lighter + 1, lanes), largest)
        self._front = _Front.at_first_cell(lighter_shares, cells, size)

    def taken_before(self, lane: int, cells: range) -> Int64:
        """Return the rows of a lane before each of n cells, int64[n, J]."""
        self._compute(cells.stop - 1)
        lighter = len(self._lighter_sources)
        missing = self._missing[cells.start : cells.stop, :lighter, lane]
        rows_of_lighter = self._rows_after[self._lighter_sources, lane] - missing
        rows_taken = np.empty((len(cells), lighter + 1), np.int64)
        rows_taken[:, self._lighter_sources] = rows_of_lighter
        # The heaviest source has taken the slots that the others left.
        rows_of_all = int(self._rows_before[:, lane].sum())
        rows_of_all += self._size * np.arange(cells.start, cells.stop)
        rows_taken[:, self._heaviest] = rows_of_all - rows_of_lighter.sum(axis=1)
        return rows_taken

    def _compute(self, cell: int) -> None:
        """Compute the rows before all cells up to one."""
        lighter = len(self._lighter_sources)
        end_wave = cell + lighter
        if not lighter or self._front.wave >= end_wave:
            return
        # A copy: other threads may continue from the same wave. All write the same
        # numbers to the arrays of all cells.
        front = self._front.copy()
        cells = range(front.wave, min(end_wave, self._cells))
        if cells:
            target_rows = self._target_rows_of(cells)[:, self._lighter_sources]
            self._target_rows[cells.start : cells.stop, :lighter] = target_rows
        scratch = _Scratch.of(front.missing.shape)
        target_rows_of_waves = self._target_rows.reshape(-1)
        missing_of_waves = self._missing.reshape(-1, front.missing.shape[1])
        while front.wave < end_wave:
            active = front.active(self._cells)
            # Source k is before cell `wave - k`.
            last_place = front.wave * (lighter + 1) - active.start * lighter
            first_place = last_place - (active.stop - 1 - active.start) * lighter
            wave = slice(first_place, last_place + 1, lighter)
            missing_of_waves[wave][::-1] = front.missing[active]
            front.take(active, target_rows_of_waves[wave][::-1], scratch)
        self._front = front


@final
@dataclass(slots=True)
class _Scratch:
    """Memory of a wave; all int64[K, L] or bool[K, L].

    New arrays for each wave would cost as much time as the computation.
    """

    products: Int64
    upper: Int64
    rows: Int64
    key: Int64
    sorted_key: Int64
    lane_numbers: Int64
    mask: Bools

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Self:
        """Return memory for some sources and lanes."""
        products, upper, rows, key, sorted_key, lane_numbers = np.empty(
            (6, *shape), np.int64
        )
        lane_numbers[:] = np.arange(shape[1])
        return cls(
            products,
            upper,
            rows,
            key,
            sorted_key,
            lane_numbers,
            np.empty(shape, np.bool_),
        )


@final
@dataclass(slots=True)
class _Front:
    """All sources but the heaviest, each before its cell of the next wave.

    Attributes:
        wave: Number of the next wave.
        missing: Rows that each lane still has to take, int64[K, L].
        missing_rows: Rows that all lanes still have to take, int64[K].
        due: Rows that a lane still has to take less the slots that lighter sources leave
            it from the next cell on, int64[K, L]. It must take these rows now; below 0,
            it has slots to spare.
        free_slots: Slots of the next cell that lighter sources have left,
            int64[K + 1, L].
        owed: Rows that earlier cells took too few, int64[K]; negative for too many.
        size: Number of slots of a lane in a cell.
        key_width: Factor of the spare slots in the key of a lane, a multiple of the
            lanes; see :func:`_add_to_first_lanes`. 0 if keys take more than 64 bits.
        unit: Factor of numbers of rows in that key: the number of lanes; 1 without keys.
    """

    wave: int
    missing: Int64
    missing_rows: Int64
    due: Int64
    free_slots: Int64
    owed: Int64
    size: int
    key_width: int
    unit: int

    @classmethod
    def at_first_cell(cls, shares: Int64, cells: int, size: int) -> Self:
        """Return the sources before the first cell.

        Args:
            shares: Rows that each lane takes in all cells, int64[K, L].
            cells: Number of cells.
            size: Number of slots of a lane in a cell.
        """
        lanes = shares.shape[1]
        missing_rows = shares.sum(axis=1)
        # A lane that can take a row more has rows that are less than a row short of its
        # exact number, and at most a cell beyond it. They are counted in units of
        # 1 / missing rows, and these times the lanes, which leaves room for the number
        # of the lane.
        largest = max(1, int(missing_rows.max(initial=0)))
        key_width = largest * lanes * (size + 1) + lanes
        unit = lanes
        if (cells * size + 1) * key_width > _LARGEST:
            key_width = 0
            unit = 1
        return cls(
            wave=0,
            missing=shares.copy(),
            missing_rows=missing_rows,
            # Each source takes its whole share, which the next ones find occupied.
            due=np.cumsum(shares, axis=0) - cells * size,
            free_slots=np.full((len(shares) + 1, lanes), size, np.int64),
            owed=np.zeros(len(shares), np.int64),
            size=size,
            key_width=key_width,
            unit=unit,
        )

    def copy(self) -> Self:
        """Return a copy that shares no memory."""
        return replace(
            self,
            missing=self.missing.copy(),
            missing_rows=self.missing_rows.copy(),
            due=self.due.copy(),
            free_slots=self.free_slots.copy(),
            owed=self.owed.copy(),
        )

    def active(self, cells: int) -> slice:
        """Return the sources that have a cell in the next wave."""
        return slice(max(0, self.wave - cells + 1), min(len(self.owed), self.wave + 1))

    def take(self, active: slice, target_rows: Int64, scratch: _Scratch) -> None:
        """Take the rows of the next wave: of n sources, each in its next cell.

        Args:
            active: The n sources.
            target_rows: Rows that all lanes together should take of each source, int64[n].
            scratch: Memory to work in.
        """
        missing = self.missing[active]
        free_slots = self.free_slots[active]
        due = self.due[active]
        owed = self.owed[active]
        products = scratch.products[active]
        upper = scratch.upper[active]
        rows = scratch.rows[active]
        mask = scratch.mask[active]
        due += free_slots
        owed += target_rows

        # 1. Rows in proportion, rounded down: `products / divisors`, both in units.
        divisors = (np.maximum(1, self.missing_rows[active]) * self.unit)[:, None]
        np.multiply(missing, (np.maximum(0, owed) * self.unit)[:, None], out=products)
        np.greater_equal(products, divisors, out=mask)
        has_rows = bool(np.count_nonzero(mask)) or int(due.max()) > 0

        # 2. Limits. A lane must take the rows that are due, and no more than it misses
        #    or has slots for. With many lanes, all numbers of most waves are 0 so far,
        #    which takes no division, the slowest step.
        np.minimum(missing, free_slots, out=upper)
        if has_rows:
            np.floor_divide(products, divisors, out=rows)
            np.maximum(rows, due, out=rows)
            np.minimum(rows, upper, out=rows)
            lacking_rows = owed - np.add.reduce(rows, axis=1)
        else:
            rows[:] = 0
            lacking_rows = owed.copy()

        # 3. Rounding and limits leave rows over.
        if np.count_nonzero(lacking_rows):
            lacking_rows = self._rounded(
                active, lacking_rows, divisors, scratch, has_rows=has_rows
            )

        # 4. The next source finds the slots that are left.
        np.subtract(free_slots, rows, out=upper)
        self.free_slots[active.start + 1 : active.stop + 1] = upper
        self.free_slots[0] = self.size
        missing -= rows
        due -= rows
        self.missing_rows[active] -= owed - lacking_rows
        owed[:] = lacking_rows
        self.wave += 1

    def _rounded(
        self,
        active: slice,
        lacking_rows: Int64,
        divisors: Int64,
        scratch: _Scratch,
        *,
        has_rows: bool,
    ) -> Int64:
        """Change numbers of rows so that those of a source sum to a total.

        They come as close to it as their limits allow.

        Args:
            active: The n sources.
            lacking_rows: Total of each source less the sum of its rows, int64[n].
            divisors: Divisor of each source, in units, int64[n, 1].
            scratch: Products, upper limits and rows; the rows are changed.
            has_rows: False if all numbers of rows are 0.

        Returns:
            Total of each source less the sum of its changed rows, int64[n].
        """
        due = self.due[active]
        rows = scratch.rows[active]
        # 1. Nearly all sources lack rows, at most one for each lane below its limit.
        is_left = lacking_rows != 0
        if self.key_width:
            key = scratch.key[active]
            np.multiply(due, -self.key_width, out=key)
            key -= scratch.products[active]
            if has_rows:
                key += rows * divisors
            is_left = _add_to_first_lanes(lacking_rows, scratch, active)
            lacking_rows = np.where(is_left, lacking_rows, 0)
            if not np.count_nonzero(is_left):
                return lacking_rows
        # 2. The others have too many rows, or lack more.
        left = np.flatnonzero(is_left)
        rows_left = rows[left]
        divisors_left = divisors[left] // self.unit
        products_left = self.missing[active][left] * self.owed[active][left][:, None]
        lacking_rows[left] = _round_to(
            lacking_rows[left],
            rows_left,
            _Limits(np.maximum(0, due[left]), scratch.upper[active][left], -due[left]),
            rows_left * divisors_left - products_left,
            divisors_left,
        )
        rows[left] = rows_left
        return lacking_rows


def _add_to_first_lanes(lacking_rows: Int64, scratch: _Scratch, active: slice) -> Bools:
    """Add one row each to as many lanes as a source lacks rows.

    The first lanes are those with the fewest spare slots, then those that are the
    furthest behind, then by number. This is :func:`_round_to` in its usual case: the
    source lacks rows, and has enough lanes below their upper limit.

    The key of a lane is one number for all three, different for each lane::

        spare slots * key width  +  (rows - exact rows) in units  +  number of the lane

    Args:
        lacking_rows: Total of each source less the sum of its rows, int64[n].
        scratch: Keys without the number of the lane, upper limits and rows; the rows
            are changed.
        active: The n sources.

    Returns:
        True for sources that are not in this case, and keep their rows, bool[n].
    """
    key = scratch.key[active]
    sorted_key = scratch.sorted_key[active]
    mask = scratch.mask[active]
    rows = scratch.rows[active]
    # 1. The keys of lanes below their upper limit.
    key += scratch.lane_numbers[active]
    np.greater_equal(rows, scratch.upper[active], out=mask)
    np.copyto(key, _LARGEST, where=mask)
    # 2. The keys up to the n-th smallest are chosen, which takes no order of the lanes:
    #    sorting numbers is twenty times as fast as sorting lanes by several keys.
    np.copyto(sorted_key, key)
    sorted_key.sort(axis=1)
    lanes = rows.shape[1]
    rank = np.minimum(np.maximum(lacking_rows, 1), lanes) - 1
    last_chosen = sorted_key[np.arange(len(rank)), rank]
    can_add = (lacking_rows > 0) & (lacking_rows <= lanes) & (last_chosen < _LARGEST)
    last_chosen[~can_add] = -_LARGEST
    np.less_equal(key, last_chosen[:, None], out=mask)
    rows += mask
    return (lacking_rows != 0) & ~can_add


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
        lane_at_rank = np.lexsort(
            (sign * surplus, sign * limits.spare_slots, ~can_change), axis=1
        )
        rank_of_lane = np.argsort(lane_at_rank, axis=1)
        is_changed = rank_of_lane < changes[:, None]
        # 3. One row more, or one less, until the sums are right or nothing can change.
        change = sign * is_changed
        rows += change
        lacking_rows = lacking_rows - sign[:, 0] * changes
        if not (changes.any() and lacking_rows.any()):
            return lacking_rows
        surplus += change * divisors
