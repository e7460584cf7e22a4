"""The order of one pass over the data: which stored row comes at which place of which batch.

Three orders, one question. All are functions of the seed and the place; asking for many rows at once is what makes
them cheap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import numpy as np

from tokenlake.mixing import MixtureStream
from tokenlake.mixing.stream import StreamRows
from tokenlake.order import EpochOrder, LaneLayout
from tokenlake.order.random import Int64
from tokenlake.reading import StoredRows


class Stream(ABC):
    """The rows of a pass.

    Attributes:
        rows: how many; None: without end.
        layout: how its lanes make batches, whose sizes the number of lanes must divide.
    """

    rows: int | None
    layout: LaneLayout

    @property
    def lanes(self) -> int:
        """Every batch size must be divisible by it."""
        return self.layout.lanes

    @abstractmethod
    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        """Return where rows of batches are stored.

        Args:
            start: rows of the pass before the batch, int64[n].
            size: rows of the full batch, int64[n].
            row: in the batch, int64[n].

        Returns:
            int64[n] each, in the order asked for.

        Raises:
            ConfigError: there is no such row.
        """

    @abstractmethod
    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place at which each stored row comes in an epoch of its source, int64[n] both.

        A place of -1: it never does. With the layout, the inverse of :meth:`at`.
        """

    def positions_of(self, source: int, epoch: int, group: Int64, row: Int64) -> Int64:
        """Return the row of the pass at which each stored row comes in an epoch of its source, int64[n]; -1: never.

        Where all batches are of one size, that of the layout.
        """
        lane, place = self.places_of(source, epoch, group, row)
        there = np.flatnonzero(place >= 0)
        found = np.full(len(lane), -1, np.int64)
        found[there] = self.layout.position(lane[there], place[there])
        return _inside(found, self.rows)

    @abstractmethod
    def epochs(self, source: int, rows: int) -> range:
        """Return the epochs of a source that may come in the first `rows` rows of the pass, full batches."""


@final
class StoredOrder(Stream):
    """Rows as they are stored, epoch after epoch.

    Args:
        stored: the rows.
        epochs: of the pass; None: without end.
        first: number of its first epoch.
    """

    def __init__(self, stored: StoredRows, *, epochs: int | None, first: int = 0) -> None:
        self._stored, self._first = stored, first
        self.rows = None if epochs is None else epochs * stored.rows
        self.layout = LaneLayout(None if self.rows is None else np.array([self.rows]), 1, 1)

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        epoch, index = np.divmod(start + row, self._stored.rows)
        group, inside = self._stored.group_of(index)
        return StreamRows(np.zeros_like(epoch), self._first + epoch, group, inside)

    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        first = np.array([self._stored.row_of(int(each)) for each in group], np.int64)
        place = (epoch - self._first) * self._stored.rows + first + row
        return np.zeros_like(place), _inside(place, self.rows)

    def epochs(self, source: int, rows: int) -> range:
        last = -(-rows // self._stored.rows) if self.rows is None else self.rows // self._stored.rows
        return range(self._first, self._first + last)


@final
class ShuffledOrder(Stream):
    """Rows of one dataset by :class:`EpochOrder`; each lane goes through its epochs by itself.

    Args:
        order: of the dataset.
        epochs: of the pass; None: without end.
        first: number of its first epoch.
        batch_size: for :meth:`positions_of`.
    """

    def __init__(self, order: EpochOrder, *, epochs: int | None, first: int = 0, batch_size: int) -> None:
        self._order, self._first, self._each = order, first, order.lengths
        self._epochs = epochs
        self.rows = None if epochs is None else epochs * order.rows
        lengths = None if epochs is None else epochs * self._each
        self.layout = LaneLayout(lengths, order.lanes, batch_size)

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        lane, place = self.layout.locate_in(start, size, row)
        each = self._each[lane]
        turn = place // each
        epoch = self._first + turn
        group, inside = self._order.at(epoch, lane, place - turn * each)
        return StreamRows(np.zeros_like(group), epoch, group, inside)

    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        lane, place = self._order.place_of(epoch, group, row)
        place = place + (epoch - self._first) * self._each[lane]
        lengths = self.layout.lengths
        return lane, _inside(place, None if lengths is None else lengths[lane])

    def epochs(self, source: int, rows: int) -> range:
        shortest = max(1, int(self._each.min()))
        last = -(-rows // (shortest * self.lanes)) if self._epochs is None else self._epochs
        return range(self._first, self._first + last)


@final
class MixedOrder(Stream):
    """Rows of a mixture.

    Args:
        stream: its order, uncut.
        rows: where it is cut; None: not.
    """

    def __init__(self, stream: MixtureStream, *, rows: int | None = None) -> None:
        self._stream, self.layout = stream, stream.mixture.layout
        self.rows = stream.mixture.rows if rows is None else rows

    @property
    def stream(self) -> MixtureStream:
        """Where rows of the mixture lie."""
        return self._stream

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        lane, place = self.layout.locate_in(start, size, row)
        return self._stream.places(lane, place)

    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        return self._stream.place_of(source, epoch, group, row)

    def epochs(self, source: int, rows: int) -> range:
        mixture, order = self._stream.mixture, self._stream.orders[source]
        most = 0
        for lane in range(self.lanes):
            end = mixture.lane_rows(lane)
            place = -(-rows // self.lanes)
            drawn = int(mixture.drawn(lane, place if end is None else min(place, end))[source])
            most = max(most, -(-drawn // max(1, order.lane_rows(lane))))
        return range(most)


def _inside(place: Int64, end: Int64 | int | None) -> Int64:
    outside = place < 0 if end is None else (place < 0) | (place >= end)
    return np.where(outside, -1, place)
