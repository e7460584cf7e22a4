"""Weights that change during a run: a schedule of points, and the curves between them.

Before the first point the weights are those of the first point, after the last one those of the last. Between two
points with weights a and b, let ``p = (step - step0) / (step1 - step0)``. The weight is

- ``a`` until the later point ("step"),
- ``a + p (b - a)`` ("linear"),
- ``a + (1 - cos(pi p)) / 2 (b - a)`` ("cosine").

Example: from 0.2 at step 0 to 0.6 at step 100, a quarter of the way (step 25) has 0.2, 0.3 and 0.2586.

A schedule only ever changes at its end: :meth:`WeightScheduler.extend` and :meth:`WeightScheduler.reweighted` make
another one that remembers the first, and what comes before is still taken from that one.

**Pieces** are the stretches of a schedule in which every weight follows one curve. A piece ends where the next one
starts. It knows where its curve leads to, also where the next piece comes before that: what is left of a line that was
cut is the same line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from operator import index
from typing import Any, Final, Literal, cast, final, get_args

from tokenlake.base.checks import require_one_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.easing import eased
from tokenlake.runtime.mixing.weights import UNIT_BITS, check_weights, normalized

EFFECT: Final = "batch"
"""When a change of the weights takes effect: at the end of the batch in which its step begins. Earlier releases waited
for a later row and made up for the delay; their changes name no effect."""

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
        puts before step `at` stays where it is (see :mod:`tokenlake.runtime.mixing.counts`).

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
