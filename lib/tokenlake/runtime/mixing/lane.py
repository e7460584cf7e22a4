"""One lane of a mixture: which source each of its places is of, and the way back from a row to its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import lane_bounds
from tokenlake.runtime.mixing.slot_deal import SlotDeal


def rows_by_lane(names: Sequence[str], lengths: Sequence[int | None], lanes: int) -> Int64:
    """Return the rows of each source in each lane, int64[lanes, J]; -1 where they are unknown.

    Raises:
        ConfigError: they are unknown and there are several lanes.
    """
    if lanes > 1 and None in lengths:
        raise ConfigError(
            f"source {names[lengths.index(None)]!r} has an unknown number of rows and cannot be cut into {lanes} "
            "lanes; expected lanes=1, or the length of every source"
        )
    columns = [np.full(lanes, -1) if rows is None else np.diff(lane_bounds(rows, lanes)) for rows in lengths]
    return np.stack(columns, axis=1).astype(np.int64)


_CHUNK: Final = 1 << 15  # slots at a time: they stay in the cache
_FARTHEST: Final = 1 << 50
"""The last slot that is looked at for a row that may never come: of a source that weighs nothing from some step on."""


@final
class Lane:
    """One lane of a mixture. Its blocks are the cells of the deal.

    A place is an index in what a lane delivers, a slot one in the endless lane behind it. A source that has given all
    its rows is exhausted; what it still gets of the endless lane's slots is skipped ("all_exhausted"), or ends the lane
    before the first of them ("first_exhausted"). How many places lie before a block is known from the counts at the
    block's beginning, ``sum of min(count_j, rows_j)``, so that the block of any place is found by bisection.

    Args:
        deal: of the slots of all lanes.
        lane: which one.
        rows: rows of each source in this lane; None where they do not end the lane.
        skipping: whether the lane ends when all its sources are exhausted, or before the first that is.
    """

    def __init__(self, deal: SlotDeal, lane: int, rows: tuple[int, ...] | None, *, skipping: bool) -> None:
        self._deal = deal
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
            return self._deal.before(self._lane, block + 1)[source] > number

        if not given(_FARTHEST // self._deal.cell):
            return None
        block = self._deal.first_cell(given)
        sources, numbers = self._unskipped(range(block, block + 1))
        inside = int(np.argmax((sources == source) & (numbers == number)))
        place = self._places_before(block) + inside
        return place if self.length is None or place < self.length else None

    def slots_until(self, place: int) -> int:
        """Return a number of slots, those of whole blocks, that decide the first `place` places."""
        if place == 0:
            return 0
        if self._skips and place > self._places_before(self._last_block):
            return self._last_block * self._deal.cell
        return (self._block_of(place - 1) + 1) * self._deal.cell

    def _without_choice(self, place: int) -> bool:
        """Whether all sources but one are exhausted at a place."""
        return self._skips and place >= self._places_before(self._last_block)

    def _drawn_before(self, block: int) -> tuple[int, ...]:
        counts = self._deal.before(self._lane, block)
        return tuple(map(min, counts, self._rows)) if self._skips else counts

    def _places_before(self, block: int) -> int:
        return sum(self._drawn_before(block)) if self._skips else block * self._deal.cell

    def _block_of(self, place: int) -> int:
        """The block that holds a place (of those that deliver some row): the last with no more places before it."""
        low = place // self._deal.cell
        if not self._skips:
            return low
        return max(low, self._deal.first_cell(lambda block: self._places_before(block + 1) > place))

    def _chunk(self, block: int, places: int) -> range:
        """Blocks from one on that may deliver so many places, but no more than fit into the cache."""
        most = max(1, _CHUNK // self._deal.cell)
        stop = block + min(most, -(-places // self._deal.cell))
        return range(block, min(stop, self._last_block) if self._skips else stop)

    def _unskipped(self, blocks: range) -> tuple[Int64, Int64]:
        """(source, number) of the slots of some blocks, without those that are skipped; the last single one is kept."""
        kept = self._kept
        if len(blocks) == 1 and kept is not None and kept[0] == blocks.start:
            return kept[1:]
        source, number = self._deal.rows(self._lane, blocks)
        if self._skips:
            there = number < np.array(self._rows, np.int64)[source]
            source, number = (source, number) if there.all() else (source[there], number[there])
        if len(blocks) == 1:
            self._kept = blocks.start, source, number
        return source, number

    @cached_property
    def _last_block(self) -> int:
        """The first block before which all sources but one (or all) are exhausted: from there on there is no choice."""
        return self._deal.first_cell(lambda block: len(self._left(block)) <= 1)

    def _left(self, block: int) -> list[int]:
        """The sources that are not exhausted before a block."""
        counts = enumerate(self._deal.before(self._lane, block))
        return [at for at, count in counts if count < self._rows[at]]

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
        """The first place whose row is not there."""

        def overflows(block: int) -> bool:
            each = zip(self._deal.before(self._lane, block + 1), self._rows, strict=True)
            return any(count > rows for count, rows in each)

        block = self._deal.first_cell(overflows)
        source, number = self._unskipped(range(block, block + 1))
        return block * self._deal.cell + int(np.argmax(number >= np.array(self._rows, np.int64)[source]))
