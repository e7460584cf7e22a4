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
from tokenlake.ragged import offsets_of
from tokenlake.reading import StoredRows


class Stream(ABC):
    """The rows of a pass.

    Attributes:
        rows: how many; None: without end.
        lanes: every batch size must be divisible by it.
    """

    rows: int | None
    lanes: int

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
    def positions_of(self, source: int, epoch: int, group: Int64, row: Int64) -> Int64:
        """Return the row of the pass at which each stored row comes in an epoch of its source, int64[n]; -1: never.

        The inverse of :meth:`at`, where all batches are of one size, that of :attr:`batch_size`.
        """


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
        self.lanes = 1

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        epoch, index = np.divmod(start + row, self._stored.rows)
        group, inside = self._stored.group_of(index)
        return StreamRows(np.zeros_like(epoch), self._first + epoch, group, inside)

    def positions_of(self, source: int, epoch: int, group: Int64, row: Int64) -> Int64:
        first = np.array([self._stored.row_of(int(each)) for each in group], np.int64)
        found = (epoch - self._first) * self._stored.rows + first + row
        return _inside(found, self.rows)


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
        self.rows = None if epochs is None else epochs * order.rows
        self.lanes = order.lanes
        lengths = None if epochs is None else epochs * self._each
        self._layout = LaneLayout(lengths, order.lanes, batch_size)

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        lane, place = self._layout.locate_in(start, size, row)
        each = self._each[lane]
        turn = place // each
        epoch = self._first + turn
        group, inside = self._order.at(epoch, lane, place - turn * each)
        return StreamRows(np.zeros_like(group), epoch, group, inside)

    def positions_of(self, source: int, epoch: int, group: Int64, row: Int64) -> Int64:
        lane, place = self._order.place_of(epoch, group, row)
        place = place + (epoch - self._first) * self._each[lane]
        outside = place < 0
        if self._layout.lengths is not None:
            outside |= place >= self._layout.lengths[lane]
        found = self._layout.position(lane[~outside], place[~outside])
        positions = np.full(len(lane), -1, np.int64)
        positions[~outside] = found
        return positions


@final
class MixedOrder(Stream):
    """Rows of a mixture."""

    def __init__(self, stream: MixtureStream) -> None:
        self._stream, self._layout = stream, stream.mixture.layout
        self.rows = stream.mixture.rows
        self.lanes = self._layout.lanes

    @property
    def stream(self) -> MixtureStream:
        """Where rows of the mixture lie."""
        return self._stream

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        lane, place = self._layout.locate_in(start, size, row)
        return self._stream.places(lane, place)

    def positions_of(self, source: int, epoch: int, group: Int64, row: Int64) -> Int64:
        lane, place = self._stream.place_of(source, epoch, group, row)
        found = np.full(len(lane), -1, np.int64)
        there = np.flatnonzero(place >= 0)
        found[there] = self._layout.position(lane[there], place[there])
        return _inside(found, self.rows)


def by_lane(lane: Int64) -> tuple[Int64, Int64, Int64]:
    """Return an order that brings equal lanes together, the distinct lanes, and where each begins in that order."""
    ascending = np.argsort(lane, kind="stable")
    distinct, counts = np.unique(lane, return_counts=True)
    return ascending, distinct, offsets_of(counts)


def _inside(positions: Int64, rows: int | None) -> Int64:
    outside = positions < 0
    if rows is not None:
        outside |= positions >= rows
    return np.where(outside, -1, positions)
