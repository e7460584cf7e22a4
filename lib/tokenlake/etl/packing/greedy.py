"""Greedy packing: documents laid end to end, and cut where a row is full.

Picture a roll of tape. Each document is glued on with its BOS in front and its EOS
after it, and the roll is cut into strips of equal length. A document that crosses a cut
continues on the next strip. No token is lost, and only the last strip of a stream needs
padding. The places of the segments depend on the lengths of the documents alone.

Example: documents of 3, 4 and 2 tokens in rows of 5::

    row 0: document 0 [0, 3), document 1 [0, 2)
    row 1: document 1 [2, 4), document 2 [0, 2), 1 token of padding
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.packing.segments import Segments


def greedy_segments(
    lengths: Int64, capacity: int, max_segments: int | None = None
) -> Segments:
    """Cut documents, laid end to end from a row's beginning, into rows.

    Args:
        lengths: Tokens of each document, at least 1, int64[n].
        capacity: Tokens per row.
        max_segments: Number of pieces after which a row ends, full or not; None: rows
            end when they are full.

    Returns:
        Pieces of the rows. Without `max_segments` all rows but the last are full.
    """
    # Rows are filled first. They are cut anew, piece by piece, only if one of them has
    # too many pieces.
    ends = np.cumsum(lengths, dtype=np.int64)
    if not len(ends):
        return _cut(lengths, ends, np.empty(0, np.int64))
    plan = _cut(lengths, ends, np.arange(0, ends[-1], capacity, dtype=np.int64))
    if max_segments is None or int(np.diff(plan.row_offsets).max()) <= max_segments:
        return plan
    row_starts = _bounded_row_starts(ends.tolist(), capacity, max_segments)
    return _cut(lengths, ends, row_starts)


def _cut(lengths: Int64, ends: Int64, row_starts: Int64) -> Segments:
    """Cut documents, laid end to end, at the beginning of each row.

    Args:
        lengths: Tokens of each document, int64[n].
        ends: Cumulative sums of the lengths, int64[n].
        row_starts: Tokens before each row, int64[R].
    """
    # A piece begins where a document or a row begins.
    document_starts = ends - lengths
    cuts = np.union1d(document_starts, row_starts)
    document = np.searchsorted(document_starts, cuts, side="right") - 1
    length = np.diff(cuts, append=ends[-1:])
    row_offsets = np.append(np.searchsorted(cuts, row_starts), len(cuts))
    return Segments(document, cuts - document_starts[document], length, row_offsets)


def _bounded_row_starts(ends: list[int], capacity: int, max_segments: int) -> Int64:
    """Return the tokens before each row, int64[R], where rows have bounded pieces.

    A row ends when it is full or has `max_segments` pieces.

    Args:
        ends: Cumulative sums of the documents' lengths; at least one.
        capacity: Tokens per row.
        max_segments: Largest number of pieces in a row.
    """
    row_starts: list[int] = []
    token = 0
    document = 0  # of that token
    while token < ends[-1]:
        row_starts.append(token)
        # Document of the row's last piece, if the row has as many pieces as it may.
        last_document = min(document + max_segments, len(ends)) - 1
        token = min(token + capacity, ends[last_document])
        document = bisect_right(ends, token, document, last_document + 1)
    return np.array(row_starts, np.int64)
