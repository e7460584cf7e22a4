"""Where a mixture ends, in rows: as many as are asked for, or as many as there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from tokenlake.config.resolved_mix import ResolvedMixture
from tokenlake.errors import ConfigError
from tokenlake.mixing import Mixture

_FURTHEST: Final = 1 << 50  # rows: more than any store holds


def rows_of(
    asked: ResolvedMixture, mixture: Mixture, rows: int, per_row: Sequence[Fraction], seq_length: int | None
) -> int:
    """Return how many rows the mixture gets.

    Args:
        asked: where it is to end.
        mixture: the order, which is not cut.
        rows: of all sources together: an epoch.
        per_row: ids that a row of each source adds, in the mean, in the order of the mixture.
        seq_length: of rows that are packed already, which all count for so many ids.

    Raises:
        ConfigError: the sources end before that, or it never ends.
    """
    if asked.total_rows is not None:
        wanted = asked.total_rows
    elif asked.epochs is not None:
        wanted = round(Fraction(asked.epochs) * rows)
    elif asked.total_tokens is None:
        wanted = mixture.rows
        if wanted is None:
            raise ConfigError(
                "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs"
            )
    elif seq_length is not None:
        wanted = -(-asked.total_tokens // seq_length)
    else:
        wanted = _rows_with(asked.total_tokens, mixture, per_row)
    if wanted < 1:
        raise ConfigError(
            f"mix: comes to {wanted} rows; expected at least 1. Set a later end, or longer sources"
        )
    return wanted


def _rows_with(tokens: int, mixture: Mixture, per_row: Sequence[Fraction]) -> int:
    """Return after how many rows so many ids are expected."""

    def expected(position: int) -> Fraction:
        drawn = mixture.drawn_before(position)
        return sum((int(count) * each for count, each in zip(drawn, per_row, strict=True)), Fraction(0))

    most = _FURTHEST if mixture.rows is None else mixture.rows
    if mixture.rows is not None and expected(most) < tokens:
        raise ConfigError(
            f"mix.total_tokens: {tokens:,}, but the sources end after {most:,} rows with about "
            f"{math.floor(expected(most)):,} tokens; ask for at most that, leave it out to take all, or set "
            "mix.stop_strategy: restart",
            expected=math.floor(expected(most)),
            got=tokens,
        )
    return _first(most, lambda position: expected(position) >= tokens)


def _first(most: int, holds: Callable[[int], bool]) -> int:
    """Return the first number of 1 to `most` for which `holds` is true, as it is for all larger ones."""
    low, high = 0, 1
    while high < most and not holds(high):
        low, high = high, min(high * 2, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
