"""Steps of a run: which rows of a pass each has, where delivery stands between two, and what a host needs of them.

A *step* is a batch that was delivered, counted from 0 over everything. The size of a batch is a function of its step
(batch-size warm-up); the place in the data is counted in rows, so that another size from some step on loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.sizes import BatchSizes
from tokenlake.ragged import Int64

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
        delivered = position.rows + left
        return BatchStep(position.step, position.passes, position.rows, size, left, 0, delivered)

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

    def rows_of(self, passes: int, wanted: RowsOfBatch, *, pad_last: bool) -> int | None:
        """Return how many rows of a pass a host has that wants these of each batch; None: no end."""
        first = self.begin(passes)
        batches = self.batches(first)
        if batches is None or self.rows is None:
            return None
        before = self.sizes.rows_before(first + batches - 1) - self.sizes.rows_before(first)
        size = self.sizes.at(first + batches - 1)
        last = size if pad_last else min(size, self.rows - before)
        share = len(wanted(self.sizes.common))
        return before // self.sizes.common * share + int(np.searchsorted(wanted(size), last))

    def begin(self, passes: int) -> int:
        """Return the step that begins a pass; the end of the one before, if that never ends, is an error."""
        return self._walk(passes=passes)[0]

    def position(self, step: int) -> Position:
        """Return where delivery stands before a step; the end of a pass is the beginning of the next."""
        first, passes = self._walk(step=step)
        return Position(step, passes, self.sizes.rows_before(step) - self.sizes.rows_before(first))

    def _walk(self, **to: int) -> tuple[int, int]:
        return walk(lambda _, first: self.batches(first), self.sizes.points[-1][0], **to)


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
    pair: object = (0, 1) if host is None else host
    match pair:
        case (int(index), int(hosts)) if 0 <= index < hosts and not common % hosts:
            pass
        case _:
            raise ConfigError(
                f"host: got {host!r}, must be (index, number of hosts), with a number that divides {common}"
            )

    @lru_cache(8)
    def rows(size: int) -> Int64:
        return np.arange(size // hosts * index, size // hosts * (index + 1), dtype=np.int64)

    return rows
