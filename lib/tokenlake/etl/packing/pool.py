"""Pool packing: a few rows are open, and each document goes to the one that it fills best.

A document that fits none of them fills the fullest to its end, and continues in the row that is opened in its place.
Rows therefore have no padding, except those that are open at the end.
"""

from __future__ import annotations

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.etl.packing.segments import Segments


def pool_segments(lengths: Int64, capacity: int, packers: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `capacity` tokens.

    Args:
        packers: rows that stand open at a time.
        max_segments: at most so many pieces in a row, which is closed then, full or not; None: any number.

    Returns:
        Rows in the order in which they were opened, the pieces of a row in the order in which they came.
    """
    most = max_segments or capacity
    room = [capacity] * packers
    pieces = [0] * packers
    row = list(range(packers))  # numbers for the time being: who opens a row first is seen at the end
    opened = packers
    placed: list[tuple[int, int, int, int]] = []
    for document, length in enumerate(lengths.tolist()):
        # The least room that is enough, or else the least: of equals the first packer's.
        best = least = 0
        enough = capacity + 1
        for packer, left in enumerate(room):
            if length <= left < enough:
                best, enough = packer, left
            if left < room[least]:
                least = packer
        packer = least if enough > capacity else best
        start = 0
        while start < length:
            piece = min(length - start, room[packer])
            placed.append((row[packer], document, start, piece))
            start += piece
            room[packer] -= piece
            pieces[packer] += 1
            if not room[packer] or pieces[packer] == most:
                room[packer], pieces[packer], row[packer] = capacity, 0, opened
                opened += 1
    number, document, start_of, length_of = np.array(placed, np.int64).reshape(-1, 4).T
    first = np.unique(number, return_index=True)[1]
    rank = np.empty(int(number.max(initial=-1)) + 1, np.int64)
    rank[number[np.sort(first)]] = np.arange(len(first))
    order = np.argsort(rank[number], kind="stable")
    offsets = offsets_of(np.bincount(rank[number]))
    return Segments(document[order], start_of[order], length_of[order], offsets)
