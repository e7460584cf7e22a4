"""Weights that change along the way: a schedule of points, and how the weights move between them.

Before the first point its weights hold, after the last one its own. Between two of them, with
``p = (step - step0) / (step1 - step0)``: "step" keeps the earlier weights until the later point, "linear" gives
``a + p (b - a)``, "cosine" the same with ``(1 - cos(pi p)) / 2`` for `p`.

A schedule only ever changes at its end: :meth:`WeightScheduler.extend` and :meth:`WeightScheduler.reweighted` make
another one that remembers the first, and what comes before is still taken from that one.

**Exact weights.** A float is a fraction with a power of two below the line. Weights are taken as exactly these
fractions and divided by their sum, so that they sum to 1 and not to 0.9999999999999999. For counting they become whole
numbers of units of 2^-96: a float says 53 bits, so that after 10^12 rows no share is off by more than 10^-16 rows.

**Pieces** are the stretches of a schedule in which every weight follows one curve. A piece ends where the next one
starts. It knows where its curve leads to, also where the next piece comes before that: what is left of a line that was
cut is the same line.

**The cosine** of a schedule and its integral are made of whole numbers, the same on every machine.
The C library's sine differs between machines in its last bits, and one bit can move a row. Here pi and the sine are
computed with integers to as many bits as a question needs: twice, if need be, until both ends of what the error leaves
open give the same answer (Ziv 1991, *Fast evaluation of elementary mathematical functions with correctly rounded last
bit*). That ends: the sine of a rational part of a turn is algebraic, so that divided by pi it is no fraction, unless it
is 0, and that case is answered first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from operator import index
from typing import Any, Final, Literal, cast, final, get_args

from tokenlake.base.checks import did_you_mean, require_one_of
from tokenlake.base.shares import shares_of, wrong_sum
from tokenlake.errors import ConfigError

UNIT_BITS: Final = 96
"""A weight of 1 is ``2**UNIT_BITS`` units."""

EFFECT: Final = "batch"
"""When a change of the weights takes effect: at the end of the batch in which its step begins. Earlier releases waited
for a later row and made up for the delay; their changes name no effect."""


def check_weights(weights: Mapping[str, Any], where: str = "") -> dict[str, float]:
    """Return the weights as shares that sum to 1 within 1e-6.

    Args:
        weights: Name to weight, at least one, none negative: shares, percentages, or ratios of whole numbers (see
            :func:`tokenlake.base.shares.shares_of`).
        where: A clause for messages, such as ``" at step 5 of the schedule"``.

    Raises:
        ConfigError: they are anything else.
    """
    if not isinstance(weights, Mapping) or not weights:  # pyright: ignore[reportUnnecessaryIsInstance]
        got = "no weights" if not weights else f"weights {weights!r:.80}"
        raise ConfigError(f"there are {got}{where}; expected name to weight for at least one source")
    floats = dict[str, float]()
    for name, weight in weights.items():
        try:
            floats[name] = math.nan if isinstance(weight, bool | str) else float(weight)
        except (TypeError, ValueError, OverflowError):
            floats[name] = math.nan
        if not 0.0 <= floats[name] < math.inf:
            raise ConfigError(
                f"the weight of {name!r} is {weight!r}{where}; expected a number that is 0 or more",
                expected="a number that is 0 or more",
                got=weight,
            )
    shares = shares_of(floats)
    if shares is None:
        total = math.fsum(floats.values())
        shown = ", ".join(f"{name}: {weight:g}" for name, weight in floats.items())
        raise ConfigError(
            f"{wrong_sum('Weights', total)}{where} ({shown}); divide each by their sum, or give percentages or ratios "
            "of whole numbers (30, 70)",
            expected=1.0,
            got=total,
        )
    return shares


def check_weight_names(what: str, names: Collection[str], keys: Collection[str]) -> None:
    """Raise ConfigError, with the nearest names, unless weights are of just the sources."""
    told = [f"no weight for {name!r}" for name in names if name not in keys]
    told += [f"{key!r} is no source{did_you_mean(key, names)}" for key in keys if key not in names]
    if told:
        raise ConfigError(f"{what}: must be of just the sources {', '.join(names)}, but {', '.join(told)}")


def normalized(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """Return the exact fractions that the floats are, divided by their sum."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return tuple(weight / total for weight in exact)


@lru_cache(1 << 12)  # a schedule that was extended often asks again for all of its points
def in_units(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return weights that sum to 1 as whole numbers that sum to exactly ``2**UNIT_BITS``.

    All are rounded down; the units that are then missing go to the largest remainders, the first source first. A
    weight of 0 stays 0.
    """
    scaled = [weight * (1 << UNIT_BITS) for weight in weights]
    units = [math.floor(weight) for weight in scaled]
    missing = (1 << UNIT_BITS) - sum(units)
    remainders = sorted(range(len(units)), key=lambda at: (units[at] - scaled[at], at))
    for at in remainders[:missing]:
        units[at] += 1
    return tuple(units)


def row_weights(weights: Mapping[str, float], mean_tokens: Mapping[str, float]) -> dict[str, float]:
    """Return the weights per row under which the sources' shares of *tokens* are `weights`.

    A source with long rows needs fewer of them: each weight is divided by the source's mean tokens per row, and the
    results by their sum. A schedule is converted point by point. Exactly at a point the shares of tokens are then what
    was asked for; between two points it is the weights per row that move in a line or along the cosine, so that shares
    of tokens move between the same two values, monotonically, but on a curve that bends towards the longer rows.

    Args:
        weights: name to share of tokens, summing to 1.
        mean_tokens: name to mean tokens per row, more than 0; other names may be there too.

    Raises:
        ConfigError: a source has no mean, or none above 0.
    """
    shares = check_weights(weights)
    for name in shares:
        if not 0.0 < mean_tokens.get(name, 0.0) < math.inf:
            raise ConfigError(
                f"source {name!r} has {mean_tokens.get(name)} tokens per row; expected a mean above 0, "
                "by which its weight per token becomes a weight per row"
            )
    per_row = {name: Fraction(share) / Fraction(mean_tokens[name]) for name, share in shares.items()}
    total = sum(per_row.values())
    return {name: float(weight / total) for name, weight in per_row.items()}


Curve = Literal["step", "linear", "cosine"]


@final
@dataclass(frozen=True, slots=True)
class Point:
    """Weights that hold exactly at a step.

    Attributes:
        step: 0 or more.
        given: the weights as they were written, in the order of the schedule's names.
        weights: the same as exact fractions that sum to 1.
    """

    step: int
    given: tuple[float, ...]
    weights: tuple[Fraction, ...]


@final
@dataclass(frozen=True, slots=True)
class SchedulePiece:
    """One stretch of a schedule.

    Attributes:
        first: what holds where it starts.
        last: what its curve moves towards; the same weights as `first` where they hold on.
        curve: how it moves; "step": not at all.
    """

    first: Point
    last: Point
    curve: Curve

    @property
    def start(self) -> int:
        return self.first.step

    def weights_at(self, step: Fraction) -> tuple[Fraction, ...]:
        """Return the weights at a step of this piece, exact but for the cosine, which is off by 2^-95 at most."""
        if self.curve == "step" or step == self.start:
            return self.first.weights
        part = (step - self.start) / (self.last.step - self.start)
        if self.curve == "cosine":
            part = Fraction(eased(part.numerator, part.denominator, UNIT_BITS), 1 << UNIT_BITS)
        ends = zip(self.first.weights, self.last.weights, strict=True)
        return tuple(first + part * (last - first) for first, last in ends)


def pieces_of(points: Sequence[Point], curve: Curve) -> tuple[SchedulePiece, ...]:
    """Return the pieces that lead from point to point, the first from its own step on; the last never ends."""
    between = [
        SchedulePiece(first, first if curve == "step" else last, curve) for first, last in pairwise(points)
    ]
    return (*between, SchedulePiece(points[-1], points[-1], "step"))


INTERPOLATIONS: Final[tuple[str, ...]] = get_args(Curve)


@final
class WeightScheduler:
    """Weights as a function of the step.

    Args:
        schedule: the points, at least one, in ascending steps: anything with `step` and `weights`, or mappings with
            these keys. All weigh the same sources.
        interpolation: "step", "linear" or "cosine".

    Attributes:
        names: the sources, in the order in which the first point names them.
        interpolation: how weights move between points.
        pieces: the stretches of the schedule, from step 0 on without gaps; the last one never ends.
        before: the schedule that this one extends, which still decides everything before :attr:`at`.
        at: the step at which this schedule was extended; 0 for one that was not.

    Raises:
        ConfigError: a point or the interpolation cannot be; weights do not sum to 1 within 1e-6.
    """

    __slots__ = ("_points", "at", "before", "interpolation", "names", "pieces")

    def __init__(self, schedule: Sequence[Any], interpolation: str = "step") -> None:
        require_one_of("interpolation", interpolation, INTERPOLATIONS)
        self.interpolation: Curve = cast("Curve", interpolation)
        self.names, self._points = _points_of(schedule, None)
        pieces, first = pieces_of(self._points, self.interpolation), self._points[0]
        if first.step:  # its weights hold from step 0 on
            begin = replace(first, step=0)
            pieces = (SchedulePiece(begin, begin, "step"), *pieces)
        self.pieces, self.at = pieces, 0
        self.before: WeightScheduler | None = None

    @property
    def dataset_names(self) -> list[str]:
        """:attr:`names` as a list."""
        return list(self.names)

    @property
    def changes(self) -> bool:
        """Whether weights differ between any two steps."""
        ends = {point.weights for piece in self.pieces for point in (piece.first, piece.last)}
        return len(ends) > 1

    def get_weights(self, step: float) -> dict[str, float]:
        """Return name to weight at a step; before the first point and after the last one, their weights."""
        exact = max(Fraction(step), Fraction(0))
        piece = next(piece for piece in reversed(self.pieces) if piece.start <= exact)
        weights = piece.weights_at(exact)
        # As they were written where a point says so: dividing by the sum may change the last bit.
        if weights == piece.first.weights:
            return dict(zip(self.names, piece.first.given, strict=True))
        return dict(zip(self.names, map(float, weights), strict=True))

    def extend(self, *, at: int, points: Sequence[Any]) -> WeightScheduler:
        """Return a schedule that is this one up to step `at` and goes on to other points from there.

        The weights that hold at `at` are pinned there; from them the new schedule moves towards the first of the new
        points, as `interpolation` says. Points of this schedule after `at` are left out. Every row that this schedule
        puts before step `at` stays where it is (see :mod:`tokenlake.mixing.counts`).

        Args:
            at: the step up to which nothing may change, 0 or more.
            points: at least one, as in the constructor, all after `at`.

        Raises:
            ConfigError: a point is not after `at`, or cannot be.
        """
        step = _change_step(at)
        _, new = _points_of(points, self.names)
        if new[0].step <= step:
            raise ConfigError(
                f"step {new[0].step} cannot be added to a schedule that is fixed up to step {step}; "
                f"expected points after step {step}"
            )
        return self._changed(step, new)

    def reweighted(self, *, at: int, weights: Mapping[str, float]) -> WeightScheduler:
        """Return a schedule that is this one up to step `at` and has other weights from there on.

        Points of this schedule from `at` on are left out.

        Args:
            at: The first step of the new weights, 0 or more.
            weights: Weight of each source.

        Raises:
            ConfigError: `at` or the weights are invalid.
        """
        step = _change_step(at)
        _, new = _points_of([{"step": step, "weights": weights}], self.names)
        return self._changed(step, new)

    def versions(self) -> list[WeightScheduler]:
        """Return the first schedule and each change of it, oldest first; the last one is this schedule."""
        newest_first: list[WeightScheduler] = [self]
        while newest_first[-1].before is not None:
            newest_first.append(newest_first[-1].before)
        return newest_first[::-1]

    def _changed(self, at: int, points: tuple[Point, ...]) -> WeightScheduler:
        """Return this schedule up to step `at`, and from there on the points, the first of them at `at` or later."""
        # The weights at `at` are pinned there, unless a new point says others.
        lead = points
        if points[0].step > at:
            there = next(piece for piece in reversed(self.pieces) if piece.start <= at)
            weights = there.weights_at(Fraction(at))
            given = tuple(map(float, weights))
            if weights == there.first.weights:
                given = there.first.given
            lead = (Point(at, given, weights), *points)
        kept = (piece for piece in self.pieces if piece.start < at)

        changed = object.__new__(WeightScheduler)
        changed.interpolation = self.interpolation
        changed.names = self.names
        changed._points = points
        changed.pieces = (*kept, *pieces_of(lead, self.interpolation))
        changed.before = self
        changed.at = at
        return changed

    def _replayed(self, extension: Mapping[str, Any]) -> WeightScheduler:
        """Return this schedule with a change of it that :meth:`to_json` wrote.

        Raises:
            ConfigError: an earlier release wrote the change, or its points come before it.
        """
        at = _change_step(extension["at"])
        if extension.get("effect") != EFFECT:
            raise ConfigError(
                f"the weights were changed at step {at} by another release of tokenlake, in which a change took "
                "effect later: the order of rows behind it cannot be repeated. Expected a state from before the "
                "change, or one of this release; or begin a new loader with the present weights"
            )
        _, points = _points_of(extension["points"], self.names)
        if points[0].step < at:
            raise ConfigError(
                f"a change at step {at} has a point at step {points[0].step}; expected {at} or later"
            )
        return self._changed(at, points)

    def to_json(self) -> dict[str, Any]:
        """Return all that :meth:`from_json` needs: JSON-able, the same for schedules that are the same."""
        first, *changes = self.versions()
        return {
            "interpolation": self.interpolation,
            # Names apart: their order counts, and canonical JSON sorts keys.
            "names": list(self.names),
            "points": first._points_json(),
            "extensions": [
                {"at": changed.at, "points": changed._points_json(), "effect": EFFECT} for changed in changes
            ],
        }

    def _points_json(self) -> list[dict[str, Any]]:
        return [
            {"step": point.step, "weights": dict(zip(self.names, point.given, strict=True))}
            for point in self._points
        ]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WeightScheduler:
        """Rebuild a schedule from what :meth:`to_json` returned.

        Raises:
            ConfigError: it is no such thing, or an earlier release changed its weights.
        """
        try:
            first, *rest = data["points"]
            weights = {name: first["weights"][name] for name in data["names"]}
            schedule = WeightScheduler(
                [{"step": first["step"], "weights": weights}, *rest], data["interpolation"]
            )
            for extension in data["extensions"]:
                schedule = schedule._replayed(extension)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"this is no weight schedule: {type(error).__name__} {error}; expected what to_json returned"
            ) from None
        return schedule

    def __reduce__(self) -> tuple[Any, ...]:
        # Without recursion into the schedules before, of which there may be thousands.
        return WeightScheduler.from_json, (self.to_json(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightScheduler):
            return NotImplemented
        mine: WeightScheduler | None = self
        theirs: WeightScheduler | None = other
        while mine is not None and theirs is not None:
            if mine is theirs:
                return True
            if mine._own() != theirs._own():
                return False
            mine = mine.before
            theirs = theirs.before
        return mine is theirs

    def _own(self) -> tuple[Any, ...]:
        """Return all that this version says, without the versions before."""
        return self.names, self.interpolation, self.at, self._points

    def __hash__(self) -> int:
        return hash((self.names, self.interpolation, self.pieces))

    def __repr__(self) -> str:
        steps = [piece.start for piece in self.pieces]
        return f"WeightScheduler({', '.join(self.names)}; {self.interpolation} at steps {steps})"


def _change_step(at: Any) -> int:
    """Return the step at which a schedule is to change; ConfigError where it is none."""
    step = _step_of(at)
    if step is None:
        raise ConfigError(f"cannot extend the schedule at step {at!r}; expected a whole number, 0 or more")
    return step


def _step_of(value: Any) -> int | None:
    """Return a step as an integer; None where it is no whole number, or negative."""
    if isinstance(value, bool):
        return None
    try:
        step = index(value)
    except TypeError:
        return None
    return step if step >= 0 else None


def constant(weights: Mapping[str, float]) -> WeightScheduler:
    """Return the schedule of weights that never change."""
    return WeightScheduler([{"step": 0, "weights": weights}])


def _points_of(
    items: Sequence[Any], names: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[Point, ...]]:
    """Read points in ascending steps that all weigh the same sources: `names`, or else the first point's.

    Raises:
        ConfigError: there is none; or one is no object with `step` and `weights`, nor a mapping with these keys, or its
            step or weights cannot be.
    """
    is_list = isinstance(items, Sequence) and not isinstance(items, str | bytes)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_list or not items:
        raise ConfigError(f"a schedule of {items!r}; expected a list of at least one point")
    points = list[Point]()
    for item in items:
        find = item.get if isinstance(item, Mapping) else partial(getattr, item)
        step, weights = find("step", None), find("weights", None)
        if step is None or weights is None:
            missing = "step" if step is None else "weights"
            raise ConfigError(
                f"a point of the schedule is {item!r}, without {missing!r}; expected a "
                "WeightSchedulePoint or a mapping with the keys 'step' and 'weights'"
            )
        if not isinstance(weights, Mapping):
            raise ConfigError(
                f"a point of the schedule has weights {weights!r}; expected a mapping, name to weight"
            )
        whole_step = _step_of(step)
        if whole_step is None:
            raise ConfigError(
                f"a point of the schedule is at step {step!r}; expected a whole number, 0 or more"
            )
        floats = check_weights(cast("Mapping[str, Any]", weights), f" at step {step} of the schedule")
        names = tuple(floats) if names is None else names
        if set(floats) != set(names):
            raise ConfigError(
                f"step {step} of the schedule weighs {sorted(floats)}, the points before it weigh {sorted(names)}; "
                "all points must weigh the same sources (a weight of 0 leaves one out)",
                expected=sorted(names),
                got=sorted(floats),
            )
        if points and step <= points[-1].step:
            raise ConfigError(
                f"step {step} of the schedule comes after step {points[-1].step}; steps must grow from point to point"
            )
        given = tuple(floats[name] for name in names)
        points.append(Point(whole_step, given, normalized(given)))
    assert names is not None
    return names, tuple(points)


_GUARD: Final = 32  # bits beyond the answer's at the first attempt; one in 2^30 needs a second
_ERROR: Final = 2  # of the last guard bit, by which `_sine_part` is off at most
_MARGIN: Final = 8


def eased_area(done: int, span: int, bits: int) -> int:
    """Return the area under the eased step, the integral of ``(1 - cos(pi x / span)) / 2`` from 0 to `done`.

    It is ``done / 2 - span / (2 pi) sin(pi done / span)``, in units of ``2**-bits``, rounded down exactly. Since the
    step lies between 0 and 1, the area grows by 0 to 1 when `done` grows by 1, and so does its rounded value.

    Args:
        done: 0 to `span`.
        span: an even number above 0.
        bits: of the answer behind the point.
    """
    if done in (0, span):
        return done << bits >> 1
    guard = _GUARD
    while True:
        area = (done << (bits + guard - 1)) - _sine_part(done, span, bits + guard)
        low, high = (area - _ERROR) >> guard, (area + _ERROR) >> guard
        if low == high:
            return low
        guard *= 2


def eased(done: int, span: int, bits: int) -> int:
    """Return ``(1 - cos(pi done / span)) / 2`` in units of ``2**-bits``, off by less than two of them.

    Since ``1 - cos(2 a) = 2 sin(a)^2``, it is a square and never negative.
    """
    if done in (0, span):
        return (done // span) << bits
    precision = bits + 2 * _MARGIN
    if 2 * done > span:
        return (1 << bits) - eased(span - done, span, bits)
    sine = _sine(_pi(precision) * done // (2 * span), precision)
    return sine * sine >> (2 * precision - bits)


def _sine_part(done: int, span: int, guard: int) -> int:
    """``span / (2 pi) sin(pi done / span)`` in units of ``2**-guard``, off by less than `_ERROR`."""
    precision = span.bit_length() + guard + _MARGIN
    pi = _pi(precision)
    near = min(done, span - done)
    if 4 * near <= span:
        sine = _sine(pi * near // span, precision)
    else:
        sine = _cosine(pi * (span - 2 * near) // (2 * span), precision)
    return (span * sine << guard) // (2 * pi)


def _sine(angle: int, precision: int) -> int:
    """The sine of an angle of 0 to pi / 4, both in units of ``2**-precision``; off by fewer than 40 units."""
    return _series(angle, angle, 2, precision)


def _cosine(angle: int, precision: int) -> int:
    """The cosine of an angle of 0 to pi / 4, as :func:`_sine`."""
    return _series(1 << precision, angle, 1, precision)


def _series(first: int, angle: int, divisor: int, precision: int) -> int:
    """Taylor's series: each term is the one before, times ``-angle^2 / (divisor (divisor + 1))``.

    Each of its terms is rounded down once, and the error of a term shrinks with the next ones.
    """
    square = angle * angle >> precision
    total = term = first
    while term:
        term = (term * square >> precision) // (divisor * (divisor + 1))
        total += -term if divisor % 4 in (1, 2) else term
        divisor += 2
    return total


@lru_cache(maxsize=64)
def _pi(precision: int) -> int:
    """Pi in units of ``2**-precision``, rounded down but for one unit: 16 atan(1/5) - 4 atan(1/239) (Machin 1706)."""
    spare = precision + 16
    return (16 * _inverse_tangent(5, spare) - 4 * _inverse_tangent(239, spare)) >> 16


def _inverse_tangent(of: int, precision: int) -> int:
    """The angle whose tangent is 1 / `of`, in units of ``2**-precision``."""
    power = (1 << precision) // of
    total, odd = power, 1
    while power:
        power //= -of * of
        odd += 2
        total += power // odd
    return total
