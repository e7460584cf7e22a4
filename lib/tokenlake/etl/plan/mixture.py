"""The order of a mixture with every choice made: weights per row, lanes, limits of
repetition, and the last row.

1. Turn the schedule of the configuration into weights per row (:func:`spec_of`).
   Weights of tokens are divided by the mean tokens of a row, and numbers of epochs per
   source become shares of all rows.
2. Lay the sources out in one lane, and find the row at which the mixture ends
   (:func:`rows_of`).
3. Choose the number of lanes for that many rows.
4. Find the last row again: sources that end do so at other rows with other lanes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, TypeAlias, cast

from tokenlake.config.pipeline import MixStageConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.job.messages import RowsOut
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.runtime.mixing.caps import SourceCaps
from tokenlake.runtime.mixing.lane_count import choose_lanes
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.weights import row_weights
from tokenlake.runtime.store.draws import open_mixture
from tokenlake.runtime.store.mixture import (
    MOST_BLOCK,
    MOST_LANES,
    MixtureOrder,
    MixtureSpec,
    WeightPoint,
)

Amounts: TypeAlias = Mapping[str, tuple[int, int]]
"""Rows and tokens of each source, in configuration order."""

_FURTHEST_ROW: Final = 1 << 50
"""A number of rows that is larger than any store holds."""


def rows_of(
    asked: MixStageConfig,
    mixture: SourceMixture,
    rows: int,
    per_row: Sequence[Fraction],
    width: int | None,
) -> int:
    """Return the number of rows of a mixture.

    Args:
        asked: Section `mix` of the configuration, which says where the mixture ends.
        mixture: Order of the mixture, without an end.
        rows: Number of rows of all sources together: of one epoch or, where the
            configuration has epochs per source, of these.
        per_row: Mean number of ids that a row of each source adds, in the order of the
            mixture.
        width: Number of ids of every row where rows are packed already, else None.

    Raises:
        ConfigError: The sources end before that, or the mixture never ends.
    """
    if asked.total_rows is not None:
        wanted = asked.total_rows
    elif isinstance(asked.epochs, Mapping):
        wanted = rows
    elif asked.epochs is not None:
        wanted = round(Fraction(asked.epochs) * rows)
    elif asked.total_tokens is None:
        if mixture.rows is None:
            raise ConfigError(
                "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs"
            )
        wanted = mixture.rows
    elif width is not None:
        wanted = math.ceil(Fraction(asked.total_tokens, width))
    else:
        wanted = _rows_with_tokens(asked.total_tokens, mixture, per_row)
    if wanted < 1:
        raise ConfigError(
            f"mix: the mixture has {wanted} rows; expected at least 1. Let it end later, or use longer sources"
        )
    return wanted


def _rows_with_tokens(
    tokens: int, mixture: SourceMixture, per_row: Sequence[Fraction]
) -> int:
    """Return the smallest number of rows that is expected to have this number of
    tokens.
    """

    def expected_tokens(row: int) -> Fraction:
        total = Fraction(0)
        for count, mean in zip(mixture.drawn_before(row), per_row, strict=True):
            total += int(count) * mean
        return total

    last_row = _FURTHEST_ROW
    if mixture.rows is not None:
        last_row = mixture.rows
        available = math.floor(expected_tokens(last_row))
        if expected_tokens(last_row) < tokens:
            raise ConfigError(
                f"mix.total_tokens: {tokens:,}, but the sources end after {last_row:,} rows with about {available:,} "
                "tokens; set at most that, leave it out to use all, or set mix.stop_strategy: restart",
                expected=available,
                got=tokens,
            )
    # A row far beyond the answer would need numbers that are too large to count with.
    enough = 1
    while enough < last_row and expected_tokens(enough) < tokens:
        enough = min(enough * 2, last_row)
    return bisect_left(range(1, enough), tokens, key=expected_tokens) + 1


def weighed(
    parents: Sequence[FoundParent], asked: MixStageConfig
) -> tuple[FoundParent, ...]:
    """Return the parents that have a weight at any point of the schedule;
    ConfigError where none has.
    """
    names_with_weight: set[str] = set()
    for _, weights in asked.points:
        names_with_weight.update(name for name, weight in weights.items() if weight)
    weighed_parents = tuple(
        parent for parent in parents if parent.name in names_with_weight
    )
    if not weighed_parents:
        raise ConfigError(
            "mix.weights: all are 0; expected a weight above 0 for at least one dataset"
        )
    return weighed_parents


def settled(
    asked: MixStageConfig, parents: Sequence[FoundParent], out: RowsOut
) -> tuple[MixtureSpec, SourceMixture]:
    """Return the mixture of parents, with its lanes and its end.

    Args:
        asked: Section `mix` of the configuration.
        parents: Versions that are mixed; each has rows.
        out: Format of the new rows.

    Raises:
        ConfigError: The configuration describes no mixture of these parents.
    """
    _require_at_most("lanes", asked.lanes or 1, MOST_LANES)
    _require_at_most("block_size", asked.block_size, MOST_BLOCK)

    amounts = {parent.name: (parent.rows, parent.tokens) for parent in parents}
    spec = spec_of(asked, amounts)
    in_one_lane = open_mixture(spec, to_end=True)
    rows = epoch_rows(asked, amounts)
    per_row = [
        Fraction(parent.tokens, parent.rows) + out.append_eos for parent in parents
    ]
    width = parents[0].width

    lanes = asked.lanes
    if not lanes:
        step_rows = None
        if in_one_lane.scheduler.changes:
            step_rows = asked.step_rows
        lanes = choose_lanes(
            {
                parent.name: parent.size.shortened(spec.order.kept.get(parent.name))
                for parent in parents
            },
            [point.weights for point in spec.order.points],
            batch_size=asked.batch_size,
            step_rows=step_rows,
            rows=rows_of(asked, in_one_lane, rows, per_row, width),
        )
    spec = replace(spec, order=replace(spec.order, lanes=lanes))

    # Where sources begin anew, the number of lanes does not change the number of rows
    # of each.
    mixture = in_one_lane
    if asked.stop_strategy != "restart":
        mixture = open_mixture(spec, to_end=True)
    last_row = rows_of(asked, mixture, rows, per_row, width)
    spec = replace(spec, order=replace(spec.order, rows=last_row))
    return spec, open_mixture(spec)


def _require_at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise ConfigError(
            f"mix.{name}: {value}; expected at most {most}", expected=most, got=value
        )


def spec_of(asked: MixStageConfig, there: Amounts) -> MixtureSpec:
    """Return the mixture of a configuration in one lane and without an end, with
    weights per row.

    Args:
        asked: Section `mix` of the configuration.
        there: Rows and tokens of each source.
    """
    rows = {name: source_rows for name, (source_rows, _) in there.items()}
    order = MixtureOrder(
        lanes=1,
        rows=0,
        points=tuple(_weight_points(asked, there)),
        version=asked.order,
        interpolation=asked.weight_schedule_type,
        stop=asked.stop_strategy,
        kept=caps_of(asked, there).kept(rows),
        # Resolving the configuration has set these.
        batch_size=asked.batch_size,
        block_size=asked.block_size,
        step_rows=cast("int", asked.step_rows),
        seed=cast("int", asked.seed),
    )
    return MixtureSpec(lengths=rows, order=order)


def _weight_points(asked: MixStageConfig, amounts: Amounts) -> list[WeightPoint]:
    """Return the schedule with weights per row of every source."""
    schedule: Sequence[tuple[int, Mapping[str, float]]] = asked.points
    if isinstance(asked.epochs, Mapping):
        drawn = caps_of(asked, amounts).draws(_used_rows(asked, amounts))
        all_rows = max(1, epoch_rows(asked, amounts))
        schedule = [(0, {name: rows / all_rows for name, rows in drawn.items()})]

    points: list[WeightPoint] = []
    for step, weights_of_step in schedule:
        weights = {name: float(weights_of_step.get(name, 0.0)) for name in amounts}
        if asked.weights_by == "tokens":
            mean_tokens = {
                name: tokens / rows for name, (rows, tokens) in amounts.items()
            }
            weights = row_weights(weights, mean_tokens)
        points.append(WeightPoint(step, weights))
    return points


def caps_of(asked: MixStageConfig, there: Amounts) -> SourceCaps:
    """Return the limits of repetition of the sources; ConfigError where they cannot
    hold, or name other sources.
    """
    epochs = None
    if isinstance(asked.epochs, Mapping):
        epochs = asked.epochs
    caps = SourceCaps(
        epochs=epochs,
        max_repetitions=asked.max_repetitions,
        max_fraction=asked.max_fraction,
        target_budget=asked.target_budget,
        experiment_budget=asked.experiment_budget,
    )
    caps.check_names(there)
    return caps


def _used_rows(asked: MixStageConfig, amounts: Amounts) -> dict[str, int]:
    """Return the number of rows of each source that are used at all."""
    rows = {name: source_rows for name, (source_rows, _) in amounts.items()}
    return rows | caps_of(asked, amounts).kept(rows)


def epoch_rows(asked: MixStageConfig, there: Amounts) -> int:
    """Return the number of rows of one epoch of all sources or, with epochs per source,
    of these epochs.

    Args:
        asked: Section `mix` of the configuration.
        there: Rows and tokens of each source.
    """
    rows = _used_rows(asked, there)
    if isinstance(asked.epochs, Mapping):
        rows = caps_of(asked, there).draws(rows)
    return sum(rows.values())


def missing(
    asked: MixStageConfig, there: Amounts, drawn: Mapping[str, int]
) -> list[str]:
    """Return a line for each source that is repeated more often than its limit allows.

    Args:
        asked: Section `mix` of the configuration.
        there: Rows and tokens of each source.
        drawn: Number of rows of each source in the mixture.
    """
    return caps_of(asked, there).missing(
        drawn, _used_rows(asked, there), _mean_tokens(there)
    )


def check_caps(asked: MixStageConfig, there: Amounts, drawn: Mapping[str, int]) -> None:
    """Raise ConfigError where a source is repeated more often than its limit allows;
    see :func:`missing`.
    """
    caps_of(asked, there).check(drawn, _used_rows(asked, there), _mean_tokens(there))


def _mean_tokens(amounts: Amounts) -> dict[str, Fraction]:
    return {
        name: Fraction(tokens, max(1, rows)) for name, (rows, tokens) in amounts.items()
    }
