"""Batch sizes as a function of the step (batch-size warm-up).

They are written as points (first step, number of rows).
"""

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
"""(first step, number), steps ascending from 0. A number holds until the next point,
the last one for ever.
"""

MOST_BATCH: Final = 1 << 31
"""Largest number of rows of a batch, or of ids of a row."""
_LAST_STEP: Final = 1 << 50


def points_of(value: object, name: str, unit: str) -> Points:
    """Return the points of a number, or of a mapping of first step to number.

    Args:
        value: ``256``, ``{0: 256, 1000: 512}``, or the items of such a mapping.
        name: Name of the option, for messages.
        unit: Things that are counted, for messages.

    Raises:
        ConfigError: It is none of these, or step 0 is missing.
    """
    try:
        number_of_step: dict[Any, Any] = {0: value}
        if isinstance(value, Mapping | list | tuple):
            number_of_step = dict(cast("Any", value))
        if not number_of_step:
            raise ValueError
        points: dict[int, int] = {}
        for step, number in number_of_step.items():
            step = whole_number(name, step, 0, _LAST_STEP)
            points[step] = whole_number(name, number, 1, MOST_BATCH)
    except (TypeError, ValueError, ConfigError):
        raise ConfigError(
            f"{name}: got {value!r}, must be a whole number of {unit} from 1 on, or step -> {unit}, "
            "as {0: 256, 9: 512}"
        ) from None
    if 0 not in points:
        raise ConfigError(
            f"{name}: got {value!r}, must give the number of {unit} of step 0"
        )
    ascending = sorted(points.items())
    # Points that change nothing are left out, so that equal sizes are equal points.
    changes = [
        point for previous, point in pairwise(ascending) if previous[1] != point[1]
    ]
    return (ascending[0], *changes)


def index_at(points: Points, step: int) -> int:
    """Return the index of the point that holds at a step."""
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
    def of(cls, value: int | Mapping[int, int]) -> Self:
        """Return the sizes of ``256`` or ``{0: 256, 1000: 512}``.

        Raises:
            ConfigError: It is neither.
        """
        return cls(points_of(value, "batch_size", "rows"))

    @property
    def common(self) -> int:
        """Greatest common divisor of all sizes."""
        return math.gcd(*(size for _, size in self.points))

    @property
    def first(self) -> int:
        """Rows of step 0."""
        return self.points[0][1]

    def at(self, step: int) -> int:
        """Return the rows of a step."""
        return self.points[index_at(self.points, step)][1]

    def before(self, step: int) -> Self:
        """Return the sizes of the steps before one.

        Two schedules agree before a step if these are equal.
        """
        return type(self)(tuple(point for point in self.points if point[0] < step))

    def to_json(self) -> list[list[int]]:
        """Return the points as lists."""
        return [list(point) for point in self.points]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the sizes that :meth:`to_json` wrote."""
        return cls.of(dict(data))
