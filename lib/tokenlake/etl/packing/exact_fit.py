"""Exact fit: bins that are filled to the last token, by pairs of items that complete them.

1. A bin takes items of the commonest size until two more items will do. Taking the commonest first keeps all sizes in
   stock until the end, so that a completing pair nearly always exists.
2. It then takes the two items that fill it exactly.
3. As many bins are filled alike as the stock allows.

This fills bins better than best-fit decreasing where all items are of middling sizes and no small items are left for
the gaps. Where many items are larger than half a bin it is worse.

The sizes in stock are an integer with one bit per size (bit s: an item of size s exists), and a second integer mirrors
it (bit capacity - s). Shifted against each other, the two have a bit in common for each pair of a given sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import final

import numpy as np

from tokenlake.base.arrays import Int64, places
from tokenlake.etl.packing.segments import small


def assign_exact_fit(sizes: Int64, capacity: int, max_items: int | None = None) -> Int64:
    """Return the bin of each item, numbered from 0 in the order in which they are filled: int64[n].

    Args:
        sizes: int64[n], each from 1 to `capacity`.
        max_items: at most so many items in a bin; None: any number.

    Items of one size go in order.
    """
    bins = np.empty(len(sizes), np.int64)
    if not len(sizes):
        return bins
    stock = _Stock(np.bincount(sizes, minlength=capacity + 1), capacity)
    takes: list[tuple[int, int, int, int]] = []  # size, first bin, bins, items of that size in each
    opened = 0
    for made, pattern in stock.patterns(max_items or len(sizes)):
        takes += [(size, opened, made, items) for size, items in pattern.items()]
        opened += made
    size, first, made, items = np.array(takes, np.int64).T
    order = np.argsort(size, kind="stable")
    each = np.repeat(items[order], made[order])
    bins[np.argsort(small(sizes), kind="stable")] = np.repeat(places(first[order], made[order]), each)
    return bins


@final
class _Stock:
    """How many items of each size there are."""

    def __init__(self, counts: Int64, capacity: int) -> None:
        self._counts, self._capacity = counts.tolist(), capacity
        sizes = np.flatnonzero(counts).tolist()
        self._there = sum(1 << size for size in sizes)
        self._mirror = sum(1 << (capacity - size) for size in sizes)
        # Of equally common sizes the larger; counts fall behind, and are set right when they come up.
        self._commonest = [(-self._counts[size], -size) for size in sizes]
        heapify(self._commonest)

    def patterns(self, most: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield, until nothing is left, how many bins are filled alike and with how many items of each size."""
        counts = self._counts
        while self._there:
            pattern = self._pattern(most)
            made = min(counts[size] // items for size, items in pattern.items())
            for size, items in pattern.items():
                counts[size] -= made * items
                if not counts[size]:
                    self._there ^= 1 << size
                    self._mirror ^= 1 << (self._capacity - size)
            yield made, pattern

    def _pattern(self, most: int) -> dict[int, int]:
        """Fill one bin."""
        counts, capacity = self._counts, self._capacity
        there, mirror = self._there, self._mirror
        two_more = 2 * (there.bit_length() - 1)
        pattern: dict[int, int] = {}
        room, free = capacity, most
        while free and (fits := there & ((2 << room) - 1)):
            size, items = fits.bit_length() - 1, 1
            if room > two_more:
                size = self._common(pattern) or size
                items = min(-((two_more - room) // size), counts[size] - pattern.get(size, 0), free)
            elif 2 * size >= room and size != room and free > 1:
                pair = self._pair(fits & (mirror >> (capacity - room)), room, pattern)
                if pair:
                    for half in (pair, room - pair):
                        pattern[half] = pattern.get(half, 0) + 1
                    break
            held = pattern[size] = pattern.get(size, 0) + items
            if held == counts[size]:
                there ^= 1 << size
                mirror ^= 1 << (capacity - size)
            room, free = room - items * size, free - items
        return pattern

    def _pair(self, larger: int, room: int, pattern: dict[int, int]) -> int:
        """Return the larger size of two that fill `room`, the most unequal ones; 0 where there are none."""
        while larger:
            size = larger.bit_length() - 1
            if 2 * size < room:
                break
            if 2 * size != room or self._counts[size] - pattern.get(size, 0) > 1:
                return size
            larger ^= 1 << size
        return 0

    def _common(self, pattern: dict[int, int]) -> int:
        """Return the commonest size, or 0 where the bin has all of it already."""
        heap, counts = self._commonest, self._counts
        while True:
            known, size = -heap[0][0], -heap[0][1]
            if counts[size] == known:
                return size if known > pattern.get(size, 0) else 0
            if counts[size]:
                heapreplace(heap, (-counts[size], -size))
            else:
                heappop(heap)
