"""Exact numbers of rows that a mixture takes of each source before any position.

**Rule.** Each weight, as a function of time measured in rows, has an integral ``W_j(t)``: the share of source j in the
first t rows. At time t the source has given::

    c_j(t) = floor(W_j(t) + 1/2)

The counts at position n are those of the time at which the c_j sum to n. Where several
counts grow at one time, the first sources grow first. No count ever falls, none is
negative, and every source with a weight comes up.

Example: weights 0.5, 0.3, 0.2. Source 0 gives rows at times 1, 3, 5, ..., source 1 at
1.67, 5, 8.33, ..., source 2 at 2.5, 7.5, ... The counts before positions 0 to 6 are
``000, 100, 110, 111, 211, 311, 321``.

**Search.** The counts of a position are found in three steps
(:meth:`Counts.draws_before`):

1. Two times between which the sum of the counts reaches the position. Each count is
   within 1/2 of its integral, so that the time is less than ``J / 2`` rows from the
   position.
2. Times in between, guessed from straight lines through the integrals, until the counts
   of one sum to the position.
3. If no time does, counts grow at the same tick; the first sources get the rows that
   are missing.

**Units.** A tick is 2^-32 row. Counts that grow within one tick are taken for
simultaneous. The integral over a piece of a schedule is ``first_j x + (last_j -
first_j) G(x)``, with G the same for all sources: 0, ``x^2 / 2 span``, or the area under
the eased step. G is rounded down to 2^-40 tick. As G grows by 0 to 1 tick in a tick, so
does its rounded value. Every W_j therefore grows by a value between ``first_j`` and
``last_j`` in each tick, without any error, and all of them together by 1.

**Bound.** With J > 1 sources the count at n differs from W_j(n) by at most ``1/2 + w (J
- 2) / 2``. There w is the mean of weight j between n and the time of the count, which
is less than J / 2 rows away: each count is within 1/2 of its integral at that time, and
the differences of all sources sum to the distance in time.

**Changed schedules.** A change of the weights takes effect at a row n: the end of the batch in which its step begins.
Counts up to n stay as they are, and the integral takes the new weights from n on::

    W_j(t) = integral of the first weights up to n  +  integral of the new weights from n to t
    counts after n: max(b_j, floor(W_j(t) + 1/2)), with b_j the count at n

Nothing is made up for: the rows that a source gave before n follow the weights of that
time. A count at n may be ahead of its integral, by ``(J + 1) / 2`` rows at most,
because the time of the count may be later than n. The maximum keeps the count from
falling. A source that is ahead waits, for ``J (J + 1)`` rows at most of the heaviest
source. Then the bound holds again. The integral continues over any number of changes,
so that no share is lost by rounding, even with a change at every batch.

Example: weights (1/2, 1/2), changed to (3/4, 1/4) at row 4. The counts at 4 are (2, 2),
those at 12 are (8, 4).
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

# Bits of G below the tick: counts keep to their tick even where a weight becomes 0.
_AREA_BITS: Final = 40
# Integrals are whole numbers of 2^-168 row.
_ROW_BITS: Final = UNIT_BITS + TICK_BITS + _AREA_BITS
_HALF_ROW: Final = 1 << (_ROW_BITS - 1)
# Jumps of counts between two times among which a guess is worth its time.
_MOST_GUESSED: Final = 64

Tallies = tuple[int, ...]
"""A whole number for each source: its rows, or its integral in units of
``2**-_ROW_BITS`` row.
"""


def counts_of(
    scheduler: WeightScheduler,
    *,
    step_rows: int = 1,
    block_size: int = 1,
    batch_rows: int = 1,
) -> Counts:
    """Return the counts of one endless lane by a schedule and all its changes.

    Args:
        scheduler: Weights of the sources.
        step_rows: Number of rows of the lane per step of the schedule.
        block_size: Number of rows in a block. A change takes effect at a block
            boundary.
        batch_rows: Number of rows of the lane in a batch of the whole stream. A change
            takes effect at the end of a batch.
    """
    first, *changes = scheduler.versions()
    counts = Counts(first, step_rows=step_rows)
    for changed in changes:
        batch_end = _rounded_up(changed.at * step_rows, batch_rows)
        block_end = _rounded_up(batch_end, block_size)
        counts = Counts(changed, step_rows=step_rows, before=counts, start=block_end)
    return counts


def _rounded_up(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple


@final
class Counts:
    """Counts of one endless lane by one version of a schedule.

    :func:`counts_of` makes them.

    Args:
        scheduler: Weights of the sources.
        step_rows: Number of rows of the lane per step of the schedule.
        before: Counts by the schedule that this one changes; None for a schedule that
            changes none.
        start: Row at which the change takes effect.

    Attributes:
        before: Counts up to and at row `start`; None if there are none.
        start: Row at which the change takes effect; 0 if there is none.
    """

    __slots__ = ("_base", "_piece_starts", "_pieces", "_start_time", "before", "start")

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

        # The integrals from `start` on, over the pieces that are not over by then.
        ticks = step_rows << TICK_BITS
        self._pieces: list[_TickedPiece] = []
        for piece in _pieces_from(scheduler, self._start_time, ticks):
            ticked = _in_ticks(piece, ticks)
            if self._pieces:
                ticked = replace(ticked, base=self._pieces[-1].areas(ticked.start))
            elif before is not None:
                # The piece may begin before the change takes effect: its integral joins
                # the earlier one there.
                areas_before = before.areas(self._start_time)
                areas_of_piece = ticked.areas(self._start_time)
                base: list[int] = []
                for area, area_of_piece in zip(
                    areas_before, areas_of_piece, strict=True
                ):
                    base.append(area - area_of_piece)
                ticked = replace(ticked, base=tuple(base))
            self._pieces.append(ticked)
        self._piece_starts = [piece.start for piece in self._pieces]

    def draws_before(self, position: int) -> Tallies:
        """Return the rows of each source among the first `position` rows.

        They sum to `position`.

        Raises:
            ConfigError: The position is negative.
        """
        if position < 0:
            raise ConfigError(f"position {position}; expected 0 or more")
        # Of several versions, the one that decides this position.
        version = self
        while version.before is not None and position <= version.start:
            version = version.before
        return version._search(position)

    def shares(self, position: int) -> tuple[Fraction, ...]:
        """Return W_j at a position: the rows that the weights ask for.

        They are exact to 2^-32 row.
        """
        return tuple(
            Fraction(area, 1 << _ROW_BITS) for area in self.areas(position << TICK_BITS)
        )

    def areas(self, time: int) -> Tallies:
        """Return W_j at a time in ticks, in units of ``2**-_ROW_BITS`` row."""
        version = self
        while version.before is not None and time < version._start_time:
            version = version.before
        # A piece that takes effect late counts from then on.
        index = max(bisect_right(version._piece_starts, time) - 1, 0)
        return version._pieces[index].areas(time)

    def ceiling(self, source: int) -> int | None:
        """Return the most rows that a source ever gives; None if there is no limit."""
        # The last piece is constant: without a weight there, the integral and the count
        # stay.
        last = self._pieces[-1]
        if last.first[source]:
            return None
        return max(self._base[source], (last.base[source] + _HALF_ROW) >> _ROW_BITS)

    def _search(self, position: int) -> Tallies:
        """Return the counts that sum to `position`."""
        # 1. Two times between which the sum reaches the position.
        earlier, later = self._bracket(position)
        # 2. Times in between.
        for attempt in count():
            if earlier.total == position:
                return earlier.counts
            if later.total == position:
                return later.counts
            if later.time - earlier.time == 1:
                break
            moment = self._moment(_next_time(earlier, later, position, attempt))
            if moment.total <= position:
                earlier = moment
            else:
                later = moment
        # 3. The counts of two neighbouring ticks.
        return _shared_out(earlier.counts, later.counts, position)

    def _bracket(self, position: int) -> tuple[_Moment, _Moment]:
        """Return two times between which the counts reach `position`.

        Counts are never further from the time than half a row for each source, except
        for sources that wait after a change. Then time goes back, twice as far at each
        attempt.
        """
        reach = (len(self._base) + 1) // 2
        earlier = self._moment(position << TICK_BITS)
        later = earlier
        if earlier.total < position:
            later = self._moment(earlier.time + (reach << TICK_BITS))
        while earlier.total > position:
            reach = 2 * max(reach, earlier.total - position)
            later = earlier
            earlier = self._moment(max(0, earlier.time - (reach << TICK_BITS)))
        return earlier, later

    def _moment(self, time: int) -> _Moment:
        # Rounded to the nearest row. After a change no count falls below that at the
        # change.
        areas = self.areas(time)
        counts = tuple([(area + _HALF_ROW) >> _ROW_BITS for area in areas])
        if self.before is not None:
            counts = tuple(map(max, self._base, counts))
        return _Moment(time, areas, counts, sum(counts))


def _pieces_from(
    scheduler: WeightScheduler, time: int, ticks: int
) -> Sequence[SchedulePiece]:
    """Return the pieces of a schedule that hold at a time or later.

    Args:
        scheduler: Weights of the sources.
        time: Time in ticks.
        ticks: Number of ticks per step of the schedule.
    """
    pieces = scheduler.pieces
    first = bisect_right(pieces, time, key=lambda piece: piece.start * ticks) - 1
    return pieces[max(first, 0) :]


@final
@dataclass(frozen=True, slots=True)
class _Moment:
    """Integrals and counts at a time.

    Attributes:
        time: Time in ticks.
        areas: Integrals, in units of ``2**-_ROW_BITS`` row.
        counts: Rows of each source.
        total: Sum of the counts.
    """

    time: int
    areas: Tallies
    counts: Tallies
    total: int


@final
@dataclass(frozen=True, slots=True)
class _TickedPiece:
    """Piece of a schedule in ticks, with the integrals at its start.

    Attributes:
        start: First tick.
        span: Number of ticks of the whole curve.
        curve: Form of the curve between its first and last weights.
        first: Growth of each integral in a tick at the first weights, in units of
            ``2**-_ROW_BITS`` row.
        rise: Growth for each 2^-40 tick of the area G, in the same unit.
        base: Integrals at the start, in the same unit.
    """

    start: int
    span: int
    curve: Curve
    first: Tallies
    rise: Tallies
    base: Tallies

    def areas(self, time: int) -> Tallies:
        """Return the integrals at a time in ticks."""
        # base + first x + rise G(x), with G the area of the curve.
        ticks = time - self.start
        if self.curve == "step":
            return tuple(
                [
                    base + first * ticks
                    for base, first in zip(self.base, self.first, strict=True)
                ]
            )
        if self.curve == "cosine":
            area = eased_area(ticks, self.span, _AREA_BITS)
        else:
            area = (ticks * ticks << _AREA_BITS) // (2 * self.span)
        terms = zip(self.base, self.first, self.rise, strict=True)
        return tuple(
            [base + first * ticks + rise * area for base, first, rise in terms]
        )


def _in_ticks(piece: SchedulePiece, ticks: int) -> _TickedPiece:
    """Return a piece of a schedule in ticks, with integrals of 0 at its start.

    Args:
        piece: Piece of the schedule.
        ticks: Number of ticks per step of the schedule.
    """
    # A unit of a weight is 2^-96 row in each row of the stream. In a tick, of which a
    # row has 2^32, it is 2^-128 row: 2^40 units of an integral.
    start = piece.start * ticks
    first = in_units(piece.first.weights)
    last = in_units(piece.last.weights)
    return _TickedPiece(
        start=start,
        span=piece.last.step * ticks - start,
        curve=piece.curve,
        first=tuple(weight << _AREA_BITS for weight in first),
        rise=tuple(end - begin for begin, end in zip(first, last, strict=True)),
        base=(0,) * len(first),
    )


def _next_time(earlier: _Moment, later: _Moment, position: int, attempt: int) -> int:
    """Return the next time to try between two times.

    Args:
        earlier: Time at which the counts sum to `position` or less.
        later: Time at which they sum to `position` or more.
        position: Sum that is searched for.
        attempt: Number of the attempt, from 0. Every third one takes the middle, so
            that the search ends whatever the weights do in between.
    """
    has_few_jumps = later.total - earlier.total < _MOST_GUESSED
    if attempt % 3 == 2 or not has_few_jumps:
        return (earlier.time + later.time) // 2
    margin = 0
    if attempt > 1:
        margin = (later.time - earlier.time) >> 16
    if attempt % 3 == 0:
        return _guess(earlier, later, position, -1 - margin)
    return _guess(earlier, later, position, margin)


def _guess(earlier: _Moment, later: _Moment, position: int, side_step: int) -> int:
    """Return a time at which the counts may sum to `position`.

    It lies between the jump of a count that reaches `position` and the next jump, if
    integrals were lines.

    Between two near times they almost are.

    Args:
        earlier: Earlier time.
        later: Later time.
        position: Sum of the counts that is searched for.
        side_step: Ticks by which the time is moved where the two jumps are close. With
            both signs in turn, the jumps end up between the two times that are left.
    """
    # The times of all jumps between the two moments, on straight lines.
    width = later.time - earlier.time
    jumps: list[int] = []
    sources = zip(earlier.areas, later.areas, earlier.counts, later.counts, strict=True)
    for area, later_area, earlier_count, later_count in sources:
        for number in range(earlier_count, later_count):
            missing = (number << _ROW_BITS) + _HALF_ROW - area
            jumps.append(-(-missing * width // (later_area - area)))
    # The jump that reaches the position, and the one after it.
    jumps.sort()
    jump, next_jump = jumps[position - earlier.total - 1 : position - earlier.total + 1]
    offset = jump + side_step
    if next_jump - jump > 2 * abs(side_step):
        offset = (jump + next_jump) // 2
    return earlier.time + min(max(offset, 1), width - 1)


def _shared_out(low: Tallies, high: Tallies, position: int) -> Tallies:
    """Return counts that sum to `position`, between those of two neighbouring ticks.

    The first sources get the rows first.
    """
    counts = list(low)
    missing = position - sum(low)
    for source, highest in enumerate(high):
        rows = min(missing, highest - counts[source])
        counts[source] += rows
        missing -= rows
    return tuple(counts)
