"""What changes along the steps: how many rows a batch has, and how long what attends to each other in them is.

Both are functions of the step. With a batch size of 4 rows of 8 ids as they are stored, and ``lengths={0: 2, 10: 4, 20:
8}``, batches have the shapes (16, 2), (8, 4) and (4, 8): as many ids each, every row cut into 4, 2 and 1. Cuts move no
row to another step, so that each id comes as often, and a state counts the same rows, whatever the lengths are.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self, cast, final

from tokenlake.errors import ConfigError

Points = tuple[tuple[int, int], ...]
"""(first step, number), steps ascending from 0; the last number holds for ever."""


def is_count(value: object, low: int) -> bool:
    """Whether a value is a whole number from `low` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _points_of(asked: object, name: str, what: str) -> Points:
    """Read ``256``, ``{0: 256, 1000: 512}``, or its items; ConfigError where it is none of these."""
    try:
        points = {0: asked} if isinstance(asked, int) else dict(cast("Any", asked))
    except (TypeError, ValueError):
        points = dict[Any, Any]()
    if not points or not all(is_count(step, 0) and is_count(size, 1) for step, size in points.items()):
        raise ConfigError(
            f"{name}: got {asked!r}, must be a whole number of {what} from 1 on, or step -> {what}, "
            "as {0: 256, 9: 512}"
        )
    if 0 not in points:
        raise ConfigError(f"{name}: got {asked!r}, must say how many {what} step 0 has")
    ascending = sorted(points.items())
    changes = [after for before, after in pairwise(ascending) if before[1] != after[1]]
    return (ascending[0], *changes)


@final
@dataclass(frozen=True)
class BatchSizes:
    """Rows of the global batch of each step.

    Attributes:
        points: (first step, rows), steps ascending from 0; the last one holds for ever.
    """

    points: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, asked: int | Mapping[int, int]) -> Self:
        """Read ``256`` or ``{0: 256, 1000: 512}``; ConfigError where it is neither."""
        return cls(_points_of(asked, "batch_size", "rows"))

    @property
    def common(self) -> int:
        """The largest number that divides all sizes."""
        return math.gcd(*(size for _, size in self.points))

    @property
    def first(self) -> int:
        """Rows of step 0."""
        return self.points[0][1]

    @property
    def most(self) -> int:
        """Rows of the largest batch."""
        return max(size for _, size in self.points)

    def at(self, step: int) -> int:
        """Return the rows of a step."""
        return self.points[bisect_right(self._steps, step) - 1][1]

    def rows_before(self, step: int) -> int:
        """Return the rows of all steps before one, were all batches full."""
        index = bisect_right(self._steps, step) - 1
        return self._rows[index] + (step - self.points[index][0]) * self.points[index][1]

    def steps_in(self, first: int, rows: int) -> int:
        """Return how many full batches from step `first` on fit in so many rows."""
        end = self.rows_before(first) + rows
        index = max(bisect_right(self._rows, end) - 1, bisect_right(self._steps, first) - 1)
        start, size = self.points[index]
        return start + (end - self._rows[index]) // size - first

    def before(self, step: int) -> Self:
        """Return what holds for the steps before one: two are alike there if these are equal."""
        return type(self)(tuple(point for point in self.points if point[0] < step))

    def to_json(self) -> list[list[int]]:
        return [list(point) for point in self.points]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what :meth:`to_json` gave."""
        return cls.of(dict(data))

    @cached_property
    def _steps(self) -> list[int]:
        return [step for step, _ in self.points]

    @cached_property
    def _rows(self) -> list[int]:
        """Rows before each point."""
        found = [0]
        for (start, size), (end, _) in pairwise(self.points):
            found.append(found[-1] + (end - start) * size)
        return found


@final
@dataclass(frozen=True)
class LengthCurriculum:
    """How long what attends to each other is at each step: rows are cut there, and batches keep their ids.

    ::

        tl.LengthCurriculum.doubling(256, 2048, until=3000)  # {0: 256, 1000: 512, 2000: 1024, 3000: 2048}
        tl.LengthCurriculum.linear(256, 2048, until=3000, multiple=128)

    A cut is where a document ends and another begins: positions begin anew behind it, its piece has a segment id of its
    own, and its first id bears no loss, for what it would be predicted from is in another row.

    Args:
        points: as of ``batch_size``: (first step, ids), from step 0 on.
        keep_shape: batches stay (rows, L), and segments end at every multiple of the length in them, which attention
            inside segments keeps to: nothing is compiled anew, and lengths need not divide L. Off: batches have
            L / length times the rows of that length, which must divide L.
    """

    points: Points
    keep_shape: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", _points_of(self.points, "lengths", "ids"))
        if not isinstance(self.keep_shape, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"lengths.keep_shape: got {self.keep_shape!r}, must be True or False")

    @classmethod
    def of(cls, asked: object) -> Self:
        """Read a curriculum, its arguments, ``512``, or ``{0: 256, 1000: 512}``; ConfigError where it is none."""
        if isinstance(asked, cls):
            return asked
        if not isinstance(asked, Mapping) or "points" not in asked:
            return cls(cast("Points", asked))
        given = cast("Mapping[str, Any]", asked)
        if set(given) - {"points", "keep_shape"}:
            raise ConfigError(
                f"lengths: got {asked!r}, must be a mapping of points and keep_shape, or of steps"
            )
        return cls(**given)

    @classmethod
    def doubling(cls, first: int, last: int, *, until: int, keep_shape: bool = False) -> Self:
        """Return lengths that double in equal intervals, from `first` at step 0 to `last` at step `until`.

        Raises:
            ConfigError: `last` is not `first` times a power of two, or there are fewer steps than doublings.
        """
        _check_growth(first, last, until)
        times = (last // first).bit_length() - 1
        if first << times != last or until < times:
            raise ConfigError(
                f"lengths: {first} comes to {last} by no number of doublings in {until} steps; expected a power of two "
                "times the first, and a step for each"
            )
        points = {step * until // max(times, 1): first << step for step in range(times + 1)}
        return cls(tuple(points.items()), keep_shape)

    @classmethod
    def linear(cls, first: int, last: int, *, until: int, multiple: int, keep_shape: bool = True) -> Self:
        """Return lengths that grow by `multiple` at a time along the line from `first` at step 0 to `last` at `until`.

        Raises:
            ConfigError: `last` is not `first` and a multiple of `multiple`.
        """
        _check_growth(first, last, until)
        if not is_count(multiple, 1) or (last - first) % multiple:
            raise ConfigError(
                f"lengths: {first} comes to {last} by no number of {multiple!r} ids at a time; expected a multiple "
                f"that divides {last - first}"
            )
        grown = range(0, last - first + 1, multiple)
        points = {-(-more * until // max(last - first, 1)): first + more for more in grown}
        return cls(tuple(points.items()), keep_shape)

    @property
    def longest(self) -> int:
        """The largest length."""
        return max(length for _, length in self.points)

    def at(self, step: int) -> int:
        """Return the length at a step."""
        return self.points[bisect_right(self._steps, step) - 1][1]

    def before(self, step: int) -> Points:
        """Return what holds for the steps before one."""
        return tuple(point for point in self.points if point[0] < step)

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`of` reads."""
        return {"points": [list(point) for point in self.points], "keep_shape": self.keep_shape}

    def check(self, length: int, name: str) -> None:
        """Raise ConfigError where rows of `length` ids, of a dataset of this name, cannot be cut so."""
        for step, each in self.points:
            if each > length:
                raise ConfigError(
                    f"lengths: got {each} from step {step} on, and rows of {name} have {length} ids; expected "
                    "at most that"
                )
            if not self.keep_shape and length % each:
                near = sorted(
                    (abs(other - each), other) for other in range(1, length + 1) if length % other == 0
                )
                raise ConfigError(
                    f"lengths: got {each} from step {step} on, which does not divide the {length} ids of rows of "
                    f"{name}; expected a divisor, as {near[0][1]}, or keep_shape=True"
                )

    @cached_property
    def _steps(self) -> list[int]:
        return [step for step, _ in self.points]


def _check_growth(first: int, last: int, until: int) -> None:
    if not is_count(first, 1) or not is_count(last, first) or not is_count(until, 1):
        raise ConfigError(
            f"lengths: got {first!r} to {last!r} until step {until!r}; expected whole numbers, the first length at "
            "most the last"
        )
