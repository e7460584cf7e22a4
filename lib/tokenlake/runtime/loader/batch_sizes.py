"""Batch sizes as a function of the step (batch-size warm-up), as points (first step, number)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self, cast, final

from tokenlake.base.checks import whole_number
from tokenlake.errors import ConfigError

Points = tuple[tuple[int, int], ...]
"""(first step, number), steps ascending from 0; the last number holds for ever."""

MOST_BATCH: Final = 1 << 31
"""Rows of a batch, or ids of a row, at most."""
_LAST_STEP: Final = 1 << 50


def points_of(asked: object, name: str, what: str) -> Points:
    """Read ``256``, ``{0: 256, 1000: 512}``, or its items; ConfigError where it is none of these."""
    try:
        is_mapping = isinstance(asked, Mapping)
        given = dict(cast("Any", asked)) if is_mapping or isinstance(asked, list | tuple) else {0: asked}
        if not given:
            raise ValueError
        points = dict[int, int]()
        for step, size in given.items():
            points[whole_number(name, step, 0, _LAST_STEP)] = whole_number(name, size, 1, MOST_BATCH)
    except (TypeError, ValueError, ConfigError):
        raise ConfigError(
            f"{name}: got {asked!r}, must be a whole number of {what} from 1 on, or step -> {what}, "
            "as {0: 256, 9: 512}"
        ) from None
    if 0 not in points:
        raise ConfigError(f"{name}: got {asked!r}, must say how many {what} step 0 has")
    ascending = sorted(points.items())
    changes = [after for before, after in pairwise(ascending) if before[1] != after[1]]
    return (ascending[0], *changes)


def index_at(points: Points, step: int) -> int:
    """Return which of the points holds at a step."""
    return bisect_right(points, step, key=lambda point: point[0]) - 1


@final
@dataclass(frozen=True)
class BatchSizes:
    """Rows of the global batch of each step.

    Attributes:
        points: (first step, rows), steps ascending from 0; the last one holds for ever.
    """

    points: Points

    @classmethod
    def of(cls, asked: int | Mapping[int, int]) -> Self:
        """Read ``256`` or ``{0: 256, 1000: 512}``; ConfigError where it is neither."""
        return cls(points_of(asked, "batch_size", "rows"))

    @property
    def common(self) -> int:
        """The largest number that divides all sizes."""
        return math.gcd(*(size for _, size in self.points))

    @property
    def first(self) -> int:
        """Rows of step 0."""
        return self.points[0][1]

    def at(self, step: int) -> int:
        """Return the rows of a step."""
        return self.points[index_at(self.points, step)][1]

    def before(self, step: int) -> Self:
        """Return what holds for the steps before one: two are alike there if these are equal."""
        return type(self)(tuple(point for point in self.points if point[0] < step))

    def to_json(self) -> list[list[int]]:
        return [list(point) for point in self.points]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what :meth:`to_json` gave."""
        return cls.of(dict(data))
