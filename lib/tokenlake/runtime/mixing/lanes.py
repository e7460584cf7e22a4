"""Lanes: equal parts of an epoch's rows, and their order in a stream of batches.

A *lane* is one of L equal parts. A *place* is an index in a lane. A *position* is an
index in the stream of all lanes. Lanes never depend on the number of machines: with H
of them, each reads L / H neighbouring lanes, which are its rows of every batch.

Example: 3 lanes of 5, 5 and 6 rows, batches of 6. A batch takes 2 places of each lane; the rest follows lane by lane::

    position   0  1   2  3   4  5  |  6  7   8  9  10 11  | 12  13  14  15
    lane       0  0   1  1   2  2  |  0  0   1  1   2  2  |  0   1   2   2
    place      0  1   0  1   0  1  |  2  3   2  3   2  3  |  4   4   4   5
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError

_ENDLESS: Final = (1 << 63) - 1


def lane_bounds(rows: int, lanes: int) -> Int64:
    """Return the begin of each lane and the end of the last, int64[lanes + 1].

    Lane l begins at ``floor(l * rows / lanes)``.

    It is exact for all numbers of rows below 2^63: the product is split into a part
    that divides evenly and a rest.

    Args:
        rows: Number of rows of all lanes.
        lanes: Number of lanes.

    Raises:
        ConfigError: An argument is out of range.
    """
    if lanes < 1 or rows < 0:
        raise ConfigError(
            f"{rows} rows in {lanes} lanes; expected 0 rows or more and 1 lane or more"
        )
    rows_of_each, rest = divmod(rows, lanes)
    lane = np.arange(lanes + 1, dtype=np.int64)
    return lane * rows_of_each + lane * rest // lanes


@final
@dataclass(frozen=True, eq=False)
class LaneLayout:
    """Conversion between positions and (lane, place).

    While every lane has rows, a batch takes ``batch_size / lanes`` places of each lane,
    lane by lane. The batch in which the shortest lane ends takes fewer places of each.
    Then the rest of the longer lanes follows in lane order.

    Attributes:
        lengths: Number of rows of each lane, int64[lanes]; None if lanes never end.
        lanes: Number of lanes.
        batch_size: Number of rows of a batch, divisible by `lanes`.

    Raises:
        ConfigError: The attributes do not fit each other.
    """

    lengths: Int64 | None
    lanes: int
    batch_size: int

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.batch_size < 1 or self.batch_size % self.lanes:
            raise ConfigError(
                f"a batch of {self.batch_size} rows cannot take equally many from each of {self.lanes} lanes; "
                "expected a batch size that the number of lanes divides"
            )
        if self.lengths is not None and (
            len(self.lengths) != self.lanes or (self.lengths < 0).any()
        ):
            raise ConfigError(
                f"lane lengths {self.lengths.tolist()}; expected {self.lanes} numbers that are not negative"
            )
        if self.rows is not None and self.rows >= _ENDLESS:
            raise ConfigError(
                f"{self.rows} rows in all lanes; expected fewer than 2^63"
            )

    @cached_property
    def rows(self) -> int | None:
        """Number of positions; None if lanes never end."""
        if self.lengths is None:
            return None
        return sum(self.lengths.tolist())

    def locate(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place of each position, int64[n] both.

        A position that does not exist is a ConfigError.
        """
        start = positions // self.batch_size * self.batch_size
        return self.locate_in(start, np.array([self.batch_size]), positions - start)

    def locate_in(self, start: Int64, size: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place of rows of batches of any sizes.

        It is :meth:`locate` for batches of other sizes than :attr:`batch_size`: a batch
        takes ``size / lanes`` places of each lane, so that after any number of batches
        all lanes stand at the same place.

        Args:
            start: Number of rows before the batch, int64[n]; divisible by the number of
                lanes while all have rows.
            size: Number of rows of the batch, int64[n], divisible by the number of
                lanes.
            row: Row in the batch, int64[n].

        Returns:
            Lanes and places, int64[n] both.

        Raises:
            ConfigError: The stream has no such row.
        """
        self._check(start + row, self.rows, "positions")
        # 1. Rows of the even part: the batch takes `share` places of each lane from
        #    place `first_place` on.
        first_place = np.minimum(start // self.lanes, self._even)
        share = np.minimum(size // self.lanes, self._even - first_place)
        lane = row // np.maximum(share, 1)
        place = first_place + row - lane * share
        # 2. Rows after the even part, which lie lane by lane.
        late = np.flatnonzero(row >= share * self.lanes)
        if len(late):
            row_of_rest = start[late] + row[late] - self._even * self.lanes
            lane[late] = np.searchsorted(self._rest, row_of_rest, side="right") - 1
            place[late] = self._even + row_of_rest - self._rest[lane[late]]
        return lane, place

    def beside(self, lane: Int64, place: Int64) -> Int64:
        """Return a position in the same batch as each place, int64[n].

        It holds for batches of any sizes.

        A batch takes the same places of every lane. Therefore this is the position in
        batches of one place per lane.

        Args:
            lane: Lanes, int64[n].
            place: Place in each lane, int64[n].
        """
        return self._with_late_places(lane, place, place * self.lanes)

    def row_in(self, start: Int64, size: Int64, lane: Int64, place: Int64) -> Int64:
        """Return the row of each (lane, place) in its batch, int64[n].

        It is the inverse of :meth:`locate_in`.

        Args:
            start: Number of rows before the batch that contains the place (see
                :meth:`beside`), int64[n].
            size: Number of rows of that batch, int64[n].
            lane: Lanes, int64[n].
            place: Place in each lane, int64[n].
        """
        # Positions as if the place were in the even part; those of late places are
        # replaced.
        first_place = np.minimum(start // self.lanes, self._even)
        share = np.minimum(size // self.lanes, self._even - first_place)
        positions = start + lane * share + place - first_place
        return self._with_late_places(lane, place, positions) - start

    def places_before(self, position: int) -> Int64:
        """Return the places of each lane before a position, int64[lanes].

        They sum to the position.
        """
        if position < 0 or (self.rows is not None and position > self.rows):
            expected = "0 or more"
            if self.rows is not None:
                expected = f"0 to {self.rows}"
            raise ConfigError(
                f"position {position} is not in the stream; expected {expected}"
            )
        row = position % self.batch_size
        return self.places_in(position - row, self.batch_size, row)

    def places_in(self, start: int, size: int, rows: int) -> Int64:
        """Return the places of each lane before a row of a batch, int64[lanes].

        They sum to ``start + rows``.

        It is :meth:`places_before` for batches of other sizes than :attr:`batch_size`;
        see :meth:`locate_in`.

        Args:
            start: Number of rows before the batch.
            size: Number of rows of the batch.
            rows: Number of rows of the batch that are counted as well.
        """
        first_place = min(start // self.lanes, self._even)
        share = min(size // self.lanes, self._even - first_place)
        # Places of the even part, then those of the rest, lane by lane.
        rows_of_lane = rows - np.arange(self.lanes) * share
        even_places = first_place + np.clip(rows_of_lane, 0, share)
        rows_of_rest = max(0, start + rows - self._even * self.lanes)
        rest_lengths = np.diff(self._rest)
        return even_places + np.clip(rows_of_rest - self._rest[:-1], 0, rest_lengths)

    @cached_property
    def _even(self) -> int:
        """Number of places that every lane has."""
        if self.lengths is None:
            return _ENDLESS
        return int(self.lengths.min())

    @cached_property
    def _rest(self) -> Int64:
        """Bounds of the rest of each lane after the even part, int64[lanes + 1].

        They are the begin of each lane's rest, and the end of the last.
        """
        if self.lengths is None:
            return np.zeros(self.lanes + 1, np.int64)
        return offsets_of(self.lengths - self._even)

    def _with_late_places(self, lane: Int64, place: Int64, positions: Int64) -> Int64:
        """Check places, and set the positions of those after the even part.

        Args:
            lane: Lanes, int64[n].
            place: Place in each lane, int64[n].
            positions: Positions of the places if all were in the even part, int64[n];
                they are written to.
        """
        self._check(lane, self.lanes, "lanes")
        lengths: Int64 | None = None
        if self.lengths is not None:
            lengths = self.lengths[lane]
        self._check(place, lengths, "places")
        late = np.flatnonzero(place >= self._even)
        if len(late):
            rest_begin = self._even * self.lanes + self._rest[lane[late]]
            positions[late] = rest_begin + place[late] - self._even
        return positions

    def _check(self, values: Int64, limit: Int64 | int | None, noun: str) -> None:
        """Raise ConfigError unless all values are from 0 to a limit, exclusive.

        Args:
            values: Numbers, int64[n].
            limit: Limit of all, or of each, int64[n]; None if there is none.
            noun: Name of the numbers for the message.
        """
        # One pass finds any wrong value; the message names the first.
        is_wrong = values < 0
        if limit is not None:
            is_wrong |= values >= limit
        if not is_wrong.any():
            return
        first = int(np.argmax(is_wrong))
        expected = "0 or more"
        if limit is not None:
            end = int(np.broadcast_to(limit, values.shape)[first])
            expected = f"0 to {end - 1}" if end else "none, because it is empty"
        raise ConfigError(
            f"{noun}: {values[first]} is not in the stream; expected {expected}"
        )
