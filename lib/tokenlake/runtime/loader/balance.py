"""Balance of batches: the rows of a batch are dealt so that every rank has about the same attention cost.

Attention inside documents costs a row the sum of its squared segment lengths. Ranks wait for each other in every step,
so that a step lasts as long as that of the rank with the most expensive rows. The costs of 8 rows for 2 ranks::

    as they come    9 7 8 6 | 1 2 1 2      30 and 6: max/mean 1.67
    dealt           9 6 2 1 | 7 8 1 2      18 and 18

Balance changes only the places of rows in their batch, and not which rows it has. Epochs, resuming and the number of
hosts are unaffected, and the number of ranks may change at any step.

1. Rows are dealt in rounds, the most expensive first, one to each rank. Every second round goes in the opposite order:
   the rank with the most expensive row of one round gets the cheapest of the next.
2. In the last round the rank with the least cost so far gets the most expensive row.
3. While the ranks are apart and it helps, the most expensive and the cheapest rank exchange the two rows that bring
   their costs nearest together.

All costs are whole numbers, and ties are broken by place. Dealing every round by the costs so far (Graham's longest
processing time rule) is no better on texts or code, and takes three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.checks import arguments_of, whole_number
from tokenlake.errors import ConfigError

_NEAR: Final = 50
"""Ranks are near enough where the dearest costs at most 1 / 50 more than the mean."""


@final
@dataclass(frozen=True, kw_only=True)
class BatchBalance:
    """Balance of batches of packed rows; see :mod:`tokenlake.runtime.loader.balance` and :class:`tokenlake.DataLoader`.

    Args:
        ranks: into how many neighbouring parts of as many rows a batch is dealt, which cost alike. None: with a
            sharding the parts that it cuts rows into, else the number of hosts. A multiple of that makes the
            micro-batches of each host cost alike, too.

    Raises:
        ConfigError: the value is not such a number.
    """

    ranks: int | None = None

    def __post_init__(self) -> None:
        if self.ranks is not None:
            whole_number("balance.ranks", self.ranks, 1)

    @classmethod
    def of(cls, asked: object) -> Self:
        """Read a balance, "attention", or a mapping of its arguments; ConfigError where it is none of these."""
        return arguments_of(cls, "balance", asked, {"attention": cls()})

    def over(self, parts: int, what: str) -> Self:
        """Return the same with a number of ranks: `parts`, where none is given.

        Raises:
            ConfigError: `parts`, which `what` cuts batches into, does not divide the ranks.
        """
        ranks = parts if self.ranks is None else self.ranks
        if ranks % parts:
            raise ConfigError(
                f"balance.ranks: got {ranks}, and {what} cuts batches into {parts} parts; expected a multiple of "
                f"{parts}"
            )
        return type(self)(ranks=ranks)


def dealt(costs: Int64, ranks: int) -> Int64:
    """Return which row each place of a batch has, int64[n]: the places of a rank lie together, its rows ascend.

    Args:
        costs: of the rows, int64[n], n a multiple of `ranks`.
        ranks: into how many parts they are dealt.
    """
    rounds = np.argsort(-costs, kind="stable").reshape(-1, ranks)
    last = rounds[-1].copy()
    rounds[1::2] = rounds[1::2, ::-1].copy()
    cheapest_first = np.argsort(costs[rounds[:-1]].sum(axis=0), kind="stable")
    rounds[-1, cheapest_first] = last
    _exchange(rounds, costs[rounds])
    rows = rounds.T.copy()
    rows.sort(axis=1)
    return rows.reshape(-1)


def _exchange(rows: Int64, costs: Int64) -> None:
    """Exchange rows of the dearest and the cheapest rank, in place, while ranks are apart and it helps.

    Args:
        rows, costs: a column for each rank, int64[n, ranks].
    """
    ranks = rows.shape[1]
    totals = costs.sum(axis=0)
    whole = int(totals.sum())
    for _ in range(2 * ranks):
        dear = int(totals.argmax())
        if int(totals[dear]) * ranks * _NEAR <= whole * (_NEAR + 1):
            return
        cheap = int(totals.argmin())
        apart = int(totals[dear] - totals[cheap])
        moved = costs[:, dear, None] - costs[:, cheap]
        left = np.abs(apart - 2 * moved)
        best = int(left.argmin())
        if left.flat[best] >= apart:
            return
        ours, theirs = divmod(best, len(rows))
        totals[dear] -= moved[ours, theirs]
        totals[cheap] += moved[ours, theirs]
        for values in (rows, costs):
            values[ours, dear], values[theirs, cheap] = values[theirs, cheap], values[ours, dear]
