"""The contract of a deal: which rows of which source each lane of a mixture has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.runtime.mixing.counts import Tallies
from tokenlake.runtime.mixing.random import WORD, extended, key_of, splitmix64


class Dealt(ABC):
    """The slots of all lanes of a mixture: what each lane has taken of each source, at the ends of cells.

    Which slots of a cell are of which source is a shuffle of the cell's own. In the shuffle's order of a cell's slots,
    the first are the first source's, the next ones the second's and so on; each source then gives its rows in the order
    of its slots.

    Attributes:
        cell: slots of a lane in a cell.
        cells: of a group.
        seed: of the shuffles.
    """

    cell: int
    cells: int
    seed: int

    @abstractmethod
    def before(self, lane: int, cell: int) -> Tallies:
        """Return how many slots of a lane before a cell are of each source."""

    @abstractmethod
    def bounds(self, lane: int, cells: range) -> Int64:
        """Return :meth:`before` for each of these cells and for the one behind them, int64[n + 1, J]."""

    @abstractmethod
    def ceiling(self, source: int) -> int | None:
        """Return how many rows of a source each lane gets at least, in all of time; None: there is no end to it."""

    def first_cell(self, holds: Callable[[int], bool]) -> int:
        """Return the first cell for which `holds` is true, if it stays true from there on: group by group at first."""
        group = first_true(0, lambda number: holds(number * self.cells))
        return 0 if group == 0 else first_true((group - 1) * self.cells, holds, group * self.cells)

    def rows(self, lane: int, cells: range) -> tuple[Int64, Int64]:
        """Return the source of each slot of neighbouring cells, and which of its rows it takes, int64[n] both."""
        bounds = self.bounds(lane, cells)
        counts = np.diff(bounds, axis=0)
        words = np.array([cell & WORD for cell in cells], np.uint64).view(np.int64)
        keys = extended(key_of(self.seed, lane), words)
        order = np.argsort(splitmix64(keys[:, None] + np.arange(self.cell, dtype=np.uint64)), axis=1)
        sources, lengths = counts.shape[1], counts.ravel()
        kind = np.min_scalar_type(sources)
        dealt = np.repeat(np.tile(np.arange(sources, dtype=kind), len(counts)), lengths)
        source = np.empty(order.shape, kind)
        np.put_along_axis(source, order, dealt.reshape(order.shape), axis=1)
        # A stable sort of small integers is a radix sort: each source's slots, ascending.
        slot = np.argsort(source, axis=1, kind="stable") + np.arange(len(counts))[:, None] * self.cell
        number = np.empty(slot.size, np.int64)
        first = bounds[:-1].ravel() - np.cumsum(lengths) + lengths
        number[slot.ravel()] = np.repeat(first, lengths) + np.arange(slot.size)
        return source.ravel().astype(np.int64), number


def first_true(low: int, holds: Callable[[int], bool], high: int | None = None) -> int:
    """Return the first number from `low` on for which `holds` is true, if it stays true from there on.

    Args:
        high: one for which it is true; None: it is looked for.
    """
    reach = 1
    while high is None:
        if holds(low + reach - 1):
            high = low + reach - 1
        else:
            low, reach = low + reach, reach * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
