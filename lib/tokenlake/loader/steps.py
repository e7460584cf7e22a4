"""Steps of a run: how many rows each has, and how long what attends to each other in them is; which rows of a pass they
are, where delivery stands between two steps, and what a host needs of them.

A *step* is a batch that was delivered, counted from 0 over everything. The size of a batch is a function of its step
(batch-size warm-up); the place in the data is counted in rows, so that another size from some step on loses nothing.

So is the length. With a batch size of 4 rows of 8 ids as they are stored, and ``lengths={0: 2, 10: 4, 20: 8}``, batches
have the shapes (16, 2), (8, 4) and (4, 8): as many ids each, every row cut into 4, 2 and 1. Cuts move no row to another
step, so that each id comes as often, and a state counts the same rows, whatever the lengths are.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Self, cast, final

import numpy as np

from tokenlake.arrays import Int64
from tokenlake.base.checks import expected, whole_number
from tokenlake.errors import ConfigError

Points = tuple[tuple[int, int], ...]
"""(first step, number), steps ascending from 0; the last number holds for ever."""


MOST_BATCH: Final = 1 << 31
"""Rows of a batch, or ids of a row, at most."""
_LAST_STEP: Final = 1 << 50


def _points_of(asked: object, name: str, what: str) -> Points:
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


def _index(points: Points, step: int) -> int:
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
        return cls(_points_of(asked, "batch_size", "rows"))

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
        return self.points[_index(self.points, step)][1]

    def before(self, step: int) -> Self:
        """Return what holds for the steps before one: two are alike there if these are equal."""
        return type(self)(tuple(point for point in self.points if point[0] < step))

    def to_json(self) -> list[list[int]]:
        return [list(point) for point in self.points]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what :meth:`to_json` gave."""
        return cls.of(dict(data))


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
            raise expected("lengths.keep_shape", self.keep_shape, "True or False")

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
        if (last - first) % whole_number("lengths: multiple", multiple, 1):
            raise ConfigError(
                f"lengths: {first} comes to {last} by no number of {multiple} ids at a time; expected a multiple "
                f"that divides {last - first}"
            )
        grown = range(0, last - first + 1, multiple)
        points = {-(-more * until // max(last - first, 1)): first + more for more in grown}
        return cls(tuple(points.items()), keep_shape)

    def at(self, step: int) -> int:
        """Return the length at a step."""
        return self.points[_index(self.points, step)][1]

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
                divisors = [other for other in range(1, length + 1) if length % other == 0]
                near = min(divisors, key=lambda other: (abs(other - each), other))
                raise ConfigError(
                    f"lengths: got {each} from step {step} on, which does not divide the {length} ids of rows of "
                    f"{name}; expected a divisor, as {near}, or keep_shape=True"
                )


def _check_growth(first: int, last: int, until: int) -> None:
    whole_number("lengths: until", until, 1)
    whole_number("lengths: last", last, whole_number("lengths: first", first, 1))


RowsOfBatch = Callable[[int], Int64]
"""Size of a batch -> which of its rows are wanted here, ascending, int64[m]."""


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
        start: rows before it: of the pass, of its bucket alone where there are buckets.
        size: rows of a full batch of this step.
        rows: rows that it has: fewer than `size` only at the end of a pass, or of a bucket.
        bucket: which of the buckets it is of; 0 where there are none.
        delivered: rows of the pass when it is delivered.
    """

    step: int
    passes: int
    start: int
    size: int
    rows: int
    bucket: int
    delivered: int

    @property
    def after(self) -> Position:
        """Where delivery stands when it is delivered."""
        return Position(self.step + 1, self.passes, self.delivered)


def walk(
    batches: Callable[[int, int], int | None],
    settled: int,
    *,
    passes: int | None = None,
    step: int | None = None,
) -> tuple[int, int]:
    """Return the step that begins a pass, and its number: of that pass, or of the one that a step is in.

    Passes are gone through one by one until the sizes have stopped changing, then counted.

    Args:
        batches: number and first step of a pass -> how many batches it has; None: no end.
        settled: the step from which on sizes do not change.
        passes, step: one of the two.
    """
    first = number = 0
    while each := batches(number, first):
        left = (step - first) // each if step is not None else (passes or 0) - number
        if left <= 0:
            break
        skipped = left if first >= settled else 1
        first, number = first + skipped * each, number + skipped
    return first, number


def rows_of_host(host: tuple[int, int] | None, common: int) -> RowsOfBatch:
    """Return which rows of a batch one of several hosts has: the index-th of equal parts.

    Args:
        host: (index, number of hosts); None: there is one.
        common: the largest number that divides the rows of all batches.

    Raises:
        ConfigError: it is no such pair, or batches cannot be cut into so many parts.
    """
    pair: Any = (0, 1) if host is None else host
    try:
        index, hosts = (whole_number("host", number, 0) for number in pair)
    except (TypeError, ValueError, ConfigError):
        index, hosts = 0, 0
    if index >= hosts or common % hosts:
        raise ConfigError(
            f"host: got {host!r}, must be (index, number of hosts), with a number that divides {common}"
        )

    @lru_cache(8)
    def rows(size: int) -> Int64:
        return np.arange(size // hosts * index, size // hosts * (index + 1), dtype=np.int64)

    return rows
