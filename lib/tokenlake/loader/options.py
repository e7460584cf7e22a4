"""What a run is asked for: the keyword arguments that ``DataLoader`` and the datasets of other libraries share."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import index
from typing import Any, Final, Literal, Self, TypedDict, final

from tokenlake.errors import ConfigError
from tokenlake.loader.balance import BatchBalance
from tokenlake.loader.layout import BatchLayout
from tokenlake.loader.padding import BatchPadding


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
        if not points or not all(_is_count(step, 0) and _is_count(size, 1) for step, size in points.items()):
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


def _is_count(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def check_counts(*, low: int = 0, **named: object) -> None:
    """Raise ConfigError unless all are whole numbers from `low` on."""
    for name, value in named.items():
        if not _is_count(value, low):
            raise ConfigError(f"{name}: got {value!r}, must be a whole number from {low} on")


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


CACHE_BYTES: Final = 512 << 20
WORKER_CACHE_BYTES: Final = 256 << 20  # of each process, where worker processes may be several


class LoaderKeywords(TypedDict, total=False):
    """The fields of :class:`LoaderOptions` but for the batch size, as keyword arguments."""

    seed: int
    shuffle: bool
    epochs: int | None
    drop_last: bool
    pad_last: bool | None
    columns: Sequence[str] | None
    padding: BatchPadding | Mapping[str, Any] | None
    layout: BatchLayout | Mapping[str, Any] | Literal["flat"] | None
    balance: BatchBalance | Mapping[str, Any] | Literal["attention"] | None
    host: tuple[int, int] | None
    lanes: int | None
    window: int
    prefetch: int
    workers: int | None
    cache_bytes: int


@final
@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What decides the batches of a run, and how they are made ready; :class:`tokenlake.DataLoader` explains each.

    Raises:
        ConfigError: an option is not what is allowed.
    """

    batch_size: int | Mapping[int, int]
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    drop_last: bool = False
    pad_last: bool | None = None
    columns: Sequence[str] | None = None
    padding: BatchPadding | Mapping[str, Any] | None = None
    layout: BatchLayout | Mapping[str, Any] | Literal["flat"] | None = None
    balance: BatchBalance | Mapping[str, Any] | Literal["attention"] | None = None
    host: tuple[int, int] | None = None
    lanes: int | None = None
    window: int = 1
    prefetch: int = 2
    workers: int | None = None
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        workers = 0 if self.workers is None else self.workers
        check_counts(prefetch=self.prefetch, workers=workers, cache_bytes=self.cache_bytes)
        pad_last = False if self.pad_last is None else self.pad_last
        check_switches(shuffle=self.shuffle, drop_last=self.drop_last, pad_last=pad_last)
        endless = {name: value for name in ("epochs", "lanes") if (value := getattr(self, name)) is not None}
        check_counts(low=1, window=self.window, **endless)
        whole_seed(self.seed)
        if self.lanes is not None and self.sizes.common % self.lanes:
            raise ConfigError(
                f"lanes: got {self.lanes}, which does not divide every batch size; "
                f"expected a divisor of {self.sizes.common}"
            )
        if self.padding is not None:
            BatchPadding.of(self.padding)
        if self.layout is not None:
            BatchLayout.of(self.layout)
        if self.balance is not None:
            BatchBalance.of(self.balance)

    @cached_property
    def ranks(self) -> int | None:
        """Into how many parts of equal cost batches are dealt; None: they are not.

        Raises:
            ConfigError: nobody says it, or hosts would not have whole parts.
        """
        if self.balance is None:
            return None
        balance = BatchBalance.of(self.balance)
        if self.host is None and balance.ranks is None:
            raise ConfigError(
                f"balance: got {self.balance!r}, and nothing says into how many ranks batches are dealt; "
                "expected {'ranks': N}, or a sharding, or host"
            )
        return balance.over(1 if self.host is None else self.host[1], "host").ranks

    @cached_property
    def batch_layout(self) -> BatchLayout:
        """How ids lie in the arrays of a batch."""
        return BatchLayout() if self.layout is None else BatchLayout.of(self.layout)

    @cached_property
    def sizes(self) -> BatchSizes:
        """Rows of the global batch of each step."""
        return BatchSizes.of(self.batch_size)
