"""First-fit packing: each document goes, in order, to the first row with room for it.

A document longer than a row is whole rows and a rest, and the rests are placed.

The first row with enough room is found in a tournament tree: a binary tree whose leaves
are the rows, in order. Each inner node holds the largest room of the rows below it.
From the root, one comparison per level decides whether the first such row is in the
left half, so that a document takes log2(rows) steps.

Example: rows of 8 with room 1, 5, 3 and 8. The root holds 8, its children 5 and 8. An
item of 4 goes left (5 >= 4), then right (1 < 4), to row 1, whose room is then 1. On the
way back up, the left child becomes 1, and the root stays 8.
"""

from __future__ import annotations

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.packing.segments import Rests, Segments, from_rests


def first_fit_segments(
    lengths: Int64, capacity: int, max_segments: int | None = None
) -> Segments:
    """Plan documents into rows of `capacity` tokens.

    Args:
        lengths: Tokens of each document, at least 1, int64[n].
        capacity: Tokens per row.
        max_segments: Largest number of pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input.
    """
    rests = Rests.of(
        lengths, capacity, lambda sizes: assign_first_fit(sizes, capacity, max_segments)
    )
    return from_rests(lengths, capacity, rests)


def assign_first_fit(
    sizes: Int64, capacity: int, max_items: int | None = None
) -> Int64:
    """Return the bin of each item, int64[n]; bins are numbered as they are opened.

    Args:
        sizes: Size of each item, from 1 to `capacity`, int64[n].
        capacity: Size of a bin.
        max_items: Largest number of items in a bin; None: any number.
    """
    # Two neighbouring bins hold more than one bin's capacity, unless they are closed
    # for their number of items.
    most_bins = int(sizes.sum()) * 2 // capacity + 2
    if max_items:
        most_bins += len(sizes) // max_items
    # A power of two, so that the tree is complete and its nodes need no pointers.
    leaves = 1 << (min(most_bins, max(1, len(sizes))) - 1).bit_length()
    # Node 1 is the root; the children of node n are 2n and 2n + 1; leaf b is bin b.
    room = [capacity] * (2 * leaves)
    item_counts = [0] * leaves
    item_limit = max_items or len(sizes) + 1
    bins: list[int] = []
    for size in sizes.tolist():
        # 1. Down, to the left wherever the left half has enough room.
        node = 1
        while node < leaves:
            node += node
            if room[node] < size:
                node += 1
        bin_number = node - leaves
        bins.append(bin_number)
        # 2. Less room; none in a bin that has its number of items.
        item_counts[bin_number] += 1
        largest_room = room[node] - size
        if item_counts[bin_number] == item_limit:
            largest_room = 0
        room[node] = largest_room
        # 3. Up, as far as the largest room changes.
        while node > 1:
            sibling_room = room[node ^ 1]
            node >>= 1
            if sibling_room > largest_room:
                largest_room = sibling_room
            if room[node] == largest_room:
                break
            room[node] = largest_room
    return np.array(bins, np.int64)
