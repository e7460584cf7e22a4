"""Pieces: the stretches of a schedule in which every weight follows one curve.

A piece ends where the next one starts. It knows where its curve leads to, also where the next piece comes before that:
what is left of a line that was cut is the same line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, Literal, cast, final

from tokenlake.errors import ConfigError
from tokenlake.mixing.cosine import eased
from tokenlake.mixing.weights import UNIT_BITS, check_weights, normalized

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
class Piece:
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


def pieces_of(points: Sequence[Point], curve: Curve) -> tuple[Piece, ...]:
    """Return the pieces that lead from point to point, the first from its own step on; the last never ends."""
    between = [Piece(first, _end(first, last, curve), curve) for first, last in pairwise(points)]
    return (*between, Piece(points[-1], points[-1], "step"))


def led_up_to(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the pieces with one more in front that holds the first weights from step 0 on, if they begin later."""
    first = pieces[0].first
    if first.step == 0:
        return tuple(pieces)
    begin = replace(first, step=0)
    return (Piece(begin, begin, "step"), *pieces)


def cut(pieces: Sequence[Piece], at: int) -> tuple[tuple[Piece, ...], Point]:
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


def _end(first: Point, last: Point, curve: Curve) -> Point:
    return first if curve == "step" else last
