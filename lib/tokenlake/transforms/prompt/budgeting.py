"""Input columns shortened so that a prompt fits, before its end is cut: the answer should not pay for a long input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from tokenlake.lengths.budgets import BudgetStrategy, allocate
from tokenlake.lengths.manager import LengthManager
from tokenlake.lengths.truncation import Side, Strategy
from tokenlake.rows import Row
from tokenlake.tokenizers import TokenizerFiles

_TRIES: Final = 8  # tokens merge differently in a shorter text, so that the first try may miss by a few


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """How room is shared among columns; see :func:`tokenlake.lengths.budgets.allocate`."""

    strategy: BudgetStrategy
    ratios: Mapping[str, float] | None = None
    priority: Sequence[str] | None = None


@final
class Budgeting:
    """Shortens the columns of rows whose prompt is too long.

    Args:
        columns: that may be shortened; the label is none of them.
        truncation, side: how a column is cut.

    Raises:
        ConfigError: the budget names a column that there is not, or lacks or has what its strategy does not take.
    """

    def __init__(
        self, columns: Sequence[str], budget: Budget, files: TokenizerFiles, truncation: Strategy, side: Side
    ) -> None:
        nothing = dict.fromkeys(columns, 0)
        allocate(nothing, 0, budget.strategy, ratios=budget.ratios, priority=budget.priority)
        self._columns = tuple(columns)
        self._lengths = LengthManager(
            files,
            max_length=1 << 30,
            truncation="simple" if truncation == "none" else truncation,
            truncation_side=side,
            budget=budget.strategy,
            ratios=budget.ratios,
            priority=budget.priority,
            add_special_tokens=False,
        )

    def shortened(self, row: Row, limit: int, size: Callable[[Row], int]) -> Row:
        """Return the row, its columns cut so that ``size(row)`` is at most `limit`; as it is where that cannot be."""
        over = size(row) - limit
        # A column without text keeps its place in ratios and priorities.
        found = {name: row.get(name) for name in self._columns}
        texts = {name: value if isinstance(value, str) else "" for name, value in found.items()}
        if over <= 0 or not any(texts.values()):
            return row
        total = int(self._lengths.count(list(texts.values())).sum())
        for _ in range(_TRIES):
            total -= over
            if total < 0:
                break
            cut = self._lengths.fit(texts, total)
            short = {**row, **{name: each.text for name, each in cut.items() if texts[name]}}
            over = size(short) - limit
            if over <= 0:
                return short
        return row
