"""Order of one dataset in any epoch: the row at a place of a lane, and its inverse.

The order of an epoch has three steps:

1. **Row groups are permuted**: the row group at place p is ``permuted_groups(p)``. Laid
   end to end in this order, their N rows are the *virtual rows* of the epoch.
2. **Lanes share the virtual rows**: lane l owns ``[floor(l N / L), floor((l + 1) N /
   L))``.
3. **Windows are permuted**: a lane is cut into windows of one or more neighbouring row
   groups. Place p of a window is the virtual row ``begin + permuted_window(p)``.

A *place* counts the rows of a lane in the order in which they are read.
:meth:`EpochOrder.at` returns the row at a place; it applies the permutations of steps 3
and 1. :meth:`EpochOrder.place_of` returns the place of a row; it applies their inverses
in the opposite order.

Example: row groups of 3, 0, 4 and 2 rows, 2 lanes, windows of one row group, seed 0, epoch 0::

    place of a row group     0   1   2     3
    row group at the place   1   0   3     2
    its rows                 -   3   2     4
    virtual rows             -   012 34    5678
    lanes                        |012 3|   |4 5678|          floor(9 / 2) = 4
    windows                      |012|3|   |4|5678|
    virtual row at a place       1 0 2 3   4 6 5 7 8         (group, row): 0,1  0,0  0,2  3,0 | 3,1  2,1  2,0  2,2  2,3

A row group is decoded as a whole. Therefore it moves as a whole, and rows mix only
inside a window: a lane never has more row groups open than a window has. A row group on
a border between two lanes is needed by both; each reads a part of it. Everything is a
function of the seed and the place. The only state of an epoch is where its row groups
begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Self, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64, offsets_of
from tokenlake.base.arrays import places as places_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import lane_bounds
from tokenlake.runtime.mixing.random import (
    WORD,
    Permutation,
    UInt64,
    extended,
    key_of,
    values_at,
)
from tokenlake.runtime.mixing.search import Lookup, Search, search_alone

ORDER_VERSION: Final = 2
"""Version of :class:`EpochOrder`: of the meaning of seed, lanes and window. It is
recorded with every position.
"""

_GROUPS: Final = 1  # first word of the keys that permute row groups
_WINDOWS: Final = 2  # first word of the keys that permute windows
_MOST_LAYOUTS: Final = 4  # epochs whose layout is remembered
# Row groups that are laid out at a time, over several epochs of a small dataset.
_MOST_CELLS: Final = 1 << 18
_LARGEST: Final = 1 << 62


@final
@dataclass(frozen=True, slots=True)
class _Layout:
    """Permuted row groups of one or more consecutive epochs, laid end to end.

    Attributes:
        group_at: Row group at each place, int64[epochs * G].
        offsets: First virtual row of the row group at each place, and the end of the
            last, counted from the first epoch's first row, int64[epochs * G + 1].
    """

    group_at: Int64
    offsets: Int64

    @classmethod
    def of(cls, group_rows: Int64, seed: int, epochs: Int64) -> Search[Self]:
        """Search for the layout of the row groups of some epochs.

        Args:
            group_rows: Rows of each row group as stored, int64[G].
            seed: Seed of the order.
            epochs: Numbers of the epochs, int64[epochs].
        """
        groups = len(group_rows)
        keys = extended(key_of(seed, _GROUPS), epochs)
        if len(keys) > 1:
            keys = np.repeat(keys, groups)
        place = np.tile(np.arange(groups), len(epochs))
        group_at = yield Lookup(place, groups, keys)
        return cls(group_at, offsets_of(group_rows[group_at]))

    def place_with(self, virtual: Int64) -> Int64:
        """Return the place of the row group of each virtual row, int64[n].

        An empty row group is never returned.
        """
        return np.searchsorted(self.offsets, virtual, side="right") - 1


class _Windows(NamedTuple):
    """Windows that contain n virtual rows, each cut to the lane; all int64[n].

    Attributes:
        group_place: Place of the row group that contains the virtual row.
        number: Number of the window in the epoch.
        begin: First virtual row of the window in the lane.
        size: Number of rows of the window in the lane.
    """

    group_place: Int64
    number: Int64
    begin: Int64
    size: Int64

    def row_at(self, places: Int64, keys: UInt64) -> Search[Int64]:
        """Search for the virtual row at each place, int64[n].

        Args:
            places: Places in these windows, counted like virtual rows from the epoch's
                first row, int64[n].
            keys: Keys of epoch and lane, uint64[n] or uint64[1].
        """
        if not len(places):
            return places
        index = places - self.begin
        return self.begin + (yield Lookup(index, self._common_size, self._keys(keys)))

    def place_of(self, virtual: Int64, keys: UInt64) -> Int64:
        """Return the place of each virtual row, int64[n].

        It is the inverse of :meth:`row_at`.
        """
        if not len(virtual):
            return virtual
        permutation = Permutation(self._common_size, self._keys(keys))
        return self.begin + permutation.inverse(virtual - self.begin)

    @property
    def _common_size(self) -> int | Int64:
        """Size of all windows; the size of each, int64[n], if they differ."""
        first_size = int(self.size[0])
        if (self.size == first_size).all():
            return first_size
        return self.size

    def _keys(self, keys: UInt64) -> UInt64:
        """Return the key of each window, uint64[n], from those of epoch and lane."""
        return extended(keys, self.number)


@final
class EpochOrder:
    """Rows of a dataset, in a different order in every epoch.

    Args:
        group_rows: Rows of each row group as stored, int64[G]; row groups may be empty.
        lanes: Number of lanes; it is part of the order.
        seed: Any integer, taken modulo 2^64.
        window: Number of row groups whose rows are permuted together.

    Attributes:
        rows: Number of rows of an epoch.
        seed: Seed from 0 to 2^64 - 1.
        window: Number of row groups in a window.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(
        self, group_rows: Int64, *, lanes: int, seed: int, window: int = 1
    ) -> None:
        if (group_rows < 0).any():
            raise ConfigError(
                f"a row group of {group_rows.min()} rows; expected 0 or more"
            )
        if window < 1:
            raise ConfigError(f"a window of {window} row groups; expected 1 or more")
        self._group_rows = np.asarray(group_rows, np.int64)
        self.rows: Final = int(self._group_rows.sum())
        self._bounds = lane_bounds(self.rows, lanes)
        self._lengths = np.diff(self._bounds)
        self.seed: Final = seed & WORD
        self.window: Final = window
        # Layouts of the epochs that were used last. The tuple is replaced, not changed:
        # threads share it.
        self._layouts: tuple[tuple[int, _Layout], ...] = ()

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self._lengths)

    def has(self, group: Int64, row: Int64) -> Bools:
        """Return which rows exist, bool[n].

        A shortened row group has only its first rows.

        Args:
            group: Row groups, int64[n].
            row: Row in each row group, int64[n].
        """
        return row < self._group_rows[group]

    @property
    def window_rows(self) -> int:
        """Mean number of rows in a window."""
        groups = max(len(self._group_rows), 1)
        mean_rows = -(-self.rows * self.window // groups)  # rounded up
        return max(1, mean_rows)

    @property
    def lengths(self) -> Int64:
        """Number of rows of each lane, int64[lanes]."""
        return self._lengths.copy()

    def at(
        self, epoch: Int64 | int, lane: Int64 | int, place: Int64
    ) -> tuple[Int64, Int64]:
        """Return the row group and the row in it at each place.

        Args:
            epoch: Epoch of each place from 0, int64[n], or one for all.
            lane: Lane of each place, int64[n], or one for all.
            place: Place in the lane, int64[n].

        Returns:
            Row groups and rows, int64[n] both.

        Raises:
            ConfigError: A place, lane or epoch does not exist.
        """
        return search_alone(self.search(epoch, lane, place))

    def search(
        self, epoch: Int64 | int, lane: Int64 | int, place: Int64
    ) -> Search[tuple[Int64, Int64]]:
        """Search for the row group and the row in it at each place.

        The arguments and results are those of :meth:`at`.
        """
        # Keys and borders of the lanes, of each place or of all.
        epochs = np.atleast_1d(np.asarray(epoch, np.int64))
        lanes = np.atleast_1d(np.asarray(lane, np.int64))
        check_places(self._lengths, epochs, lanes, place)
        keys = extended(extended(key_of(self.seed, _WINDOWS), epochs), lanes)
        lane_begin = self._bounds[lanes]
        lane_end = self._bounds[lanes + 1]
        group = np.empty_like(place)
        row = np.empty_like(place)
        for part in self._parts_by_layout(epochs):
            layout = yield from self._search_layout(part.epochs)
            begin = values_at(lane_begin, part.selection) + part.epoch_begin
            end = values_at(lane_end, part.selection) + part.epoch_begin
            place_in_layout = begin + place[part.selection]
            # Step 3: the window's permutation leads to a virtual row.
            windows = self._windows_with(layout, place_in_layout, begin, end)
            virtual = yield from windows.row_at(
                place_in_layout, values_at(keys, part.selection)
            )
            # Step 1: the virtual row lies in a row group. A window of one row group
            # permutes its rows only.
            group_place = windows.group_place
            if self.window > 1:
                group_place = layout.place_with(virtual)
            group[part.selection] = layout.group_at[group_place]
            row[part.selection] = virtual - layout.offsets[group_place]
        return group, row

    def place_of(self, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place of each row in an epoch.

        It is the inverse of :meth:`at`.

        Args:
            epoch: Epoch, from 0.
            group: Row groups, int64[n].
            row: Row in each row group, int64[n].

        Returns:
            Lanes and places, int64[n] both.

        Raises:
            ConfigError: A row does not exist.
        """
        check_rows(self._group_rows, group, row)
        # Step 1 backwards: the row group has a place, and the row a virtual row.
        layout = self._layout_of(epoch)
        permutation = Permutation(
            len(self._group_rows), key_of(self.seed, _GROUPS, epoch)
        )
        virtual = layout.offsets[permutation.inverse(group)] + row
        # Step 3 backwards: the virtual row has a place in its window.
        lane = np.searchsorted(self._bounds, virtual, side="right") - 1
        keys = extended(key_of(self.seed, _WINDOWS, epoch), lane)
        windows = self._windows_with(
            layout, virtual, self._bounds[lane], self._bounds[lane + 1]
        )
        return lane, windows.place_of(virtual, keys) - self._bounds[lane]

    def taken(self, epoch: int, places: Int64) -> tuple[Int64, Int64]:
        """Return the rows at the first places of the lanes, as ranges of stored rows.

        Windows that are taken whole need no permutation: the time depends on the number
        of row groups, not on the number of rows.

        Args:
            epoch: Epoch, from 0.
            places: Number of places of each lane, int64[lanes].

        Returns:
            Begin and end of each range, half open, int64[m] both.
        """
        return self.taken_between(epoch, np.zeros_like(places), places)

    def taken_between(
        self, epoch: int, first: Int64, last: Int64
    ) -> tuple[Int64, Int64]:
        """Return the rows at a range of places of each lane, as ranges of stored rows.

        It is :meth:`taken` for places that begin at `first`.

        Args:
            epoch: Epoch, from 0.
            first: First of the places of each lane, int64[lanes].
            last: Place after the last of them, int64[lanes].

        Returns:
            Begin and end of each range of stored rows, half open, int64[m] both.
        """
        layout = self._layout_of(epoch)
        lane_begin = self._bounds[:-1]
        begin = lane_begin + first
        end = lane_begin + last

        # 1. A lane may begin and end inside a window; its places in these windows are
        #    single rows.
        whole_begin = begin.copy()
        whole_end = end.copy()
        cut_lanes = np.flatnonzero((first > 0) & (first < last))
        windows = self._windows_of_lanes(layout, begin, cut_lanes)
        is_inside = begin[cut_lanes] > windows.begin
        whole_begin[cut_lanes] = np.where(
            is_inside, windows.begin + windows.size, begin[cut_lanes]
        )
        whole_begin = np.minimum(whole_begin, end)
        cut_lanes = np.flatnonzero((last < self._lengths) & (whole_begin < end))
        windows = self._windows_of_lanes(layout, end, cut_lanes)
        whole_end[cut_lanes] = np.maximum(windows.begin, whole_begin[cut_lanes])
        singles = np.concatenate([whole_begin - begin, end - whole_end])
        lane_of_single = np.repeat(np.tile(np.arange(self.lanes), 2), singles)
        first_single = np.concatenate([first, last - (end - whole_end)])
        group, row = self.at(epoch, lane_of_single, places_of(first_single, singles))

        # 2. All windows between are ranges of virtual rows, cut at the borders of row
        #    groups.
        range_begin, range_end = _cut_at(whole_begin, whole_end, layout.offsets)
        group_place = layout.place_with(range_begin)

        # 3. Both as stored rows.
        first_rows = offsets_of(self._group_rows)
        stored_begin = (
            first_rows[layout.group_at[group_place]]
            + range_begin
            - layout.offsets[group_place]
        )
        stored_end = stored_begin + range_end - range_begin
        stored_single = first_rows[group] + row
        return np.append(stored_begin, stored_single), np.append(
            stored_end, stored_single + 1
        )

    def _windows_of_lanes(
        self, layout: _Layout, virtual: Int64, lanes: Int64
    ) -> _Windows:
        """Return the window of one virtual row of each of some lanes.

        Args:
            layout: Layout of the epoch.
            virtual: Virtual row of each lane of the order, int64[lanes of the order].
            lanes: Lanes whose windows are returned, int64[n].
        """
        return self._windows_with(
            layout, virtual[lanes], self._bounds[lanes], self._bounds[lanes + 1]
        )

    def _windows_with(
        self, layout: _Layout, virtual: Int64, lane_begin: Int64, lane_end: Int64
    ) -> _Windows:
        """Return the windows that contain virtual rows.

        Args:
            layout: Layout of the epochs.
            virtual: Virtual rows, int64[n].
            lane_begin: First virtual row of each row's lane, int64[n] or int64[1].
            lane_end: End of each row's lane, int64[n] or int64[1].
        """
        group_place = layout.place_with(virtual)
        groups = len(self._group_rows)
        # Windows are counted from the first row group of an epoch, also where several
        # epochs are laid out together.
        place_in_epoch = group_place % groups
        epoch_begin = group_place - place_in_epoch
        number = place_in_epoch // self.window
        # The window reaches over its row groups, as far as the lane and the epoch do.
        first_place = epoch_begin + number * self.window
        last_place = np.minimum(first_place + self.window, epoch_begin + groups)
        begin = np.maximum(layout.offsets[first_place], lane_begin)
        end = np.minimum(layout.offsets[last_place], lane_end)
        return _Windows(group_place, number, begin, end - begin)

    def _parts_by_layout(self, epochs: Int64) -> Iterator[_LayoutPart]:
        """Yield the places whose epochs are laid out together, until all had theirs.

        Args:
            epochs: Epoch of each place, int64[n] or int64[1].
        """
        if not len(epochs):
            return
        if epochs.min() == epochs.max():
            yield _LayoutPart(epochs[:1], slice(None), 0)
            return
        # Several epochs of a small dataset are laid out together.
        distinct_epochs, index_of_epoch = np.unique(epochs, return_inverse=True)
        most_by_groups = _MOST_CELLS // max(len(self._group_rows), 1)
        most_by_rows = _LARGEST // max(self.rows, 1)
        together = max(1, min(most_by_groups, most_by_rows))
        by_epoch = np.argsort(index_of_epoch, kind="stable")
        first_indices = np.arange(0, len(distinct_epochs) + together, together)
        borders = np.searchsorted(index_of_epoch[by_epoch], first_indices)
        for first_index, (begin, end) in zip(
            first_indices.tolist(), pairwise(borders.tolist()), strict=False
        ):
            part_epochs = distinct_epochs[first_index : first_index + together]
            selection = by_epoch[begin:end]
            yield _LayoutPart(
                part_epochs,
                selection,
                (index_of_epoch[selection] - first_index) * self.rows,
            )

    def _layout_of(self, epoch: int) -> _Layout:
        """Return the layout of an epoch."""
        return search_alone(self._search_layout(np.array([epoch])))

    def _search_layout(self, epochs: Int64) -> Search[_Layout]:
        """Search for the layout of some epochs; that of a single one is remembered."""
        if len(epochs) > 1:
            return (yield from _Layout.of(self._group_rows, self.seed, epochs))
        epoch = int(epochs[0])
        layout = dict(self._layouts).get(epoch)
        if layout is None:
            layout = yield from _Layout.of(self._group_rows, self.seed, epochs)
        layouts = [entry for entry in self._layouts if entry[0] != epoch]
        self._layouts = ((epoch, layout), *layouts[: _MOST_LAYOUTS - 1])
        return layout


class _LayoutPart(NamedTuple):
    """Places whose epochs are laid out together.

    Attributes:
        epochs: Epochs that are laid out, int64[epochs].
        selection: Indices of the places; a slice for all of them.
        epoch_begin: Virtual row of the layout at which the epoch of each place begins,
            int64[m], or one for all.
    """

    epochs: Int64
    selection: Int64 | slice
    epoch_begin: Int64 | int


@final
class StoredOrder:
    """Rows as stored, in every epoch and in one lane.

    Attributes and methods are those of :class:`EpochOrder`.

    Args:
        group_rows: Rows of each row group, int64[G].
    """

    lanes = 1
    seed = None
    window_rows = 1

    def __init__(self, group_rows: Int64) -> None:
        self._first_rows = offsets_of(group_rows)
        self.rows = int(self._first_rows[-1])
        self.lengths = self._first_rows[-1:]

    def has(self, group: Int64, row: Int64) -> Bools:
        return row < np.diff(self._first_rows)[group]

    def at(self, epoch: Int64, lane: Int64, place: Int64) -> tuple[Int64, Int64]:
        group = np.searchsorted(self._first_rows, place, side="right") - 1
        return group, place - self._first_rows[group]

    def place_of(self, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        return np.zeros_like(group), self._first_rows[group] + row

    def taken(self, epoch: int, places: Int64) -> tuple[Int64, Int64]:
        return np.zeros_like(places), places


def check_places(lengths: Int64, epochs: Int64, lanes: Int64, place: Int64) -> None:
    """Raise ConfigError if a place, lane or epoch does not exist.

    Args:
        lengths: Number of rows of each lane, int64[L].
        epochs: Epoch of each place, int64[n] or int64[1].
        lanes: Lane of each place, int64[n] or int64[1].
        place: Place in the lane, int64[n].
    """
    if len(epochs) and epochs.min() < 0:
        raise ConfigError(f"epoch {epochs.min()}; expected 0 or more")
    if len(lanes) and not (lanes.min() >= 0 and lanes.max() < len(lengths)):
        wrong_lane = lanes[(lanes < 0) | (lanes >= len(lengths))][0]
        raise ConfigError(
            f"there is no lane {wrong_lane}; expected 0 to {len(lengths) - 1}"
        )
    is_outside = (place < 0) | (place >= lengths[lanes])
    if is_outside.any():
        first = int(np.argmax(is_outside))
        lane = int(np.broadcast_to(lanes, place.shape)[first])
        raise ConfigError(
            f"lane {lane} has no place {place[first]}: it has {lengths[lane]} rows"
        )


def check_rows(group_rows: Int64, group: Int64, row: Int64) -> None:
    """Raise ConfigError if a stored row does not exist.

    Args:
        group_rows: Number of rows of each row group, int64[G].
        group: Row groups, int64[n].
        row: Row in each row group, int64[n].
    """
    last_group = len(group_rows) - 1
    if len(group) and not (group.min() >= 0 and group.max() <= last_group):
        raise ConfigError(
            f"row groups {group.min()} to {group.max()}; expected those of 0 to {last_group}"
        )
    is_outside = (row < 0) | (row >= group_rows[group])
    if is_outside.any():
        first = int(np.argmax(is_outside))
        rows = group_rows[group[first]]
        raise ConfigError(
            f"row group {group[first]} has no row {row[first]}: it has {rows} rows"
        )


def _cut_at(begin: Int64, end: Int64, edges: Int64) -> tuple[Int64, Int64]:
    """Cut ranges at the edges that lie inside them; empty ranges are left out.

    Args:
        begin: Begin of each range, ascending; ranges do not overlap, int64[n].
        end: End of each range, int64[n].
        edges: Numbers at which ranges are cut, int64[m].

    Returns:
        Begin and end of each part, int64 both.
    """
    cuts = np.unique(np.concatenate([begin, end, edges]))
    range_of_cut = np.searchsorted(begin, cuts[:-1], side="right") - 1
    is_inside = (range_of_cut >= 0) & (cuts[:-1] < end[range_of_cut])
    return cuts[:-1][is_inside], cuts[1:][is_inside]
