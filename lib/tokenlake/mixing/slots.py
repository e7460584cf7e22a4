"""The slots of an endless lane: which source each one takes a row from, and which of its rows.

Slots come in blocks, the cells of the deal. How many slots of a block are of which source is the difference of what the
lane has taken at its ends; which slots these are is a shuffle of the block's own. In the shuffle's order of a block's
slots, the first are the first source's, the next ones the second's and so on; each source then gives its rows in the
order of its slots.

**Lanes that end.** A place is an index in what a lane delivers, a slot one in the endless lane behind it. A source that
has given all its rows is exhausted; what it still gets of the endless lane's slots is skipped ("all_exhausted"), or
ends the lane before the first of them ("first_exhausted"). How many places lie before a block is known from the counts
at the block's beginning, ``sum of min(count_j, rows_j)``, so that the block of any place is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np

from tokenlake.mixing.counts import Tallies
from tokenlake.mixing.deal import Dealt
from tokenlake.mixing.random import WORD, extended, key_of, splitmix64
from tokenlake.ragged import Int64


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
        self.block_size: Final = deal.cell
        """Slots of a block, which is a cell of the deal."""

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


_CHUNK: Final = 1 << 15  # slots at a time: they stay in the cache
_FARTHEST: Final = 1 << 50
"""The last slot that is looked at for a row that may never come: of a source that weighs nothing from some step on."""


@final
class Lane:
    """One lane of a mixture.

    Args:
        slots: of all lanes.
        lane: which one.
        rows: rows of each source in this lane; None where they do not end the lane.
        skipping: whether the lane ends when all its sources are exhausted, or before the first that is.
    """

    def __init__(self, slots: Slots, lane: int, rows: tuple[int, ...] | None, *, skipping: bool) -> None:
        self._slots = slots
        self._lane = lane
        self._rows = rows or ()
        self._endless = rows is None
        self._skips = skipping and rows is not None
        self._kept: tuple[int, Int64, Int64] | None = None

    @cached_property
    def length(self) -> int | None:
        """How many places there are; None: no end."""
        if self._endless:
            return None
        return sum(self._rows) if self._skips else self._first_exhausted()

    def take(self, start: int, stop: int) -> Iterator[tuple[Int64, Int64]]:
        """Yield (source, number of the row in that source) of places ``start .. stop``, int64[n] both, in parts."""
        if start >= stop:
            return
        block = self._last_block if self._without_choice(start) else self._block_of(start)
        while start < stop:
            if self._skips and block >= self._last_block:
                yield self._of_last_source(start, stop)
                return
            begin = self._places_before(block)
            blocks = self._chunk(block, stop - begin)
            source, number = self._unskipped(blocks)
            taken = slice(start - begin, stop - begin)
            yield source[taken], number[taken]
            start = min(stop, begin + len(source))
            block = blocks.stop
            if start < stop and not len(source):
                block = self._block_of(start)

    def drawn(self, place: int) -> Int64:
        """Return how many of the first `place` places are of each source, int64[J]."""
        if self._without_choice(place):
            return self._drawn_of_last_source(place)
        block = self._block_of(place)
        counts = np.array(self._drawn_before(block), np.int64)
        source, _ = self._unskipped(range(block, block + 1))
        inside = source[: place - self._places_before(block)]
        return counts + np.bincount(inside, minlength=len(counts))

    def place_of(self, source: int, number: int) -> int | None:
        """Return the place at which a source gives its row `number`, from 0; None: never. As :meth:`take`, back."""
        if self._skips and number >= self._rows[source]:
            return None
        if self._skips and number >= (last := self._drawn_before(self._last_block))[source]:
            return sum(last) + number - last[source]

        def given(block: int) -> bool:
            return self._slots.before(self._lane, block + 1)[source] > number

        if not given(_FARTHEST // self._slots.block_size):
            return None
        block = self._slots.first_block(given)
        sources, numbers = self._unskipped(range(block, block + 1))
        inside = int(np.argmax((sources == source) & (numbers == number)))
        place = self._places_before(block) + inside
        return place if self.length is None or place < self.length else None

    def slots_until(self, place: int) -> int:
        """Return a number of slots, those of whole groups of the deal, that decide the first `place` places."""
        if place == 0:
            return 0
        if self._skips and place > self._places_before(self._last_block):
            return self._slots.decided(self._last_block)
        return self._slots.decided(self._block_of(place - 1) + 1)

    def _without_choice(self, place: int) -> bool:
        """Whether all sources but one are exhausted at a place."""
        return self._skips and place >= self._places_before(self._last_block)

    def _drawn_before(self, block: int) -> tuple[int, ...]:
        counts = self._slots.before(self._lane, block)
        return tuple(map(min, counts, self._rows)) if self._skips else counts

    def _places_before(self, block: int) -> int:
        return sum(self._drawn_before(block)) if self._skips else block * self._slots.block_size

    def _block_of(self, place: int) -> int:
        """The block that holds a place (of those that deliver some row): the last with no more places before it."""
        low = place // self._slots.block_size
        if not self._skips:
            return low
        return max(low, self._slots.first_block(lambda block: self._places_before(block + 1) > place))

    def _chunk(self, block: int, places: int) -> range:
        """Blocks from one on that may deliver so many places, but no more than fit into the cache."""
        most = max(1, _CHUNK // self._slots.block_size)
        stop = block + min(most, -(-places // self._slots.block_size))
        return range(block, min(stop, self._last_block) if self._skips else stop)

    def _unskipped(self, blocks: range) -> tuple[Int64, Int64]:
        """(source, number) of the slots of some blocks, without those that are skipped; the last single one is kept."""
        kept = self._kept
        if len(blocks) == 1 and kept is not None and kept[0] == blocks.start:
            return kept[1:]
        source, number = self._of_slots(blocks)
        if self._skips:
            there = number < np.array(self._rows, np.int64)[source]
            source, number = (source, number) if there.all() else (source[there], number[there])
        if len(blocks) == 1:
            self._kept = blocks.start, source, number
        return source, number

    def _of_slots(self, blocks: range) -> tuple[Int64, Int64]:
        runs = self._slots.runs(self._lane, blocks)
        source = runs.by_slot(runs.spread(np.arange(runs.counts.shape[1])))
        return source, runs.by_slot(runs.numbered(runs.first))

    @cached_property
    def _last_block(self) -> int:
        """The first block before which all sources but one (or all) are exhausted: from there on there is no choice."""
        return self._slots.first_block(lambda block: len(self._left(block)) <= 1)

    def _left(self, block: int) -> list[int]:
        """The sources that are not exhausted before a block."""
        return [
            at for at, count in enumerate(self._slots.before(self._lane, block)) if count < self._rows[at]
        ]

    def _of_last_source(self, start: int, stop: int) -> tuple[Int64, Int64]:
        (source,) = self._left(self._last_block)
        begin = self._places_before(self._last_block) - self._drawn_before(self._last_block)[source]
        return np.full(stop - start, source, np.int64), np.arange(start - begin, stop - begin, dtype=np.int64)

    def _drawn_of_last_source(self, place: int) -> Int64:
        counts = np.array(self._drawn_before(self._last_block), np.int64)
        for source in self._left(self._last_block):
            counts[source] += place - int(counts.sum())
        return counts

    def _first_exhausted(self) -> int:
        rows = np.array(self._rows, np.int64)
        limits = [int(count) for count in rows]

        def overflows(block: int) -> bool:
            return any(
                count > limit
                for count, limit in zip(self._slots.before(self._lane, block + 1), limits, strict=True)
            )

        block = self._slots.first_block(overflows)
        source, number = self._unskipped(range(block, block + 1))
        return block * self._slots.block_size + int(
            np.argmax(number >= np.array(self._rows, np.int64)[source])
        )
