"""Greedy packing: documents laid end to end, and cut where a row is full.

Picture a roll of tape. Each document is glued on with its BOS in front and its EOS behind, and the roll is cut into
strips of equal length. A document that crosses a cut continues on the next strip. No token is lost, and only the last
strip of a stream needs padding. The places of the segments depend on the lengths of the documents alone.

Example: documents of 3, 4 and 2 tokens in rows of 5::

    row 0: document 0 [0, 3), document 1 [0, 2)
    row 1: document 1 [2, 4), document 2 [0, 2), 1 token of padding
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.packing.segments import Segments


def greedy_segments(lengths: Int64, capacity: int, max_segments: int | None = None) -> Segments:
    """Cut documents of ``lengths`` tokens, laid end to end from a row's beginning, into rows.

    Args:
        lengths: int64[n], tokens per document, each at least 1.
        capacity: tokens per row.
        max_segments: at most so many pieces in a row, which ends then, full or not; None: any number.

    Returns:
        The pieces of the rows. Without `max_segments` all rows but the last are full.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cut = _cut(lengths, ends, np.arange(0, total, capacity, dtype=np.int64))
    if max_segments is None or not len(ends) or int(np.diff(cut.row_offsets).max()) <= max_segments:
        return cut
    return _cut(lengths, ends, _bounded_rows(ends.tolist(), capacity, max_segments))


def _cut(lengths: Int64, ends: Int64, row_starts: Int64) -> Segments:
    """Cut documents, laid end to end, where rows begin (int64[R])."""
    doc_starts = ends - lengths
    cuts = np.union1d(doc_starts, row_starts)
    document = np.searchsorted(doc_starts, cuts, side="right") - 1
    length = np.diff(cuts, append=ends[-1:])
    row_offsets = np.append(np.searchsorted(cuts, row_starts), len(cuts))
    return Segments(document, cuts - doc_starts[document], length, row_offsets)


def _bounded_rows(ends: list[int], capacity: int, most: int) -> Int64:
    """Return where rows begin that end when they are full or have `most` pieces; `ends` of n >= 1 documents."""
    starts: list[int] = []
    at = document = 0
    while at < ends[-1]:
        starts.append(at)
        last = min(document + most, len(ends)) - 1  # the document of the row's last piece, if it has so many
        at = min(at + capacity, ends[last])
        document = bisect_right(ends, at, document, last + 1)
    return np.array(starts, np.int64)
