"""A mixture: several sources as one stream, in an order that is a function of the position.

Think of cards dealt from several piles. A block of slots is shared out by the weights that hold there and shuffled; a
slot says from which pile the next card comes, and each pile is dealt from its top. Every lane has piles of its own, its
own stretch of every source, and the weights hold for all lanes together; their cards go out batch by batch.

::

    position          where a row is in the stream                     lanes.LaneLayout
    (lane, place)     where it is in one lane                          Lane: without skipped slots
    (lane, slot)      where it would be if no source ever ended        deal.Dealt: shuffled cells
    (source, number)  the n-th row of a source in this lane            deal.Deal: the closed form
    (source, epoch, index)   the same, when the source's rows in this lane begin anew each time they end
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
ORDERS: Final = (2, 3)
STOPS: Final[tuple[str, ...]] = get_args(Stop)


def check_order(order: int) -> None:
    """Raise ConfigError unless there is such a version of the order."""
    if isinstance(order, bool) or not isinstance(order, int) or order not in ORDERS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"order {order!r} of a mixture; expected one of {ORDERS}: a later release wrote it")


MIXTURE_ORDER: Final = 3
"""What lanes, blocks and weights of a mixture mean; what is written in such an order, or stands in it, names it."""


@final
@dataclass(frozen=True, slots=True)
class Draws:
    """Rows of a lane, place by place; all int64[n].

    Attributes:
        source: index into the mixture's names.
        epoch: which pass over that source's lane it is, from 0.
        index: place in that source's lane of that epoch.
    """

    source: Int64
    epoch: Int64
    index: Int64


@final
class SourceMixture:
    """The order of a mixture.

    Args:
        lengths: name to rows of each source; None: unknown. With an unknown one there is but one lane, its rows are
            numbered from 0 in epoch 0, and when they end is for the reader to see.
        scheduler: the weights; it names the same sources.
        lanes: into how many lanes each source and the stream are cut.
        batch_size: rows of a global batch, divisible by `lanes`.
        block_size: slots of a lane that are dealt together. The order of the sources is shuffled inside as many, but
            never beyond a batch, at whose end the counts of the whole stream are exact.
        step_rows: rows of the whole stream per step of the schedule.
        seed: any integer; None is 0.
        stop: what happens when a source ends: "restart" begins its next epoch, "first_exhausted" ends each lane before
            the first row that is not there, "all_exhausted" goes on with the others and gives every row once.
        rows: where the stream is cut; None: not.
        order: version of the order: :data:`MIXTURE_ORDER`, or 2 for what was written before.

    Raises:
        ConfigError: any of them cannot be, or they do not fit each other.
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
        self._asked = {name: value for name, value in locals().items() if name != "self"}
        check_weight_names("weights", lengths, scheduler.names)
        for name, there in lengths.items():
            if there is not None and there < 0:
                raise ConfigError(
                    f"source {name!r} has {there} rows; expected 0 or more, or none for unknown"
                )
        for name, size in (("lanes", lanes), ("block_size", block_size), ("step_rows", step_rows)):
            if size < 1:
                raise ConfigError(f"{name} is {size}; expected 1 or more")
        require_one_of("stop", stop, STOPS)
        check_order(order)
        self.scheduler: Final = scheduler
        self.names: Final = scheduler.names
        """The sources, in the order in which the schedule names them."""
        self._lanes, self._stop, self._step_rows = lanes, stop, step_rows
        self._endless = LaneLayout(None, lanes, batch_size)
        self._lengths = tuple(lengths[name] for name in scheduler.names)
        self._rows_of = rows_by_lane(self.names, self._lengths, lanes)
        self._dealt = self._deal(block_size, seed or 0, order)
        self._check_ends()
        self._parts = tuple(self._part(lane) for lane in range(lanes))
        self._rows = rows
        if rows is not None and rows < 0:
            raise ConfigError(f"a mixture cut at {rows} rows; expected 0 or more")
        if rows is not None and (end := self.layout.rows) is not None and end < rows:
            raise ConfigError(
                f"a mixture of {rows} rows was asked for; its sources end after {end} rows with stop {stop!r}: "
                f"expected at most {end}, or stop 'restart'",
                expected=end,
                got=rows,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SourceMixture, **self._asked), ()

    @property
    def rows(self) -> int | None:
        """Rows of the stream; None: it is endless."""
        return self.layout.rows if self._rows is None else self._rows

    @cached_property
    def layout(self) -> LaneLayout:
        """Position <-> (lane, place), as if the stream were not cut."""
        if not self._ends:
            return self._endless
        lengths = np.array([part.length for part in self._parts], np.int64)
        return LaneLayout(lengths, self._lanes, self._endless.batch_size)

    def lane_rows(self, lane: int) -> int | None:
        """Return how many rows a lane delivers; None: there is no end to it."""
        self._check_lane(lane)
        if self._rows is not None:
            return int(self._cut[lane])
        return self._parts[lane].length

    def lane(self, lane: int, start: int, stop: int) -> Draws:
        """Return what is at places ``start .. stop`` of a lane.

        Raises:
            ConfigError: there is no such lane, or it has no such places.
        """
        self._check_places(lane, start, stop)
        draws = Draws(*(np.empty(stop - start, np.int64) for _ in range(3)))
        done = 0
        for source, number in self._parts[lane].take(start, stop):
            part = slice(done, done + len(source))
            draws.source[part] = source
            draws.epoch[part], draws.index[part] = self._epochs(lane, source, number)
            done = part.stop
        return draws

    def drawn(self, lane: int, place: int) -> Int64:
        """Return how many of the first `place` rows of a lane are of each source, int64[J]."""
        self._check_places(lane, place, place)
        return self._parts[lane].drawn(place)

    def drawn_before(self, position: int) -> Int64:
        """Return how many rows before a position of the stream are of each source, int64[J]."""
        self._check_position(position)
        places = self.layout.places_before(position)
        each = [self.drawn(lane, int(place)) for lane, place in enumerate(places)]
        return np.stack(each).sum(axis=0)

    def place_of(self, lane: int, source: int, number: int) -> int | None:
        """Return the place of a lane at which a source gives its row `number` (from 0, over its epochs); None: never.

        The inverse of :meth:`lane`.
        """
        self._check_lane(lane)
        place, end = self._parts[lane].place_of(source, number), self.lane_rows(lane)
        return place if place is not None and (end is None or place < end) else None

    def at(self, position: int) -> tuple[str, int, int, int]:
        """Return (name of the source, epoch, index in that source's lane, lane) of the row at a position."""
        self._check_position(position + 1)
        lanes, places = self.layout.locate(np.array([position]))
        lane, place = int(lanes[0]), int(places[0])
        draws = self.lane(lane, place, place + 1)
        return self.names[int(draws.source[0])], int(draws.epoch[0]), int(draws.index[0]), lane

    @property
    def group_slots(self) -> int:
        """Slots of a lane that are dealt together: what comes behind them decides none of them."""
        return self._dealt.cells * self._dealt.cell

    def step_after(self, position: int) -> int:
        """Return the first step at which the schedule may be extended without moving a row before a position.

        Steps count slots. Where none is skipped and no lane has ended, `step_rows` rows make a step; a stream that
        skips the slots of exhausted sources gets through its schedule faster.
        """
        self._check_position(position)
        if not self._ends:
            return -(-position // self._step_rows)
        places = self.layout.places_before(position)
        lengths = self.layout.lengths
        if self._stop == "first_exhausted" and lengths is not None and (places > lengths.min()).any():
            places = lengths + 1  # behind the shortest lane's end it matters where the others end
        slots = max(part.slots_until(int(place)) for part, place in zip(self._parts, places, strict=True))
        return -(-slots * self._lanes // self._step_rows)

    @property
    def _ends(self) -> bool:
        """Whether sources that end also end the stream."""
        return self._stop != "restart" and None not in self._lengths

    @cached_property
    def _cut(self) -> Int64:
        return self.layout.places_before(self._rows or 0)

    def _deal(self, block_size: int, seed: int, order: int) -> SlotDeal:
        lanes, batch_size, step_rows = self._lanes, self._endless.batch_size, self._step_rows
        if order == MIXTURE_ORDER:
            return Deal(
                self.scheduler,
                lanes=lanes,
                batch_size=batch_size,
                block_size=block_size,
                step_rows=step_rows,
                seed=seed,
            )
        each = {"step_rows": max(1, step_rows // lanes), "batch_rows": batch_size // lanes}
        return EvenDeal(counts_of(self.scheduler, **each, block_size=block_size), block_size, seed)

    def _check_ends(self) -> None:
        """Raise ConfigError where a source has too few rows to go on, or too little weight ever to end."""
        stop, lanes = self._stop, self._lanes
        for at, (name, rows) in enumerate(zip(self.names, self._lengths, strict=True)):
            if rows is None:
                continue
            if stop != "all_exhausted" and rows < lanes:
                raise ConfigError(
                    f"source {name!r} has {rows} rows for {lanes} lanes, so that a lane has none; expected at least a "
                    f"row for each lane with stop {stop!r} (fewer lanes, or no such source)"
                )
            most = self._dealt.ceiling(at)
            if stop == "all_exhausted" and most is not None and most < int(self._rows_of[:, at].max()):
                raise ConfigError(
                    f"source {name!r} can never be exhausted: of its {rows} rows in {lanes} lanes the schedule takes "
                    f"{most} of each lane before its weight stays 0; expected a weight above 0 at the end of the "
                    "schedule, another stop strategy, or no such source"
                )

    def _part(self, lane: int) -> Lane:
        rows = tuple(int(count) for count in self._rows_of[lane]) if self._ends else None
        return Lane(self._dealt, lane, rows, skipping=self._stop == "all_exhausted")

    def _epochs(self, lane: int, source: Int64, number: Int64) -> tuple[Int64 | int, Int64]:
        """The epoch and the index in it of each row, by its number in its source."""
        if self._stop != "restart":
            return 0, number
        rows = self._rows_of[lane]
        each = np.where(rows < 0, np.int64(1) << 62, rows)[source]
        epoch = number // each
        return epoch, number - epoch * each

    def _check_lane(self, lane: int) -> None:
        if not 0 <= lane < self._lanes:
            raise ConfigError(f"there is no lane {lane}; expected 0 to {self._lanes - 1}")

    def _check_places(self, lane: int, start: int, stop: int) -> None:
        end = self.lane_rows(lane)
        if not 0 <= start <= stop or (end is not None and stop > end):
            there = "0 or more, in ascending order" if end is None else f"a range within its {end} rows"
            raise ConfigError(f"places {start} to {stop} of lane {lane}; expected {there}")

    def _check_position(self, position: int) -> None:
        if position < 0 or (self.rows is not None and position > self.rows):
            end = "" if self.rows is None else f" to {self.rows}"
            raise ConfigError(f"position {position} is not in the mixture; expected 0{end or ' or more'}")
