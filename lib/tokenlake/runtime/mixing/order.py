"""The order of one dataset in any epoch: which stored row is read at a place, and at which place a row is read.

1. The row groups are permuted, and laid end to end. Their N rows are the epoch's *virtual rows*.
2. L lanes share them: lane l owns the virtual rows ``[floor(l N / L), floor((l + 1) N / L))``.
3. A lane is cut into windows of one or more neighbouring row groups, and each window is permuted by itself::

    row groups   as stored        0 1 2 3 4
    epoch        permuted         3 0 4 1 2      laid end to end: N virtual rows
    lanes        L stretches      |----|----|    lane l owns [floor(l N / L), floor((l + 1) N / L))
    windows      permuted each    |--|-|--|-|    place -> virtual row, inside a window of the lane

A row group is decoded as a whole, and therefore moves as a whole; rows mix inside a window. A lane never has more row
groups open than a window has. A row group on a border between two lanes is needed by both, and each reads a part of it.
Everything is a function of the seed and the place. The only state of an epoch is where each of its row groups begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final, NamedTuple, Self, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64, offsets_of
from tokenlake.base.arrays import places as places_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import lane_bounds
from tokenlake.runtime.mixing.random import WORD, Permutation, UInt64, extended, key_of, values_at

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

    def rows_at(self, places: Int64, keys: UInt64) -> Int64:
        """Return the virtual row that is read at each place (both counted from the epoch's first row), int64[n].

        Args:
            places: Places in these windows, int64[n].
            keys: Keys of epoch and lane, uint64[n] or uint64[1].
        """
        if not len(places):
            return places
        return self.begin + self._permutation(keys).at(places - self.begin)

    def places_of(self, virtual: Int64, keys: UInt64) -> Int64:
        """Return the place at which each virtual row is read, int64[n]; the inverse of :meth:`rows_at`."""
        if not len(virtual):
            return virtual
        return self.begin + self._permutation(keys).inverse(virtual - self.begin)

    def _permutation(self, keys: UInt64) -> Permutation:
        is_one_size = (self.size == self.size[0]).all()
        return Permutation(int(self.size[0]) if is_one_size else self.size, extended(keys, self.number))


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
        epochs = np.atleast_1d(np.asarray(epoch, np.int64))
        lanes = np.atleast_1d(np.asarray(lane, np.int64))
        self._check(epochs, lanes, place)
        keys = extended(extended(key_of(self.seed, _WINDOWS), epochs), lanes)
        begin = self._bounds[lanes]
        end = self._bounds[lanes + 1]
        group = np.empty_like(place)
        row = np.empty_like(place)
        for laid, there, base in self._laid_for(epochs):
            low = values_at(begin, there) + base
            high = values_at(end, there) + base
            places = low + place[there]
            windows = self._windows(laid, places, low, high)
            virtual = windows.rows_at(places, values_at(keys, there))
            # A window of one row group permutes rows of that row group alone.
            index = windows.group if self.window == 1 else laid.index(virtual)
            group[there] = laid.order[index]
            row[there] = virtual - laid.offsets[index]
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
        return lane, windows.places_of(virtual, keys) - self._bounds[lane]

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
