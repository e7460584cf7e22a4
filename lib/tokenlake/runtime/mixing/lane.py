"""One lane of a mixture: the source and row at each place, and the place of a row.

A *slot* is an index in the endless lane that a deal fills, in which every source goes
on for ever. A *place* is an index in the rows that the lane delivers. A source that has
given all its rows is exhausted. The slots that it still gets are skipped
("all_exhausted"), or end the lane before the first of them ("first_exhausted").

How many places lie before a *block* (a cell of the deal) follows from the counts before it::

    places = sum over sources of min(count_j, rows_j)

so that the block of any place is found by bisection. Once all sources but one are
exhausted, the rest of the lane is that source, and no block is looked at.

Example: sources a with 2 rows and b with 5, blocks of 4 slots with 2 of each, "all_exhausted"::

    slot     0  1  2  3 |  4  5  6  7 | ...
    source   a  b  b  a |  b  a  a  b | ...
    place    0  1  2  3 |  4  -  -  5 |  6        a is exhausted after block 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import lane_bounds
from tokenlake.runtime.mixing.slot_deal import SlotDeal

# Slots that are worked out at a time: they stay in the processor's cache.
_CHUNK_SLOTS: Final = 1 << 15
_FARTHEST_SLOT: Final = 1 << 50
"""Last slot in which a row is searched for. A source that weighs nothing from some
step on may never give it.
"""


def rows_by_lane(
    names: Sequence[str], lengths: Sequence[int | None], lanes: int
) -> Int64:
    """Return the rows of each source in each lane, int64[lanes, J]; -1 if unknown.

    Args:
        names: Names of the sources.
        lengths: Number of rows of each source; None if it is unknown.
        lanes: Number of lanes.

    Raises:
        ConfigError: A number of rows is unknown and there are several lanes.
    """
    if lanes > 1 and None in lengths:
        raise ConfigError(
            f"source {names[lengths.index(None)]!r} has an unknown number of rows and cannot be divided into {lanes} "
            "lanes; expected lanes=1, or the length of every source"
        )
    rows = np.full((lanes, len(lengths)), -1, np.int64)
    for source, length in enumerate(lengths):
        if length is not None:
            rows[:, source] = np.diff(lane_bounds(length, lanes))
    return rows


@final
class Lane:
    """One lane of a mixture.

    Args:
        deal: Deal of the slots of all lanes.
        lane: Number of the lane.
        rows: Number of rows of each source in this lane; None if exhausted sources do
            not end the lane.
        skipping: True if the lane ends when all its sources are exhausted; False if it
            ends before the first one is.
    """

    def __init__(
        self, deal: SlotDeal, lane: int, rows: tuple[int, ...] | None, *, skipping: bool
    ) -> None:
        self._deal = deal
        self._lane = lane
        self._rows = rows or ()
        self._is_endless = rows is None
        self._skips = skipping and rows is not None
        # Block, sources, numbers.
        self._last_decoded: tuple[int, Int64, Int64] | None = None

    @cached_property
    def length(self) -> int | None:
        """Number of places; None if the lane never ends."""
        if self._is_endless:
            return None
        if self._skips:
            return sum(self._rows)
        return self._first_missing_place()

    def take(self, start: int, stop: int) -> Iterator[tuple[Int64, Int64]]:
        """Yield the sources and row numbers at places ``start .. stop``, in parts.

        A number counts the rows of its source in this lane.

        Yields:
            int64[n] both.
        """
        if start >= stop:
            return
        block = (
            self._last_block
            if self._has_one_source_left(start)
            else self._block_of(start)
        )
        while start < stop:
            if self._skips and block >= self._last_block:
                yield self._rows_of_last_source(start, stop)
                return
            # As many blocks as the places need; blocks may deliver fewer rows than they
            # have slots.
            begin = self._places_before(block)
            blocks = self._blocks_from(block, stop - begin)
            source, number = self._delivered(blocks)
            places = slice(start - begin, stop - begin)
            yield source[places], number[places]
            start = min(stop, begin + len(source))
            block = blocks.stop
            if start < stop and not len(source):
                block = self._block_of(start)

    def drawn(self, place: int) -> Int64:
        """Return the rows of each source at the first `place` places, int64[J]."""
        if self._has_one_source_left(place):
            return self._drawn_with_last_source(place)
        # Rows before the block, then those of its first places.
        block = self._block_of(place)
        counts = np.array(self._drawn_before(block), np.int64)
        source, _ = self._delivered(range(block, block + 1))
        places_in_block = place - self._places_before(block)
        return counts + np.bincount(source[:places_in_block], minlength=len(counts))

    def place_of(self, source: int, number: int) -> int | None:
        """Return the place of a row; the inverse of :meth:`take`.

        Args:
            source: Index of the source.
            number: Number of the row in that source, from 0.

        Returns:
            None if the lane never delivers the row.
        """
        if self._skips and number >= self._rows[source]:
            return None
        if self._skips:
            rows_before = self._drawn_before(self._last_block)
            if number >= rows_before[source]:
                return sum(rows_before) + number - rows_before[source]

        def is_given_before_end_of(block: int) -> bool:
            return self._deal.before(self._lane, block + 1)[source] > number

        # The block is found by bisection, the place by looking through its rows.
        if not is_given_before_end_of(_FARTHEST_SLOT // self._deal.cell):
            return None
        block = self._deal.first_cell(is_given_before_end_of)
        sources, numbers = self._delivered(range(block, block + 1))
        place_in_block = int(np.argmax((sources == source) & (numbers == number)))
        place = self._places_before(block) + place_in_block
        if self.length is not None and place >= self.length:
            return None
        return place

    def slots_until(self, place: int) -> int:
        """Return a number of slots that decide the first `place` places.

        They are the slots of whole blocks.
        """
        if place == 0:
            return 0
        if self._skips and place > self._places_before(self._last_block):
            return self._last_block * self._deal.cell
        return (self._block_of(place - 1) + 1) * self._deal.cell

    def _has_one_source_left(self, place: int) -> bool:
        """Return whether all sources but one are exhausted at a place."""
        return self._skips and place >= self._places_before(self._last_block)

    def _drawn_before(self, block: int) -> tuple[int, ...]:
        """Return the rows of each source that are delivered before a block."""
        counts = self._deal.before(self._lane, block)
        if self._skips:
            return tuple(map(min, counts, self._rows))
        return counts

    def _places_before(self, block: int) -> int:
        """Return the number of places before a block."""
        if self._skips:
            return sum(self._drawn_before(block))
        return block * self._deal.cell

    def _block_of(self, place: int) -> int:
        """Return the block that contains a place.

        Of the blocks that deliver rows, it is the last with no more places before it.
        """
        # Skipped slots only move a place to a later block.
        first_block = place // self._deal.cell
        if not self._skips:
            return first_block
        return max(
            first_block,
            self._deal.first_cell(lambda block: self._places_before(block + 1) > place),
        )

    def _blocks_from(self, block: int, places: int) -> range:
        """Return the blocks that may deliver some places, beginning with a block.

        There are as many as fit the processor's cache.
        """
        # Blocks after the last one with several sources need no deal.
        limit = max(1, _CHUNK_SLOTS // self._deal.cell)
        stop = block + min(limit, -(-places // self._deal.cell))
        if self._skips:
            stop = min(stop, self._last_block)
        return range(block, stop)

    def _delivered(self, blocks: range) -> tuple[Int64, Int64]:
        """Return the sources and numbers of the rows of some blocks, int64[n] both.

        The last block that was asked for alone is remembered.
        """
        remembered = self._last_decoded
        if (
            len(blocks) == 1
            and remembered is not None
            and remembered[0] == blocks.start
        ):
            return remembered[1:]
        source, number = self._deal.rows(self._lane, blocks)
        if self._skips:
            has_row = number < np.array(self._rows, np.int64)[source]
            if not has_row.all():
                source = source[has_row]
                number = number[has_row]
        if len(blocks) == 1:
            self._last_decoded = (blocks.start, source, number)
        return source, number

    @cached_property
    def _last_block(self) -> int:
        """First block before which all sources but one, or all, are exhausted."""
        return self._deal.first_cell(lambda block: len(self._sources_left(block)) <= 1)

    def _sources_left(self, block: int) -> list[int]:
        """Return the sources that are not exhausted before a block."""
        counts = self._deal.before(self._lane, block)
        return [
            source for source, count in enumerate(counts) if count < self._rows[source]
        ]

    def _rows_of_last_source(self, start: int, stop: int) -> tuple[Int64, Int64]:
        """Return the sources and numbers at places of the last source, int64[n] both.

        All other sources are exhausted before these places.
        """
        (source,) = self._sources_left(self._last_block)
        places_of_others = (
            self._places_before(self._last_block)
            - self._drawn_before(self._last_block)[source]
        )
        number = np.arange(
            start - places_of_others, stop - places_of_others, dtype=np.int64
        )
        return np.full(stop - start, source, np.int64), number

    def _drawn_with_last_source(self, place: int) -> Int64:
        """Return :meth:`drawn` at a place after all sources but one are exhausted."""
        counts = np.array(self._drawn_before(self._last_block), np.int64)
        for source in self._sources_left(self._last_block):
            counts[source] += place - int(counts.sum())
        return counts

    def _first_missing_place(self) -> int:
        """Return the first place whose source has no row left."""

        def needs_missing_row(block: int) -> bool:
            counts = self._deal.before(self._lane, block + 1)
            return any(
                count > rows for count, rows in zip(counts, self._rows, strict=True)
            )

        # In the block of the first missing row, the earliest slot without a row ends the
        # lane.
        block = self._deal.first_cell(needs_missing_row)
        source, number = self._delivered(range(block, block + 1))
        is_missing = number >= np.array(self._rows, np.int64)[source]
        return block * self._deal.cell + int(np.argmax(is_missing))
