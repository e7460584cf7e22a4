"""Streams of a pass: the dataset and the stored row at each position.

A :class:`SourceMixture` states the source and the place in that source's lane of the
row at a position. The :class:`.RowOrder` of the source states the stored row at that
place. Both together are the stream of a mixture (:class:`MixtureStream`), whether a
flow writes it or a trainer reads it. The stream of one dataset (:class:`EpochStream`)
needs only the order.
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
from tokenlake.runtime.mixing.order_form import (
    ONE_BY_ONE,
    OrderForm,
    RowOrder,
    ShuffledOrder,
)
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.mixing.search import Search, search_together

# Positions that are worked out together: a lane's block is shuffled as a whole, for
# however few positions.
_AT_ONCE: Final = 1 << 18


class StreamRows(NamedTuple):
    """Stored rows at n positions; all int64[n].

    Attributes:
        source: Index of the source in the mixture's names.
        epoch: Epoch of the source in its lane.
        group: Row group of the source.
        row: Row in the row group.
    """

    source: Int64
    epoch: Int64
    group: Int64
    row: Int64


class RowStream(ABC):
    """Rows of a pass.

    Attributes:
        length: Number of rows; None if the pass never ends.
        layout: Arrangement of the lanes in batches. The number of lanes must divide the
            sizes of batches.
        orders: Order inside each source.
    """

    length: int | None
    layout: LaneLayout
    orders: tuple[RowOrder, ...]

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        """Return the stored rows at rows of batches, in the order of the request.

        Args:
            start: Number of rows of the pass before the batch, int64[n].
            size: Number of rows of the full batch, int64[n].
            row: Row in the batch, int64[n].

        Raises:
            ConfigError: A row does not exist.
        """
        return self.places(*self.layout.locate_in(start, size, row))

    @abstractmethod
    def places(self, lane: Int64, place: Int64) -> StreamRows:
        """Return the stored rows at places of lanes, int64[n] both."""

    @abstractmethod
    def place_of(
        self, source: int, epoch: int, group: Int64, row: Int64
    ) -> tuple[Int64, Int64]:
        """Return the lane and the place of stored rows of a source in one epoch.

        It is the inverse of :meth:`places`.

        Args:
            source: Index of the source.
            epoch: Epoch of the source.
            group: Row groups, int64[n].
            row: Row in each row group, int64[n].

        Returns:
            Lanes and places, int64[n] both. The place of a row that never comes is -1.
        """

    @abstractmethod
    def epochs(self, source: int, rows: int) -> range:
        """Return the epochs of a source that may occur in the first rows of the pass.

        Args:
            source: Index of the source.
            rows: Number of rows, those of full batches.
        """

    @abstractmethod
    def drawn(self, start: int, size: int, rows: int) -> Int64:
        """Return the rows of each source that each lane gave, int64[sources, lanes].

        Rows are counted up to a row of a batch.

        Args:
            start: Number of rows of the pass before the batch.
            size: Number of rows of the full batch.
            rows: Number of rows of the batch that are counted as well.
        """


@final
class EpochStream(RowStream):
    """Epochs of one dataset, laid end to end; each lane goes through them on its own.

    Args:
        order: Order of the dataset.
        epochs: Number of epochs in the pass; None if it never ends.
        first: Number of its first epoch.
        batch_size: Number of rows of a batch in the layout.
    """

    def __init__(
        self, order: RowOrder, *, epochs: int | None, first: int = 0, batch_size: int
    ) -> None:
        self._order = order
        self._first_epoch = first
        self._epoch_count = epochs
        self._lane_lengths = order.lengths
        self.orders = (order,)
        self.length = None
        lengths: Int64 | None = None
        if epochs is not None:
            self.length = epochs * order.rows
            lengths = epochs * self._lane_lengths
        self.layout = LaneLayout(lengths, order.lanes, batch_size)

    def places(self, lane: Int64, place: Int64) -> StreamRows:
        lane_length = self._lane_lengths[lane]
        epochs_before = place // lane_length
        epoch = self._first_epoch + epochs_before
        group, row = self._order.at(epoch, lane, place - epochs_before * lane_length)
        return StreamRows(np.zeros_like(group), epoch, group, row)

    def place_of(
        self, source: int, epoch: int, group: Int64, row: Int64
    ) -> tuple[Int64, Int64]:
        lane, place_in_epoch = self._order.place_of(epoch, group, row)
        epochs_before = epoch - self._first_epoch
        is_in_pass = epochs_before >= 0 and (
            self._epoch_count is None or epochs_before < self._epoch_count
        )
        if not is_in_pass:
            return lane, np.full_like(place_in_epoch, -1)
        return lane, place_in_epoch + epochs_before * self._lane_lengths[lane]

    def epochs(self, source: int, rows: int) -> range:
        count = self._epoch_count
        if count is None:
            shortest_lane = max(1, int(self._lane_lengths.min()))
            count = -(-rows // (shortest_lane * self.layout.lanes))
        return range(self._first_epoch, self._first_epoch + count)

    def drawn(self, start: int, size: int, rows: int) -> Int64:
        return self.layout.places_in(start, size, rows)[None]


@final
class MixtureStream(RowStream):
    """Rows of a mixture.

    Args:
        mixture: Order of the sources' rows.
        orders: Order inside each source, in the order of the mixture's names.
        rows: Number of rows at which the stream is cut; None for the end of the
            mixture.

    Attributes:
        mixture: Order of the sources' rows.

    Raises:
        ConfigError: The orders are not those of the mixture's sources.
    """

    def __init__(
        self,
        mixture: SourceMixture,
        orders: Sequence[ShuffledOrder],
        *,
        rows: int | None = None,
    ) -> None:
        self.layout = mixture.layout
        self.length = mixture.rows
        if rows is not None:
            self.length = rows
        lanes = self.layout.lanes
        lanes_of_orders = {order.lanes for order in orders}
        if len(orders) != len(mixture.names) or lanes_of_orders - {lanes}:
            raise ConfigError(
                f"{len(orders)} orders of {sorted(lanes_of_orders)} lanes; expected one of "
                f"{lanes} lanes for each of {', '.join(mixture.names)}"
            )
        self.mixture: Final = mixture
        self._source_orders = tuple(orders)
        self.orders = self._source_orders

    def rows(self, start: int, stop: int) -> StreamRows:
        """Return the stored rows at positions ``start .. stop``.

        A position that does not exist is a ConfigError.
        """
        # Part by part, which bounds the memory.
        parts: list[StreamRows] = []
        for first in range(start, stop, _AT_ONCE):
            positions = np.arange(first, min(first + _AT_ONCE, stop))
            parts.append(self.places(*self.mixture.layout.locate(positions)))
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return StreamRows(*np.empty((4, 0), np.int64))
        return StreamRows(
            *(np.concatenate(columns) for columns in zip(*parts, strict=True))
        )

    def places(self, lane: Int64, place: Int64) -> StreamRows:
        """Return the stored rows at places of lanes, int64[n] both.

        All places of a lane from its first to its last in the request are worked out.
        """
        source = np.empty(len(lane), np.int64)
        epoch = np.empty(len(lane), np.int64)
        index = np.empty(len(lane), np.int64)
        # 1. Source, epoch and index in the source's lane, lane by lane.
        by_lane, lanes, borders = grouped(lane)
        ranges = pairwise(borders.tolist())
        for lane_number, (begin, end) in zip(lanes.tolist(), ranges, strict=True):
            selection = by_lane[begin:end]
            lane_places = place[selection]
            first = int(lane_places.min())
            draws = self.mixture.lane(lane_number, first, int(lane_places.max()) + 1)
            source[selection] = draws.source[lane_places - first]
            epoch[selection] = draws.epoch[lane_places - first]
            index[selection] = draws.index[lane_places - first]

        # 2. Row group and row in the orders of all sources together.
        by_source, sources, borders = grouped(source)
        selections: list[Int64] = []
        searches: list[Search[tuple[Int64, Int64]]] = []
        ranges = pairwise(borders.tolist())
        for number, (begin, end) in zip(sources.tolist(), ranges, strict=True):
            selection = by_source[begin:end]
            selections.append(selection)
            searches.append(
                self._source_orders[number].search(
                    epoch[selection], lane[selection], index[selection]
                )
            )
        group = np.empty(len(lane), np.int64)
        row = np.empty(len(lane), np.int64)
        rows_of_sources = search_together(searches)
        for selection, rows in zip(selections, rows_of_sources, strict=True):
            group[selection], row[selection] = rows
        return StreamRows(source, epoch, group, row)

    def place_of(
        self, source: int, epoch: int, group: Int64, row: Int64
    ) -> tuple[Int64, Int64]:
        order = self.orders[source]  # some milliseconds for each row
        lanes = np.zeros(len(group), np.int64)
        places = np.full(len(group), -1, np.int64)
        existing = np.flatnonzero(order.has(group, row))
        # The place in the lane of the source, then the place in the lane of the
        # mixture.
        lanes[existing], indices = order.place_of(epoch, group[existing], row[existing])
        lane_lengths = order.lengths.tolist()
        for number, index in zip(existing.tolist(), indices.tolist(), strict=True):
            lane = int(lanes[number])
            place = self.mixture.place_of(
                lane, source, epoch * lane_lengths[lane] + index
            )
            if place is not None:
                places[number] = place
        return lanes, places

    def epochs(self, source: int, rows: int) -> range:
        lane_lengths = self.orders[source].lengths.tolist()
        # Lanes have different numbers of rows of a source, so that their epochs differ.
        places_of_rows = -(-rows // self.layout.lanes)
        epochs = 0
        for lane, lane_length in enumerate(lane_lengths):
            # Epochs that the rows of the source in this lane reach.
            place = places_of_rows
            end = self.mixture.lane_rows(lane)
            if end is not None:
                place = min(place, end)
            rows_of_source = int(self.mixture.drawn(lane, place)[source])
            epochs = max(epochs, -(-rows_of_source // max(1, lane_length)))
        return range(epochs)

    def drawn(self, start: int, size: int, rows: int) -> Int64:
        places = self.layout.places_in(start, size, rows).tolist()
        rows_by_lane = [
            self.mixture.drawn(lane, place) for lane, place in enumerate(places)
        ]
        return np.stack(rows_by_lane, axis=1)

    def lanes(self, start: int, stop: int) -> Int64:
        """Return the lane of each position from `start` to `stop`, int64[n]."""
        return self.mixture.layout.locate(np.arange(start, stop, dtype=np.int64))[0]


def source_order(
    name: str,
    group_rows: Int64,
    *,
    lanes: int,
    seed: int,
    form: OrderForm = ONE_BY_ONE,
) -> ShuffledOrder:
    """Return the order inside a source.

    It depends on the name of the source, not on its index among the sources.

    Args:
        name: Name of the source.
        group_rows: Number of rows of each row group, int64[G].
        lanes: Number of lanes of the mixture.
        seed: Seed of the mixture.
        form: Form of the order. By default a lane reads one row group after the other,
            as the flow ``mix`` does.
    """
    word = xxhash.xxh3_64_intdigest(name.encode())
    return form.order(group_rows, lanes=lanes, seed=key_of(seed, word))
