"""Budgets of tokens shared among columns.

Every strategy gives a column at most its own length, and gives out exactly ``min(total, sum of all lengths)`` tokens:
what one column does not need goes to the others. Fractions are rounded by largest remainder, the earlier column first
among equals, so that equal questions have equal answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Final, Literal, get_args

from tokenlake.base.checks import require_one_of
from tokenlake.errors import ConfigError

BudgetStrategy = Literal["equal", "proportional", "ratio", "priority", "adaptive"]

BUDGET_STRATEGIES: Final[tuple[BudgetStrategy, ...]] = get_args(BudgetStrategy)


class ContentDistributionMode(StrEnum):
    """The budget strategies by name; each is its text, so that it can be given as `budget`."""

    EQUAL = "equal"
    PROPORTIONAL = "proportional"
    RATIO = "ratio"
    PRIORITY = "priority"
    ADAPTIVE = "adaptive"


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
    require_one_of("strategy", strategy, BUDGET_STRATEGIES)
    _check(lengths, strategy, ratios, priority)
    total = max(0, min(total, sum(lengths.values())))
    if strategy == "priority":
        given = dict.fromkeys(lengths, 0)
        for name in dict.fromkeys([*(priority or ()), *lengths]):
            given[name] = min(lengths[name], total)
            total -= given[name]
        return given
    share = total // max(1, len(lengths)) if strategy == "adaptive" else 0
    sure = {name: min(length, share) for name, length in lengths.items()}
    needs = {name: length - sure[name] for name, length in lengths.items()}
    same = dict.fromkeys(lengths, 1)
    weights = {"equal": same, "ratio": ratios or same}.get(strategy, needs)
    exact = {name: Fraction(weights[name]) for name in lengths}
    more = _fill(needs, exact, total - sum(sure.values()))
    return {name: sure[name] + more[name] for name in lengths}


def _check(
    lengths: Mapping[str, int],
    strategy: BudgetStrategy,
    ratios: Mapping[str, float] | None,
    priority: Sequence[str] | None,
) -> None:
    columns = ", ".join(map(repr, lengths)) or "none"
    if any(length < 0 for length in lengths.values()):
        raise ConfigError(f"lengths: got {dict(lengths)}, expected at least 0 tokens in every column")
    for what, given, needed in (("ratios", ratios, "ratio"), ("priority", priority, "priority")):
        if (given is not None) != (strategy == needed):
            verb = "needs" if strategy == needed else "takes no"
            raise ConfigError(f"budget strategy {strategy!r} {verb} {what}")
        if unknown := [name for name in given or () if name not in lengths]:
            raise ConfigError(f"{what}: no column {unknown[0]!r}; there are {columns}")
    if ratios is not None and lengths:
        fine = all(math.isfinite(ratio) and ratio >= 0 for ratio in ratios.values()) and any(ratios.values())
        if not fine or len(ratios) < len(lengths):
            expected = f"a number of at least 0 for every column ({columns}), one of them above 0"
            raise ConfigError(f"ratios: got {dict(ratios)}, expected {expected}")
    if priority is not None and len(set(priority)) < len(priority):
        raise ConfigError(f"priority: got {list(priority)!r}, expected every column at most once")


def _fill(needs: Mapping[str, int], weights: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Share `total` (at most the sum of `needs`) out by weight, handing on what a column does not need."""
    given = dict.fromkeys(needs, 0)
    left = {name: need for name, need in needs.items() if need}
    while left and total:
        whole = sum(weights[name] for name in left)
        # Without any weight only columns of ratio 0 are left.
        shares = {name: total * (weights[name] / whole if whole else Fraction(1, len(left))) for name in left}
        full = [name for name, share in shares.items() if share >= left[name]]
        if not full:
            # No share is more than its column lacks, and rounding up a fraction cannot make it more. The largest
            # remainders are rounded up, the earlier column first among equals, so that the sum is the total.
            floors = {name: math.floor(share) for name, share in shares.items()}
            by_remainder = sorted(shares, key=lambda name: floors[name] - shares[name])
            for name in by_remainder[: total - sum(floors.values())]:
                floors[name] += 1
            return given | floors
        for name in full:
            given[name] = left.pop(name)
            total -= given[name]
    return given
