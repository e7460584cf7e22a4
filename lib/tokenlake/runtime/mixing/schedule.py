"""Weights that change during a run: a schedule of points, and curves between them.

Before the first point the weights are those of the first point; after the last one,
those of the last. Between two points with weights a and b, let ``p = (step - step0) /
(step1 - step0)``. The weight is

- ``a`` until the later point ("step"),
- ``a + p (b - a)`` ("linear"),
- ``a + (1 - cos(pi p)) / 2 (b - a)`` ("cosine").

Example: from 0.2 at step 0 to 0.6 at step 100, a quarter of the way (step 25) has 0.2,
0.3 and 0.2586.

A schedule changes only at its end: :meth:`WeightScheduler.extend` and
:meth:`WeightScheduler.reweighted` return another schedule that remembers the first one,
which still decides everything before the change.

A **piece** is a part of a schedule in which every weight follows one curve. It ends
where the next piece starts. It keeps the end of its curve also where the next piece
starts earlier: the rest of a line that was cut is the same line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from operator import index
from typing import Any, Final, Literal, cast, final, get_args

from tokenlake.base.checks import require_one_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.easing import eased
from tokenlake.runtime.mixing.weights import UNIT_BITS, check_weights, normalized

EFFECT: Final = "batch"
"""Moment at which a change of the weights takes effect: the end of the batch in which
its step begins. In earlier releases changes took effect later and made up for the
delay; those changes record no effect.
"""

Curve = Literal["step", "linear", "cosine"]
"""Interpolation between two points."""

INTERPOLATIONS: Final[tuple[str, ...]] = get_args(Curve)
"""Values of :data:`Curve`."""


@final
@dataclass(frozen=True, slots=True)
class Point:
    """Weights that hold exactly at a step.

    Attributes:
        step: Step, 0 or more.
        given: Weights as they were written, in the order of the schedule's names.
        weights: Weights as exact fractions that sum to 1.
    """

    step: int
    given: tuple[float, ...]
    weights: tuple[Fraction, ...]


@final
@dataclass(frozen=True, slots=True)
class SchedulePiece:
    """Part of a schedule in which weights follow one curve.

    Attributes:
        first: Weights at its start.
        last: Weights at the end of the curve; those of `first` where weights are
            constant.
        curve: Form of the curve; weights are constant on a "step".
    """

    first: Point
    last: Point
    curve: Curve

    @property
    def start(self) -> int:
        """First step."""
        return self.first.step

    def weights_at(self, step: Fraction) -> tuple[Fraction, ...]:
        """Return the weights at a step of this piece.

        They are exact; on a cosine, exact to 2^-95.
        """
        if self.curve == "step" or step == self.start:
            return self.first.weights
        progress = (step - self.start) / (self.last.step - self.start)
        if self.curve == "cosine":
            eased_units = eased(progress.numerator, progress.denominator, UNIT_BITS)
            progress = Fraction(eased_units, 1 << UNIT_BITS)
        ends = zip(self.first.weights, self.last.weights, strict=True)
        return tuple(first + progress * (last - first) for first, last in ends)


def pieces_of(points: Sequence[Point], curve: Curve) -> tuple[SchedulePiece, ...]:
    """Return the pieces that lead from point to point.

    The first piece starts at the first point; the last one never ends.
    """
    pieces: list[SchedulePiece] = []
    for first, last in pairwise(points):
        if curve == "step":
            pieces.append(SchedulePiece(first, first, curve))
        else:
            pieces.append(SchedulePiece(first, last, curve))
    pieces.append(SchedulePiece(points[-1], points[-1], "step"))
    return tuple(pieces)


@final
class WeightScheduler:
    """Weights as a function of the step.

    Args:
        schedule: Points in ascending steps, at least one: objects with `step` and
            `weights`, or mappings with these keys. All points weigh the same sources.
        interpolation: "step", "linear" or "cosine".

    Attributes:
        names: Names of the sources, in the order in which the first point names them.
        interpolation: Interpolation between points.
        pieces: Pieces of the schedule, from step 0 on without gaps; the last one never
            ends.
        before: Schedule that this one extends, which still decides everything before
            :attr:`at`; None if there is none.
        at: Step at which this schedule was extended; 0 for one that was not.

    Raises:
        ConfigError: A point or the interpolation is invalid, or weights are neither
            shares that sum to 1 (up to 0.0015 off, which are divided by their sum), nor
            percentages, nor ratios of whole numbers.

    Example:
        >>> from tokenlake import WeightScheduler
        >>> points = [
        ...     {"step": 0, "weights": {"code": 0.25, "web": 0.75}},
        ...     {"step": 100, "weights": {"code": 0.75, "web": 0.25}},
        ... ]
        >>> WeightScheduler(points, "linear").get_weights(50)
        {'code': 0.5, 'web': 0.5}
    """

    __slots__ = ("_points", "at", "before", "interpolation", "names", "pieces")

    def __init__(self, schedule: Sequence[Any], interpolation: str = "step") -> None:
        require_one_of("interpolation", interpolation, INTERPOLATIONS)
        self.interpolation: Curve = cast("Curve", interpolation)
        self.names, self._points = _points_of(schedule, None)
        self.pieces = pieces_of(self._points, self.interpolation)
        first = self._points[0]
        if first.step:  # its weights hold from step 0 on
            begin = replace(first, step=0)
            self.pieces = (SchedulePiece(begin, begin, "step"), *self.pieces)
        self.at = 0
        self.before: WeightScheduler | None = None

    @property
    def dataset_names(self) -> list[str]:
        """:attr:`names` as a list."""
        return list(self.names)

    @property
    def changes(self) -> bool:
        """True if weights differ between any two steps."""
        first_weights = {piece.first.weights for piece in self.pieces}
        last_weights = {piece.last.weights for piece in self.pieces}
        return len(first_weights | last_weights) > 1

    def get_weights(self, step: float) -> dict[str, float]:
        """Return the weight of each source at a step.

        Before the first point and after the last one, the weights are those of that
        point.
        """
        point = self._point_at(max(Fraction(step), Fraction(0)))
        return dict(zip(self.names, point.given, strict=True))

    def _point_at(self, step: Fraction) -> Point:
        """Return the weights at a step, as a point.

        The point's own `step` is rounded down to a whole step.
        """
        # The first piece begins at step 0, so that one has always started.
        piece = next(piece for piece in reversed(self.pieces) if piece.start <= step)
        weights = piece.weights_at(step)
        # Weights of a point stay as they were written: dividing by their sum may change
        # the last bit.
        if weights == piece.first.weights:
            return Point(int(step), piece.first.given, weights)
        return Point(int(step), tuple(map(float, weights)), weights)

    def extend(self, *, at: int, points: Sequence[Any]) -> WeightScheduler:
        """Return this schedule up to step `at`, continued to other points.

        The weights at `at` are fixed. From them the new schedule moves to the first of
        the new points by the same interpolation. Points of this schedule after `at` are
        dropped. Every row that this schedule puts before step `at` stays where it is;
        for a stream that ends with its sources see
        :meth:`.SourceMixture.step_after`.

        Args:
            at: Step up to which nothing changes, 0 or more.
            points: Points as in the constructor, at least one, all after `at`.

        Raises:
            ConfigError: A point is invalid, or not after `at`.
        """
        step = _change_step(at)
        _, new_points = _points_of(points, self.names)
        if new_points[0].step <= step:
            raise ConfigError(
                f"step {new_points[0].step} cannot be added to a schedule that is fixed up to step {step}; "
                f"expected points after step {step}"
            )
        return self._changed(step, new_points)

    def reweighted(self, *, at: int, weights: Mapping[str, float]) -> WeightScheduler:
        """Return this schedule up to step `at`, with other weights from there on.

        Points of this schedule from `at` on are dropped.

        Args:
            at: The first step of the new weights, 0 or more.
            weights: Weight of each source.

        Raises:
            ConfigError: `at` or the weights are invalid.
        """
        step = _change_step(at)
        _, new_points = _points_of([{"step": step, "weights": weights}], self.names)
        return self._changed(step, new_points)

    def with_sources(self, names: Sequence[str]) -> WeightScheduler:
        """Return the same schedule with further sources, which have weight 0.

        The new sources come after those of this schedule.

        A source of weight 0 is never drawn and moves no row of the others, so both
        schedules give the same order.

        Args:
            names: Names of sources that the schedule does not have.
        """
        if not names:
            return self
        # As JSON, a schedule lists its points and those of all its changes: each gets
        # the new names.
        zeros = dict.fromkeys(names, 0.0)
        facts = self.to_json()
        points = [*facts["points"]]
        for extension in facts["extensions"]:
            points.extend(extension["points"])
        for point in points:
            point["weights"] |= zeros
        facts["names"] += names
        return WeightScheduler.from_json(facts)

    def versions(self) -> list[WeightScheduler]:
        """Return the first schedule and each change of it, oldest first.

        The last one is this schedule.
        """
        # Each version refers to the one before it.
        newest_first: list[WeightScheduler] = [self]
        while newest_first[-1].before is not None:
            newest_first.append(newest_first[-1].before)
        return newest_first[::-1]

    def _changed(self, at: int, points: tuple[Point, ...]) -> WeightScheduler:
        """Return this schedule up to step `at`, and other points from there.

        Args:
            at: Step of the change.
            points: New points, the first of them at `at` or later.
        """
        # The weights at `at` are fixed, unless the first new point states others.
        curve_points = points
        if points[0].step > at:
            curve_points = (self._point_at(Fraction(at)), *points)
        earlier_pieces = [piece for piece in self.pieces if piece.start < at]

        # Points were checked: the constructor would check them again.
        changed = object.__new__(WeightScheduler)
        changed.interpolation = self.interpolation
        changed.names = self.names
        changed._points = points
        changed.pieces = (*earlier_pieces, *pieces_of(curve_points, self.interpolation))
        changed.before = self
        changed.at = at
        return changed

    def _replayed(self, extension: Mapping[str, Any]) -> WeightScheduler:
        """Return this schedule with a change that :meth:`to_json` wrote.

        Raises:
            ConfigError: An earlier release wrote the change, or its points come before
                it.
        """
        change_step = _change_step(extension["at"])
        if extension.get("effect") != EFFECT:
            raise ConfigError(
                f"the weights were changed at step {change_step} by another release of tokenlake, in which a change "
                "took effect later: the order of rows after it cannot be reproduced. Expected a state from before the "
                "change, or one of this release; or start a new loader with the present weights"
            )
        _, points = _points_of(extension["points"], self.names)
        if points[0].step < change_step:
            raise ConfigError(
                f"a change at step {change_step} has a point at step {points[0].step}; expected {change_step} or later"
            )
        return self._changed(change_step, points)

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as a JSON object for :meth:`from_json`.

        Equal schedules return equal objects.
        """
        first, *changes = self.versions()
        return {
            "interpolation": self.interpolation,
            # Names are listed: their order matters, and canonical JSON sorts keys.
            "names": list(self.names),
            "points": first._points_json(),
            "extensions": [
                {"at": changed.at, "points": changed._points_json(), "effect": EFFECT}
                for changed in changes
            ],
        }

    def _points_json(self) -> list[dict[str, Any]]:
        points: list[dict[str, Any]] = []
        for point in self._points:
            weights = dict(zip(self.names, point.given, strict=True))
            points.append({"step": point.step, "weights": weights})
        return points

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WeightScheduler:
        """Return the schedule that :meth:`to_json` wrote.

        Raises:
            ConfigError: The data are no schedule, or an earlier release changed its
                weights.
        """
        try:
            first, *rest = data["points"]
            weights = {name: first["weights"][name] for name in data["names"]}
            schedule = WeightScheduler(
                [{"step": first["step"], "weights": weights}, *rest],
                data["interpolation"],
            )
            for extension in data["extensions"]:
                schedule = schedule._replayed(extension)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"this is not a weight schedule: {type(error).__name__} {error}; expected the result of to_json()"
            ) from None
        return schedule

    def __reduce__(self) -> tuple[Any, ...]:
        # Without recursion into earlier schedules, which may be thousands.
        return WeightScheduler.from_json, (self.to_json(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightScheduler):
            return NotImplemented
        # Version by version, without recursion: there may be thousands.
        mine: WeightScheduler | None = self
        theirs: WeightScheduler | None = other
        while mine is not None and theirs is not None:
            if mine is theirs:
                return True
            if mine._fields() != theirs._fields():
                return False
            mine = mine.before
            theirs = theirs.before
        return mine is theirs

    def _fields(self) -> tuple[Any, ...]:
        """Return the fields of this version, without the versions before."""
        return self.names, self.interpolation, self.at, self._points

    def __hash__(self) -> int:
        return hash((self.names, self.interpolation, self.pieces))

    def __repr__(self) -> str:
        steps = [piece.start for piece in self.pieces]
        return f"WeightScheduler({', '.join(self.names)}; {self.interpolation} at steps {steps})"


def _change_step(at: Any) -> int:
    """Return the step of a change; ConfigError unless it is an integer, 0 or more."""
    step = _step_of(at)
    if step is None:
        raise ConfigError(
            f"cannot extend the schedule at step {at!r}; expected a whole number, 0 or more"
        )
    return step


def _step_of(value: Any) -> int | None:
    """Return a step as an integer; None if it is no whole number, or negative."""
    if isinstance(value, bool):
        return None
    try:
        step = index(value)
    except TypeError:
        return None
    if step < 0:
        return None
    return step


def constant(weights: Mapping[str, float]) -> WeightScheduler:
    """Return the schedule of weights that never change."""
    return WeightScheduler([{"step": 0, "weights": weights}])


def _points_of(
    items: Sequence[Any], names: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[Point, ...]]:
    """Return the sources and the points of a schedule.

    Args:
        items: Points in ascending steps, which all weigh the same sources.
        names: Names of the sources; None for those of the first point.

    Raises:
        ConfigError: There is no point; or a point has no `step` and `weights`, or an
            invalid one.
    """
    is_list = isinstance(items, Sequence) and not isinstance(items, str | bytes)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_list or not items:
        raise ConfigError(
            f"a schedule of {items!r}; expected a list of at least one point"
        )
    # Point by point: the first one names the sources, unless the caller does.
    points: list[Point] = []
    for item in items:
        step, weights = _step_and_weights(item)
        floats = check_weights(weights, f" at step {step} of the schedule")
        if names is None:
            names = tuple(floats)
        if set(floats) != set(names):
            raise ConfigError(
                f"step {step} of the schedule weighs {sorted(floats)}, the points before it weigh {sorted(names)}; "
                "all points must weigh the same sources (a weight of 0 leaves one out)",
                expected=sorted(names),
                got=sorted(floats),
            )
        if points and step <= points[-1].step:
            raise ConfigError(
                f"step {step} of the schedule comes after step {points[-1].step}; steps must increase"
            )
        written = tuple(floats[name] for name in names)
        points.append(Point(step, written, normalized(written)))
    assert names is not None
    return names, tuple(points)


def _step_and_weights(item: Any) -> tuple[int, Mapping[str, Any]]:
    """Return the step and the weights of a point: a mapping, or an object.

    An object has both as attributes.

    Raises:
        ConfigError: One of them is missing, or has another type.
    """
    if isinstance(item, Mapping):
        fields = cast("Mapping[str, Any]", item)
        step = fields.get("step")
        weights = fields.get("weights")
    else:
        step = getattr(item, "step", None)
        weights = getattr(item, "weights", None)
    for key, value in (("step", step), ("weights", weights)):
        if value is None:
            raise ConfigError(
                f"a point of the schedule is {item!r}, without {key!r}; expected a "
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
    return whole_step, cast("Mapping[str, Any]", weights)
