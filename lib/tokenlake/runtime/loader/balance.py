"""Balance of batches: every rank of a batch has about the same attention cost.

The rows of a batch are dealt to the ranks by their cost. Attention inside documents
costs a row the sum of its squared segment lengths. Ranks wait for each other in every
step, so that a step lasts as long as that of the rank with the most expensive rows. The
costs of 8 rows for 2 ranks::

    as they come    9 7 8 6 | 1 2 1 2      30 and 6: max/mean 1.67
    dealt           9 6 2 1 | 7 8 1 2      18 and 18

Balance changes only the places of rows in their batch, and not which rows it has.
Epochs, resuming and the number of hosts are unaffected, and the number of ranks may
change at any step.

1. Rows are dealt in rounds, the most expensive first, one to each rank. Every second
   round goes in the opposite order: the rank with the most expensive row of one round
   gets the cheapest of the next.
2. In the last round the rank with the least cost so far gets the most expensive row.
3. While the ranks are apart and it helps, the most expensive and the cheapest rank
   exchange the two rows that bring their costs nearest together.

All costs are whole numbers, and ties are broken by place. Dealing every round by the
costs so far (Graham's longest processing time rule) is no better on texts or code, and
takes three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.checks import arguments_of, whole_number
from tokenlake.errors import ConfigError

_TOLERANCE_DIVISOR: Final = 50
"""Rows are exchanged until the most expensive rank costs at most 1 / 50 more than the
mean.
"""


@final
@dataclass(frozen=True, kw_only=True)
class BatchBalance:
    """Balance of the rows of a batch among ranks, for :class:`tokenlake.DataLoader`.

    The rows of each batch are dealt so that each rank has the same number of rows and
    about the same attention cost.

    Args:
        ranks: Number of equal, neighbouring parts of a batch that have about the same
            cost. None: with a sharding, the number of parts into which it divides rows,
            otherwise the number of hosts. A multiple of that also balances the
            micro-batches of each host.

    Raises:
        ConfigError: The value is not a whole number from 1 on.

    Example:
        >>> import tokenlake as tl
        >>> tl.BatchBalance(ranks=8).over(4, "host").ranks
        8
    """

    ranks: int | None = None

    def __post_init__(self) -> None:
        if self.ranks is not None:
            whole_number("balance.ranks", self.ranks, 1)

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a balance from a balance, "attention", or a mapping of arguments.

        Raises:
            ConfigError: It is none of these.
        """
        return arguments_of(cls, "balance", value, {"attention": cls()})

    def over(self, parts: int, option: str) -> Self:
        """Return this balance with its number of ranks.

        It is the number that was given, or else that of the parts of a batch.

        Args:
            parts: Number of parts into which batches are divided.
            option: Name of the option that divides them, for the message.

        Raises:
            ConfigError: The number of ranks is not a multiple of the parts.
        """
        ranks = parts if self.ranks is None else self.ranks
        if ranks % parts:
            raise ConfigError(
                f"balance.ranks: got {ranks}, and {option} cuts batches into {parts} parts; expected a multiple of "
                f"{parts}"
            )
        return type(self)(ranks=ranks)


def dealt(costs: Int64, ranks: int) -> Int64:
    """Return the row at each place of a batch, int64[n].

    The places of a rank are neighbours, and its rows ascend. The steps are those at the
    top of this module.

    Args:
        costs: Cost of each row, int64[n].
        ranks: Number of ranks, a divisor of n.
    """
    # 1. Rounds of one row for each rank, most expensive first; every second round in
    #    the opposite order.
    rounds = np.argsort(-costs, kind="stable").reshape(-1, ranks)
    last_round = rounds[-1].copy()
    rounds[1::2] = rounds[1::2, ::-1].copy()
    # 2. In the last round, the rank with the least cost gets the most expensive row.
    cheapest_first = np.argsort(costs[rounds[:-1]].sum(axis=0), kind="stable")
    rounds[-1, cheapest_first] = last_round
    # 3. Exchanges between the most expensive and the cheapest rank.
    _exchange(rounds, costs[rounds])
    rows = rounds.T.copy()
    rows.sort(axis=1)
    return rows.reshape(-1)


def _exchange(rows: Int64, costs: Int64) -> None:
    """Exchange rows of the most expensive and the cheapest rank, in place.

    Rows are exchanged while that brings the costs of the two ranks nearer. Exchanging a
    row of cost a for one of cost b changes the difference of the two ranks by
    ``2 (a - b)``.

    Args:
        rows: Rows of each rank, a column for each, int64[rounds, ranks].
        costs: Their costs, int64[rounds, ranks].
    """
    ranks = rows.shape[1]
    rank_costs = costs.sum(axis=0)
    total_cost = int(rank_costs.sum())
    for _ in range(2 * ranks):
        expensive = int(rank_costs.argmax())
        # The same as cost / mean <= 1 + 1 / divisor, in whole numbers.
        largest_cost = int(rank_costs[expensive])
        tolerated = total_cost * (_TOLERANCE_DIVISOR + 1)
        if largest_cost * ranks * _TOLERANCE_DIVISOR <= tolerated:
            return
        cheap = int(rank_costs.argmin())
        difference = int(rank_costs[expensive] - rank_costs[cheap])
        # Cost that each exchange moves from the expensive to the cheap rank,
        # int64[rounds, rounds]. The difference shrinks by twice that.
        moved = costs[:, expensive, None] - costs[:, cheap]
        remaining = np.abs(difference - 2 * moved)
        best = int(remaining.argmin())
        if remaining.flat[best] >= difference:
            return
        expensive_row, cheap_row = divmod(best, len(rows))
        rank_costs[expensive] -= moved[expensive_row, cheap_row]
        rank_costs[cheap] += moved[expensive_row, cheap_row]
        for values in (rows, costs):
            value = values[expensive_row, expensive]
            values[expensive_row, expensive] = values[cheap_row, cheap]
            values[cheap_row, cheap] = value
