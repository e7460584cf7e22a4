"""The streams of a pass: which row of which dataset is read at each position.

A :class:`SourceMixture` says which row of which source is at a position. The :class:`EpochOrder` of that source says
where the row is stored. Both together are the stream of a mixture (:class:`MixtureStream`), whether a flow writes it or
a trainer reads it. The stream of one dataset (:class:`EpochStream`) needs the order alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, final

import numpy as np
import xxhash

from tokenlake.base.arrays import Int64, grouped
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import LaneLayout
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.order import EpochOrder, StoredOrder
from tokenlake.runtime.mixing.random import key_of

_AT_ONCE: Final = 1 << 18  # positions worked out together: a lane's block is shuffled whole, for however few


class StreamRows(NamedTuple):
    """Rows at neighbouring positions, one after the other; all int64[n].

    Attributes:
        source: index into the mixture's names.
        epoch: which pass over that source's lane it is.
        group: row group of that source.
        row: in its row group.
    """

    source: Int64
    epoch: Int64
    group: Int64
    row: Int64


class RowStream(ABC):
    """The rows of a pass.

    Attributes:
        length: how many; None: without end.
        layout: how its lanes make batches, whose sizes the number of lanes must divide.
        orders: of each source.
    """

    length: int | None
    layout: LaneLayout
    orders: tuple[EpochOrder | StoredOrder, ...]

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        """Return where rows of batches are stored, in the order asked for.

        Args:
            start: rows of the pass before the batch, int64[n].
            size: rows of the full batch, int64[n].
            row: in the batch, int64[n].

        Raises:
            ConfigError: there is no such row.
        """
        return self.places(*self.layout.locate_in(start, size, row))

    @abstractmethod
    def places(self, lane: Int64, place: Int64) -> StreamRows:
        """Return what is at places of lanes, int64[n] both."""

    @abstractmethod
    def place_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place at which rows of a source come in one of its epochs, int64[n] both.

        A place of -1: they never do. The inverse of :meth:`places`.
        """

    @abstractmethod
    def epochs(self, source: int, rows: int) -> range:
        """Return the epochs of a source that may come in the first `rows` rows of the pass, full batches."""

    @abstractmethod
    def drawn(self, start: int, size: int, rows: int) -> Int64:
        """Return how many rows of each source each lane gave before a row of a batch, int64[sources, lanes].

        Args:
            start: rows of the pass before the batch.
            size: rows of the full batch.
            rows: of the batch that are counted, too.
        """


@final
class EpochStream(RowStream):
    """Epochs of one dataset, laid end to end; each lane goes through them by itself.

    Args:
        order: of the dataset.
        epochs: of the pass; None: without end.
        first: number of its first epoch.
        batch_size: of the layout.
    """

    def __init__(
        self, order: EpochOrder | StoredOrder, *, epochs: int | None, first: int = 0, batch_size: int
    ) -> None:
        self._order, self._first, self._epochs, self._each = order, first, epochs, order.lengths
        self.orders = (order,)
        self.length = None if epochs is None else epochs * order.rows
        lengths = None if epochs is None else epochs * self._each
        self.layout = LaneLayout(lengths, order.lanes, batch_size)

    def places(self, lane: Int64, place: Int64) -> StreamRows:
        each = self._each[lane]
        turn = place // each
        epoch = self._first + turn
        group, inside = self._order.at(epoch, lane, place - turn * each)
        return StreamRows(np.zeros_like(group), epoch, group, inside)

    def place_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        lane, place = self._order.place_of(epoch, group, row)
        there = epoch >= self._first and (self._epochs is None or epoch < self._first + self._epochs)
        return lane, place + (epoch - self._first) * self._each[lane] if there else np.full_like(place, -1)

    def epochs(self, source: int, rows: int) -> range:
        shortest = max(1, int(self._each.min()))
        last = -(-rows // (shortest * self.layout.lanes)) if self._epochs is None else self._epochs
        return range(self._first, self._first + last)

    def drawn(self, start: int, size: int, rows: int) -> Int64:
        return self.layout.places_in(start, size, rows)[None]


@final
class MixtureStream(RowStream):
    """Rows of a mixture.

    Args:
        mixture: the order of the sources' rows.
        orders: the order inside each source, in the order of the mixture's names.
        rows: where it is cut; None: where the mixture is.

    Raises:
        ConfigError: they are not of the same sources.
    """

    def __init__(
        self, mixture: SourceMixture, orders: Sequence[EpochOrder], *, rows: int | None = None
    ) -> None:
        self.layout, self.length = mixture.layout, mixture.rows if rows is None else rows
        lanes = self.layout.lanes
        if len(orders) != len(mixture.names) or any(order.lanes != lanes for order in orders):
            raise ConfigError(
                f"{len(orders)} orders of {sorted({order.lanes for order in orders})} lanes; expected one of "
                f"{lanes} lanes for each of {', '.join(mixture.names)}"
            )
        self.mixture: Final = mixture
        self.orders = tuple(orders)

    def rows(self, start: int, stop: int) -> StreamRows:
        """Return what is at positions ``start .. stop``; ConfigError where the stream has none."""
        parts = [
            self.places(*self.mixture.layout.locate(np.arange(first, min(first + _AT_ONCE, stop))))
            for first in range(start, stop, _AT_ONCE)
        ]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return StreamRows(*np.empty((4, 0), np.int64))
        return StreamRows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def places(self, lane: Int64, place: Int64) -> StreamRows:
        """Return what is at places of lanes, int64[n] both; a lane's are worked out from its first to its last."""
        by_lane, lanes, ends = grouped(lane)
        found = np.empty((4, len(lane)), np.int64)
        source, epoch, index = np.empty((3, len(lane)), np.int64)
        for each, (begin, end) in zip(lanes.tolist(), pairwise(ends.tolist()), strict=True):
            there = by_lane[begin:end]
            wanted = place[there]
            first = int(wanted.min())
            drawn = self.mixture.lane(each, first, int(wanted.max()) + 1)
            for target, values in ((source, drawn.source), (epoch, drawn.epoch), (index, drawn.index)):
                target[there] = values[wanted - first]
        found[0], found[1] = source, epoch
        for number, order in enumerate(self.orders):
            there = np.flatnonzero(source == number)
            found[2][there], found[3][there] = order.at(epoch[there], lane[there], index[there])
        return StreamRows(*found)

    def place_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        order = self.orders[source]  # some milliseconds for each row
        lanes, place = np.zeros(len(group), np.int64), np.full(len(group), -1, np.int64)
        kept = np.flatnonzero(order.has(group, row))
        lanes[kept], index = order.place_of(epoch, group[kept], row[kept])
        each = order.lengths.tolist()
        for number, at in zip(kept.tolist(), index.tolist(), strict=True):
            lane = int(lanes[number])
            found = self.mixture.place_of(lane, source, epoch * each[lane] + at)
            place[number] = -1 if found is None else found
        return lanes, place

    def epochs(self, source: int, rows: int) -> range:
        mixture, order = self.mixture, self.orders[source]
        most, place = 0, -(-rows // self.layout.lanes)
        for lane in range(self.layout.lanes):
            end = mixture.lane_rows(lane)
            drawn = int(mixture.drawn(lane, place if end is None else min(place, end))[source])
            most = max(most, -(-drawn // max(1, int(order.lengths[lane]))))
        return range(most)

    def drawn(self, start: int, size: int, rows: int) -> Int64:
        places = self.layout.places_in(start, size, rows).tolist()
        return np.stack([self.mixture.drawn(lane, place) for lane, place in enumerate(places)], axis=1)

    def lanes(self, start: int, stop: int) -> Int64:
        """Return the lane of each of these positions, int64[n]."""
        return self.mixture.layout.locate(np.arange(start, stop, dtype=np.int64))[0]


def source_order(name: str, group_rows: Int64, *, lanes: int, seed: int) -> EpochOrder:
    """Return the order inside a source: another one for each name, whatever its place among the sources.

    Args:
        group_rows: rows of each of its row groups, int64[G].
        lanes, seed: of the mixture.
    """
    return EpochOrder(group_rows, lanes=lanes, seed=key_of(seed, xxhash.xxh3_64_intdigest(name.encode())))
