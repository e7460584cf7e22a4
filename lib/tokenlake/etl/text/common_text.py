"""Lengths of the beginnings and the ends that two texts share, found by halving:
texts may be long.
"""

from __future__ import annotations


def shared_length(left: str, right: str) -> int:
    """Return the number of characters that two texts begin with."""
    low = 0
    high = min(len(left), len(right))
    # The first `low` characters are equal, and those behind `high` are not compared any
    # more.
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_end_length(left: str, right: str) -> int:
    """Return the number of characters that two texts end with."""
    low = 0
    high = min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if (
            left[len(left) - middle : len(left) - low]
            == right[len(right) - middle : len(right) - low]
        ):
            low = middle
        else:
            high = middle - 1
    return low
