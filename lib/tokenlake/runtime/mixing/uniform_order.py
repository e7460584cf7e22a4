"""Order of one dataset that fits into memory: an epoch's rows are permuted as a whole.

The order looks as if it were drawn by chance.

The order of an epoch has two steps:

1. **Lanes share the places of the epoch**: lane l has the places ``[floor(l N / L),
   floor((l + 1) N / L))``.
2. **All rows are permuted**: the stored row at a place is ``permuted_epoch(place)``.

Example: row groups of 3, 0, 4 and 2 rows, 2 lanes, seed 0, epoch 0. Stored row 3 is the first of row group 2::

    lanes                   |0 1 2 3| |4 5 6 7 8|      floor(9 / 2) = 4
    stored row at a place    2 7 4 8   6 1 3 0 5
    row group and row        0,2 3,0 2,1 3,1 | 2,3 0,1 2,0 0,0 2,2

Every lane needs every row group, soon after the epoch began: each host decodes and
holds the whole dataset.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64, offsets_of
from tokenlake.base.arrays import places as places_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import lane_bounds
from tokenlake.runtime.mixing.order import check_places, check_rows
from tokenlake.runtime.mixing.random import WORD, Permutation, extended, key_of
from tokenlake.runtime.mixing.search import Lookup, Search, search_alone

_ROWS: Final = 5  # first word of the keys that permute all rows


@final
class UniformOrder:
    """Rows of a dataset in a uniformly random order.

    Attributes and methods are those of `EpochOrder`.

    Args:
        group_rows: Rows of each row group as stored, int64[G]; row groups may be empty.
        lanes: Number of lanes; it is part of the order.
        seed: Any integer, taken modulo 2^64.

    Attributes:
        rows: Number of rows of an epoch.
        seed: Seed from 0 to 2^64 - 1.
        lanes: Number of lanes.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(self, group_rows: Int64, *, lanes: int, seed: int) -> None:
        if (group_rows < 0).any():
            raise ConfigError(
                f"a row group of {group_rows.min()} rows; expected 0 or more"
            )
        self._group_rows = np.asarray(group_rows, np.int64)
        self._first_rows = offsets_of(self._group_rows)
        self.rows: Final = int(self._first_rows[-1])
        self.seed: Final = seed & WORD
        self.lanes: Final = lanes
        self._bounds = lane_bounds(self.rows, lanes)
        self._lengths = np.diff(self._bounds)

    @property
    def window_rows(self) -> int:
        """Mean number of places from the first row of a row group to its last.

        They are nearly all places of a lane.
        """
        return max(1, self.rows // self.lanes)

    @property
    def lengths(self) -> Int64:
        """Number of rows of each lane, int64[lanes]."""
        return self._lengths.copy()

    def has(self, group: Int64, row: Int64) -> Bools:
        return row < self._group_rows[group]

    def at(
        self, epoch: Int64 | int, lane: Int64 | int, place: Int64
    ) -> tuple[Int64, Int64]:
        return search_alone(self.search(epoch, lane, place))

    def search(
        self, epoch: Int64 | int, lane: Int64 | int, place: Int64
    ) -> Search[tuple[Int64, Int64]]:
        epochs = np.atleast_1d(np.asarray(epoch, np.int64))
        lanes = np.atleast_1d(np.asarray(lane, np.int64))
        check_places(self._lengths, epochs, lanes, place)
        stored = yield self._lookup(epochs, self._bounds[lanes] + place)
        group = np.searchsorted(self._first_rows, stored, side="right") - 1
        return group, stored - self._first_rows[group]

    def place_of(self, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        check_rows(self._group_rows, group, row)
        keys = extended(key_of(self.seed, _ROWS), np.array([epoch]))
        place = Permutation(self.rows, keys).inverse(self._first_rows[group] + row)
        lane = np.searchsorted(self._bounds, place, side="right") - 1
        return lane, place - self._bounds[lane]

    def taken(self, epoch: int, places: Int64) -> tuple[Int64, Int64]:
        place = places_of(self._bounds[:-1], places)
        stored = self._lookup(np.array([epoch]), place).numbers()
        return stored, stored + 1

    def _lookup(self, epochs: Int64, place: Int64) -> Lookup:
        """Return the lookup of the stored row at each place of an epoch.

        Args:
            epochs: Epochs, int64[n] or int64[1].
            place: Places in the epochs, int64[n].
        """
        keys = extended(key_of(self.seed, _ROWS), epochs)
        return Lookup(place, self.rows, keys)
