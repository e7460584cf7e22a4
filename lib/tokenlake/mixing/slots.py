"""The slots of an endless lane: which source each one takes a row from, and the how manieth row of that source.

Slots come in blocks. How many slots of a block are of which source is the difference of the counts at its ends; which
slots these are is a shuffle of the block's own. In the shuffle's order of a block's slots, the first are the first
source's, the next ones the second's and so on; each source then gives its rows in the order of its slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, final

import numpy as np

from tokenlake.mixing.counts import Counts, Tallies
from tokenlake.order import key_of, splitmix64
from tokenlake.order.random import WORD, Int64, extended

_KEPT: Final = 1 << 13  # block boundaries whose counts are kept: lanes share them
_LARGEST: Final = (
    1 << 62
) - 1  # rows of a source that are told apart; beyond, only how many are in a block counts


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
    """The slots of all lanes of a mixture.

    Args:
        counts: of one lane.
        seed: of the shuffles.
        block_size: slots of a block.
    """

    def __init__(self, counts: Counts, *, seed: int, block_size: int) -> None:
        self._counts = counts
        self._seed = seed
        self._block_size = block_size
        self.before = lru_cache(_KEPT)(self._before)

    @property
    def block_size(self) -> int:
        return self._block_size

    def _before(self, block: int) -> Tallies:
        """Return how many slots before a block are of each source (as :attr:`before`, which remembers)."""
        return self._counts.draws_before(block * self._block_size)

    def runs(self, lane: int, blocks: range) -> Runs:
        """Return the slots of neighbouring blocks of a lane, by run."""
        bounds = [self.before(block) for block in range(blocks.start, blocks.stop + 1)]
        counts = np.array(
            [[b - a for a, b in zip(low, high, strict=True)] for low, high in pairwise(bounds)],
            np.int64,
        )
        first = np.array([[min(count, _LARGEST) for count in bound] for bound in bounds[:-1]], np.int64)
        return Runs(self._shuffled(lane, blocks, counts), first, counts)

    def sources(self, lane: int, block: int) -> Int64:
        """Return the source of each slot of a block, int64[block_size]."""
        runs = self.runs(lane, range(block, block + 1))
        return runs.by_slot(runs.spread(np.arange(runs.counts.shape[1])))

    def _shuffled(self, lane: int, blocks: range, counts: Int64) -> Int64:
        size = self._block_size
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
