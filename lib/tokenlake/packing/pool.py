"""Pool: a few rows stand open, and each document goes to the one that it fills best.

A document that fits none of them fills the fullest to its end and goes on in the row that is opened in its place, so
that rows have no padding but the last ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenlake.packing.segments import Segments
from tokenlake.ragged import offsets_of

Int64 = npt.NDArray[np.int64]


def pool_segments(lengths: Int64, seq_length: int, packers: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `seq_length` tokens.

    Args:
        packers: rows that stand open at a time.
        max_segments: at most so many pieces in a row, which is closed then, full or not; None: any number.

    Returns:
        Rows in the order in which they were opened, the pieces of a row in the order in which they came.
    """
    most = max_segments or seq_length
    room = [seq_length] * packers
    pieces = [0] * packers
    row = list(range(packers))  # numbers for the time being: who opens a row first is seen at the end
    opened = packers
    placed: list[tuple[int, int, int, int]] = []
    for document, length in enumerate(lengths.tolist()):
        # The least room that is enough, or else the least: of equals the first packer's.
        best = least = 0
        enough = seq_length + 1
        for packer, left in enumerate(room):
            if length <= left < enough:
                best, enough = packer, left
            if left < room[least]:
                least = packer
        packer = least if enough > seq_length else best
        start = 0
        while start < length:
            piece = min(length - start, room[packer])
            placed.append((row[packer], document, start, piece))
            start += piece
            room[packer] -= piece
            pieces[packer] += 1
            if not room[packer] or pieces[packer] == most:
                room[packer], pieces[packer], row[packer] = seq_length, 0, opened
                opened += 1
    return _by_row(np.array(placed, np.int64).reshape(-1, 4))


def _by_row(placed: Int64) -> Segments:
    """Return pieces (row, document, start, length: int64[S, 4]) as rows, in the order of their first pieces."""
    row, document, start, length = placed.T
    first = np.unique(row, return_index=True)[1]
    rank = np.empty(int(row.max(initial=-1)) + 1, np.int64)
    rank[row[np.sort(first)]] = np.arange(len(first))
    order = np.argsort(rank[row], kind="stable")
    return Segments(document[order], start[order], length[order], offsets_of(np.bincount(rank[row])))
