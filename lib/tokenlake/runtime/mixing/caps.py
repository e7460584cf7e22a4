"""Caps on the sources of a mixture: repetitions, shares, epochs and token budgets.

A source is *shortened* to a share of its rows, always to the same rows: its row groups
are permuted once, and the first rows in that order are kept. A larger share therefore
contains all rows of a smaller one, for any weights, lanes and ends.

With *simulated epochs*, an experiment of E tokens represents a run of T tokens: each
source is shortened to E / T of its rows. The experiment then repeats each source as
often as the run would, and sees as little of the rest (Levanter's ``simulated
epoching``). Example: a run of 100 B tokens repeats a source of 10 B tokens; an
experiment of 1 B tokens uses 0.1 B tokens of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any, Final, cast, final

import numpy as np
import xxhash

from tokenlake.base import numbers
from tokenlake.base.arrays import Int64
from tokenlake.base.checks import did_you_mean, whole_number
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.random import Permutation, key_of

# First word of the keys that permute the row groups of a shortened source.
_KEPT_GROUPS: Final = 3
_LARGEST: Final = 1 << 62

Each = float | Fraction | Mapping[str, float] | Mapping[str, Fraction] | None
"""Cap of all sources, or of each source by name; None, or a missing name, means no
cap.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCaps:
    """Caps on the sources of a mixture; see :class:`tokenlake.Mixture`.

    Args:
        max_repetitions: Maximum average number of repetitions of a source's rows.
        max_fraction: Share of a source's rows that may be used; the source is shortened
            to it.
        epochs: Number of epochs of each source, in place of weights and an end.
        target_budget: Number of tokens of a run; None without simulated epochs.
        experiment_budget: Number of tokens of the experiment that represents the run;
            None without simulated epochs.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> from tokenlake.runtime.mixing import SourceCaps
        >>> SourceCaps(max_fraction={"web": 0.25}).kept({"code": 100, "web": 400})
        {'web': 100}
    """

    max_repetitions: Each = None
    max_fraction: Each = None
    epochs: Mapping[str, float] | None = None
    target_budget: int | None = None
    experiment_budget: int | None = None

    def __post_init__(self) -> None:
        for option in ("max_repetitions", "max_fraction", "epochs"):
            for key, number in self._numbers(option):
                is_number = not isinstance(number, bool) and isinstance(number, Real)
                if not is_number or not 0 < cast("Any", number) < _LARGEST:
                    raise ConfigError(
                        f"{key}: got {number!r}, must be a number above 0"
                    )
                if option == "max_fraction" and cast("Any", number) > 1:
                    raise ConfigError(
                        f"{key}: got {number!r}, must be a share above 0, at most 1"
                    )
        # The two budgets are given together, or not at all.
        budgets = {
            "target_budget": self.target_budget,
            "experiment_budget": self.experiment_budget,
        }
        for name, value in budgets.items():
            if value is not None:
                whole_number(name, value, 1)
        missing_budgets = [name for name, value in budgets.items() if value is None]
        if len(missing_budgets) == 1:
            raise ConfigError(
                f"{missing_budgets[0]}: missing; both budgets together determine the share of each source that is used"
            )
        if self._budget_ratio > 1:
            raise ConfigError(
                f"experiment_budget: got {self.experiment_budget:,}, more than the {self.target_budget:,} of "
                "target_budget; expected at most as many tokens"
            )

    def check_names(self, names: Mapping[str, Any]) -> None:
        """Raise ConfigError where a cap names another source, or `epochs` lacks one.

        Args:
            names: Sources of the mixture, by name.
        """
        for option in ("max_repetitions", "max_fraction", "epochs"):
            value = getattr(self, option)
            if not isinstance(value, Mapping):
                continue
            for name in cast("Mapping[str, Any]", value):
                if name not in names:
                    raise ConfigError(
                        f"{option}: {name!r} is not a source{did_you_mean(name, names)}; expected some of "
                        f"{', '.join(names)}"
                    )
        if self.epochs is not None:
            missing_names = [name for name in names if name not in self.epochs]
            if missing_names:
                raise ConfigError(
                    f"epochs: has no entry for {', '.join(missing_names)}; expected a number for each source"
                )

    def kept(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return the number of rows that are used of each source that is shortened.

        Args:
            rows: Number of rows of each source.

        Raises:
            ConfigError: A source with rows would have none left.
        """
        used_rows: dict[str, int] = {}
        for name, count in rows.items():
            share = _exact(_cap_of(self.max_fraction, name, 1)) * self._budget_ratio
            if share == 1:
                continue
            used_rows[name] = int(count * share)
            if count and not used_rows[name]:
                raise ConfigError(
                    f"{name}: a share of {float(share):.6g} of its {numbers.count(count)} rows is none; expected a "
                    "larger max_fraction or experiment_budget, or a larger source"
                )
        return used_rows

    def draws(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return the number of rows that the mixture takes of each source.

        It follows from :attr:`epochs`.

        Args:
            rows: Number of rows that are used of each source.
        """
        counts: dict[str, int] = {}
        for name, count in rows.items():
            counts[name] = round(_exact(_cap_of(self.epochs, name, 1)) * count)
        return counts

    def missing(
        self,
        drawn: Mapping[str, int],
        rows: Mapping[str, int],
        mean_tokens: Mapping[str, Fraction],
    ) -> list[str]:
        """Return a line for each source that the mixture repeats too often.

        Args:
            drawn: Number of rows that the mixture takes of each source.
            rows: Number of rows that are used of each source.
            mean_tokens: Mean number of tokens of a row of each source.
        """
        lines: list[str] = []
        for name, drawn_rows in drawn.items():
            repetitions = _cap_of(self.max_repetitions, name, None)
            if repetitions is None:
                continue
            allowed_rows = _exact(repetitions) * rows[name]
            if drawn_rows <= allowed_rows:
                continue
            row_tokens = mean_tokens[name]
            lines.append(
                f"{name}: asked for {_tokens(drawn_rows * row_tokens)} tokens; {float(repetitions):g} repetitions of "
                f"{_tokens(rows[name] * row_tokens)} tokens are {_tokens(allowed_rows * row_tokens)}, "
                f"{_tokens((drawn_rows - allowed_rows) * row_tokens)} missing"
            )
        return lines

    def check(
        self,
        drawn: Mapping[str, int],
        rows: Mapping[str, int],
        mean_tokens: Mapping[str, Fraction],
    ) -> None:
        """Raise ConfigError where a source is repeated too often.

        The arguments are those of :meth:`missing`.
        """
        lines = self.missing(drawn, rows, mean_tokens)
        if lines:
            raise ConfigError(
                f"max_repetitions: {'; '.join(lines)}. Give it less weight, end earlier, allow more repetitions, or "
                "add data"
            )

    def _numbers(self, option: str) -> list[tuple[str, object]]:
        """Return the numbers of a cap, each with its key for messages."""
        value: Any = getattr(self, option)
        if value is None:
            return []
        if isinstance(value, Mapping):
            caps = cast("Mapping[str, object]", value)
            return [(f"{option}.{name}", number) for name, number in caps.items()]
        return [(option, value)]

    @property
    def _budget_ratio(self) -> Fraction:
        """Share of each source that an experiment uses; 1 without simulated epochs."""
        if self.target_budget is None or self.experiment_budget is None:
            return Fraction(1)
        return Fraction(self.experiment_budget, self.target_budget)


def _cap_of(value: Any, name: str, default: Any) -> Any:
    """Return the cap of a source, or a default if there is none."""
    cap = value
    if isinstance(value, Mapping):
        cap = cast("Mapping[str, Any]", value).get(name)
    if cap is None:
        return default
    return cap


def _exact(value: Any) -> Fraction:
    """Return the decimal number that is written, not the nearest binary one.

    Example: 0.3 of 10 rows are 3.
    """
    return Fraction(str(value))


def _tokens(count: Fraction) -> str:
    """Return a number of tokens for a message."""
    return numbers.short(float(count))


def shortened(name: str, group_rows: Int64, rows: int | None, *, seed: int) -> Int64:
    """Return the rows that are kept of each row group of a source, int64[G].

    They are the first rows of the row group.

    Args:
        name: Name of the source.
        group_rows: Number of rows of each row group, int64[G].
        rows: Number of rows that are kept of the source; None for all.
        seed: Seed of the mixture.
    """
    if rows is None:
        return group_rows
    # 1. Permute the row groups: row group g goes to place[g].
    key = key_of(seed, xxhash.xxh3_64_intdigest(name.encode()), _KEPT_GROUPS)
    groups = np.arange(len(group_rows), dtype=np.int64)
    place = Permutation(len(group_rows), key).at(groups)
    rows_at_place = np.empty_like(group_rows)
    rows_at_place[place] = group_rows
    # 2. Keep rows in this order until there are enough: at each place, those that are
    #    still missing.
    rows_before_place = np.cumsum(rows_at_place) - rows_at_place
    missing_at_place = np.maximum(rows - rows_before_place, 0)
    return np.minimum(missing_at_place[place], group_rows)
