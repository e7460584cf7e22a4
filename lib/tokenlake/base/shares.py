"""Weights as shares that sum to 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

EXACT_SUM: Final = 1e-6
"""Largest distance of a sum from 1 for weights that are used as they are written."""
_ROUNDED_SUM: Final = 1.5e-3
"""Largest distance of a sum from 1 for rounded shares: three thirds, written as 0.333."""
_ROUNDED_PERCENT: Final = 0.15
"""The same for percentages: three thirds, written as 33.3, and some more."""


def shares_of(weights: Mapping[str, float]) -> dict[str, float] | None:
    """Return weights as shares that sum to 1; None if their meaning is not clear.

    Weights are one of::

        shares            0.3  0.7         they sum to 1
        rounded shares    0.3334  0.6667   they sum to 1 within 0.0015, and are divided by their sum
        percentages       33.3  66.7       they sum to 100 within 0.15
        ratios            30  70           whole numbers

    Args:
        weights: Name to weight, finite and not negative.
    """
    total = math.fsum(weights.values())
    if abs(total - 1.0) <= EXACT_SUM:
        return dict(weights)
    is_rounded = abs(total - 1.0) <= _ROUNDED_SUM
    is_percentage = abs(total - 100.0) <= _ROUNDED_PERCENT
    # Whole numbers whose sum is 1 are shares: one source has all.
    are_whole = all(float(weight).is_integer() for weight in weights.values())
    is_ratio = 1.0 < total < math.inf and are_whole
    if not (is_rounded or is_percentage or is_ratio):
        return None
    # Exact fractions, so that the shares do not depend on the order of the weights.
    exact_weights = {name: Fraction(weight) for name, weight in weights.items()}
    exact_total = sum(exact_weights.values())
    shares: dict[str, float] = {}
    for name, exact_weight in exact_weights.items():
        shares[name] = float(exact_weight / exact_total)
    return shares


def wrong_sum(name: str, total: float) -> str:
    """Return the message about numbers that must sum to 1, with twelve of its digits."""
    return f"{name} must sum to 1.0, got {float(f'{total:.12g}')}"
