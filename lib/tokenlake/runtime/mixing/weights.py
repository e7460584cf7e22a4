"""Weights of the sources of a mixture: checked, normalized, and as exact whole numbers.

A float is a fraction with a power of two as denominator. Weights are taken as exactly these fractions and divided by
their sum, so that they sum to 1 and not to 0.9999999999999999. For counting they become whole numbers of units of
2^-96: a float has 53 bits, so that after 10^12 rows no share is off by more than 10^-16 rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from tokenlake.base.checks import did_you_mean
from tokenlake.base.shares import shares_of, wrong_sum
from tokenlake.errors import ConfigError

UNIT_BITS: Final = 96
"""A weight of 1 is ``2**UNIT_BITS`` units."""


def check_weights(weights: Mapping[str, Any], where: str = "") -> dict[str, float]:
    """Return the weights as shares that sum to 1 within 1e-6.

    Args:
        weights: Name to weight, at least one, none negative: shares, percentages, or ratios of whole numbers (see
            :func:`tokenlake.base.shares.shares_of`).
        where: A clause for messages, such as ``" at step 5 of the schedule"``.

    Raises:
        ConfigError: they are anything else.
    """
    if not isinstance(weights, Mapping) or not weights:  # pyright: ignore[reportUnnecessaryIsInstance]
        got = "no weights" if not weights else f"weights {weights!r:.80}"
        raise ConfigError(f"there are {got}{where}; expected name to weight for at least one source")
    floats = dict[str, float]()
    for name, weight in weights.items():
        try:
            floats[name] = math.nan if isinstance(weight, bool | str) else float(weight)
        except (TypeError, ValueError, OverflowError):
            floats[name] = math.nan
        if not 0.0 <= floats[name] < math.inf:
            raise ConfigError(
                f"the weight of {name!r} is {weight!r}{where}; expected a number that is 0 or more",
                expected="a number that is 0 or more",
                got=weight,
            )
    shares = shares_of(floats)
    if shares is None:
        total = math.fsum(floats.values())
        shown = ", ".join(f"{name}: {weight:g}" for name, weight in floats.items())
        raise ConfigError(
            f"{wrong_sum('Weights', total)}{where} ({shown}); divide each by their sum, or give percentages or ratios "
            "of whole numbers (30, 70)",
            expected=1.0,
            got=total,
        )
    return shares


def check_weight_names(what: str, names: Collection[str], keys: Collection[str]) -> None:
    """Raise ConfigError, with the nearest names, unless weights are of just the sources."""
    told = [f"no weight for {name!r}" for name in names if name not in keys]
    told += [f"{key!r} is no source{did_you_mean(key, names)}" for key in keys if key not in names]
    if told:
        raise ConfigError(f"{what}: must be of just the sources {', '.join(names)}, but {', '.join(told)}")


def normalized(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """Return the exact fractions that the floats are, divided by their sum."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return tuple(weight / total for weight in exact)


@lru_cache(1 << 12)  # a schedule that was extended often asks again for all of its points
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
    for name in shares:
        if not 0.0 < mean_tokens.get(name, 0.0) < math.inf:
            raise ConfigError(
                f"source {name!r} has {mean_tokens.get(name)} tokens per row; expected a mean above 0, "
                "by which its weight per token becomes a weight per row"
            )
    per_row = {name: Fraction(share) / Fraction(mean_tokens[name]) for name, share in shares.items()}
    total = sum(per_row.values())
    return {name: float(weight / total) for name, weight in per_row.items()}
