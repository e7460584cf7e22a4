"""How many lanes a mixture has and how many rows a unit, where the configuration leaves that open.

A lane reads each source in an order of its own, row group by row group. So a unit decodes, lane by lane and source by
source, the row groups that its rows lie in, of which the first and the last are cut by the unit's ends: about one row
group more than it needs for each lane and source. With six row groups' rows for each of them a unit decodes 7 / 6 =
1.17 of what it takes.

    lanes       the largest divisor of the batch size that is at most 64 and leaves
                - each source a row for each lane,
                - two decoded row groups for each lane and source (windows begin in one and end in the next) within
                  256 MiB,
                - the whole stream at least one such unit.
    unit rows   6 x lanes x (sum over sources of the mean rows of a row group), in whole batches.

Nothing here depends on how many workers there are. A longer stream may get more lanes; who wants to make a mixture
longer without beginning anew writes down the number of lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from tokenlake.build.mixing.parents import FoundParent

MOST_LANES: Final = 64
MOST_BYTES: Final = 256 << 20
_GROUPS_PER_UNIT: Final = 6  # row groups of each source in each lane
_OPEN_GROUPS: Final = 2


def choose_lanes(parents: Sequence[FoundParent], *, batch_size: int, step_rows: int | None, rows: int) -> int:
    """Return the number of lanes.

    Args:
        batch_size: rows of a global batch.
        step_rows: rows of a step, which lanes must divide too; None: weights do not change.
        rows: of the whole stream.
    """
    whole = batch_size if step_rows is None else math.gcd(batch_size, step_rows)
    smallest = min(parent.rows for parent in parents)
    held = _OPEN_GROUPS * sum(parent.decoded_bytes for parent in parents)
    unit = _unit_rows(parents)
    return max(
        (
            lanes
            for lanes in range(1, min(MOST_LANES, smallest, whole) + 1)
            if whole % lanes == 0 and lanes * held <= MOST_BYTES and lanes * unit <= rows
        ),
        default=1,
    )


def choose_unit_rows(parents: Sequence[FoundParent], *, lanes: int, batch_size: int) -> int:
    """Return the rows of a unit."""
    return math.ceil(lanes * _unit_rows(parents) / batch_size) * batch_size


def _unit_rows(parents: Sequence[FoundParent]) -> Fraction:
    """Rows of a unit for each lane."""
    return _GROUPS_PER_UNIT * sum(
        (Fraction(parent.rows, max(1, len(parent.group_rows))) for parent in parents), Fraction(0)
    )
