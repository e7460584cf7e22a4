"""Best-fit decreasing: items, largest first, go to the fullest bins with room for them.

An item for which no bin has room opens a new bin.

Items of one size are alike, and so are bins with the same room. It is therefore enough
to count, in the order of falling sizes, how many bins with a given room take how many
items each (:data:`Move`). The number of moves is small. The bin of each item follows
from the moves at once: bins with one room are a queue, so that the k-th bin that leaves
it is the k-th that joined it.

Example: items of 6, 4, 4 and 2 in bins of 10. Four moves: a new bin takes the 6 (room
4); that bin takes a 4 (full); a new bin takes the other 4 (room 6); that bin takes the
2 (room 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from tokenlake.base.arrays import Bools, Int64, offsets_of, places
from tokenlake.etl.packing.segments import small

_NEW_BIN: Final = -1  # queue that a bin leaves which was empty
_FULL: Final = 0  # queue of bins that take no more items; no move leaves it

Move: TypeAlias = tuple[int, int, int, int]
"""Queue that bins leave (or ``_NEW_BIN``), queue that they join, number of these
bins, items that each takes.
"""


def assign_best_fit_decreasing(
    sizes: Int64, capacity: int, max_items: int | None = None
) -> Int64:
    """Return the bin of each item, int64[n]; bins are numbered as they are opened.

    Items of one size are placed in order. Of bins with the same room, the one that has
    had it longest comes first.

    Args:
        sizes: Size of each item, from 1 to `capacity`, int64[n].
        capacity: Size of a bin.
        max_items: Largest number of items in a bin; None: any number.
    """
    bins = np.empty(len(sizes), np.int64)
    if not len(sizes):
        return bins
    # Items are counted by size, the largest first: equal ones are placed together.
    counts = np.bincount(sizes)
    falling_sizes = np.flatnonzero(counts)[::-1]
    falling_counts = counts[falling_sizes].tolist()
    if max_items is None:
        moves = _moves(falling_sizes.tolist(), falling_counts, capacity)
    else:
        moves = _bounded_moves(
            falling_sizes.tolist(), falling_counts, capacity, max_items
        )
    # The moves place items of falling sizes, and a stable sort finds them in the input.
    by_falling_size = np.argsort(small(capacity - sizes), kind="stable")
    table = np.fromiter(chain.from_iterable(moves), np.int64).reshape(-1, 4)
    bins[by_falling_size] = _bins_of(table)
    return bins


def _moves(sizes: list[int], counts: list[int], capacity: int) -> Iterator[Move]:
    """Yield the moves of items, for bins that hold any number of them.

    Queues are named by the room of their bins. Bit r of `rooms` says that some bin has
    room r.

    Args:
        sizes: Sizes, falling.
        counts: Number of items of each size.
        capacity: Size of a bin.
    """
    waiting_bins = [0] * (capacity + 1)
    rooms = 0
    for size, items_left in zip(sizes, counts, strict=True):
        while items_left:
            # 1. The least room that is enough for the size, or a new bin.
            rooms_enough = rooms >> size
            if rooms_enough:
                lowest_bit = rooms_enough & -rooms_enough
                room = size + lowest_bit.bit_length() - 1
                source = room
                # A bin that takes one item keeps the least room that is enough, until
                # it has too little.
                items_per_bin = room // size
                bins = min(waiting_bins[room], items_left // items_per_bin)
                # Too few items to fill a bin still take one, in step 2.
                waiting_bins[room] -= bins or 1
                if not waiting_bins[room]:
                    rooms ^= 1 << room
            else:
                room = capacity
                source = _NEW_BIN
                items_per_bin = capacity // size
                bins = items_left // items_per_bin
            # 2. Items that do not fill one bin are the last ones of their size.
            if not bins:
                bins = 1
                items_per_bin = items_left
            # 3. The bins join the queue of their new room; 0 is full.
            target = room - items_per_bin * size
            if target:
                if not waiting_bins[target]:
                    rooms |= 1 << target
                waiting_bins[target] += bins
            items_left -= bins * items_per_bin
            yield source, target, bins, items_per_bin


def _bounded_moves(
    sizes: list[int], counts: list[int], capacity: int, max_items: int
) -> Iterator[Move]:
    """Yield the moves of items, for bins of at most `max_items` items.

    The steps are those of :func:`_moves`.

    Queues are named by ``room * max_items + items``. Of bins with one room, those with
    the most items come first.
    """
    waiting_bins: dict[int, int] = {}
    # Bit i of item_counts[r]: some bin has room r and i items.
    item_counts = [0] * (capacity + 1)
    rooms = 0
    for size, items_left in zip(sizes, counts, strict=True):
        while items_left:
            # 1. The least room that is enough, and of its bins those with the most
            #    items; or a new bin.
            rooms_enough = rooms >> size
            if rooms_enough:
                lowest_bit = rooms_enough & -rooms_enough
                room = size + lowest_bit.bit_length() - 1
                items = item_counts[room].bit_length() - 1
                source = room * max_items + items
                items_per_bin = min(room // size, max_items - items)
                bins = min(waiting_bins[source], items_left // items_per_bin)
                # Too few items to fill a bin still take one, in step 2.
                waiting_bins[source] -= bins or 1
                if not waiting_bins[source]:
                    item_counts[room] ^= 1 << items
                    if not item_counts[room]:
                        rooms ^= 1 << room
            else:
                room = capacity
                items = 0
                source = _NEW_BIN
                items_per_bin = min(capacity // size, max_items)
                bins = items_left // items_per_bin
            # 2. Items that do not fill one bin are the last ones of their size.
            if not bins:
                bins = 1
                items_per_bin = items_left
            # 3. The bins join the queue of their new room and number of items.
            room -= items_per_bin * size
            items += items_per_bin
            target = _FULL
            if room and items < max_items:
                target = room * max_items + items
                waiting_bins[target] = waiting_bins.get(target, 0) + bins
                item_counts[room] |= 1 << items
                rooms |= 1 << room
            items_left -= bins * items_per_bin
            yield source, target, bins, items_per_bin


def _bins_of(moves: Int64) -> Int64:
    """Return the bin of each item, in the order of the moves, int64[n].

    Args:
        moves: Moves as rows, see :data:`Move`, int64[m, 4].
    """
    source, target, bins, items_per_bin = moves.T
    # A visit is one bin in one move.
    first_visit = offsets_of(bins)
    # 1. Visits by the queue that their bins join, and by the queue that their bins
    #    leave.
    joined_queue, arrivals = _by_queue(target, target != _FULL, bins, first_visit)
    left_queue, departures = _by_queue(source, source != _NEW_BIN, bins, first_visit)
    # 2. The visit before each visit of the same bin; a bin's first visit is its own.
    #    The k-th bin that leaves a queue is the k-th that joined it.
    rank_in_queue = np.arange(len(left_queue)) - np.searchsorted(left_queue, left_queue)
    visit_before = np.arange(first_visit[-1])
    arrival_indices = np.searchsorted(joined_queue, left_queue) + rank_in_queue
    visit_before[departures] = arrivals[arrival_indices]
    # 3. The first visit of each bin: follow the visits back, in steps of doubling
    #    length.
    while True:
        earlier = visit_before[visit_before]
        if np.array_equal(visit_before, earlier):
            break
        visit_before = earlier
    # 4. Bins are numbered as they are opened.
    bin_of_visit = np.cumsum(np.repeat(source == _NEW_BIN, bins)) - 1
    return np.repeat(bin_of_visit[visit_before], np.repeat(items_per_bin, bins))


def _by_queue(
    queue: Int64, mask: Bools, bins: Int64, first_visit: Int64
) -> tuple[Int64, Int64]:
    """Return the queue and the number of each visit of some moves.

    Visits are sorted by queue and then by move.

    Args:
        queue: Queue of each move, int64[m].
        mask: True for the moves to look at, bool[m].
        bins: Bins of each move, int64[m].
        first_visit: Number of the first visit of each move, int64[m + 1].
    """
    chosen_moves = np.flatnonzero(mask)
    by_queue = chosen_moves[np.argsort(queue[chosen_moves], kind="stable")]
    queue_of_visit = np.repeat(queue[by_queue], bins[by_queue])
    return queue_of_visit, places(first_visit[by_queue], bins[by_queue])
