"""Contract of a deal: the source, and the row of that source, of each slot of a lane.

The slots of a lane are dealt in *cells* of equal size. A deal states how many slots before each cell belong to each
source. Inside a cell the slots are shuffled::

    1. counts   slots of each source in the cell          a: 2, b: 1, c: 1
    2. order    shuffle of the cell's slots               2 0 3 1
    3. source   the first slots of that order belong to   slots 2 and 0: a, slot 3: b, slot 1: c   ->   a c a b
                the first source, the next to the second
    4. number   rows of a source in the order of slots    a0 c0 a1 b0, plus the rows before the cell
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.runtime.mixing.bisection import first_true
from tokenlake.runtime.mixing.counts import Counts, Tallies
from tokenlake.runtime.mixing.random import WORD, extended, key_of, splitmix64

MOST_BORDERS: Final = 1 << 13
"""Borders of cells whose counts are remembered."""

# Larger counts are cut: of those only differences matter.
_LARGEST_COUNT: Final = (1 << 62) - 1


class SlotDeal(ABC):
    """Slots of all lanes of a mixture.

    Attributes:
        cell: Number of slots of a lane in a cell.
        cells: Number of cells in a group, which are dealt together.
        seed: Seed of the shuffles.
    """

    cell: int
    cells: int
    seed: int

    @abstractmethod
    def before(self, lane: int, cell: int) -> Tallies:
        """Return how many slots of a lane before a cell belong to each source."""

    @abstractmethod
    def bounds(self, lane: int, cells: range) -> Int64:
        """Return :meth:`before` for n cells and the next cell, int64[n + 1, J]."""

    @abstractmethod
    def ceiling(self, source: int) -> int | None:
        """Return the fewest rows of a source that a lane gets in all of time.

        It is None if there is no limit.
        """

    def first_cell(self, holds: Callable[[int], bool]) -> int:
        """Return the first cell from which on a condition is true.

        Whole groups are searched first.
        """
        group = first_true(0, lambda number: holds(number * self.cells))
        if group == 0:
            return 0
        return first_true((group - 1) * self.cells, holds, group * self.cells)

    def rows(self, lane: int, cells: range) -> tuple[Int64, Int64]:
        """Return the source of each slot of n cells, and the row's number in it.

        Returns:
            int64[n * cell] both.
        """
        # 1. Slots of each source in each cell.
        bounds = self.bounds(lane, cells)
        counts = np.diff(bounds, axis=0)
        cell_count, source_count = counts.shape

        # 2. The shuffle of each cell.
        words = np.array([cell & WORD for cell in cells], np.uint64).view(np.int64)
        keys = extended(key_of(self.seed, lane), words)
        slots_of_cell = np.arange(self.cell, dtype=np.uint64)
        order = np.argsort(splitmix64(keys[:, None] + slots_of_cell), axis=1)

        # 3. The source of each slot.
        small = np.min_scalar_type(source_count)
        run_lengths = counts.ravel()
        sources_in_order = np.repeat(
            np.tile(np.arange(source_count, dtype=small), cell_count), run_lengths
        )
        source_of_slot = np.empty(order.shape, small)
        np.put_along_axis(
            source_of_slot, order, sources_in_order.reshape(order.shape), axis=1
        )

        # 4. The slots of each source, ascending (a stable sort of small integers is a
        #    radix sort), take its rows.
        slots_by_source = np.argsort(source_of_slot, axis=1, kind="stable")
        slots_by_source += np.arange(cell_count)[:, None] * self.cell
        run_begins = np.cumsum(run_lengths) - run_lengths
        first_numbers = bounds[:-1].ravel() - run_begins
        number = np.empty(slots_by_source.size, np.int64)
        number[slots_by_source.ravel()] = np.repeat(
            first_numbers, run_lengths
        ) + np.arange(number.size)
        return source_of_slot.ravel().astype(np.int64), number


@final
class EvenDeal(SlotDeal):
    """Deal of orders before version 3.

    Versions that were written in such an order are read, checked and rebuilt.

    Each lane has the counts of one lane, in cells of a block, so that all lanes reach a
    rare source at the same time.

    Args:
        counts: Counts of a lane.
        block_size: Number of slots in a block.
        seed: Seed of the shuffles.
    """

    def __init__(self, counts: Counts, block_size: int, seed: int) -> None:
        self.cell = block_size
        self.cells = 1
        self.seed = seed
        self._counts = counts
        self._draws_before = lru_cache(MOST_BORDERS)(counts.draws_before)

    def before(self, lane: int, cell: int) -> Tallies:
        return self._draws_before(cell * self.cell)

    def bounds(self, lane: int, cells: range) -> Int64:
        return clamped(
            [self.before(lane, cell) for cell in range(cells.start, cells.stop + 1)]
        )

    def ceiling(self, source: int) -> int | None:
        return self._counts.ceiling(source)


def clamped(counts: Sequence[Tallies]) -> Int64:
    """Return n counts of each source as int64[n, J].

    Counts that int64 cannot add are cut.
    """
    # int64 holds the cut counts, and the sums of two of them.
    clamped_counts: list[list[int]] = []
    for tallies in counts:
        clamped_counts.append([min(count, _LARGEST_COUNT) for count in tallies])
    return np.array(clamped_counts, np.int64)
