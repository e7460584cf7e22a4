"""Best-fit decreasing: items, largest first, each go to the bin with the least room that is enough.

An item for which no bin has room opens a new bin.

Items of one size are alike, and so are bins with the same room. It is therefore enough to count, in the order of
falling sizes, how many bins with a given room take how many items each (:data:`Move`). The number of moves is small.
The bin of each item follows from the moves at once: bins with one room are a queue, so that the k-th bin that leaves it
is the k-th that joined it.

Example: items of 6, 4, 4 and 2 in bins of 10. Four moves: a new bin takes the 6 (room 4); that bin takes a 4 (full);
a new bin takes the other 4 (room 6); that bin takes the 2 (room 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np

from tokenlake.base.arrays import Bools, Int64, offsets_of, places
from tokenlake.etl.packing.segments import small

_NEW: Final = -1  # where a row comes from that was empty
Move = tuple[int, int, int, int]
"""Queue that rows leave (or _NEW), queue they join, how many rows, how many documents each is given."""


def assign_best_fit_decreasing(sizes: Int64, capacity: int, max_items: int | None = None) -> Int64:
    """Return the bin of each item, numbered from 0 in the order in which they are opened: int64[n].

    Args:
        sizes: int64[n], each from 1 to `capacity`.
        max_items: at most so many items in a bin; None: any number.

    Items of one size go in order, and of bins with the same room the one that has it longest comes first.
    """
    bins = np.empty(len(sizes), np.int64)
    if len(sizes):
        counts = np.bincount(sizes)
        distinct = np.flatnonzero(counts)[::-1]
        falling = distinct.tolist(), counts[distinct].tolist(), capacity
        moves = _free_moves(*falling) if max_items is None else _bounded_moves(*falling, max_items)
        order = np.argsort(small(capacity - sizes), kind="stable")
        bins[order] = _resolved(np.fromiter(chain.from_iterable(moves), np.int64).reshape(-1, 4))
    return bins


def _free_moves(sizes: list[int], counts: list[int], capacity: int) -> Iterator[Move]:
    """Yield what becomes of items of falling `sizes`, `counts` of each.

    Queues are named by their room; bit r of `rooms` says that some bin has room r.
    """
    waiting = [0] * (capacity + 1)
    rooms = 0
    for size, count in zip(sizes, counts, strict=True):
        while count:
            if enough := rooms >> size:
                room = source = size + (enough & -enough).bit_length() - 1
                each = room // size
                bins = min(waiting[room], count // each)
                left = waiting[room] = waiting[room] - (bins or 1)
                if not left:
                    rooms ^= 1 << room
            else:
                room, source, each = capacity, _NEW, capacity // size
                bins = count // each
            # A bin that takes one item has the least room that is enough for the next one too, until it has too little.
            if not bins:
                bins, each = 1, count
            target = room - each * size
            if target:
                if not waiting[target]:
                    rooms |= 1 << target
                waiting[target] += bins
            count -= bins * each
            yield source, target, bins, each


def _bounded_moves(sizes: list[int], counts: list[int], capacity: int, most: int) -> Iterator[Move]:
    """As :func:`_free_moves`. Queues are named by ``room * most + items``; of one room the fullest bins come first."""
    waiting: dict[int, int] = {}
    held = [0] * (capacity + 1)  # bit i of held[r]: some bin has room r and i items
    rooms = 0
    for size, count in zip(sizes, counts, strict=True):
        while count:
            if enough := rooms >> size:
                room = size + (enough & -enough).bit_length() - 1
                items = held[room].bit_length() - 1
                source = room * most + items
                each = min(room // size, most - items)
                bins = min(waiting[source], count // each)
                left = waiting[source] = waiting[source] - (bins or 1)
                if not left:
                    held[room] ^= 1 << items
                    if not held[room]:
                        rooms ^= 1 << room
            else:
                room, items, source, each = capacity, 0, _NEW, min(capacity // size, most)
                bins = count // each
            if not bins:
                bins, each = 1, count
            room, items = room - each * size, items + each
            target = room * most + items
            if room and items < most:
                waiting[target] = waiting.get(target, 0) + bins
                held[room] |= 1 << items
                rooms |= 1 << room
            else:
                target = 0  # full: nobody asks for it again
            count -= bins * each
            yield source, target, bins, each


def _resolved(moves: Int64) -> Int64:
    """Return the bin of each item, in the order of the moves; `moves` is int64[m, 4], see :data:`Move`."""
    source, target, bins, each = moves.T
    visits = offsets_of(bins)  # a visit is one bin in one move

    def queued(queue: Int64, mask: Bools) -> tuple[Int64, Int64]:
        """Return queue and visit of all bins in the moves of `mask`, by queue and then by move."""
        of = np.flatnonzero(mask)
        of = of[np.argsort(queue[of], kind="stable")]
        return np.repeat(queue[of], bins[of]), places(visits[of], bins[of])

    (joined, arrivals), (left, departures) = queued(target, target > 0), queued(source, source != _NEW)
    before = np.arange(visits[-1])  # the visit of the same bin before, or itself
    # The k-th bin that left a queue is the k-th that joined it.
    rank = np.arange(len(left)) - np.searchsorted(left, left)
    before[departures] = arrivals[np.searchsorted(joined, left) + rank]
    while not np.array_equal(before, earlier := before[before]):
        before = earlier
    opened = np.cumsum(np.repeat(source == _NEW, bins)) - 1
    return np.repeat(opened[before], np.repeat(each, bins))
