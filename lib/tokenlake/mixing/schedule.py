"""Weights that change along the way: a schedule of points, and how the weights move between them.

Before the first point its weights hold, after the last one its own. Between two of them, with
``p = (step - step0) / (step1 - step0)``: "step" keeps the earlier weights until the later point, "linear" gives
``a + p (b - a)``, "cosine" the same with ``(1 - cos(pi p)) / 2`` for `p`.

A schedule only ever grows at its end: :meth:`WeightScheduler.extend` makes another one that remembers the first, and
what comes before is still taken from that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Final, cast, final, get_args

from tokenlake.errors import ConfigError
from tokenlake.mixing.pieces import (
    Curve,
    Piece,
    Point,
    check_ascending,
    cut,
    led_up_to,
    pieces_of,
    point_names,
    point_of,
)

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
        self._interpolation: Curve = _curve(interpolation)
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
    def interpolation(self) -> Curve:
        """How weights move between points."""
        return self._interpolation

    @property
    def pieces(self) -> tuple[Piece, ...]:
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


def _curve(name: Any) -> Curve:
    if name in INTERPOLATIONS:
        return cast("Curve", name)
    near = get_close_matches(str(name).lower(), INTERPOLATIONS, n=1, cutoff=0.4)
    raise ConfigError(
        f"interpolation {name!r}; expected one of {', '.join(INTERPOLATIONS)}"
        + (f". Did you mean {near[0]!r}?" if near else ""),
        expected=list(INTERPOLATIONS),
        got=name,
    )
