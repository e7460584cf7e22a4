"""The slots of an endless lane: which source each one takes a row from, and the how manieth row of that source.

Slots come in blocks, the cells of the deal. How many slots of a block are of which source is the difference of what the
lane has taken at its ends; which slots these are is a shuffle of the block's own. In the shuffle's order of a block's
slots, the first are the first source's, the next ones the second's and so on; each source then gives its rows in the
order of its slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from tokenlake.mixing.counts import Tallies
from tokenlake.mixing.deal import Dealt
from tokenlake.order import key_of, splitmix64
from tokenlake.order.random import WORD, Int64, extended


@final
@dataclass(frozen=True, slots=True)
class Runs:
    """The slots of K blocks, sorted by block, source and slot: runs of rows of one source.

    Attributes:
        slot: int64[K * B], each one's index among the slots of all these blocks.
        first: int64[K, J], number of the first row of each run in its source.
        counts: int64[K, J], rows of each run.
    """

    slot: Int64
    first: Int64
    counts: Int64

    def spread(self, values: Int64) -> Int64:
        """Return a value per run (int64[K, J] or int64[J]) as one for each slot's row, int64[K * B], by run."""
        return np.repeat(np.broadcast_to(values, self.counts.shape).ravel(), self.counts.ravel())

    def numbered(self, first: Int64) -> Int64:
        """Return ``first, first + 1, ...`` for the rows of each run, int64[K * B], by run."""
        lengths = self.counts.ravel()
        ends = np.cumsum(lengths)
        return np.repeat(first.ravel() - ends + lengths, lengths) + np.arange(len(self.slot))

    def by_slot(self, values: Int64) -> Int64:
        """Return values that are sorted by run in the order of the slots."""
        ordered = np.empty_like(values)
        ordered[self.slot] = values
        return ordered


@final
class Slots:
    """The slots of all lanes of a mixture, in the cells of its deal.

    Args:
        deal: what each lane has taken of each source before each cell.
        seed: of the shuffles.
    """

    def __init__(self, deal: Dealt, *, seed: int) -> None:
        self.deal, self._seed = deal, seed

    @property
    def block_size(self) -> int:
        """Slots of a block, which is a cell of the deal."""
        return self.deal.cell

    def before(self, lane: int, block: int) -> Tallies:
        """Return how many slots of a lane before a block are of each source."""
        return self.deal.before(lane, block)

    def decided(self, blocks: int) -> int:
        """Return the slots of the groups of the deal that the first blocks are of."""
        return -(-blocks // self.deal.cells) * self.deal.cells * self.block_size

    def first_block(self, holds: Callable[[int], bool]) -> int:
        """Return the first block for which `holds` is true, if it stays true from there on: group by group at first."""
        cells = self.deal.cells
        group = first_true(0, lambda number: holds(number * cells))
        return 0 if group == 0 else first_true((group - 1) * cells, holds, group * cells)

    def runs(self, lane: int, blocks: range) -> Runs:
        """Return the slots of neighbouring blocks of a lane, by run."""
        bounds = self.deal.bounds(lane, blocks)
        counts = np.diff(bounds, axis=0)
        return Runs(self._shuffled(lane, blocks, counts), bounds[:-1], counts)

    def _shuffled(self, lane: int, blocks: range, counts: Int64) -> Int64:
        size = self.block_size
        words = np.array([block & WORD for block in blocks], np.uint64).view(np.int64)
        keys = extended(key_of(self._seed, lane), words)
        chance = splitmix64(keys[:, None] + np.arange(size, dtype=np.uint64))
        order = np.argsort(chance, axis=1)
        kind = np.min_scalar_type(counts.shape[1])
        source = np.empty(order.shape, kind)
        dealt = np.repeat(np.tile(np.arange(counts.shape[1], dtype=kind), len(counts)), counts.ravel())
        np.put_along_axis(source, order, dealt.reshape(order.shape), axis=1)
        # A stable sort of small integers is a radix sort: each source's slots, ascending.
        slot = np.argsort(source, axis=1, kind="stable")
        return (slot + np.arange(len(counts))[:, None] * size).ravel()


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
