"""Steps to rows: how many rows each batch has, and where each begins.

A *step* is a batch that was delivered, counted from 0 over everything. The size of a batch is a function of its step
(batch-size warm-up); the place in the data is counted in rows, so that another size from some step on loses nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import index
from typing import Any, Self, final

from tokenlake.errors import ConfigError


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
        points = dict(asked) if isinstance(asked, Mapping) else {0: asked}
        if not points or any(_no_count(step, 0) or _no_count(size, 1) for step, size in points.items()):
            raise ConfigError(
                f"batch_size: got {asked!r}, must be a whole number of rows from 1 on, or step -> rows, "
                "as {0: 256, 9: 512}"
            )
        if 0 not in points:
            raise ConfigError(f"batch_size: got {asked!r}, must say how many rows step 0 has")
        ascending = sorted(points.items())
        changes = [after for before, after in pairwise(ascending) if before[1] != after[1]]
        return cls((ascending[0], *changes))

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
@dataclass(frozen=True, slots=True)
class Position:
    """Between two batches: how far delivery has come.

    Attributes:
        step: batches delivered, over everything.
        passes: passes over the data that ended.
        rows: rows delivered in this pass.
    """

    step: int
    passes: int
    rows: int


@final
@dataclass(frozen=True, slots=True)
class BatchStep:
    """One step.

    Attributes:
        step: its number.
        passes: of which pass over the data, from 0.
        start: rows of the pass before it.
        size: rows of a full batch of this step.
        rows: rows that it has: fewer than `size` only at the end of a pass.
    """

    step: int
    passes: int
    start: int
    size: int
    rows: int

    @property
    def after(self) -> Position:
        """Where delivery stands when it is delivered."""
        return Position(self.step + 1, self.passes, self.start + self.rows)


@final
@dataclass(frozen=True)
class PassSteps:
    """Which batches a pass has.

    Attributes:
        sizes: rows of each batch.
        rows: of a pass; None: it has no end.
        drop_last: leave out the last batch of a pass if it is not full.
    """

    sizes: BatchSizes
    rows: int | None
    drop_last: bool

    def next(self, position: Position) -> BatchStep | None:
        """Return the batch that comes next in this pass; None at its end."""
        size = self.sizes.at(position.step)
        left = size if self.rows is None else min(size, self.rows - position.rows)
        if left <= 0 or (left < size and self.drop_last):
            return None
        return BatchStep(position.step, position.passes, position.rows, size, left)

    def of_row(self, passes: int, first: int, row: int) -> BatchStep | None:
        """Return the batch that has a row of a pass that begins at step `first`; None if it never comes."""
        step = first + self.sizes.steps_in(first, row)
        start = self.sizes.rows_before(step) - self.sizes.rows_before(first)
        return self.next(Position(step, passes, start))

    def batches(self, first: int) -> int | None:
        """Return how many batches a pass has that begins at step `first`; None: no end."""
        if self.rows is None:
            return None
        full = self.sizes.steps_in(first, self.rows)
        taken = self.sizes.rows_before(first + full) - self.sizes.rows_before(first)
        return full + (taken < self.rows and not self.drop_last)

    def begin(self, passes: int) -> int:
        """Return the step that begins a pass; the end of the one before, if that never ends, is an error."""
        return self._walk(passes, None)[0]

    def position(self, step: int) -> Position:
        """Return where delivery stands before a step; the end of a pass is the beginning of the next."""
        first, passes = self._walk(None, step)
        return Position(step, passes, self.sizes.rows_before(step) - self.sizes.rows_before(first))

    def _walk(self, passes: int | None, step: int | None) -> tuple[int, int]:
        """The step that begins a pass, and its number: of that pass, or of the one that a step is in.

        Passes are gone through one by one until the sizes have stopped changing, then counted.
        """
        first = number = 0
        while batches := self.batches(first):
            left = (step - first) // batches if step is not None else (passes or 0) - number
            if left <= 0:
                break
            skipped = left if first >= self.sizes.points[-1][0] else 1
            first, number = first + skipped * batches, number + skipped
        return first, number


def _no_count(value: Any, low: int) -> bool:
    return isinstance(value, bool) or not isinstance(value, int) or value < low


def check_counts(**named: object) -> None:
    """Raise ConfigError unless all are whole numbers from 0 on."""
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name}: got {value!r}, must be a whole number from 0 on")


def check_switches(**named: object) -> None:
    """Raise ConfigError unless all are True or False."""
    for name, value in named.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name}: got {value!r}, must be True or False")


def whole_seed(seed: object) -> int:
    """Return a seed; ConfigError where it is no whole number."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ConfigError(f"seed: got {seed!r}, must be a whole number")
    return index(seed)  # pyright: ignore[reportArgumentType]
