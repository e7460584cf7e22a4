"""Weights of the sources of a mixture: checked, normalized, and as exact whole numbers.

A float is a fraction with a power of two as denominator. Weights are exactly these
fractions, divided by their sum, so that they sum to 1 and not to 0.9999999999999999.
For counting they become whole numbers of units of 2^-96: a float has 53 bits, so that
after 10^12 rows no share is off by more than 10^-16 rows.

Example: three weights of 1/3. Rounded down, each is ``(2^96 - 1) / 3`` units; the one
unit that is missing goes to the first source.
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
        weights: Weight of each source, at least one, none negative: shares,
            percentages, or ratios of whole numbers (see
            :func:`tokenlake.base.shares.shares_of`).
        where: Clause for messages, for example ``" at step 5 of the schedule"``.

    Raises:
        ConfigError: The weights are anything else.
    """
    if not isinstance(weights, Mapping) or not weights:  # pyright: ignore[reportUnnecessaryIsInstance]
        description = f"weights {weights!r:.80}" if weights else "no weights"
        raise ConfigError(
            f"there are {description}{where}; expected name to weight for at least one source"
        )
    floats: dict[str, float] = {}
    for name, weight in weights.items():
        floats[name] = _float_of(weight)
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


def _float_of(weight: Any) -> float:
    """Return a weight as float; NaN if it is no number."""
    if isinstance(weight, bool | str):
        return math.nan
    try:
        return float(weight)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def check_weight_names(
    option: str, names: Collection[str], keys: Collection[str]
) -> None:
    """Raise ConfigError unless each source, and nothing else, has a weight.

    The message has the nearest names.

    Args:
        option: Key of the weights, for the message.
        names: Names of the sources.
        keys: Names that have a weight.
    """
    problems: list[str] = []
    for name in names:
        if name not in keys:
            problems.append(f"no weight for {name!r}")
    for key in keys:
        if key not in names:
            problems.append(f"{key!r} is not a source{did_you_mean(key, names)}")
    if problems:
        raise ConfigError(
            f"{option}: expected a weight for each of {', '.join(names)}, but {', '.join(problems)}"
        )


def normalized(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """Return the exact fractions of floats, divided by their sum."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return tuple(weight / total for weight in exact)


# A schedule with many changes needs all of its points at each change.
@lru_cache(1 << 12)
def in_units(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return weights that sum to 1 as whole numbers that sum to ``2**UNIT_BITS``.

    All are rounded down; the units that are then missing go to the largest remainders,
    the first source first. A weight of 0 stays 0.
    """
    # Rounded down, and the remainder of each source, negative so that the largest is
    # sorted first.
    units: list[int] = []
    negative_remainders: list[Fraction] = []
    for weight in weights:
        exact_units = weight * (1 << UNIT_BITS)
        rounded_units = math.floor(exact_units)
        units.append(rounded_units)
        negative_remainders.append(rounded_units - exact_units)
    missing_units = (1 << UNIT_BITS) - sum(units)
    by_remainder = sorted(
        range(len(units)), key=lambda source: (negative_remainders[source], source)
    )
    for source in by_remainder[:missing_units]:
        units[source] += 1
    return tuple(units)


def row_weights(
    weights: Mapping[str, float], mean_tokens: Mapping[str, float]
) -> dict[str, float]:
    """Return the weights per row that give sources the shares of *tokens* `weights`.

    A source with long rows needs fewer of them: each weight is divided by the source's
    mean tokens per row, and the results by their sum. Example: equal shares of tokens
    from rows of 3,000 and 1,000 tokens need weights of 0.25 and 0.75.

    A schedule is converted point by point. Exactly at a point the shares of tokens are
    then those of the schedule. Between two points the weights per row move in a line or
    along the cosine. Shares of tokens therefore move between the same two values,
    monotonically, but on a curve that bends towards the longer rows.

    Args:
        weights: Share of tokens of each source, summing to 1.
        mean_tokens: Mean number of tokens per row of each source, more than 0; it may
            have other names too.

    Raises:
        ConfigError: A source has no mean, or none above 0.
    """
    shares = check_weights(weights)
    per_row: dict[str, Fraction] = {}
    for name, share in shares.items():
        if not 0.0 < mean_tokens.get(name, 0.0) < math.inf:
            raise ConfigError(
                f"source {name!r} has {mean_tokens.get(name)} tokens per row; expected a mean above 0, "
                "by which its weight per token becomes a weight per row"
            )
        per_row[name] = Fraction(share) / Fraction(mean_tokens[name])
    total = sum(per_row.values())
    return {name: float(weight / total) for name, weight in per_row.items()}
