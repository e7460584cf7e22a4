"""How many rows of each source a mixture takes: exact counts at any position.

Each weight, as a function of time measured in rows, has an integral W_j(t): the share of source j among the first t
rows. At time t the source has given ``c_j(t) = floor(W_j(t) + 1/2)`` rows; the counts at position n are those of the
time at which the c_j sum to n. No count ever falls, none is negative, and every source with a weight comes up.

Where several counts jump at one time, the first sources jump first. Time is told in ticks of 2^-32 row; jumps within
one tick are taken for simultaneous. The integral over a piece of a schedule is ``first_j x + (last_j - first_j) G(x)``
with G the same for all sources: 0, ``x^2 / 2 span``, or the area under the eased step. G is rounded down, to 2^-40
tick. As it grows by 0 to 1 tick in a tick, so does its rounded value; so every W_j grows by something between
``first_j`` and ``last_j`` in each tick, without any error, and all of them together by 1.

**The bound.** With J > 1 sources the count at n differs from W_j(n) by at most ``1/2 + w (J - 2) / 2``. There w is the
mean of weight j between n and the time of the count, which is less than J / 2 rows away: each count is within 1/2 of
its integral then, and what they leave open together is the distance in time.

**Changed schedules.** A change of the weights takes effect at a row n: the end of the batch in which its step begins.
Counts up to n stay as they are, and the integral takes the new weights from n on::

    W_j(t) = integral of the first weights up to n  +  integral of the new weights from n to t
    counts behind n: max(b_j, floor(W_j(t) + 1/2)), with b_j the count at n

Nothing is made up for: what a source was given before n was given by the weights of that time. A count at n may be
ahead of its integral, by ``(J + 1) / 2`` rows at most, because the time of the count may be later than n. The maximum
keeps it from falling. A source that is ahead waits, which takes ``J (J + 1)`` rows at most for the heaviest one. From
then on the bound holds again. The integral goes on over any number of changes, so that no share is lost by rounding,
even with a change at every batch.

Example: weights (1/2, 1/2), changed to (3/4, 1/4) at row 4. The counts at 4 are (2, 2), those at 12 are (8, 4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from typing import Final, final

from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.easing import eased_area
from tokenlake.runtime.mixing.schedule import Curve, SchedulePiece, WeightScheduler
from tokenlake.runtime.mixing.weights import UNIT_BITS, in_units

TICK_BITS: Final = 32
"""A row takes ``2**TICK_BITS`` ticks."""

_FINE: Final = (
    40  # bits of an area behind the tick: also where a weight comes to nothing, its jumps keep to their tick
)
_SHIFT: Final = UNIT_BITS + TICK_BITS + _FINE
_HALF: Final = 1 << (_SHIFT - 1)
_FEW: Final = 64  # jumps between two times, of which the right one is worth a guess

Tallies = tuple[int, ...]


def counts_of(
    scheduler: WeightScheduler, *, step_rows: int = 1, block_size: int = 1, batch_rows: int = 1
) -> Counts:
    """Return the counts of one endless lane by a schedule and all changes that were made to it.

    Args:
        scheduler: The weights.
        step_rows: Rows of the lane per step of the schedule.
        block_size: Rows of a block. A change takes effect at a block boundary.
        batch_rows: Rows of the lane in a batch of the whole stream. A change takes effect at the end of a batch.
    """
    first, *changes = scheduler.versions()
    counts = Counts(first, step_rows=step_rows)
    for changed in changes:
        batch_end = -(-changed.at * step_rows // batch_rows) * batch_rows
        block_end = -(-batch_end // block_size) * block_size
        counts = Counts(changed, step_rows=step_rows, before=counts, start=block_end)
    return counts


@final
class Counts:
    """The counts of one endless lane by one version of a schedule; :func:`counts_of` makes them.

    Args:
        scheduler: The weights.
        step_rows: Rows of the lane per step of the schedule.
        before: Counts by the schedule that this one changes; None for a schedule that changes none.
        start: Row at which the change takes effect.

    Attributes:
        before: The counts up to and at row `start`; None where there are none.
        start: The row at which the change takes effect; 0 where there is none.
    """

    __slots__ = ("_base", "_start_time", "_starts", "_stretches", "before", "start")

    def __init__(
        self,
        scheduler: WeightScheduler,
        *,
        step_rows: int = 1,
        before: Counts | None = None,
        start: int = 0,
    ) -> None:
        self.before = before
        self.start = start
        self._start_time = start << TICK_BITS
        self._base: Tallies = (0,) * len(scheduler.names)
        if before is not None:
            self._base = before.draws_before(start)

        # The integrals W_j from `start` on, over the pieces that are not over by then, in units of ``2**-_SHIFT`` row.
        ticks = step_rows << TICK_BITS
        self._stretches = list[_TickedPiece]()
        for piece in _pieces_from(scheduler, self._start_time, ticks):
            piece_start = piece.start * ticks
            first = in_units(piece.first.weights)
            last = in_units(piece.last.weights)
            stretch = _TickedPiece(
                piece_start,
                piece.last.step * ticks - piece_start,
                piece.curve,
                first=tuple(weight << _FINE for weight in first),
                rise=tuple(b - a for a, b in zip(first, last, strict=True)),
                base=(0,) * len(first),
            )
            if self._stretches:
                stretch = replace(stretch, base=self._stretches[-1].areas(piece_start))
            elif before is not None:
                # The piece may begin before the change takes effect: its integral joins the earlier one there.
                reached = before.areas(self._start_time)
                inside = stretch.areas(self._start_time)
                stretch = replace(
                    stretch, base=tuple(whole - part for whole, part in zip(reached, inside, strict=True))
                )
            self._stretches.append(stretch)
        self._starts = [stretch.start for stretch in self._stretches]

    def draws_before(self, position: int) -> Tallies:
        """Return how many of the first `position` rows are of each source; they sum to it."""
        if position < 0:
            raise ConfigError(f"position {position}; expected 0 or more")
        counts = self
        while counts.before is not None and position <= counts.start:
            counts = counts.before
        return counts._search(position)

    def shares(self, position: int) -> tuple[Fraction, ...]:
        """Return W_j at a position: what the weights ask for, to 2^-32 row."""
        return tuple(Fraction(area, 1 << _SHIFT) for area in self.areas(position << TICK_BITS))

    def areas(self, time: int) -> Tallies:
        """Return W_j at a time in ticks, in units of ``2**-_SHIFT`` row."""
        counts = self
        while counts.before is not None and time < counts._start_time:
            counts = counts.before
        # A piece that takes effect late counts from then on.
        stretch = max(bisect_right(counts._starts, time) - 1, 0)
        return counts._stretches[stretch].areas(time)

    def ceiling(self, source: int) -> int | None:
        """Return how many rows a source gives at most, in all of time; None: there is no end to it."""
        last = self._stretches[-1]
        if last.first[source]:
            return None
        return max(self._base[source], (last.base[source] + _HALF) >> _SHIFT)

    def _search(self, position: int) -> Tallies:
        """Find the time at which the counts sum to `position`; where none does, share out the jump over it."""
        low, high = self._bracket(position)
        for attempt in count():
            for state in (low, high):
                if state.total == position:
                    return state.counts
            if high.time - low.time == 1:
                break
            # Every third time the middle: it ends the search whatever the weights do in between.
            time = (low.time + high.time) // 2
            if attempt % 3 < 2 and high.total - low.total < _FEW:
                margin = (high.time - low.time) >> 16 if attempt > 1 else 0
                time = _guess(low, high, position, margin if attempt % 3 else -1 - margin)
            state = self._state(time)
            low, high = (state, high) if state.total <= position else (low, state)
        return _shared_out(low.counts, high.counts, position)

    def _bracket(self, position: int) -> tuple[_Moment, _Moment]:
        """Return two times between which the counts reach `position`.

        The counts are never further from the time than half a row for each source, but for sources that wait behind a
        change: then time is left behind, by twice the distance at each attempt.
        """
        reach = (len(self._base) + 1) // 2
        high = low = self._state(position << TICK_BITS)
        if low.total < position:
            high = self._state(low.time + (reach << TICK_BITS))
        while low.total > position:
            reach = 2 * max(reach, low.total - position)
            high, low = low, self._state(max(0, low.time - (reach << TICK_BITS)))
        return low, high

    def _state(self, time: int) -> _Moment:
        areas = self.areas(time)
        counts = tuple([(area + _HALF) >> _SHIFT for area in areas])
        if self.before is not None:
            counts = tuple(map(max, self._base, counts))
        return _Moment(time, areas, counts, sum(counts))


def _pieces_from(scheduler: WeightScheduler, time: int, ticks: int) -> Sequence[SchedulePiece]:
    """Return the pieces of a schedule that hold at a time or later.

    Args:
        scheduler: The weights.
        time: In ticks.
        ticks: Ticks of a step.
    """
    pieces = scheduler.pieces
    first = bisect_right(pieces, time, key=lambda piece: piece.start * ticks) - 1
    return pieces[max(first, 0) :]


@final
@dataclass(frozen=True, slots=True)
class _Moment:
    """What holds at a time (in ticks): the integrals, the counts and their sum."""

    time: int
    areas: Tallies
    counts: Tallies
    total: int


@final
@dataclass(frozen=True, slots=True)
class _TickedPiece:
    """A piece of the schedule in ticks, with what the integrals are where it starts.

    Attributes:
        first: how much each integral grows in a tick, in units of ``2**-_SHIFT`` row.
        rise: how much it grows for each 2^-40 tick of the area.
    """

    start: int
    span: int
    curve: Curve
    first: Tallies
    rise: Tallies
    base: Tallies

    def areas(self, time: int) -> Tallies:
        done = time - self.start
        if self.curve == "step":
            return tuple([base + first * done for base, first in zip(self.base, self.first, strict=True)])
        if self.curve == "cosine":
            area = eased_area(done, self.span, _FINE)
        else:
            area = (done * done << _FINE) // (2 * self.span)
        each = zip(self.base, self.first, self.rise, strict=True)
        return tuple([base + first * done + rise * area for base, first, rise in each])


def _guess(low: _Moment, high: _Moment, position: int, aside: int) -> int:
    """Return a time between the jump that reaches `position` and the next one, if integrals were lines.

    Between two times so near to each other they almost are. Where the two jumps come together it is a time to one side
    of them: asked for both sides in turn, they are between the times that are left.
    """
    width = high.time - low.time
    jumps: list[int] = []
    for area, end, first, last in zip(low.areas, high.areas, low.counts, high.counts, strict=True):
        for number in range(first, last):
            missing = (number << _SHIFT) + _HALF - area
            jumps.append(-(-missing * width // (end - area)))
    jumps.sort()
    jump, following = jumps[position - low.total - 1 : position - low.total + 1]
    offset = (jump + following) // 2 if following - jump > 2 * abs(aside) else jump + aside
    return low.time + min(max(offset, 1), width - 1)


def _shared_out(low: Tallies, high: Tallies, position: int) -> Tallies:
    """Return counts that sum to `position` between those of two neighbouring ticks, the first sources first."""
    counts = list(low)
    left = position - sum(low)
    for source, more in enumerate(high):
        taken = min(left, more - counts[source])
        counts[source] += taken
        left -= taken
    return tuple(counts)
