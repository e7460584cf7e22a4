"""Order of a mixture with every choice made: weights per row, lanes, limits, the end.

1. Turn the schedule of the configuration into weights per row (:func:`spec_of`).
   Weights of tokens are divided by the mean tokens of a row, and numbers of epochs per
   source become shares of all rows.
2. Lay the sources out in one lane, and find the row at which the mixture ends
   (:func:`rows_of`).
3. Choose the number of lanes for that many rows.
4. Find the last row again: sources that end do so at other rows with other lanes.

Example of step 1: two sources have weights of 0.5 by tokens, and rows of 100 and 300
tokens in the mean. By rows they have 0.75 and 0.25: three rows of 100 tokens for each
row of 300.
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
from tokenlake.runtime.mixing.lane_count import SourceSize, choose_lanes
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
    mix_config: MixStageConfig,
    mixture: SourceMixture,
    rows: int,
    per_row: Sequence[Fraction],
    width: int | None,
) -> int:
    """Return the number of rows of a mixture.

    Args:
        mix_config: Section `mix` of the configuration, which says where the mixture
            ends.
        mixture: Order of the mixture, without an end.
        rows: Number of rows of all sources together: of one epoch or, where the
            configuration has epochs per source, of these.
        per_row: Mean number of ids that a row of each source adds, in the order of the
            mixture.
        width: Number of ids of every row where rows are packed already, else None.

    Raises:
        ConfigError: The sources end before that, or the mixture never ends.
    """
    # The end is a number of rows, of epochs or of tokens; without one, sources that end
    # decide it.
    if mix_config.total_rows is not None:
        last_row = mix_config.total_rows
    elif isinstance(mix_config.epochs, Mapping):
        last_row = rows
    elif mix_config.epochs is not None:
        last_row = round(Fraction(mix_config.epochs) * rows)
    elif mix_config.total_tokens is None:
        if mixture.rows is None:
            raise ConfigError(
                "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs"
            )
        last_row = mixture.rows
    elif width is not None:
        last_row = math.ceil(Fraction(mix_config.total_tokens, width))
    else:
        last_row = _rows_with_tokens(mix_config.total_tokens, mixture, per_row)
    if last_row < 1:
        raise ConfigError(
            f"mix: the mixture has {last_row} rows; expected at least 1. Let it end later, or use longer sources"
        )
    return last_row


def _rows_with_tokens(
    tokens: int, mixture: SourceMixture, per_row: Sequence[Fraction]
) -> int:
    """Return the smallest number of rows that is expected to have a number of tokens.

    Raises:
        ConfigError: The sources end before that.
    """

    def expected_tokens(row: int) -> Fraction:
        total = Fraction(0)
        for count, mean in zip(mixture.drawn_before(row), per_row, strict=True):
            total += int(count) * mean
        return total

    # 1. The end of the mixture, which may come before.
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

    # 2. An upper bound by doubling: counts at rows far beyond the answer take numbers
    #    that are too large.
    enough = 1
    while enough < last_row and expected_tokens(enough) < tokens:
        enough = min(enough * 2, last_row)

    # 3. The answer below it, by bisection: expected tokens never fall.
    return bisect_left(range(1, enough), tokens, key=expected_tokens) + 1


def weighed(
    parents: Sequence[FoundParent], mix_config: MixStageConfig
) -> tuple[FoundParent, ...]:
    """Return the parents that have a weight at any point of the schedule.

    Raises:
        ConfigError: None has a weight.
    """
    names_with_weight: set[str] = set()
    for _, weights in mix_config.points:
        for source_name, weight in weights.items():
            if weight:
                names_with_weight.add(source_name)
    weighed_parents: list[FoundParent] = []
    for parent in parents:
        if parent.name in names_with_weight:
            weighed_parents.append(parent)
    if not weighed_parents:
        raise ConfigError(
            "mix.weights: all are 0; expected a weight above 0 for at least one dataset"
        )
    return tuple(weighed_parents)


def settled(
    mix_config: MixStageConfig, parents: Sequence[FoundParent], out: RowsOut
) -> tuple[MixtureSpec, SourceMixture]:
    """Return the mixture of parents, with its lanes and its end.

    Args:
        mix_config: Section `mix` of the configuration.
        parents: Versions that are mixed; each has rows.
        out: Format of the new rows.

    Raises:
        ConfigError: The configuration describes no mixture of these parents.
    """
    # 1. The mixture in one lane, without an end.
    _require_at_most("lanes", mix_config.lanes or 1, MOST_LANES)
    _require_at_most("block_size", mix_config.block_size, MOST_BLOCK)

    amounts: dict[str, tuple[int, int]] = {}
    per_row: list[Fraction] = []
    for parent in parents:
        amounts[parent.name] = (parent.rows, parent.tokens)
        per_row.append(Fraction(parent.tokens, parent.rows) + out.append_eos)
    spec = spec_of(mix_config, amounts)
    in_one_lane = open_mixture(spec, to_end=True)
    total_rows = epoch_rows(mix_config, amounts)
    width = parents[0].width

    # 2. The lanes. A step of a changing schedule must end at a row of every lane.
    lanes = mix_config.lanes
    if not lanes:
        step_rows = None
        if in_one_lane.scheduler.changes:
            step_rows = mix_config.step_rows
        sizes: dict[str, SourceSize] = {}
        for parent in parents:
            used_rows = spec.order.kept.get(parent.name)
            sizes[parent.name] = parent.size.shortened(used_rows)
        lanes = choose_lanes(
            sizes,
            [point.weights for point in spec.order.points],
            batch_size=mix_config.batch_size,
            step_rows=step_rows,
            rows=rows_of(mix_config, in_one_lane, total_rows, per_row, width),
        )
    spec = replace(spec, order=replace(spec.order, lanes=lanes))

    # 3. The end. If sources begin again forever, the number of lanes does not change
    #    the number of rows of each.
    mixture = in_one_lane
    if mix_config.stop_strategy != "restart":
        mixture = open_mixture(spec, to_end=True)
    last_row = rows_of(mix_config, mixture, total_rows, per_row, width)
    spec = replace(spec, order=replace(spec.order, rows=last_row))
    return spec, open_mixture(spec)


def _require_at_most(name: str, value: int, most: int) -> None:
    """Check that an option of `mix` is not larger than the library can count with."""
    if value > most:
        raise ConfigError(
            f"mix.{name}: {value}; expected at most {most}", expected=most, got=value
        )


def spec_of(mix_config: MixStageConfig, amounts: Amounts) -> MixtureSpec:
    """Return the mixture of a configuration in one lane and without an end.

    Its weights are per row.

    Args:
        mix_config: Section `mix` of the configuration.
        amounts: Rows and tokens of each source.
    """
    rows = _all_rows(amounts)
    order = MixtureOrder(
        lanes=1,
        rows=0,
        points=tuple(_weight_points(mix_config, amounts)),
        version=mix_config.order,
        interpolation=mix_config.weight_schedule_type,
        stop=mix_config.stop_strategy,
        kept=caps_of(mix_config, amounts).kept(rows),
        # Resolving the configuration has set these.
        batch_size=mix_config.batch_size,
        block_size=mix_config.block_size,
        step_rows=cast("int", mix_config.step_rows),
        seed=cast("int", mix_config.seed),
    )
    return MixtureSpec(lengths=rows, order=order)


def _weight_points(mix_config: MixStageConfig, amounts: Amounts) -> list[WeightPoint]:
    """Return the schedule with weights per row of every source."""
    # 1. Epochs per source are constant weights: the shares of their rows.
    schedule: Sequence[tuple[int, Mapping[str, float]]] = mix_config.points
    if isinstance(mix_config.epochs, Mapping):
        rows_of_epochs = caps_of(mix_config, amounts).draws(
            _used_rows(mix_config, amounts)
        )
        all_rows = max(1, epoch_rows(mix_config, amounts))
        shares: dict[str, float] = {}
        for source_name, rows in rows_of_epochs.items():
            shares[source_name] = rows / all_rows
        schedule = [(0, shares)]

    # 2. Weights per token become weights per row. A source that a point does not name
    #    has no weight there.
    points: list[WeightPoint] = []
    for step, weights_of_step in schedule:
        weights: dict[str, float] = {}
        for source_name in amounts:
            weights[source_name] = float(weights_of_step.get(source_name, 0.0))
        if mix_config.weights_by == "tokens":
            mean_tokens: dict[str, float] = {}
            for source_name, (rows, tokens) in amounts.items():
                mean_tokens[source_name] = tokens / rows
            weights = row_weights(weights, mean_tokens)
        points.append(WeightPoint(step, weights))
    return points


def caps_of(mix_config: MixStageConfig, amounts: Amounts) -> SourceCaps:
    """Return the limits of repetition of the sources.

    Raises:
        ConfigError: The limits cannot hold, or name other sources.
    """
    epochs = None
    if isinstance(mix_config.epochs, Mapping):
        epochs = mix_config.epochs
    caps = SourceCaps(
        epochs=epochs,
        max_repetitions=mix_config.max_repetitions,
        max_fraction=mix_config.max_fraction,
        target_budget=mix_config.target_budget,
        experiment_budget=mix_config.experiment_budget,
    )
    caps.check_names(amounts)
    return caps


def _all_rows(amounts: Amounts) -> dict[str, int]:
    """Return the number of rows of each source."""
    return {source_name: rows for source_name, (rows, _) in amounts.items()}


def _used_rows(mix_config: MixStageConfig, amounts: Amounts) -> dict[str, int]:
    """Return the number of rows of each source that are used at all."""
    rows = _all_rows(amounts)
    return rows | caps_of(mix_config, amounts).kept(rows)


def epoch_rows(mix_config: MixStageConfig, amounts: Amounts) -> int:
    """Return the number of rows of one epoch of all sources.

    With epochs per source it is that of these epochs.

    Args:
        mix_config: Section `mix` of the configuration.
        amounts: Rows and tokens of each source.
    """
    rows = _used_rows(mix_config, amounts)
    if isinstance(mix_config.epochs, Mapping):
        rows = caps_of(mix_config, amounts).draws(rows)
    return sum(rows.values())


def missing(
    mix_config: MixStageConfig, amounts: Amounts, drawn_rows: Mapping[str, int]
) -> list[str]:
    """Return a line for each source that is repeated more often than its limit allows.

    Args:
        mix_config: Section `mix` of the configuration.
        amounts: Rows and tokens of each source.
        drawn_rows: Number of rows of each source in the mixture.
    """
    return caps_of(mix_config, amounts).missing(
        drawn_rows, _used_rows(mix_config, amounts), _mean_tokens(amounts)
    )


def check_caps(
    mix_config: MixStageConfig, amounts: Amounts, drawn_rows: Mapping[str, int]
) -> None:
    """Check that no source is repeated more often than its limit allows.

    See :func:`missing`.

    Raises:
        ConfigError: A source is.
    """
    caps_of(mix_config, amounts).check(
        drawn_rows, _used_rows(mix_config, amounts), _mean_tokens(amounts)
    )


def _mean_tokens(amounts: Amounts) -> dict[str, Fraction]:
    """Return the mean number of tokens of a row of each source."""
    means: dict[str, Fraction] = {}
    for source_name, (rows, tokens) in amounts.items():
        means[source_name] = Fraction(tokens, max(1, rows))
    return means
