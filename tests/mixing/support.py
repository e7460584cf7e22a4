"""Where a row of a stream is, one by one; the library asks for many at a time."""

from __future__ import annotations

import numpy as np

from tokenlake.runtime.mixing import Int64, LaneLayout


def position_of(layout: LaneLayout, lane: Int64, place: Int64) -> Int64:
    """The position of each (lane, place), int64[n]."""
    start = place // (layout.batch_size // layout.lanes) * layout.batch_size
    return start + layout.row_in(start, np.array([layout.batch_size]), lane, place)
