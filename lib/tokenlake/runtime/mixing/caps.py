"""Caps on the sources of a mixture: repetitions, shares of a source, epochs, and token budgets.

A source is *shortened* to a share of its rows, always to the same ones: its row groups are permuted once, and the first
rows in that order are kept. A larger share therefore has all rows of a smaller one, for any weights, lanes and ends.

By *simulated epochs* an experiment of E tokens represents a run of T tokens: each source is shortened to E / T of its
rows. The experiment then repeats each source as often as the run would, and sees as little of the rest (Levanter's
``simulated epoching``).
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

_KEPT: Final = 3  # the first word of the keys that say which row groups are kept

Each = float | Fraction | Mapping[str, float] | Mapping[str, Fraction] | None
"""Of all sources, or source -> its own; None, or no such source: no cap."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCaps:
    """What is asked of the sources of a mixture; see :class:`tokenlake.Mixture`.

    Args:
        max_repetitions: how often each row of a source may come, in the mean of its rows.
        max_fraction: the share of a source's rows that may be used; it is shortened to that.
        epochs: source -> how often its rows come, in place of weights and an end.
        target_budget, experiment_budget: tokens of a run, and of the experiment that stands for it.

    Raises:
        ConfigError: one of them cannot be.
    """

    max_repetitions: Each = None
    max_fraction: Each = None
    epochs: Mapping[str, float] | None = None
    target_budget: int | None = None
    experiment_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_repetitions", "max_fraction", "epochs"):
            value: Any = getattr(self, name)
            each = value.items() if isinstance(value, Mapping) else [("", value)]
            for source, one in () if value is None else each:
                where = f"{name}.{source}" if source else name
                number = cast("Any", one)
                if isinstance(one, bool) or not isinstance(one, Real) or not 0 < number < 1 << 62:
                    raise ConfigError(f"{where}: got {one!r}, must be a number above 0")
                if name == "max_fraction" and number > 1:
                    raise ConfigError(f"{where}: got {one!r}, must be a share above 0, at most 1")
        budgets = {"target_budget": self.target_budget, "experiment_budget": self.experiment_budget}
        absent = [name for name, value in budgets.items() if value is None]
        for name, value in budgets.items():
            if value is not None:
                whole_number(name, value, 1)
        if len(absent) == 1:
            raise ConfigError(
                f"{absent[0]}: missing; the two budgets say together which share of each source is used"
            )
        if self._ratio > 1:
            raise ConfigError(
                f"experiment_budget: got {self.experiment_budget:,}, more than the {self.target_budget:,} of "
                "target_budget; expected at most as many tokens"
            )

    def check_names(self, names: Mapping[str, Any]) -> None:
        """Raise ConfigError where a cap is of none of the sources, or `epochs` lacks one of them."""
        for option in ("max_repetitions", "max_fraction", "epochs"):
            value = getattr(self, option)
            for name in value if isinstance(value, Mapping) else ():
                if name not in names:
                    raise ConfigError(
                        f"{option}: {name!r} is no source{did_you_mean(name, names)}; expected some of "
                        f"{', '.join(names)}"
                    )
        if self.epochs is not None and (absent := [name for name in names if name not in self.epochs]):
            raise ConfigError(
                f"epochs: says nothing of {', '.join(absent)}; expected a number for each source"
            )

    def kept(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return how many rows are used of the sources that are shortened.

        Args:
            rows: of each source.

        Raises:
            ConfigError: none are left of one that has some.
        """
        found: dict[str, int] = {}
        for name, there in rows.items():
            part = _exact(_of(self.max_fraction, name, 1)) * self._ratio
            if part == 1:
                continue
            found[name] = int(there * part)
            if there and not found[name]:
                raise ConfigError(
                    f"{name}: a share of {float(part):.6g} of its {numbers.count(there)} rows is none; expected a "
                    "larger max_fraction or experiment_budget, or a larger source"
                )
        return found

    def draws(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return how many rows come of each source, by :attr:`epochs`.

        Args:
            rows: that are used of each.
        """
        return {name: round(_exact(_of(self.epochs, name, 1)) * there) for name, there in rows.items()}

    def missing(
        self, drawn: Mapping[str, int], rows: Mapping[str, int], mean_tokens: Mapping[str, Fraction]
    ) -> list[str]:
        """Return a line for each source that comes more often than it may.

        Args:
            drawn: rows of each source in the mixture.
            rows: that are used of each.
            mean_tokens: of a row of each.
        """
        found: list[str] = []
        for name, come in drawn.items():
            most = _of(self.max_repetitions, name, None)
            if most is None or come <= (allowed := _exact(most) * rows[name]):
                continue
            asked, there = (numbers.short(float(each * mean_tokens[name])) for each in (come, rows[name]))
            may, lack = (numbers.short(float(each * mean_tokens[name])) for each in (allowed, come - allowed))
            found.append(
                f"{name}: asked for {asked} tokens; {float(most):g} repetitions of {there} tokens are {may}, "
                f"{lack} missing"
            )
        return found

    def check(
        self, drawn: Mapping[str, int], rows: Mapping[str, int], mean_tokens: Mapping[str, Fraction]
    ) -> None:
        """Raise ConfigError where a source comes more often than it may; arguments as of :meth:`missing`."""
        if lines := self.missing(drawn, rows, mean_tokens):
            raise ConfigError(
                f"max_repetitions: {'; '.join(lines)}. Give it less weight, end earlier, allow more repetitions, or "
                "add data"
            )

    @property
    def _ratio(self) -> Fraction:
        if self.target_budget is None or self.experiment_budget is None:
            return Fraction(1)
        return Fraction(self.experiment_budget, self.target_budget)


def _of(value: Any, name: str, default: Any) -> Any:
    found = value.get(name) if isinstance(value, Mapping) else value
    return default if found is None else found


def _exact(value: Any) -> Fraction:
    """The decimal number that is written, not the binary one that is next to it: 0.3 of 10 rows are 3."""
    return Fraction(str(value))


def shortened(name: str, group_rows: Int64, rows: int | None, *, seed: int) -> Int64:
    """Return the rows that are kept of each row group of a source, the first of each, int64[G].

    Args:
        name: of the source.
        group_rows: rows of each row group, int64[G].
        rows: how many are kept of all; None: every row.
        seed: of the mixture.
    """
    if rows is None:
        return group_rows
    # 1. Permute the row groups: row group g goes to place[g].
    key = key_of(seed, xxhash.xxh3_64_intdigest(name.encode()), _KEPT)
    place = Permutation(len(group_rows), key).at(np.arange(len(group_rows), dtype=np.int64))
    rows_at_place = np.empty_like(group_rows)
    rows_at_place[place] = group_rows
    # 2. Keep rows in this order until there are enough: at each place, those that are still missing.
    rows_before_place = np.cumsum(rows_at_place) - rows_at_place
    missing_at_place = np.maximum(rows - rows_before_place, 0)
    return np.minimum(missing_at_place[place], group_rows)
