"""Order of one dataset in which every lane reads many row groups side by side.

A batch therefore has rows of all of them.

A row group is decoded as a whole. A lane that reads one row group after the other takes
the neighbouring rows of a batch, and of the next batches, from the same row group: 256
rows of 64 lanes come from 64 row groups. Here each lane is cut into W parts, its
*strands*, which it reads in turn. At any time L W row groups are open, and they were
opened at different times, so that each batch opens and closes a few.

The order of an epoch has four steps:

1. **Row groups are permuted** and laid end to end. Their N rows are the *virtual rows*
   of the epoch (step 1 of :mod:`tokenlake.runtime.mixing.order`).
2. **Strands share the virtual rows**: strand s of P = L W owns ``[floor(s N / P),
   floor((s + 1) N / P))``. Lane l has the strands from l W to (l + 1) W - 1, which are
   together the lane l of an order without strands.
3. **A strand reads row group by row group**, the rows of each in an order of their own.
   Even strands read forwards, odd ones backwards. A border between two strands mostly
   cuts a row group. Both strands begin with it, or both end with it, so that it is
   decoded once for both.
4. **A lane delivers in rounds**: a round takes the next row of each strand, in an order
   that is permuted in every round. Place p of a lane is in round ``floor(p / W)``, and
   the strand is ``permuted_round(p mod W)``. Strands differ by at most one row: the
   last round takes a row of the longer ones only.

Every step is a function with an inverse. A row is found without any other, at any place
of any epoch.

Example: row groups of 3, 0, 4 and 2 rows, 1 lane, 2 strands, seed 0, epoch 0. The row groups 1, 0, 3, 2 follow each
other. Strand 0 owns the virtual rows 0 to 3 and reads them forwards, strand 1 owns 4 to 8 and reads them backwards::

    strand 0     0,1 0,0 0,2 3,0                      row group and row
    strand 1     2,3 2,2 2,0 2,1 3,1                  the border cuts row group 3: both strands end with it
    round        0        1        2        3        4
    strands      0   1    0   1    1   0    1   0    1
    rows         0,1 2,3  0,0 2,2  2,0 0,2  2,1 3,0  3,1

Of 256 rows in a batch, 64 lanes and W = 12, a batch comes from 256 row groups (fewer at
both ends of an epoch, where two strands share one), and a row group gives a row to
every third batch. ``benchmarks/shuffle_quality.py`` compares orders with chance.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64
from tokenlake.base.arrays import places as places_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import lane_bounds
from tokenlake.runtime.mixing.order import EpochOrder, check_places
from tokenlake.runtime.mixing.random import Permutation, UInt64, extended, key_of
from tokenlake.runtime.mixing.search import Lookup, Search, search_alone

_ROUNDS: Final = 4  # first word of the keys that permute the strands of a round


@final
class StrandOrder:
    """Rows of a dataset, in a different order in every epoch.

    Attributes and methods are those of `EpochOrder`.

    Args:
        group_rows: Rows of each row group as stored, int64[G]; row groups may be empty.
        lanes: Number of lanes; it is part of the order.
        seed: Any integer, taken modulo 2^64.
        strands: Number of strands of each lane; it is part of the order.

    Attributes:
        rows: Number of rows of an epoch.
        seed: Seed from 0 to 2^64 - 1.
        lanes: Number of lanes.
        strands: Number of strands of each lane.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(
        self, group_rows: Int64, *, lanes: int, seed: int, strands: int
    ) -> None:
        if strands < 1:
            raise ConfigError(f"a lane of {strands} strands; expected 1 or more")
        self.lanes: Final = lanes
        self.strands: Final = strands
        # Strands are lanes of an order without strands.
        self._of_strands = EpochOrder(group_rows, lanes=lanes * strands, seed=seed)
        self.rows: Final = self._of_strands.rows
        self.seed: Final = self._of_strands.seed
        self._lengths = np.diff(lane_bounds(self.rows, lanes))
        self._strand_lengths = self._of_strands.lengths
        # Rounds that have all strands. The longer strands have a row more, in the round
        # after these.
        self._whole_rounds = self.rows // (lanes * strands)
        # Longer strands before each strand.
        self._longer_before = np.zeros(lanes * strands + 1, np.int64)
        np.cumsum(
            self._strand_lengths - self._whole_rounds, out=self._longer_before[1:]
        )
        self._longer_of_lane = self._lengths - self._whole_rounds * strands

    @property
    def window_rows(self) -> int:
        """Mean number of places from the first row of a row group to its last."""
        return self._of_strands.window_rows * self.strands

    @property
    def lengths(self) -> Int64:
        """Number of rows of each lane, int64[lanes]."""
        return self._lengths.copy()

    def has(self, group: Int64, row: Int64) -> Bools:
        return self._of_strands.has(group, row)

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
        lanes = np.broadcast_to(lanes, place.shape)
        # Step 4: the round and the turn in it lead to a strand, of which the round
        # takes the next row.
        strand = yield from self._search_strand(epochs, lanes, place)
        row_of_strand = place // self.strands
        # Steps 3 to 1.
        return (
            yield from self._of_strands.search(
                epochs, strand, self._mirrored(strand, row_of_strand)
            )
        )

    def place_of(self, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        # Steps 1 to 3 backwards: the strand, and the row's number in it. This is also
        # the round.
        strand, place_in_strand = self._of_strands.place_of(epoch, group, row)
        rounds = self._mirrored(strand, place_in_strand)
        lane = strand // self.strands
        keys = self._keys(np.array([epoch]), lane, rounds)
        # Step 4 backwards: the turn of the strand in the round.
        turn = np.empty_like(strand)
        in_whole_rounds = np.flatnonzero(rounds < self._whole_rounds)
        strand_of_lane = strand[in_whole_rounds] - lane[in_whole_rounds] * self.strands
        turn[in_whole_rounds] = Permutation(
            self.strands, keys[in_whole_rounds]
        ).inverse(strand_of_lane)
        last = np.flatnonzero(rounds >= self._whole_rounds)
        if len(last):
            first_strand = lane[last] * self.strands
            number = (
                self._longer_before[strand[last]] - self._longer_before[first_strand]
            )
            longer = self._longer_of_lane[lane[last]]
            turn[last] = Permutation(longer, keys[last]).inverse(number)
        return lane, rounds * self.strands + turn

    def taken(self, epoch: int, places: Int64) -> tuple[Int64, Int64]:
        # 1. Number of rows that were taken of each strand: one for each whole round,
        #    and perhaps one of the next round.
        rounds = np.minimum(places // self.strands, self._whole_rounds)
        turns = places - rounds * self.strands
        lane = np.repeat(np.arange(self.lanes), turns)
        place = places_of(rounds * self.strands, turns)
        taken_rows = np.repeat(rounds, self.strands)
        strand = search_alone(self._search_strand(np.array([epoch]), lane, place))
        taken_rows[strand] += 1
        # 2. These are the first rows of even strands, and the last rows of odd ones.
        first = np.zeros_like(taken_rows)
        last = taken_rows.copy()
        first[1::2] = self._strand_lengths[1::2] - taken_rows[1::2]
        last[1::2] = self._strand_lengths[1::2]
        return self._of_strands.taken_between(epoch, first, last)

    def _mirrored(self, strand: Int64, row: Int64) -> Int64:
        """Return row numbers of strands, where odd strands count from the end.

        The function is its own inverse.

        Args:
            strand: Strands, int64[n].
            row: Number of the row in the strand, int64[n].
        """
        from_end = self._strand_lengths[strand] - 1 - row
        return np.where(strand % 2 == 0, row, from_end)

    def _search_strand(self, epochs: Int64, lane: Int64, place: Int64) -> Search[Int64]:
        """Search for the strand, counted over all lanes, of each place, int64[n].

        Args:
            epochs: Epochs, int64[n] or int64[1].
            lane: Lanes, int64[n].
            place: Places in the lanes, int64[n].
        """
        rounds = np.minimum(place // self.strands, self._whole_rounds)
        turn = place - rounds * self.strands
        keys = self._keys(epochs, lane, rounds)
        is_last = rounds == self._whole_rounds
        if not is_last.any():
            number_in_lane = yield Lookup(turn, self.strands, keys)
            return lane * self.strands + number_in_lane
        strand = np.empty_like(place)
        in_whole_rounds = np.flatnonzero(~is_last)
        number_in_lane = yield Lookup(
            turn[in_whole_rounds], self.strands, keys[in_whole_rounds]
        )
        strand[in_whole_rounds] = lane[in_whole_rounds] * self.strands + number_in_lane
        # The last round has only the longer strands of the lane: the turn leads to the
        # number of one of them.
        last = np.flatnonzero(is_last)
        lane_of_last = lane[last]
        number = yield Lookup(
            turn[last], self._longer_of_lane[lane_of_last], keys[last]
        )
        number += self._longer_before[lane_of_last * self.strands]
        strand[last] = np.searchsorted(self._longer_before, number, side="right") - 1
        return strand

    def _keys(self, epochs: Int64, lane: Int64, rounds: Int64) -> UInt64:
        """Return the keys of rounds, uint64[n].

        Args:
            epochs: Epochs, int64[n] or int64[1].
            lane: Lanes, int64[n].
            rounds: Numbers of rounds in the lane, int64[n].
        """
        keys = extended(key_of(self.seed, _ROUNDS), epochs)
        return extended(extended(keys, lane), rounds)
