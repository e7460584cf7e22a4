"""Which stored row is read where: the order of one dataset in any epoch and the way back, and the streams of a pass.

::

    row groups   as stored        0 1 2 3 4
    epoch        permuted         3 0 4 1 2      laid end to end: N virtual rows
    lanes        L stretches      |----|----|    lane l owns [floor(l N / L), floor((l + 1) N / L))
    windows      permuted each    |--|-|--|-|    place -> virtual row, inside a window of the lane

A row group is decoded as a whole, so they move as wholes; rows mix inside a window, one or more row groups that lie
next to each other in the epoch. So a lane has as many row groups open as a window has, and no more. A row group on a
border between lanes is needed by both, which have a part of it each. Everything is a function of the seed and the
place; what is kept of an epoch is where each of its row groups begins.

A :class:`SourceMixture` says which row of which source comes at a position, and the :class:`EpochOrder` of that source
where that row is stored. Both together are the stream of a mixture, whether it is written by a flow or read by a
trainer; the stream of one dataset needs the second alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final, NamedTuple, Self, final

import numpy as np
import xxhash

from tokenlake.arrays import Bools, Int64, grouped, offsets_of
from tokenlake.arrays import places as places_of
from tokenlake.errors import ConfigError
from tokenlake.mixing.lanes import LaneLayout, lane_bounds
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.mixing.random import WORD, Permutation, UInt64, extended, key_of, values_at

ORDER_VERSION: Final = 2
"""What a seed, lanes and a window mean; whatever is written in an order, or stands in the middle of one, names it."""

_GROUPS: Final = 1  # the first word of the keys that permute row groups
_WINDOWS: Final = 2  # and of those that permute windows
_KEPT: Final = 4  # epochs whose row groups stay laid out
_CELLS: Final = 1 << 18  # row groups of small datasets that are laid out at a time, several epochs together


@final
@dataclass(frozen=True, slots=True)
class _Laid:
    """The permuted row groups of some epochs, end to end.

    Attributes:
        order: stored index of each, int64[epochs * G].
        offsets: where each begins and the last ends, in virtual rows from the first epoch on, int64[epochs * G + 1].
    """

    order: Int64
    offsets: Int64

    @classmethod
    def of(cls, group_rows: Int64, seed: int, epochs: Int64) -> Self:
        groups = len(group_rows)
        keys = extended(key_of(seed, _GROUPS), epochs)
        index = np.tile(np.arange(groups), len(epochs))
        order = Permutation(groups, keys if len(keys) == 1 else np.repeat(keys, groups)).at(index)
        return cls(order, offsets_of(group_rows[order]))

    def index(self, virtual: Int64) -> Int64:
        """Return which of them holds each virtual row; never one without rows."""
        return np.searchsorted(self.offsets, virtual, side="right") - 1


class _Windows(NamedTuple):
    """The windows of n virtual rows, all int64[n].

    Attributes:
        group: that each lies in, by its place in the layout.
        number: of the window in the epoch.
        begin: its first virtual row in the lane.
        size: its rows in the lane.
    """

    group: Int64
    number: Int64
    begin: Int64
    size: Int64

    def permuted(self, virtual: Int64, keys: UInt64, *, backwards: bool = False) -> Int64:
        """Move virtual rows inside their windows; keys of epoch and lane, uint64[n] or uint64[1]."""
        if not len(virtual):
            return virtual
        size = int(self.size[0]) if (self.size == self.size[0]).all() else self.size
        moved = Permutation(size, extended(keys, self.number))
        return self.begin + moved.at(virtual - self.begin, backwards=backwards)


@final
class EpochOrder:
    """The rows of a dataset, in a different order in every epoch.

    Args:
        group_rows: rows of each row group, in the order they are stored, int64[G]; some may have none.
        lanes: into how many stretches an epoch is cut; part of the order.
        seed: any integer, taken modulo 2^64.
        window: row groups whose rows are permuted together.

    Raises:
        ConfigError: any of them cannot be.
    """

    def __init__(self, group_rows: Int64, *, lanes: int, seed: int, window: int = 1) -> None:
        if (group_rows < 0).any():
            raise ConfigError(f"a row group of {group_rows.min()} rows; expected 0 or more")
        self._group_rows = np.asarray(group_rows, np.int64)
        self.rows: Final = int(self._group_rows.sum())
        """Rows of an epoch."""
        self._bounds = lane_bounds(self.rows, lanes)
        self._lengths = np.diff(self._bounds)
        self.seed: Final = seed & WORD
        """From 0 to 2^64 - 1."""
        if window < 1:
            raise ConfigError(f"a window of {window} row groups; expected 1 or more")
        self.window: Final = window
        lay = self._lay = partial(_Laid.of, self._group_rows, self.seed)
        self._one = lru_cache(_KEPT)(lambda epoch: lay(np.array([epoch])))  # no cycle: it goes with its owner

    @property
    def lanes(self) -> int:
        """Stretches that an epoch is cut into."""
        return len(self._lengths)

    def has(self, group: Int64, row: Int64) -> Bools:
        """Return which rows there are, bool[n]: of a row group that is shortened only the first ones."""
        return row < self._group_rows[group]

    @property
    def window_rows(self) -> int:
        """Rows of a window, in the mean."""
        return max(1, -(-self.rows * self.window // max(len(self._group_rows), 1)))

    @property
    def lengths(self) -> Int64:
        """Rows of each lane, int64[lanes]."""
        return self._lengths.copy()

    def at(self, epoch: Int64 | int, lane: Int64 | int, place: Int64) -> tuple[Int64, Int64]:
        """Return the row group and the row in it at each place.

        Args:
            epoch: from 0, one for all or int64[n].
            lane: one for all or int64[n].
            place: in the lane, int64[n].

        Returns:
            int64[n] both.

        Raises:
            ConfigError: a lane has no such place.
        """
        epochs, lanes = np.atleast_1d(np.asarray(epoch, np.int64)), np.atleast_1d(np.asarray(lane, np.int64))
        self._check(epochs, lanes, place)
        keys = extended(extended(key_of(self.seed, _WINDOWS), epochs), lanes)
        begin, end = self._bounds[lanes], self._bounds[lanes + 1]
        group, row = np.empty_like(place), np.empty_like(place)
        for laid, there, base in self._laid_for(epochs):
            low, high = values_at(begin, there) + base, values_at(end, there) + base
            windows = self._windows(laid, low + place[there], low, high)
            moved = windows.permuted(low + place[there], values_at(keys, there))
            index = windows.group if self.window == 1 else laid.index(moved)
            group[there], row[there] = laid.order[index], moved - laid.offsets[index]
        return group, row

    def place_of(self, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place of each row in an epoch, int64[n] both; the inverse of :meth:`at`."""
        self._check_rows(group, row)
        key = key_of(self.seed, _GROUPS, epoch)
        index = Permutation(len(self._group_rows), key).inverse(group)
        laid = self._one(epoch)
        virtual = laid.offsets[index] + row
        lane = np.searchsorted(self._bounds, virtual, side="right") - 1
        keys = extended(key_of(self.seed, _WINDOWS, epoch), lane)
        windows = self._windows(laid, virtual, self._bounds[lane], self._bounds[lane + 1])
        return lane, windows.permuted(virtual, keys, backwards=True) - self._bounds[lane]

    def taken(self, epoch: int, places: Int64) -> tuple[Int64, Int64]:
        """Return which rows come at the first places of the lanes: ranges of the stored rows, half open.

        A window that is taken whole needs no permutation: whatever the epoch's size, this takes as long as its row
        groups are many.

        Args:
            epoch: from 0.
            places: how many of each lane, int64[lanes].

        Returns:
            where each range begins and ends, int64[m] both.
        """
        laid, low, high = self._one(epoch), self._bounds[:-1], self._bounds[:-1] + places
        cut = np.flatnonzero(places < self._lengths)
        windows = self._windows(laid, high[cut], low[cut], self._bounds[1:][cut])
        some = np.zeros_like(high)
        some[cut] = high[cut] - windows.begin
        lane = np.repeat(np.arange(self.lanes), some)
        place = places_of(places - some, some)
        first = offsets_of(self._group_rows)
        group, row = self.at(epoch, lane, place)
        begin, end = _cut_at(low, high - some, laid.offsets)
        index = laid.index(begin)
        whole = first[laid.order[index]] + begin - laid.offsets[index]
        alone = first[group] + row
        return np.append(whole, alone), np.append(whole + end - begin, alone + 1)

    def _windows(self, laid: _Laid, virtual: Int64, begin: Int64, end: Int64) -> _Windows:
        """The windows that virtual rows, int64[n], lie in; their lanes are from `begin` to `end`."""
        index, groups = laid.index(virtual), len(self._group_rows)
        # Counted from the epoch's own first row group, where several epochs are laid out together.
        number = index % groups // self.window
        first = index - index % groups + number * self.window
        after = np.minimum(first + self.window, index - index % groups + groups)
        low, high = np.maximum(laid.offsets[first], begin), np.minimum(laid.offsets[after], end)
        return _Windows(index, number, low, high - low)

    def _laid_for(self, epochs: Int64) -> Iterator[tuple[_Laid, Int64 | slice, Int64 | int]]:
        """Yield (row groups, for which places, virtual row that each one's epoch begins at) until all have been."""
        if not len(epochs):
            return
        if epochs.min() == epochs.max():
            yield self._one(int(epochs[0])), slice(None), 0
            return
        distinct, inverse = np.unique(epochs, return_inverse=True)
        together = max(1, min(_CELLS // max(len(self._group_rows), 1), (1 << 62) // max(self.rows, 1)))
        by_epoch = np.argsort(inverse, kind="stable")
        ends = np.searchsorted(inverse[by_epoch], np.arange(0, len(distinct) + together, together))
        for number, (low, high) in enumerate(pairwise(ends.tolist())):
            some = distinct[number * together : (number + 1) * together]
            laid = self._one(int(some[0])) if len(some) == 1 else self._lay(some)
            there = by_epoch[low:high]
            yield laid, there, (inverse[there] - number * together) * self.rows

    def _check(self, epochs: Int64, lanes: Int64, place: Int64) -> None:
        if len(epochs) and epochs.min() < 0:
            raise ConfigError(f"epoch {epochs.min()}; expected 0 or more")
        if len(lanes) and not (lanes.min() >= 0 and lanes.max() < self.lanes):
            wrong = lanes[(lanes < 0) | (lanes >= self.lanes)][0]
            raise ConfigError(f"there is no lane {wrong}; expected 0 to {self.lanes - 1}")
        outside = (place < 0) | (place >= self._lengths[lanes])
        if outside.any():
            first = int(np.argmax(outside))
            lane = int(np.broadcast_to(lanes, place.shape)[first])
            raise ConfigError(f"lane {lane} has no place {place[first]}: it has {self._lengths[lane]} rows")

    def _check_rows(self, group: Int64, row: Int64) -> None:
        if len(group) and not (group.min() >= 0 and group.max() < len(self._group_rows)):
            raise ConfigError(
                f"row groups {group.min()} to {group.max()}; expected those of 0 to {len(self._group_rows) - 1}"
            )
        if (outside := (row < 0) | (row >= self._group_rows[group])).any():
            first = int(np.argmax(outside))
            have = self._group_rows[group[first]]
            raise ConfigError(f"row group {group[first]} has no row {row[first]}: it has {have} rows")


@final
class StoredOrder:
    """Rows as they are stored, in every epoch and in one lane; attributes and methods as of :class:`EpochOrder`."""

    lanes = window_rows = 1

    def __init__(self, group_rows: Int64) -> None:
        self._begins = offsets_of(group_rows)
        self.rows, self.lengths = int(self._begins[-1]), self._begins[-1:]

    def has(self, group: Int64, row: Int64) -> Bools:
        return row < np.diff(self._begins)[group]

    def at(self, epoch: Int64, lane: Int64, place: Int64) -> tuple[Int64, Int64]:
        group = np.searchsorted(self._begins, place, side="right") - 1
        return group, place - self._begins[group]

    def place_of(self, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        return np.zeros_like(group), self._begins[group] + row

    def taken(self, epoch: int, places: Int64) -> tuple[Int64, Int64]:
        return np.zeros_like(places), places


def _cut_at(begin: Int64, end: Int64, edges: Int64) -> tuple[Int64, Int64]:
    """Cut ranges that are ascending and apart where an edge lies inside; those that are empty are left out."""
    cuts = np.unique(np.concatenate([begin, end, edges]))
    there = cuts[:-1] < end[np.searchsorted(begin, cuts[:-1], side="right") - 1]
    return cuts[:-1][there], cuts[1:][there]


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
