"""How many rows of each source a mixture takes: exact counts at any position, and the caps on them.

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

**Caps.** A source is *shortened* to a share of its rows, always to the same ones: its row groups are permuted once, and
the first rows of that are kept. So a larger share has all rows of a smaller one, whatever the weights, lanes and ends
are. By *simulated epochs* an experiment of E tokens stands for a run of T: with each source shortened to E / T, it
repeats what the run would repeat, as often, and sees as little of the rest (Levanter's ``simulated epoching``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from numbers import Real
from typing import Any, Final, cast, final

import numpy as np
import xxhash

from tokenlake import numbers
from tokenlake.arrays import Int64
from tokenlake.base.checks import did_you_mean, whole_number
from tokenlake.errors import ConfigError
from tokenlake.mixing.random import Permutation, key_of
from tokenlake.mixing.schedule import (
    UNIT_BITS,
    Curve,
    SchedulePiece,
    WeightScheduler,
    eased_area,
    in_units,
)

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


_KEPT: Final = 3  # the first word of the keys that say which row groups are kept

Each = float | Fraction | Mapping[str, float] | Mapping[str, Fraction] | None
"""Of all sources, or source -> its own; None, or no such source: no cap."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCaps:
    """What is asked of the sources of a mixture; see :class:`tokenlake.Mixture`.

    Args:
        max_repetitions: how often each row of a source may come, in the mean of its rows.
        max_fraction: the share of a source's rows that may be used; it is shortened to that.
        epochs: source -> how often its rows come, in place of weights and an end.
        target_budget, experiment_budget: tokens of a run, and of the experiment that stands for it.

    Raises:
        ConfigError: one of them cannot be.
    """

    max_repetitions: Each = None
    max_fraction: Each = None
    epochs: Mapping[str, float] | None = None
    target_budget: int | None = None
    experiment_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_repetitions", "max_fraction", "epochs"):
            value: Any = getattr(self, name)
            each = value.items() if isinstance(value, Mapping) else [("", value)]
            for source, one in () if value is None else each:
                where = f"{name}.{source}" if source else name
                number = cast("Any", one)
                if isinstance(one, bool) or not isinstance(one, Real) or not 0 < number < 1 << 62:
                    raise ConfigError(f"{where}: got {one!r}, must be a number above 0")
                if name == "max_fraction" and number > 1:
                    raise ConfigError(f"{where}: got {one!r}, must be a share above 0, at most 1")
        budgets = {"target_budget": self.target_budget, "experiment_budget": self.experiment_budget}
        absent = [name for name, value in budgets.items() if value is None]
        for name, value in budgets.items():
            if value is not None:
                whole_number(name, value, 1)
        if len(absent) == 1:
            raise ConfigError(
                f"{absent[0]}: missing; the two budgets say together which share of each source is used"
            )
        if self._ratio > 1:
            raise ConfigError(
                f"experiment_budget: got {self.experiment_budget:,}, more than the {self.target_budget:,} of "
                "target_budget; expected at most as many tokens"
            )

    def check_names(self, names: Mapping[str, Any]) -> None:
        """Raise ConfigError where a cap is of none of the sources, or `epochs` lacks one of them."""
        for option in ("max_repetitions", "max_fraction", "epochs"):
            value = getattr(self, option)
            for name in value if isinstance(value, Mapping) else ():
                if name not in names:
                    raise ConfigError(
                        f"{option}: {name!r} is no source{did_you_mean(name, names)}; expected some of "
                        f"{', '.join(names)}"
                    )
        if self.epochs is not None and (absent := [name for name in names if name not in self.epochs]):
            raise ConfigError(
                f"epochs: says nothing of {', '.join(absent)}; expected a number for each source"
            )

    def kept(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return how many rows are used of the sources that are shortened.

        Args:
            rows: of each source.

        Raises:
            ConfigError: none are left of one that has some.
        """
        found: dict[str, int] = {}
        for name, there in rows.items():
            part = _exact(_of(self.max_fraction, name, 1)) * self._ratio
            if part == 1:
                continue
            found[name] = int(there * part)
            if there and not found[name]:
                raise ConfigError(
                    f"{name}: a share of {float(part):.6g} of its {numbers.count(there)} rows is none; expected a "
                    "larger max_fraction or experiment_budget, or a larger source"
                )
        return found

    def draws(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return how many rows come of each source, by :attr:`epochs`.

        Args:
            rows: that are used of each.
        """
        return {name: round(_exact(_of(self.epochs, name, 1)) * there) for name, there in rows.items()}

    def missing(
        self, drawn: Mapping[str, int], rows: Mapping[str, int], mean_tokens: Mapping[str, Fraction]
    ) -> list[str]:
        """Return a line for each source that comes more often than it may.

        Args:
            drawn: rows of each source in the mixture.
            rows: that are used of each.
            mean_tokens: of a row of each.
        """
        found: list[str] = []
        for name, come in drawn.items():
            most = _of(self.max_repetitions, name, None)
            if most is None or come <= (allowed := _exact(most) * rows[name]):
                continue
            asked, there = (numbers.short(float(each * mean_tokens[name])) for each in (come, rows[name]))
            may, lack = (numbers.short(float(each * mean_tokens[name])) for each in (allowed, come - allowed))
            found.append(
                f"{name}: asked for {asked} tokens; {float(most):g} repetitions of {there} tokens are {may}, "
                f"{lack} missing"
            )
        return found

    def check(
        self, drawn: Mapping[str, int], rows: Mapping[str, int], mean_tokens: Mapping[str, Fraction]
    ) -> None:
        """Raise ConfigError where a source comes more often than it may; arguments as of :meth:`missing`."""
        if lines := self.missing(drawn, rows, mean_tokens):
            raise ConfigError(
                f"max_repetitions: {'; '.join(lines)}. Give it less weight, end earlier, allow more repetitions, or "
                "add data"
            )

    @property
    def _ratio(self) -> Fraction:
        if self.target_budget is None or self.experiment_budget is None:
            return Fraction(1)
        return Fraction(self.experiment_budget, self.target_budget)


def _of(value: Any, name: str, default: Any) -> Any:
    found = value.get(name) if isinstance(value, Mapping) else value
    return default if found is None else found


def _exact(value: Any) -> Fraction:
    """The decimal number that is written, not the binary one that is next to it: 0.3 of 10 rows are 3."""
    return Fraction(str(value))


def shortened(name: str, group_rows: Int64, rows: int | None, *, seed: int) -> Int64:
    """Return the rows that are kept of each row group of a source, the first of each, int64[G].

    Args:
        name: of the source.
        group_rows: rows of each row group, int64[G].
        rows: how many are kept of all; None: every row.
        seed: of the mixture.
    """
    if rows is None:
        return group_rows
    key = key_of(seed, xxhash.xxh3_64_intdigest(name.encode()), _KEPT)
    place = Permutation(len(group_rows), key).at(np.arange(len(group_rows), dtype=np.int64))
    in_order = np.empty_like(group_rows)
    in_order[place] = group_rows
    left = np.maximum(rows - (np.cumsum(in_order) - in_order), 0)
    return np.minimum(left[place], group_rows)
