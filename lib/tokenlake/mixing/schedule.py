"""Weights that change along the way: a schedule of points, and how the weights move between them.

Before the first point its weights hold, after the last one its own. Between two of them, with
``p = (step - step0) / (step1 - step0)``: "step" keeps the earlier weights until the later point, "linear" gives
``a + p (b - a)``, "cosine" the same with ``(1 - cos(pi p)) / 2`` for `p`.

A schedule only ever grows at its end: :meth:`WeightScheduler.extend` makes another one that remembers the first, and
what comes before is still taken from that one.

**Exact weights.** A float is a fraction with a power of two below the line. Weights are taken as exactly these
fractions and divided by their sum, so that they sum to 1 and not to 0.9999999999999999. For counting they become whole
numbers of units of 2^-96: a float says 53 bits, so that after 10^12 rows no share is off by more than 10^-16 rows.

**Pieces** are the stretches of a schedule in which every weight follows one curve. A piece ends where the next one
starts. It knows where its curve leads to, also where the next piece comes before that: what is left of a line that was
cut is the same line.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, cast, final, get_args

from tokenlake.config.values import did_you_mean, require_one_of
from tokenlake.errors import ConfigError
from tokenlake.mixing.cosine import eased

UNIT_BITS: Final = 96
"""A weight of 1 is ``2**UNIT_BITS`` units."""

_TOLERANCE: Final = 1e-6


def check_weights(weights: Mapping[str, Any], where: str = "") -> dict[str, float]:
    """Return the weights as floats.

    Args:
        weights: name to weight, at least one, none negative, summing to 1 within 1e-6.
        where: a clause for messages, such as ``" at step 5 of the schedule"``.

    Raises:
        ConfigError: they are anything else.
    """
    if not weights:
        raise ConfigError(f"there are no weights{where}; expected a weight for at least one source")
    floats = {name: _weight(name, weight, where) for name, weight in weights.items()}
    total = math.fsum(floats.values())
    if abs(total - 1.0) > _TOLERANCE:
        raise ConfigError(
            f"Weights must sum to 1.0, got {float(f'{total:.12g}')}{where} ({_listed(floats)}); "
            "divide each by their sum",
            expected=1.0,
            got=total,
        )
    return floats


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
    per_row = {name: Fraction(share) / _mean(name, mean_tokens) for name, share in shares.items()}
    total = sum(per_row.values())
    return {name: float(weight / total) for name, weight in per_row.items()}


def _weight(name: str, weight: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(weight, bool | str) else float(weight)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise ConfigError(
            f"the weight of {name!r} is {weight!r}{where}; expected a number that is 0 or more",
            expected="a number that is 0 or more",
            got=weight,
        )
    return number


def _mean(name: str, mean_tokens: Mapping[str, float]) -> Fraction:
    mean = mean_tokens.get(name, 0.0)
    if not 0.0 < mean < math.inf:
        raise ConfigError(
            f"source {name!r} has {mean_tokens.get(name)} tokens per row; expected a mean above 0, "
            "by which its weight per token becomes a weight per row"
        )
    return Fraction(mean)


def _listed(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {weight:g}" for name, weight in weights.items())


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


def led_up_to(pieces: Sequence[SchedulePiece]) -> tuple[SchedulePiece, ...]:
    """Return the pieces with one more in front that holds the first weights from step 0 on, if they begin later."""
    first = pieces[0].first
    if first.step == 0:
        return tuple(pieces)
    begin = replace(first, step=0)
    return (SchedulePiece(begin, begin, "step"), *pieces)


def cut(pieces: Sequence[SchedulePiece], at: int) -> tuple[tuple[SchedulePiece, ...], Point]:
    """Return the pieces that start before a step, and the point that its weights make there."""
    there = next(piece for piece in reversed(pieces) if piece.start <= at)
    weights = there.weights_at(Fraction(at))
    given = there.first.given if weights == there.first.weights else tuple(map(float, weights))
    return tuple(piece for piece in pieces if piece.start < at), Point(at, given, weights)


def point_names(item: Any) -> tuple[str, ...]:
    """Return the sources that a point weighs, in its own order."""
    return tuple(_weights(item))


def point_of(item: Any, names: Sequence[str]) -> Point:
    """Read a point from an object with `step` and `weights`, or from a mapping with these keys.

    Args:
        names: whose weights it must hold, in the order wanted.

    Raises:
        ConfigError: it is none, or its step or weights cannot be.
    """
    step, weights = _field(item, "step"), _weights(item)
    if isinstance(step, bool) or not hasattr(step, "__index__") or int(step) < 0:
        raise ConfigError(f"a point of the schedule is at step {step!r}; expected a whole number, 0 or more")
    floats = check_weights(weights, f" at step {step} of the schedule")
    if set(floats) != set(names):
        raise ConfigError(
            f"step {step} of the schedule weighs {sorted(floats)}, the points before it weigh {sorted(names)}; "
            "all points must weigh the same sources (a weight of 0 leaves one out)",
            expected=sorted(names),
            got=sorted(floats),
        )
    given = tuple(floats[name] for name in names)
    return Point(int(step), given, normalized(given))


def check_ascending(steps: Sequence[int]) -> None:
    """Raise ConfigError unless each step is larger than the one before."""
    for before, after in pairwise(steps):
        if after <= before:
            raise ConfigError(
                f"step {after} of the schedule comes after step {before}; steps must grow from point to point"
            )


_MISSING: Final = object()


def _weights(item: Any) -> Mapping[str, Any]:
    weights = _field(item, "weights")
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"a point of the schedule has weights {weights!r}; expected a mapping, name to weight"
        )
    return cast("Mapping[str, Any]", weights)


def _field(item: Any, name: str) -> Any:
    value = item.get(name, _MISSING) if isinstance(item, Mapping) else getattr(item, name, _MISSING)
    if value is _MISSING:
        raise ConfigError(
            f"a point of the schedule is {item!r}, without {name!r}; expected a WeightSchedulePoint or a mapping "
            "with the keys 'step' and 'weights'"
        )
    return value


INTERPOLATIONS: Final[tuple[str, ...]] = get_args(Curve)


@final
class WeightScheduler:
    """Weights as a function of the step.

    Args:
        schedule: the points, at least one, in ascending steps: anything with `step` and `weights`, or mappings with
            these keys. All weigh the same sources.
        interpolation: "step", "linear" or "cosine".

    Raises:
        ConfigError: a point or the interpolation cannot be; weights do not sum to 1 within 1e-6.
    """

    __slots__ = ("_at", "_before", "_interpolation", "_names", "_pieces", "_points")

    def __init__(self, schedule: Sequence[Any], interpolation: str = "step") -> None:
        require_one_of("interpolation", interpolation, INTERPOLATIONS)
        self._interpolation: Curve = cast("Curve", interpolation)
        self._points = _points_of(schedule, None)
        self._names = point_names(schedule[0])
        self._pieces = led_up_to(pieces_of(self._points, self._interpolation))
        self._before: WeightScheduler | None = None
        self._at = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, in the order in which the first point names them."""
        return self._names

    @property
    def dataset_names(self) -> list[str]:
        """:attr:`names` as a list."""
        return list(self._names)

    @property
    def interpolation(self) -> Curve:
        """How weights move between points."""
        return self._interpolation

    @property
    def pieces(self) -> tuple[SchedulePiece, ...]:
        """The stretches of the schedule, from step 0 on without gaps; the last one never ends."""
        return self._pieces

    @property
    def before(self) -> WeightScheduler | None:
        """The schedule that this one extends, which still decides everything before :attr:`at`."""
        return self._before

    @property
    def at(self) -> int:
        """The step at which this schedule was extended; 0 for one that was not."""
        return self._at

    @property
    def changes(self) -> bool:
        """Whether weights differ between any two steps."""
        return (
            len({weights for piece in self._pieces for weights in (piece.first.weights, piece.last.weights)})
            > 1
        )

    def get_weights(self, step: float) -> dict[str, float]:
        """Return name to weight at a step; before the first point and after the last one, their weights."""
        exact = max(Fraction(step), Fraction(0))
        piece = next(piece for piece in reversed(self._pieces) if piece.start <= exact)
        weights = piece.weights_at(exact)
        # As they were written where a point says so: dividing by the sum may change the last bit.
        if weights == piece.first.weights:
            return dict(zip(self._names, piece.first.given, strict=True))
        return dict(zip(self._names, map(float, weights), strict=True))

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
        if isinstance(at, bool) or not hasattr(at, "__index__") or int(at) < 0:
            raise ConfigError(
                f"cannot extend the schedule at step {at!r}; expected a whole number, 0 or more"
            )
        new = _points_of(points, self._names)
        if new[0].step <= at:
            raise ConfigError(
                f"step {new[0].step} cannot be added to a schedule that is fixed up to step {at}; "
                f"expected points after step {at}"
            )
        kept, pinned = cut(self._pieces, int(at))
        longer = object.__new__(WeightScheduler)
        longer._interpolation, longer._names, longer._points = self._interpolation, self._names, new
        longer._pieces = (*kept, *pieces_of((pinned, *new), self._interpolation))
        longer._before, longer._at = self, int(at)
        return longer

    def to_json(self) -> dict[str, Any]:
        """Return all that :meth:`from_json` needs: JSON-able, the same for schedules that are the same."""
        points = [
            {"step": point.step, "weights": dict(zip(self._names, point.given, strict=True))}
            for point in self._points
        ]
        if self._before is None:
            # Names apart: their order counts, and canonical JSON sorts keys.
            head = {"interpolation": self._interpolation, "names": list(self._names)}
            return head | {"points": points, "extensions": []}
        data = self._before.to_json()
        return data | {"extensions": [*data["extensions"], {"at": self._at, "points": points}]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WeightScheduler:
        """Rebuild a schedule from what :meth:`to_json` returned.

        Raises:
            ConfigError: it is no such thing.
        """
        try:
            first, *rest = data["points"]
            weights = {name: first["weights"][name] for name in data["names"]}
            schedule = WeightScheduler(
                [{"step": first["step"], "weights": weights}, *rest], data["interpolation"]
            )
            for extension in data["extensions"]:
                schedule = schedule.extend(at=extension["at"], points=extension["points"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"this is no weight schedule: {type(error).__name__} {error}; expected what to_json returned"
            ) from None
        return schedule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightScheduler) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self._names, self._interpolation, self._pieces))

    def __repr__(self) -> str:
        steps = [piece.start for piece in self._pieces]
        return f"WeightScheduler({', '.join(self._names)}; {self._interpolation} at steps {steps})"


def constant(weights: Mapping[str, float]) -> WeightScheduler:
    """Return the schedule of weights that never change."""
    return WeightScheduler([{"step": 0, "weights": weights}])


def _points_of(items: Sequence[Any], names: Sequence[str] | None) -> tuple[Point, ...]:
    """Read points in ascending steps that all weigh the same sources: `names`, or else the first point's."""
    if isinstance(items, str | bytes | Mapping) or not len(items):
        raise ConfigError(f"a schedule of {items!r}; expected a list of at least one point")
    names = point_names(items[0]) if names is None else names
    points = tuple(point_of(item, names) for item in items)
    check_ascending([point.step for point in points])
    return points
