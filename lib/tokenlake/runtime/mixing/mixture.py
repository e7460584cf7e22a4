"""A mixture: several sources combined into one stream, in a reproducible order.

The row at a position is a function of the position.

It works like cards that are dealt from several piles. A block of slots is shared out by
the weights that hold there and shuffled. A slot states the pile of the next card, and
each pile is dealt from its top. Every lane has its own piles: its own part of every
source. The weights hold for all lanes together, and the lanes' cards go out batch by
batch.

A row has these coordinates, from the stream to the stored row::

    position                index in the stream                            lanes.LaneLayout
    (lane, place)           index in one lane                              lane.Lane: skips slots
    (lane, slot)            index in the lane if no source ever ended      slot_deal.SlotDeal: shuffles cells
    (source, number)        n-th row of the source in this lane            deal.Deal: closed form
    (source, epoch, index)  the same, if the rows start again at each end
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Literal, final, get_args

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.checks import require_one_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.counts import counts_of
from tokenlake.runtime.mixing.deal import Deal
from tokenlake.runtime.mixing.lane import Lane, rows_by_lane
from tokenlake.runtime.mixing.lanes import LaneLayout
from tokenlake.runtime.mixing.schedule import WeightScheduler
from tokenlake.runtime.mixing.slot_deal import EvenDeal, SlotDeal
from tokenlake.runtime.mixing.weights import check_weight_names

Stop = Literal["restart", "first_exhausted", "all_exhausted"]
"""Behaviour where a source ends; see :class:`SourceMixture`."""

STOPS: Final[tuple[str, ...]] = get_args(Stop)
"""Values of :data:`Stop`."""

_EVEN_DEAL: Final = 2  # version in which every lane has the weights by itself
_UNSCATTERED_DEAL: Final = 3  # version in which neighbouring lanes take one source

MIXTURE_ORDER: Final = 4
"""Version of the meaning of lanes, blocks and weights. It is recorded with every
mixture and every position in one.
"""

ORDERS: Final = (_EVEN_DEAL, _UNSCATTERED_DEAL, MIXTURE_ORDER)
"""Versions of the order that can be read."""

_UNKNOWN_LENGTH: Final = 1 << 62  # more rows than any source has


def check_order(order: int) -> None:
    """Raise ConfigError unless this release knows a version of the order."""
    if isinstance(order, bool) or not isinstance(order, int) or order not in ORDERS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"order {order!r} of a mixture; expected one of {ORDERS}: a later release wrote it"
        )


@final
@dataclass(frozen=True, slots=True)
class Draws:
    """Rows at n neighbouring places of a lane; all int64[n].

    Attributes:
        source: Index of the source in the mixture's names.
        epoch: Epoch of that source in this lane, from 0.
        index: Place in that source's lane of that epoch.
    """

    source: Int64
    epoch: Int64
    index: Int64


@final
class SourceMixture:
    """Order of a mixture.

    Args:
        lengths: Number of rows of each source, by name; None if it is unknown. With an
            unknown length there is only one lane, its rows are numbered from 0 in epoch
            0, and the reader notices when they end.
        scheduler: Weights; they name the same sources.
        lanes: Number of lanes into which each source and the stream are cut.
        batch_size: Number of rows in a global batch, divisible by `lanes`.
        block_size: Number of slots of a lane that are dealt together. The order of the
            sources is shuffled inside a block, but never beyond a batch, at whose end
            the counts of the whole stream are exact.
        step_rows: Number of rows of the whole stream per step of the schedule.
        seed: Any integer; None is 0.
        stop: Behaviour where a source ends. "restart" begins its next epoch,
            "first_exhausted" ends each lane before the first missing row,
            "all_exhausted" continues with the other sources and gives every row once.
        rows: Number of rows at which the stream is cut; None if it is not cut.
        order: Version of the order: :data:`MIXTURE_ORDER`, or 2 or 3 for mixtures that
            earlier releases began or wrote.

    Attributes:
        scheduler: Weights of the sources.
        names: Names of the sources, in the order in which the schedule names them.

    Raises:
        ConfigError: An argument is out of range, or arguments do not fit each other.

    Example:
        >>> from tokenlake.runtime.mixing import SourceMixture, constant
        >>> mixture = SourceMixture({"code": 100, "web": 300}, constant({"code": 0.5, "web": 0.5}))
        >>> mixture.drawn_before(10).tolist()
        [5, 5]
    """

    def __init__(
        self,
        lengths: Mapping[str, int | None],
        scheduler: WeightScheduler,
        *,
        lanes: int = 1,
        batch_size: int = 1,
        block_size: int = 1000,
        step_rows: int = 1,
        seed: int | None = 0,
        stop: str = "restart",
        rows: int | None = None,
        order: int = MIXTURE_ORDER,
    ) -> None:
        # Arguments are kept for pickling: the order is computed again from them.
        self._arguments = {
            name: value for name, value in locals().items() if name != "self"
        }
        # 1. Checks of the arguments.
        check_weight_names("weights", lengths, scheduler.names)
        for source_name, length in lengths.items():
            if length is not None and length < 0:
                raise ConfigError(
                    f"source {source_name!r} has {length} rows; expected 0 or more, or none for unknown"
                )
        for option_name, option_value in (
            ("lanes", lanes),
            ("block_size", block_size),
            ("step_rows", step_rows),
        ):
            if option_value < 1:
                raise ConfigError(
                    f"{option_name} is {option_value}; expected 1 or more"
                )
        require_one_of("stop", stop, STOPS)
        check_order(order)
        # 2. Weights, and the rows of each source in each lane.
        self.scheduler: Final = scheduler
        self.names: Final = scheduler.names
        self._lane_count = lanes
        self._stop = stop
        self._step_rows = step_rows
        self._endless_layout = LaneLayout(None, lanes, batch_size)
        self._lengths = tuple(lengths[name] for name in scheduler.names)
        self._rows_by_lane = rows_by_lane(self.names, self._lengths, lanes)
        # 3. The deal of all slots, and the lanes that it fills.
        self._deal = self._deal_of(block_size, seed or 0, order)
        self._check_ends()
        self._lanes = tuple(self._lane_of(lane) for lane in range(lanes))
        # 4. The end of the stream.
        self._cut_rows = rows
        if rows is not None:
            self._check_cut(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SourceMixture, **self._arguments), ()

    @property
    def rows(self) -> int | None:
        """Number of rows of the stream; None if it never ends."""
        if self._cut_rows is not None:
            return self._cut_rows
        return self.layout.rows

    @cached_property
    def layout(self) -> LaneLayout:
        """Conversion between positions and (lane, place), without the stream's cut."""
        if not self._can_end:
            return self._endless_layout
        lengths = np.array([lane.length for lane in self._lanes], np.int64)
        return LaneLayout(lengths, self._lane_count, self._endless_layout.batch_size)

    def lane_rows(self, lane: int) -> int | None:
        """Return the number of rows that a lane delivers; None if it never ends."""
        self._check_lane(lane)
        if self._cut_rows is not None:
            return int(self._places_at_cut[lane])
        return self._lanes[lane].length

    def lane(self, lane: int, start: int, stop: int) -> Draws:
        """Return the rows at places ``start .. stop`` of a lane.

        Raises:
            ConfigError: The lane, or one of the places, does not exist.
        """
        self._check_places(lane, start, stop)
        # A lane yields its rows in parts that fit the processor's cache.
        sources = np.empty(stop - start, np.int64)
        epochs = np.empty(stop - start, np.int64)
        indices = np.empty(stop - start, np.int64)
        begin_index = 0
        for source, number in self._lanes[lane].take(start, stop):
            end_index = begin_index + len(source)
            epoch, index = self._epoch_and_index(lane, source, number)
            sources[begin_index:end_index] = source
            epochs[begin_index:end_index] = epoch
            indices[begin_index:end_index] = index
            begin_index = end_index
        return Draws(sources, epochs, indices)

    def drawn(self, lane: int, place: int) -> Int64:
        """Return the rows of each source before a place of a lane, int64[J]."""
        self._check_places(lane, place, place)
        return self._lanes[lane].drawn(place)

    def drawn_before(self, position: int) -> Int64:
        """Return the number of rows of each source before a position, int64[J]."""
        self._check_position(position)
        total = np.zeros(len(self.names), np.int64)
        for lane, place in enumerate(self.layout.places_before(position).tolist()):
            total += self.drawn(lane, place)
        return total

    def place_of(self, lane: int, source: int, number: int) -> int | None:
        """Return the place of a row in a lane; the inverse of :meth:`lane`.

        Args:
            lane: Number of the lane.
            source: Index of the source.
            number: Number of the row among the source's rows in this lane, from 0, over
                its epochs.

        Returns:
            None if the lane never delivers the row.
        """
        self._check_lane(lane)
        place = self._lanes[lane].place_of(source, number)
        end = self.lane_rows(lane)
        if place is not None and end is not None and place >= end:
            return None
        return place

    def at(self, position: int) -> tuple[str, int, int, int]:
        """Return the row at a position: source name, epoch, index, and lane.

        The index counts the rows of the source in this lane.
        """
        self._check_position(position + 1)
        lanes, places = self.layout.locate(np.array([position]))
        lane = int(lanes[0])
        place = int(places[0])
        draws = self.lane(lane, place, place + 1)
        source = int(draws.source[0])
        epoch = int(draws.epoch[0])
        index = int(draws.index[0])
        return self.names[source], epoch, index, lane

    @property
    def group_slots(self) -> int:
        """Number of slots of a lane that are dealt together.

        They do not depend on later slots.
        """
        return self._deal.cells * self._deal.cell

    def step_after(self, position: int) -> int:
        """Return the first step at which a change moves no row before a position.

        Steps count slots. Where none is skipped and no lane has ended, `step_rows` rows
        make a step. A stream that skips the slots of exhausted sources reaches its
        steps after fewer rows. After the end of the shortest lane, rows come lane by
        lane and at later slots than their position: a change at step n moves no row
        before the smaller of ``n * step_rows`` and ``lanes * rows of that lane``.
        """
        self._check_position(position)
        if not self._can_end:
            return -(-position // self._step_rows)
        places = self.layout.places_before(position)
        lengths = self.layout.lengths
        if (
            self._stop == "first_exhausted"
            and lengths is not None
            and (places > lengths.min()).any()
        ):
            # After the end of the shortest lane, the ends of the others matter.
            places = lengths + 1
        slots = 0
        for lane, place in zip(self._lanes, places.tolist(), strict=True):
            slots = max(slots, lane.slots_until(place))
        return -(-slots * self._lane_count // self._step_rows)

    @property
    def _can_end(self) -> bool:
        """True if sources that end also end the stream."""
        return self._stop != "restart" and None not in self._lengths

    @cached_property
    def _places_at_cut(self) -> Int64:
        """Number of places of each lane before the cut of the stream, int64[lanes]."""
        return self.layout.places_before(self._cut_rows or 0)

    def _deal_of(self, block_size: int, seed: int, order: int) -> SlotDeal:
        """Return the deal of a version of the order."""
        batch_size = self._endless_layout.batch_size
        if order != _EVEN_DEAL:
            return Deal(
                self.scheduler,
                lanes=self._lane_count,
                batch_size=batch_size,
                block_size=block_size,
                step_rows=self._step_rows,
                seed=seed,
                scatters_lanes=order != _UNSCATTERED_DEAL,
            )
        counts = counts_of(
            self.scheduler,
            step_rows=max(1, self._step_rows // self._lane_count),
            batch_rows=batch_size // self._lane_count,
            block_size=block_size,
        )
        return EvenDeal(counts, block_size, seed)

    def _lane_of(self, lane: int) -> Lane:
        rows: tuple[int, ...] | None = None
        if self._can_end:
            rows = tuple(self._rows_by_lane[lane].tolist())
        return Lane(self._deal, lane, rows, skipping=self._stop == "all_exhausted")

    def _epoch_and_index(
        self, lane: int, source: Int64, number: Int64
    ) -> tuple[Int64 | int, Int64]:
        """Return the epoch of each row and its index in that epoch.

        Args:
            lane: Number of the lane.
            source: Source of each row, int64[n].
            number: Number of each row among its source's rows in this lane, over all
                epochs, int64[n].
        """
        if self._stop != "restart":
            return 0, number
        # A source of unknown length never starts again: it gets more rows than any has.
        rows_of_sources = self._rows_by_lane[lane]
        rows = np.where(
            rows_of_sources < 0, np.int64(_UNKNOWN_LENGTH), rows_of_sources
        )[source]
        epoch = number // rows
        return epoch, number - epoch * rows

    def _check_ends(self) -> None:
        """Raise ConfigError where a source cannot reach its end in every lane.

        A source may have too few rows for all lanes, or too little weight to be
        exhausted.
        """
        for index, (name, rows) in enumerate(
            zip(self.names, self._lengths, strict=True)
        ):
            # The reader of a source of unknown length notices its end.
            if rows is None:
                continue
            if self._stop != "all_exhausted":
                if rows < self._lane_count:
                    raise ConfigError(
                        f"source {name!r} has {rows} rows for {self._lane_count} lanes, so a lane has none; expected "
                        f"at least one row for each lane with stop {self._stop!r} (use fewer lanes, or leave the "
                        "source out)"
                    )
                continue
            # The stream would never end if a source stopped being drawn before its end.
            ceiling = self._deal.ceiling(index)
            if ceiling is not None and ceiling < int(
                self._rows_by_lane[:, index].max()
            ):
                raise ConfigError(
                    f"source {name!r} can never be exhausted: of its {rows} rows in {self._lane_count} lanes the "
                    f"schedule takes {ceiling} of each lane before its weight stays 0; expected a weight above 0 at "
                    "the end of the schedule, another stop strategy, or leave the source out"
                )

    def _check_cut(self, rows: int) -> None:
        """Raise ConfigError unless the stream can be cut after some rows."""
        if rows < 0:
            raise ConfigError(f"a mixture of {rows} rows; expected 0 or more")
        end = self.layout.rows
        if end is not None and end < rows:
            raise ConfigError(
                f"a mixture of {rows} rows was asked for; its sources end after {end} rows with stop "
                f"{self._stop!r}: expected at most {end}, or stop 'restart'",
                expected=end,
                got=rows,
            )

    def _check_lane(self, lane: int) -> None:
        if not 0 <= lane < self._lane_count:
            raise ConfigError(
                f"there is no lane {lane}; expected 0 to {self._lane_count - 1}"
            )

    def _check_places(self, lane: int, start: int, stop: int) -> None:
        end = self.lane_rows(lane)
        if 0 <= start <= stop and (end is None or stop <= end):
            return
        expected = "0 or more, in ascending order"
        if end is not None:
            expected = f"a range within its {end} rows"
        raise ConfigError(
            f"places {start} to {stop} of lane {lane}; expected {expected}"
        )

    def _check_position(self, position: int) -> None:
        if position < 0 or (self.rows is not None and position > self.rows):
            expected = "0 or more"
            if self.rows is not None:
                expected = f"0 to {self.rows}"
            raise ConfigError(
                f"position {position} is not in the mixture; expected {expected}"
            )
