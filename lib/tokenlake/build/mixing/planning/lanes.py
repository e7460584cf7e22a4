"""How many lanes a mixture has and how many rows a unit, where the configuration leaves that open.

A lane reads each source in an order of its own, row group by row group. A unit takes some neighbouring rows of each
source from each lane. They begin inside a window and end inside one, and a window begins and ends inside a row group:
together about two row groups more than they need are decoded for each lane and source. So for a unit that takes twelve
times the bytes of a row group of every source from each lane, 14 / 12 = 1.17 of what it takes are decoded. A unit that
is a whole stream is cut at the ends of its lanes only: half of that is enough.

    lanes       the largest divisor of the batch size that is at most 64 and leaves
                - each source a row for each lane,
                - two decoded row groups for each lane and source within 256 MiB,
                - the whole stream at least six times the row groups of all sources for each lane.
    unit rows   12 x lanes x (sum over sources of a row group's bytes) / (bytes of a row), in whole batches; what is
                left at the end, if it is less than two thirds of that, goes to the last unit.

The bytes of a row are those of a mean row of the mixture, where they are least along its schedule. Nothing here depends
on how many workers there are. A longer stream may get more lanes, another schedule other units; who wants to make a
mixture longer without beginning anew writes both down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from tokenlake.build.mixing.planning.parents import FoundParent

MOST_LANES: Final = 64
MOST_BYTES: Final = 256 << 20
_OPEN_GROUPS: Final = 2
_GROUPS_PER_STREAM: Final = 6
_GROUPS_PER_UNIT: Final = 12


def choose_lanes(
    parents: Sequence[FoundParent],
    weights: Iterable[Mapping[str, float]],
    *,
    batch_size: int,
    step_rows: int | None,
    rows: int,
) -> int:
    """Return the number of lanes.

    Args:
        weights: per row, at each point of the schedule.
        batch_size: rows of a global batch.
        step_rows: rows of a step, which lanes must divide too; None: weights do not change.
        rows: of the whole stream.
    """
    whole = batch_size if step_rows is None else math.gcd(batch_size, step_rows)
    smallest = min(parent.rows for parent in parents)
    held = _OPEN_GROUPS * sum(parent.decoded_bytes for parent in parents)
    stream = _GROUPS_PER_STREAM * _group_rows(parents, weights)
    return max(
        (
            lanes
            for lanes in range(1, min(MOST_LANES, smallest, whole) + 1)
            if whole % lanes == 0 and lanes * held <= MOST_BYTES and lanes * stream <= rows
        ),
        default=1,
    )


def choose_unit_rows(
    parents: Sequence[FoundParent], weights: Iterable[Mapping[str, float]], *, lanes: int, batch_size: int
) -> int:
    """Return the rows of a unit; arguments as of :func:`choose_lanes`."""
    rows = lanes * _GROUPS_PER_UNIT * _group_rows(parents, weights)
    return math.ceil(rows / batch_size) * batch_size


def _group_rows(parents: Sequence[FoundParent], weights: Iterable[Mapping[str, float]]) -> Fraction:
    """Rows of the mixture that take as many bytes as a row group of each source."""
    groups = sum(parent.decoded_bytes for parent in parents)
    each = {
        parent.name: Fraction(parent.decoded_bytes * max(1, len(parent.group_rows)), parent.rows)
        for parent in parents
    }
    means = [
        sum((Fraction(weight) * each[name] for name, weight in point.items()), Fraction(0))
        for point in weights
    ]
    return Fraction(groups) / min(means)
