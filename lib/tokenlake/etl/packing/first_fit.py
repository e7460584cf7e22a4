"""First-fit packing: each document, in order, goes to the first row that has room for it.

A document longer than a row is whole rows and a rest, and the rests are placed.

The first row with enough room is found in a tournament tree: a binary tree whose leaves are the rows, in order. Each
inner node holds the largest room of the rows below it. From the root, one comparison per level decides whether the
first such row is in the left half, so that a document takes log2(rows) steps.
"""

from __future__ import annotations

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.packing.segments import Rests, Segments, from_rests


def first_fit_segments(lengths: Int64, capacity: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `capacity` tokens.

    Args:
        max_segments: at most so many pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input.
    """
    rests = Rests.of(lengths, capacity, lambda sizes: assign_first_fit(sizes, capacity, max_segments))
    return from_rests(lengths, capacity, rests)


def assign_first_fit(sizes: Int64, capacity: int, max_items: int | None = None) -> Int64:
    """Return the bin of each item, numbered from 0 in the order in which they are opened: int64[n].

    Args:
        sizes: int64[n], each from 1 to `capacity`.
        max_items: at most so many items in a bin.
    """
    # Two neighbouring bins hold more than one bin's capacity, unless they are closed for their number of items.
    most = int(sizes.sum()) * 2 // capacity + 2 + (len(sizes) // max_items if max_items else 0)
    leaves = 1 << (min(most, max(1, len(sizes))) - 1).bit_length()
    room = [capacity] * (2 * leaves)
    items = [0] * leaves
    limit = max_items or len(sizes) + 1
    bins: list[int] = []
    for size in sizes.tolist():
        node = 1
        while node < leaves:
            node += node
            if room[node] < size:
                node += 1
        at = node - leaves
        bins.append(at)
        items[at] += 1
        left = room[node] - size if items[at] < limit else 0
        # Upwards only as far as the most room changes.
        room[node] = left
        while node > 1:
            other = room[node ^ 1]
            node >>= 1
            left = left if left > other else other
            if room[node] == left:
                break
            room[node] = left
    return np.array(bins, np.int64)
