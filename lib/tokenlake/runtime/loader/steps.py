"""Steps of a run, and positions between them.

A *step* is a batch that was delivered, counted from 0 over all passes. The size of a
batch is a function of its step. The position in the data is counted in rows, so that a
change of the batch size at some step skips no row.
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
"""Number of rows of a full batch -> those of its rows that a host needs, ascending,
int64[m].
"""


@final
@dataclass(frozen=True, slots=True)
class Position:
    """Position between two batches.

    Attributes:
        step: Number of batches delivered, over all passes.
        passes: Number of passes that have ended.
        rows: Number of rows delivered in the current pass.
    """

    step: int
    passes: int
    rows: int


@final
@dataclass(frozen=True, slots=True)
class BatchStep:
    """One step.

    Attributes:
        step: Number of the step.
        passes: Number of its pass, from 0.
        start: Rows of the pass before the batch; with buckets, of its bucket alone.
        size: Rows of a full batch of this step.
        rows: Rows of the batch: fewer than `size` only at the end of a pass, or of a
            bucket.
        bucket: Index of its bucket; 0 without buckets.
        delivered: Rows of the pass that are delivered after the batch.
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
        """Position after the batch."""
        return Position(self.step + 1, self.passes, self.delivered)


def walk(
    batches: Callable[[int, int], int | None],
    settled: int,
    *,
    passes: int | None = None,
    step: int | None = None,
) -> tuple[int, int]:
    """Return (first step, number) of a pass, found by its number or by a step.

    A pass that is found by a step contains it. Passes are visited one by one while
    batch sizes change. After that all passes have the same number of batches, and the
    rest is one division. With 5 batches in pass 0, 3 in each later one and no change
    after step 5, step 12 is in pass ``1 + (12 - 5) // 3 = 3``, which begins at step 11.

    Args:
        batches: Function of the number and first step of a pass that returns its number
            of batches; None: no end.
        settled: Step from which on batch sizes do not change.
        passes: Number of the pass to find; None: `step` is given.
        step: Step to find; None: `passes` is given.
    """
    first = 0
    number = 0
    while True:
        count = batches(number, first)
        if not count:  # the pass never ends, or is empty
            break
        passes_left = (
            (passes or 0) - number if step is None else (step - first) // count
        )
        if passes_left <= 0:
            break
        skipped = passes_left if first >= settled else 1
        first += skipped * count
        number += skipped
    return first, number


def rows_of_host(host: tuple[int, int] | None, common: int) -> RowsOfBatch:
    """Return a function that returns the rows of a batch for one of several hosts.

    They are the index-th of equal parts.

    Args:
        host: Pair (index, number of hosts); None: there is one host.
        common: Greatest common divisor of the rows of all batches.

    Raises:
        ConfigError: It is not such a pair, or batches cannot be divided into as many
            parts.
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
        rows_per_host = size // hosts
        return np.arange(
            rows_per_host * index, rows_per_host * (index + 1), dtype=np.int64
        )

    return rows
