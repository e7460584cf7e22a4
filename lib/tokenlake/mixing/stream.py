"""The rows of a mixture as they lie in storage: which row group of which source, and the row in it.

A :class:`SourceMixture` says which row of which source comes at a position, and the :class:`EpochOrder` of that source
where that row is stored. Both together are the stream, whether it is written by a flow or read by a trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, final

import numpy as np
import xxhash

from tokenlake.errors import ConfigError
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.mixing.random import key_of
from tokenlake.mixing.shuffle import EpochOrder
from tokenlake.ragged import Int64, grouped

_AT_ONCE: Final = 1 << 18
"""Positions worked out together, where more are asked for: a lane's block is shuffled whole, however little of it is
needed."""


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


@final
class MixtureStream:
    """Position -> (source, epoch, row group, row).

    Args:
        mixture: the order of the sources' rows.
        orders: the order inside each source, in the order of the mixture's names.

    Raises:
        ConfigError: they are not of the same sources.
    """

    def __init__(self, mixture: SourceMixture, orders: Sequence[EpochOrder]) -> None:
        lanes = mixture.layout.lanes
        if len(orders) != len(mixture.names) or any(order.lanes != lanes for order in orders):
            raise ConfigError(
                f"{len(orders)} orders of {sorted({order.lanes for order in orders})} lanes; expected one of "
                f"{lanes} lanes for each of {', '.join(mixture.names)}"
            )
        self._mixture, self._orders = mixture, tuple(orders)

    @property
    def mixture(self) -> SourceMixture:
        """The order of the sources' rows."""
        return self._mixture

    @property
    def orders(self) -> tuple[EpochOrder, ...]:
        """The order inside each source."""
        return self._orders

    def rows(self, start: int, stop: int) -> StreamRows:
        """Return what is at positions ``start .. stop``; ConfigError where the stream has none."""
        parts = [
            self.places(*self._mixture.layout.locate(np.arange(first, min(first + _AT_ONCE, stop))))
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
            drawn = self._mixture.lane(each, first, int(wanted.max()) + 1)
            for target, values in ((source, drawn.source), (epoch, drawn.epoch), (index, drawn.index)):
                target[there] = values[wanted - first]
        found[0], found[1] = source, epoch
        for number, order in enumerate(self._orders):
            there = np.flatnonzero(source == number)
            found[2][there], found[3][there] = order.at(epoch[there], lane[there], index[there])
        return StreamRows(*found)

    def place_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place at which rows of a source come in one of its epochs, int64[n] both.

        A place of -1: they never do. The inverse of :meth:`places`, some milliseconds for each row.
        """
        order = self._orders[source]
        lane, index = order.place_of(epoch, group, row)
        place = np.full(len(lane), -1, np.int64)
        for number, (there, at) in enumerate(zip(lane.tolist(), index.tolist(), strict=True)):
            found = self._mixture.place_of(there, source, epoch * order.lane_rows(there) + at)
            place[number] = -1 if found is None else found
        return lane, place

    def lanes(self, start: int, stop: int) -> Int64:
        """Return the lane of each of these positions, int64[n]."""
        return self._mixture.layout.locate(np.arange(start, stop, dtype=np.int64))[0]


def source_order(name: str, group_rows: Int64, *, lanes: int, seed: int) -> EpochOrder:
    """Return the order inside a source: another one for each name, whatever its place among the sources.

    Args:
        group_rows: rows of each of its row groups, int64[G].
        lanes, seed: of the mixture.
    """
    return EpochOrder(group_rows, lanes=lanes, seed=key_of(seed, xxhash.xxh3_64_intdigest(name.encode())))
