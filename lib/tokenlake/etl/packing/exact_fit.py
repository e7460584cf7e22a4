"""Exact fit: bins that are filled to the last token, by pairs that complete them.

1. A bin takes items of the commonest size until two more items will do. Taking the
   commonest first keeps all sizes in stock until the end, so that a completing pair
   nearly always exists.
2. It then takes the two items that fill it exactly.
3. As many bins are filled alike as the stock allows.

This fills bins better than best-fit decreasing if all items are of middling sizes and
no small items are left for the gaps. If many items are larger than half a bin it is
worse.

The sizes in stock are an integer with one bit per size (bit s: an item of size s
exists), and a second integer mirrors it (bit capacity - s). Shifted against each other,
the two have a bit in common for each pair of a given sum.

Example: bins of 10; in stock are four items of 3, one of 5 and one of 2. No two of them
have the sum 10, and the first bin takes the 5, the largest. Two items have the sum 5
that is left, 3 and 2: the bin is full. The second bin takes the remaining three items
of 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import final

import numpy as np

from tokenlake.base.arrays import Int64, places
from tokenlake.etl.packing.segments import small


def assign_exact_fit(
    sizes: Int64, capacity: int, max_items: int | None = None
) -> Int64:
    """Return the bin of each item, int64[n]; bins are numbered as they are filled.

    Items of one size are placed in order.

    Args:
        sizes: Size of each item, from 1 to `capacity`, int64[n].
        capacity: Size of a bin.
        max_items: Largest number of items in a bin; None: any number.
    """
    bins = np.empty(len(sizes), np.int64)
    if not len(sizes):
        return bins
    # 1. Fill bins. A run: some consecutive bins take some items of one size each.
    stock = _Stock(np.bincount(sizes, minlength=capacity + 1), capacity)
    # Size, first bin, number of bins, items in each.
    runs: list[tuple[int, int, int, int]] = []
    filled_bins = 0
    for alike_bins, pattern in stock.patterns(max_items or len(sizes)):
        for size, items in pattern.items():
            runs.append((size, filled_bins, alike_bins, items))
        filled_bins += alike_bins
    # 2. The items of a size, in order, go to the bins of its runs, in order.
    size_of_run, first_bin, bin_count, items_per_bin = np.array(runs, np.int64).T
    by_size = np.argsort(size_of_run, kind="stable")
    bins_of_runs = places(first_bin[by_size], bin_count[by_size])
    repeats = np.repeat(items_per_bin[by_size], bin_count[by_size])
    item_bins = np.repeat(bins_of_runs, repeats)
    bins[np.argsort(small(sizes), kind="stable")] = item_bins
    return bins


@final
class _Stock:
    """Items that are not placed yet, counted by size.

    Args:
        counts: Number of items of each size, int64[capacity + 1].
        capacity: Size of a bin.
    """

    def __init__(self, counts: Int64, capacity: int) -> None:
        self._counts: list[int] = counts.tolist()
        self._capacity = capacity
        self._in_stock = 0  # bit s: an item of size s exists
        self._mirror = 0  # bit capacity - s: the same
        # Heap of (-count, -size): the commonest size, and of equally common ones the
        # larger. Counts may be outdated, and are corrected when they come up.
        self._commonest: list[tuple[int, int]] = []
        for size in np.flatnonzero(counts).tolist():
            self._in_stock |= 1 << size
            self._mirror |= 1 << (capacity - size)
            self._commonest.append((-self._counts[size], -size))
        heapify(self._commonest)

    def patterns(self, max_items: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield a number of bins that are filled alike, and their items by size.

        It ends when nothing is left in stock.
        """
        counts = self._counts
        while self._in_stock:
            pattern = self._pattern(max_items)
            alike_bins = min(counts[size] // items for size, items in pattern.items())
            for size, items in pattern.items():
                counts[size] -= alike_bins * items
                if not counts[size]:
                    self._in_stock ^= 1 << size
                    self._mirror ^= 1 << (self._capacity - size)
            yield alike_bins, pattern

    def _pattern(self, max_items: int) -> dict[int, int]:
        """Fill one bin; return its items by size."""
        counts = self._counts
        capacity = self._capacity
        in_stock = self._in_stock
        mirror = self._mirror
        # Two more items may fill at most this much room.
        pair_room = 2 * (in_stock.bit_length() - 1)
        pattern: dict[int, int] = {}
        room = capacity
        items_left = max_items
        while items_left:
            fitting_sizes = in_stock & ((2 << room) - 1)
            if not fitting_sizes:
                break
            size = fitting_sizes.bit_length() - 1
            items = 1
            if room > pair_room:
                # 1. Items of the commonest size, until a pair may complete the bin.
                size = self._commonest_size(pattern) or size
                wanted_items = -((pair_room - room) // size)
                stock_left = counts[size] - pattern.get(size, 0)
                items = min(wanted_items, stock_left, items_left)
            elif 2 * size >= room and size != room and items_left > 1:
                # 2. A pair that fills the bin. Without one the largest item that fits
                #    is taken.
                pair_sizes = fitting_sizes & (mirror >> (capacity - room))
                larger = self._larger_of_pair(pair_sizes, room, pattern)
                if larger:
                    pattern[larger] = pattern.get(larger, 0) + 1
                    smaller = room - larger
                    pattern[smaller] = pattern.get(smaller, 0) + 1
                    break
            pattern[size] = pattern.get(size, 0) + items
            # The bin has all items of this size: it is out of stock for this bin.
            if pattern[size] == counts[size]:
                in_stock ^= 1 << size
                mirror ^= 1 << (capacity - size)
            room -= items * size
            items_left -= items
        return pattern

    def _larger_of_pair(
        self, pair_sizes: int, room: int, pattern: dict[int, int]
    ) -> int:
        """Return the larger size of the most unequal pair that fills a room, or 0.

        Args:
            pair_sizes: Sizes whose partner is in stock, as bits.
            room: Sum of the two sizes.
            pattern: Items that the bin has already.
        """
        while pair_sizes:
            size = pair_sizes.bit_length() - 1
            if 2 * size < room:
                break
            # A pair of equal sizes needs two items of it.
            if 2 * size != room or self._counts[size] - pattern.get(size, 0) > 1:
                return size
            pair_sizes ^= 1 << size
        return 0

    def _commonest_size(self, pattern: dict[int, int]) -> int:
        """Return the commonest size, or 0 if the bin has all items of it already."""
        heap = self._commonest
        counts = self._counts
        while True:
            recorded_count = -heap[0][0]
            size = -heap[0][1]
            if counts[size] == recorded_count:
                if recorded_count > pattern.get(size, 0):
                    return size
                return 0
            if counts[size]:
                heapreplace(heap, (-counts[size], -size))
            else:
                heappop(heap)
