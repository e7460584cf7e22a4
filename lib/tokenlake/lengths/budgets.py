"""Sharing a budget of tokens out among columns.

All strategies give every column at most what it has, and give out ``min(total, sum of all lengths)`` tokens to the
last one: what one column does not need goes to the others. Fractions are rounded by largest remainder, the earlier
column first among equals, so that equal questions get equal answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, Literal

from tokenlake.errors import ConfigError
from tokenlake.lengths.truncation import require

BudgetStrategy = Literal["equal", "proportional", "ratio", "priority", "adaptive"]

BUDGET_STRATEGIES: Final[tuple[BudgetStrategy, ...]] = (
    "equal",
    "proportional",
    "ratio",
    "priority",
    "adaptive",
)


def allocate(
    lengths: Mapping[str, int],
    total: int,
    strategy: BudgetStrategy = "adaptive",
    *,
    ratios: Mapping[str, float] | None = None,
    priority: Sequence[str] | None = None,
) -> dict[str, int]:
    """Return how many tokens each column gets, in the order of `lengths`.

    Args:
        lengths: column to the tokens it has, each at least 0.
        total: the budget; less than 1 gives nothing to anybody.
        strategy:
            - ``equal``: every column gets the same; what a column does not need is shared out equally among those
              that need more, and so on.
            - ``proportional``: every column gets the share of the budget that it has of all tokens, so that all are
              cut by the same part.
            - ``ratio``: as equal, but shares stand to each other as `ratios` do; a column of ratio 0 gets what the
              others leave.
            - ``priority``: the first column of `priority` gets all it needs, then the second, and so on; columns that
              are not named come last, in their own order.
            - ``adaptive``: every column gets what it has up to an equal share of the budget; the rest is shared out
              in proportion to what each still lacks. Short columns stay whole, and long ones are cut by the same part
              of what they have beyond the equal share.
        ratios: for ``ratio``: every column's weight, at least one of them above 0.
        priority: for ``priority``: columns, the most important first.

    Raises:
        ConfigError: an unknown strategy or column, a missing or negative ratio, a negative length, or an argument
            that the strategy does not take.
    """
    require("strategy", strategy, BUDGET_STRATEGIES)
    _check(lengths, strategy, ratios, priority)
    total = max(0, min(total, sum(lengths.values())))
    if strategy == "priority":
        return _by_priority(lengths, total, priority or ())
    if strategy == "adaptive":
        return _adaptive(lengths, total)
    weights = {
        "equal": dict.fromkeys(lengths, Fraction(1)),
        "proportional": {name: Fraction(length) for name, length in lengths.items()},
        "ratio": {name: Fraction((ratios or {}).get(name, 0)) for name in lengths},
    }[strategy]
    return _fill(lengths, weights, total)


def _check(
    lengths: Mapping[str, int],
    strategy: BudgetStrategy,
    ratios: Mapping[str, float] | None,
    priority: Sequence[str] | None,
) -> None:
    for name, length in lengths.items():
        if length < 0:
            raise ConfigError(f"lengths: column {name!r} has {length} tokens, expected at least 0")
    for what, given, needed in (("ratios", ratios, "ratio"), ("priority", priority, "priority")):
        if (given is not None) != (strategy == needed):
            verb = "needs" if strategy == needed else "takes no"
            raise ConfigError(f"budget strategy {strategy!r} {verb} {what}")
        if unknown := [name for name in given or () if name not in lengths]:
            raise ConfigError(f"{what}: no column {unknown[0]!r}; there are {', '.join(map(repr, lengths))}")
    if ratios is not None:
        _check_ratios(lengths, ratios)
    if priority is not None and len(set(priority)) < len(priority):
        raise ConfigError(f"priority: got {list(priority)!r}, expected every column at most once")


def _check_ratios(lengths: Mapping[str, int], ratios: Mapping[str, float]) -> None:
    if missing := [name for name in lengths if name not in ratios]:
        raise ConfigError(f"ratios: none for column {missing[0]!r}; expected one for every column")
    for name, ratio in ratios.items():
        if not (math.isfinite(ratio) and ratio >= 0):
            raise ConfigError(f"ratios: got {ratio} for column {name!r}, expected a number of at least 0")
    if lengths and not any(ratios.values()):
        raise ConfigError("ratios: all are 0, expected at least one above 0")


def _by_priority(lengths: Mapping[str, int], total: int, priority: Sequence[str]) -> dict[str, int]:
    given = dict.fromkeys(lengths, 0)
    for name in dict.fromkeys([*priority, *lengths]):
        given[name] = min(lengths[name], total)
        total -= given[name]
    return given


def _adaptive(lengths: Mapping[str, int], total: int) -> dict[str, int]:
    share = total // max(1, len(lengths))
    sure = {name: min(length, share) for name, length in lengths.items()}
    lacking = {name: length - sure[name] for name, length in lengths.items()}
    weights = {name: Fraction(length) for name, length in lacking.items()}
    more = _fill(lacking, weights, total - sum(sure.values()))
    return {name: sure[name] + more[name] for name in lengths}


def _fill(needs: Mapping[str, int], weights: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Share `total` (at most the sum of `needs`) out by weight, handing on what a column does not need."""
    given = dict.fromkeys(needs, 0)
    left = {name: need for name, need in needs.items() if need}
    while left and total:
        shares = _shares({name: weights[name] for name in left}, total)
        full = [name for name, share in shares.items() if share >= left[name]]
        if not full:
            # No share is more than its column lacks, and rounding up a fraction cannot make it more.
            return given | _rounded(shares, total)
        for name in full:
            given[name] = left.pop(name)
            total -= given[name]
    return given


def _shares(weights: dict[str, Fraction], total: int) -> dict[str, Fraction]:
    whole = sum(weights.values())
    if not whole:  # only columns of ratio 0 are left
        return dict.fromkeys(weights, Fraction(total, len(weights)))
    return {name: total * weight / whole for name, weight in weights.items()}


def _rounded(shares: dict[str, Fraction], total: int) -> dict[str, int]:
    """Round by largest remainder, so that the sum is `total`; the earlier column first among equals."""
    floors = {name: math.floor(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: floors[name] - shares[name])
    for name in by_remainder[: total - sum(floors.values())]:
        floors[name] += 1
    return floors
