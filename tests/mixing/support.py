"""Where a row of a stream is, one by one; the library asks for many at a time."""

from __future__ import annotations

import numpy as np

from tokenlake.arrays import Int64
from tokenlake.mixing.lanes import LaneLayout
from tokenlake.mixing.mixture import SourceMixture


def row_at(mixture: SourceMixture, position: int) -> tuple[str, int, int, int]:
    """(name of the source, epoch, index in that source's lane, lane) of the row at a position."""
    if mixture.rows is not None:
        assert position < mixture.rows
    lane, place = (int(each[0]) for each in mixture.layout.locate(np.array([position])))
    draws = mixture.lane(lane, place, place + 1)
    return mixture.names[int(draws.source[0])], int(draws.epoch[0]), int(draws.index[0]), lane


def position_of(layout: LaneLayout, lane: Int64, place: Int64) -> Int64:
    """The position of each (lane, place), int64[n]."""
    start = place // (layout.batch_size // layout.lanes) * layout.batch_size
    return start + layout.row_in(start, np.array([layout.batch_size]), lane, place)
