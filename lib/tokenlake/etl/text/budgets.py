"""Budgets of tokens shared among the columns of a row.

Every strategy gives a column at most its own length, and gives out exactly ``min(total,
sum of all lengths)`` tokens: tokens that one column does not need go to the others.
Fractions are rounded by largest remainder, the earlier column first among equals, so
that equal arguments give equal budgets. For example, 90 tokens for columns of 10, 100
and 50:

| strategy | 10 | 100 | 50 | how |
|---|---|---|---|---|
| ``equal`` | 10 | 40 | 40 | 30 each; the first leaves 20, which the others share |
| ``proportional`` | 6 | 56 | 28 | 90/160 of each, rounded to the total |
| ``adaptive`` | 10 | 46 | 34 | up to 30 each; the 20 left are shared as 70 to 20, which are still lacking |
| ``ratio`` 1:1:2 | 10 | 30 | 50 | 22.5, 22.5 and 45; the first leaves 12.5, shared as 1 to 2, and so on |
| ``priority`` c | 10 | 30 | 50 | the last column first, then the others in their order |

Shares are worked out in rounds (:func:`_share_by_weight`): columns that need no more
than their share get their need and leave the round; the others share the rest by their
weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Final, Literal, get_args

from tokenlake.base.checks import require_one_of
from tokenlake.errors import ConfigError

BudgetStrategy = Literal["equal", "proportional", "ratio", "priority", "adaptive"]

BUDGET_STRATEGIES: Final[tuple[BudgetStrategy, ...]] = get_args(BudgetStrategy)


class ContentDistributionMode(StrEnum):
    """Budget strategies by name.

    Each is its own text, so that it can be given as `budget`.

    Example:
        >>> from tokenlake.data_pipeline import ContentDistributionMode
        >>> ContentDistributionMode.ADAPTIVE == "adaptive"
        True
    """

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
    """Return the number of tokens of each column, in the order of `lengths`.

    Args:
        lengths: Number of tokens that each column has, at least 0.
        total: Number of tokens to give out; less than 1 gives out none.
        strategy: Rule by which they are shared:

            - ``equal``: every column gets the same number; tokens that a column does
              not need are shared out equally among those that need more, and so on.
            - ``proportional``: every column gets the share of the budget that it has of
              all tokens, so that all are cut by the same part.
            - ``ratio``: as ``equal``, but the shares stand to each other as `ratios`; a
              column of ratio 0 gets only tokens that the others leave.
            - ``priority``: the first column of `priority` gets all it needs, then the
              second, and so on; columns that are not named come last, in their own
              order.
            - ``adaptive``: every column gets its tokens up to an equal share of the
              budget; the rest is shared out in proportion to the tokens that each still
              lacks. Short columns stay whole, and long ones are cut by the same part of
              their tokens beyond the equal share.
        ratios: Weight of every column, at least and at least one above 0; for ``ratio``
            only.
        priority: Columns, the most important first; for ``priority`` only.

    Raises:
        ConfigError: The strategy or a column is unknown, a ratio is missing or
            negative, a length is negative, or the strategy does not take an argument.
    """
    # 1. An argument that the strategy does not use is an error: it would be ignored in
    #    silence otherwise.
    require_one_of("strategy", strategy, BUDGET_STRATEGIES)
    _require_lengths(lengths)
    _require_argument("ratios", ratios, strategy == "ratio", strategy, lengths)
    _require_argument("priority", priority, strategy == "priority", strategy, lengths)
    _require_ratios(ratios, lengths)
    _require_priority(priority)
    total = max(0, min(total, sum(lengths.values())))
    if strategy == "priority":
        return _share_by_priority(lengths, total, priority or ())
    # 2. Tokens that a column gets in any case; only those of an adaptive budget are not
    #    0.
    guaranteed = dict.fromkeys(lengths, 0)
    if strategy == "adaptive" and lengths:
        equal_share = total // len(lengths)
        for column, length in lengths.items():
            guaranteed[column] = min(length, equal_share)
    needs = {column: length - guaranteed[column] for column, length in lengths.items()}
    # 3. The rest is shared by weight. Proportional and adaptive budgets weigh a column
    #    by its need.
    weights: Mapping[str, float] = needs
    if strategy == "equal":
        weights = dict.fromkeys(lengths, 1)
    elif ratios:
        weights = ratios
    # Fractions are exact: rounding does not depend on the order of additions.
    exact_weights = {column: Fraction(weights[column]) for column in lengths}
    shares = _share_by_weight(needs, exact_weights, total - sum(guaranteed.values()))
    return {column: guaranteed[column] + shares[column] for column in lengths}


def _share_by_priority(
    lengths: Mapping[str, int], total: int, priority: Sequence[str]
) -> dict[str, int]:
    """Give each column all it needs, while tokens are left.

    Columns of `priority` come first, then the others in the order of `lengths`.
    """
    shares = dict.fromkeys(lengths, 0)
    # A dict drops the second mention of a column and keeps the order of the first.
    for column in dict.fromkeys([*priority, *lengths]):
        shares[column] = min(lengths[column], total)
        total -= shares[column]
    return shares


def _share_by_weight(
    needs: Mapping[str, int], weights: Mapping[str, Fraction], total: int
) -> dict[str, int]:
    """Share `total` by weight; a column gets at most its need.

    `total` is at most the sum of `needs`, so that every token finds a column.

    1. Give every pending column its share of the total by weight.
    2. If shares cover the needs of some columns, give these their needs, and share the
       rest again.
    3. Otherwise round the shares.
    """
    budgets = dict.fromkeys(needs, 0)
    pending = {name: need for name, need in needs.items() if need}
    while pending and total:
        shares = _exact_shares(pending, weights, total)
        covered: list[str] = []
        for column, share in shares.items():
            if share >= pending[column]:
                covered.append(column)
        if not covered:
            # No share is more than its column needs, and rounding up a fraction cannot
            # make it more.
            budgets.update(_rounded(shares, total))
            return budgets
        # Every round removes at least one column, so that the loop ends.
        for column in covered:
            budgets[column] = pending.pop(column)
            total -= budgets[column]
    return budgets


def _exact_shares(
    columns: Collection[str], weights: Mapping[str, Fraction], total: int
) -> dict[str, Fraction]:
    """Return the share of each column by weight.

    Shares are equal where only columns of weight 0 are left: the tokens that the others
    do not need go to them.
    """
    total_weight = sum(weights[column] for column in columns)
    if not total_weight:
        return dict.fromkeys(columns, Fraction(total, len(columns)))
    return {column: total * weights[column] / total_weight for column in columns}


def _rounded(shares: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Round shares to whole numbers whose sum is `total`.

    The largest remainders are rounded up, the earlier column first among equals.
    """
    rounded = {column: math.floor(share) for column, share in shares.items()}
    # The sort is stable: among equal remainders the earlier column stays first.
    by_remainder = sorted(shares, key=lambda column: rounded[column] - shares[column])
    missing_tokens = total - sum(rounded.values())
    for column in by_remainder[:missing_tokens]:
        rounded[column] += 1
    return rounded


# ---- checks --------------------------------------------------------------------------


def _require_lengths(lengths: Mapping[str, int]) -> None:
    for length in lengths.values():
        if length < 0:
            raise ConfigError(
                f"lengths: got {dict(lengths)}, expected at least 0 tokens in every column"
            )


def _require_argument(
    argument: str,
    columns: Collection[str] | None,
    is_needed: bool,
    strategy: BudgetStrategy,
    lengths: Mapping[str, int],
) -> None:
    """Require an argument if its strategy needs it, and only then; it names columns."""
    if is_needed and columns is None:
        raise ConfigError(f"budget strategy {strategy!r} needs {argument}")
    if columns is not None and not is_needed:
        raise ConfigError(f"budget strategy {strategy!r} takes no {argument}")
    for column in columns or ():
        if column not in lengths:
            raise ConfigError(
                f"{argument}: no column {column!r}; there are {_listed(lengths)}"
            )


def _require_ratios(
    ratios: Mapping[str, float] | None, lengths: Mapping[str, int]
) -> None:
    if ratios is None or not lengths:
        return
    values = ratios.values()
    are_numbers = all(math.isfinite(ratio) and ratio >= 0 for ratio in values)
    # Ratios of which all are 0 would share out nothing.
    is_complete = any(values) and len(ratios) >= len(lengths)
    if not are_numbers or not is_complete:
        raise ConfigError(
            f"ratios: got {dict(ratios)}, expected a number, at least 0, for every column ({_listed(lengths)}), and "
            "at least one above 0"
        )


def _require_priority(priority: Sequence[str] | None) -> None:
    if priority is not None and len(set(priority)) < len(priority):
        raise ConfigError(
            f"priority: got {list(priority)!r}, expected every column at most once"
        )


def _listed(columns: Collection[str]) -> str:
    return ", ".join(map(repr, columns)) or "none"
