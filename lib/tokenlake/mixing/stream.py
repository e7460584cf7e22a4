"""The rows of a mixture as they lie in storage: which row group of which source, and the row in it.

A :class:`Mixture` says which source's how manieth row comes at a position; the :class:`EpochOrder` of that source says
where this row is stored. Both together are the stream, whether it is written by a flow or read by a trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, final

import numpy as np
import xxhash

from tokenlake.errors import ConfigError
from tokenlake.mixing.mixture import Draws, Mixture
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
@dataclass(frozen=True, slots=True)
class Needed:
    """What a range of positions takes of one source.

    Attributes:
        epoch, group: the row groups that hold its rows, each once for an epoch, by epoch and group: int64[m] both.
        rows: how many rows are taken of them all.
    """

    epoch: Int64
    group: Int64
    rows: int


@final
class MixtureStream:
    """Position -> (source, epoch, row group, row).

    Args:
        mixture: the order of the sources' rows.
        orders: the order inside each source, in the order of the mixture's names.

    Raises:
        ConfigError: they are not of the same sources.
    """

    def __init__(self, mixture: Mixture, orders: Sequence[EpochOrder]) -> None:
        lanes = mixture.layout.lanes
        if len(orders) != len(mixture.names) or any(order.lanes != lanes for order in orders):
            raise ConfigError(
                f"{len(orders)} orders of {sorted({order.lanes for order in orders})} lanes; expected one of "
                f"{lanes} lanes for each of {', '.join(mixture.names)}"
            )
        self._mixture, self._orders = mixture, tuple(orders)

    @property
    def mixture(self) -> Mixture:
        """The order of the sources' rows."""
        return self._mixture

    @property
    def orders(self) -> tuple[EpochOrder, ...]:
        """The order inside each source."""
        return self._orders

    def rows(self, start: int, stop: int) -> StreamRows:
        """Return what is at positions ``start .. stop``; ConfigError where the stream has none."""
        parts = [self._rows(first, min(first + _AT_ONCE, stop)) for first in range(start, stop, _AT_ONCE)]
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

    def needed(self, start: int, stop: int) -> tuple[Needed, ...]:
        """Return what positions ``start .. stop`` take of each source.

        It costs time by lanes and row groups, hardly by rows: for plans, which ask it of whole units.
        """
        found: list[tuple[list[Int64], list[Int64]]] = [([], []) for _ in self._orders]
        rows = np.zeros(len(self._orders), np.int64)
        for lane, (first, last) in self._places(start, stop):
            before, after = self._mixture.drawn(lane, first), self._mixture.drawn(lane, last)
            rows += after - before
            for (epochs, groups), order, begin, end in zip(
                found, self._orders, before.tolist(), after.tolist(), strict=True
            ):
                for epoch, there in _groups(order, lane, begin, end):
                    epochs.append(np.full(len(there), epoch, np.int64))
                    groups.append(there)
        return tuple(
            Needed(*_distinct(epochs, groups), rows=int(count))
            for (epochs, groups), count in zip(found, rows, strict=True)
        )

    def _places(self, start: int, stop: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield each lane that positions ``start .. stop`` go through, and the range of its places."""
        layout = self._mixture.layout
        bounds = np.stack([layout.places_before(start), layout.places_before(stop)], axis=1)
        for lane, (first, last) in enumerate(bounds.tolist()):
            if first < last:
                yield lane, (first, last)

    def _rows(self, start: int, stop: int) -> StreamRows:
        lanes, places, draws = self._draws(start, stop)
        group, row = np.empty_like(draws.index), np.empty_like(draws.index)
        for number, order in enumerate(self._orders):
            there = np.flatnonzero(draws.source == number)
            group[there], row[there] = order.at(draws.epoch[there], lanes[there], draws.index[there])
        at = self._mixture.layout.position(lanes, places) - start
        out = np.empty((4, len(at)), np.int64)
        for target, values in zip(out, (draws.source, draws.epoch, group, row), strict=True):
            target[at] = values
        return StreamRows(*out)

    def _draws(self, start: int, stop: int) -> tuple[Int64, Int64, Draws]:
        """Return lane, place and what is drawn there, lane by lane."""
        lanes, places, drawn = list[Int64](), list[Int64](), list[Draws]()
        for lane, (first, last) in self._places(start, stop):
            lanes.append(np.full(last - first, lane, np.int64))
            places.append(np.arange(first, last, dtype=np.int64))
            drawn.append(self._mixture.lane(lane, first, last))
        columns = (
            np.concatenate([getattr(draws, name) for draws in drawn]) for name in ("source", "epoch", "index")
        )
        return np.concatenate(lanes), np.concatenate(places), Draws(*columns)


def source_order(name: str, group_rows: Int64, *, lanes: int, seed: int) -> EpochOrder:
    """Return the order inside a source: another one for each name, whatever its place among the sources.

    Args:
        group_rows: rows of each of its row groups, int64[G].
        lanes, seed: of the mixture.
    """
    return EpochOrder(group_rows, lanes=lanes, seed=key_of(seed, xxhash.xxh3_64_intdigest(name.encode())))


def _groups(order: EpochOrder, lane: int, begin: int, end: int) -> Iterator[tuple[int, Int64]]:
    """Yield (epoch, row groups) of the rows ``begin .. end`` that a source gives to a lane, epoch after epoch."""
    if begin == end:
        return
    each = order.lane_rows(lane)
    for epoch in range(begin // each, (end - 1) // each + 1):
        first = epoch * each
        yield epoch, order.groups(epoch, lane, max(begin - first, 0), min(end - first, each))


def _distinct(epochs: Sequence[Int64], groups: Sequence[Int64]) -> tuple[Int64, Int64]:
    none = np.empty(0, np.int64)
    pairs = np.stack([np.concatenate([none, *epochs]), np.concatenate([none, *groups])])
    found = np.unique(pairs, axis=1)
    return found[0], found[1]
