"""The steps of a run: which rows of a pass a batch has, and where delivery stands between two batches.

A *step* is a batch that was delivered, counted from 0 over all passes. The size of a batch is a function of its step.
The place in the data is counted in rows, so that a change of the batch size at some step skips no row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.checks import whole_number
from tokenlake.errors import ConfigError

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
