"""Search for the first number from which a condition holds."""

from __future__ import annotations

from collections.abc import Callable


def first_true(low: int, holds: Callable[[int], bool], high: int | None = None) -> int:
    """Return the first number, `low` or more, for which a condition is true.

    Args:
        low: First number to test.
        holds: Condition that stays true once it is true.
        high: Number for which the condition is true; None to search for one.
    """
    reach = 1
    while high is None:
        candidate = low + reach - 1
        if holds(candidate):
            high = candidate
        else:
            low += reach
            reach *= 2
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
