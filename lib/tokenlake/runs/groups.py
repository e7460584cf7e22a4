"""Groups of neighbouring units, which a run builds and reports together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

MAX_TASK_RUNS: Final = 256
"""Largest number of task runs for the groups of a build and for their steps. A few
hundred are readable, and each costs the server some 20 kB.
"""

MOST_STEPS: Final = 5
"""Largest number of steps of a unit."""

MAX_GROUPS: Final = MAX_TASK_RUNS // (1 + MOST_STEPS)
"""Largest number of groups of a build: each has a task run of its own, and one for
each of its steps.
"""


def group_units(units: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Cut ``units`` into at most ``most`` groups of neighbours of nearly equal size.

    Sizes of groups differ by one at most.

    >>> group_units([3, 4, 5, 8, 9], 2)
    [(3, 4, 5), (8, 9)]
    """
    group_count = min(len(units), most)
    if not group_count:
        return []
    # Group i has the units from ceil(n * i / groups) on.
    bounds: list[int] = []
    for index in range(group_count + 1):
        bounds.append(math.ceil(len(units) * index / group_count))
    groups: list[tuple[int, ...]] = []
    for start, stop in itertools.pairwise(bounds):
        groups.append(tuple(units[start:stop]))
    return groups


def group_name(units: Sequence[int]) -> str:
    """Return ``unit 00017`` or ``units 00017-00020``.

    Numbers have the digits of the files in the store.
    """
    if len(units) == 1:
        return f"unit {units[0]:05d}"
    return f"units {units[0]:05d}-{units[-1]:05d}"
