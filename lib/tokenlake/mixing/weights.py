"""Weights as numbers that add up: checked, made to sum to exactly 1, and counted in units.

A float is a fraction with a power of two below the line. Weights are taken as exactly these fractions and divided by
their sum, so that they sum to 1 and not to 0.9999999999999999. For counting they become whole numbers of units of
2^-96: a float says 53 bits, so that after 10^12 rows no share is off by more than 10^-16 rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from tokenlake.errors import ConfigError

UNIT_BITS: Final = 96
"""A weight of 1 is ``2**UNIT_BITS`` units."""

_TOLERANCE: Final = 1e-6


def check_weights(weights: Mapping[str, Any], where: str = "") -> dict[str, float]:
    """Return the weights as floats.

    Args:
        weights: name to weight, at least one, none negative, summing to 1 within 1e-6.
        where: a clause for messages, such as ``" at step 5 of the schedule"``.

    Raises:
        ConfigError: they are anything else.
    """
    if not weights:
        raise ConfigError(f"there are no weights{where}; expected a weight for at least one source")
    floats = {name: _weight(name, weight, where) for name, weight in weights.items()}
    total = math.fsum(floats.values())
    if abs(total - 1.0) > _TOLERANCE:
        raise ConfigError(
            f"Weights must sum to 1.0, got {float(f'{total:.12g}')}{where} ({_listed(floats)}); "
            "divide each by their sum",
            expected=1.0,
            got=total,
        )
    return floats


def normalized(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """Return the exact fractions that the floats are, divided by their sum."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return tuple(weight / total for weight in exact)


def in_units(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return weights that sum to 1 as whole numbers that sum to exactly ``2**UNIT_BITS``.

    All are rounded down; the units that are then missing go to the largest remainders, the first source first. A
    weight of 0 stays 0.
    """
    scaled = [weight * (1 << UNIT_BITS) for weight in weights]
    units = [math.floor(weight) for weight in scaled]
    missing = (1 << UNIT_BITS) - sum(units)
    remainders = sorted(range(len(units)), key=lambda at: (units[at] - scaled[at], at))
    for at in remainders[:missing]:
        units[at] += 1
    return tuple(units)


def row_weights(weights: Mapping[str, float], mean_tokens: Mapping[str, float]) -> dict[str, float]:
    """Return the weights per row under which the sources' shares of *tokens* are `weights`.

    A source with long rows needs fewer of them: each weight is divided by the source's mean tokens per row, and the
    results by their sum. A schedule is converted point by point. Exactly at a point the shares of tokens are then what
    was asked for; between two points it is the weights per row that move in a line or along the cosine, so that shares
    of tokens move between the same two values, monotonically, but on a curve that bends towards the longer rows.

    Args:
        weights: name to share of tokens, summing to 1.
        mean_tokens: name to mean tokens per row, more than 0; other names may be there too.

    Raises:
        ConfigError: a source has no mean, or none above 0.
    """
    shares = check_weights(weights)
    per_row = {name: Fraction(share) / _mean(name, mean_tokens) for name, share in shares.items()}
    total = sum(per_row.values())
    return {name: float(weight / total) for name, weight in per_row.items()}


def _weight(name: str, weight: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(weight, bool | str) else float(weight)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise ConfigError(
            f"the weight of {name!r} is {weight!r}{where}; expected a number that is 0 or more",
            expected="a number that is 0 or more",
            got=weight,
        )
    return number


def _mean(name: str, mean_tokens: Mapping[str, float]) -> Fraction:
    mean = mean_tokens.get(name, 0.0)
    if not 0.0 < mean < math.inf:
        raise ConfigError(
            f"source {name!r} has {mean_tokens.get(name)} tokens per row; expected a mean above 0, "
            "by which its weight per token becomes a weight per row"
        )
    return Fraction(mean)


def _listed(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {weight:g}" for name, weight in weights.items())
