"""Pool packing: of a few open rows, each document goes to the one that it fills best.

A document that fits none of them fills the fullest to its end, and continues in the row
that is opened in its place. Rows therefore have no padding, except those that are open
at the end.

Example: two open rows of 8; documents of 5, 6 and 2 tokens. The first goes to row 0
(room 3), the second fits row 1 alone (room 2), the third fits both rows and fills row
1.
"""

from __future__ import annotations

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.etl.packing.segments import Segments


def pool_segments(
    lengths: Int64, capacity: int, packers: int, max_segments: int | None = None
) -> Segments:
    """Plan documents into rows of `capacity` tokens.

    Args:
        lengths: Tokens of each document, at least 1, int64[n].
        capacity: Tokens per row.
        packers: Number of rows that are open at a time.
        max_segments: Number of pieces after which a row is closed, full or not; None:
            rows are closed when full.

    Returns:
        Rows in the order in which documents first came into them; the pieces of a row
        in the order of the documents.
    """
    piece_limit = max_segments or capacity
    room = [capacity] * packers
    piece_counts = [0] * packers
    # Number of each open row. Rows are numbered again at the end, by the documents that
    # open them.
    row_numbers = list(range(packers))
    next_row = packers
    pieces: list[tuple[int, int, int, int]] = []  # row, document, start, length
    for document, length in enumerate(lengths.tolist()):
        packer = _best_packer(room, length, capacity)
        # A piece fills the row, or is the rest of the document.
        start = 0
        while start < length:
            piece_length = min(length - start, room[packer])
            pieces.append((row_numbers[packer], document, start, piece_length))
            start += piece_length
            room[packer] -= piece_length
            piece_counts[packer] += 1
            if not room[packer] or piece_counts[packer] == piece_limit:
                room[packer] = capacity
                piece_counts[packer] = 0
                row_numbers[packer] = next_row
                next_row += 1
    return _sorted_rows(pieces)


def _best_packer(room: list[int], length: int, capacity: int) -> int:
    """Return the open row that fits best: with the least room that is enough.

    Without one that is enough, it is the row with the least room of all.

    Of rows with equal room, the first one is returned.
    """
    best_packer = -1
    best_room = capacity + 1
    fullest_packer = 0
    for packer, packer_room in enumerate(room):
        if length <= packer_room < best_room:
            best_packer = packer
            best_room = packer_room
        if packer_room < room[fullest_packer]:
            fullest_packer = packer
    if best_packer < 0:
        return fullest_packer
    return best_packer


def _sorted_rows(pieces: list[tuple[int, int, int, int]]) -> Segments:
    """Return pieces by row, the rows in the order of their first pieces.

    Args:
        pieces: Row, document, start and length of each piece, in the order of the
            documents.
    """
    row, document, start, length = np.array(pieces, np.int64).reshape(-1, 4).T
    # 1. Number rows by their first pieces.
    first_piece_of_row = np.sort(np.unique(row, return_index=True)[1])
    rank_of_row = np.empty(int(row.max(initial=-1)) + 1, np.int64)
    rank_of_row[row[first_piece_of_row]] = np.arange(len(first_piece_of_row))
    # 2. Sort pieces by row; the stable sort keeps the order of the documents.
    rank = rank_of_row[row]
    order = np.argsort(rank, kind="stable")
    row_offsets = offsets_of(np.bincount(rank))
    return Segments(document[order], start[order], length[order], row_offsets)
