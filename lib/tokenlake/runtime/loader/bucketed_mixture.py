"""Mixtures with buckets by length: each bucket is a mixture of its own.

In a bucket, a source weighs as much as in the mixture, times the share of its rows that the bucket holds::

    weight in bucket b  =  weight * rows in b / rows          of each source

All buckets together therefore have the weights of the mixture. With two sources of 100
rows and weights 0.25 and 0.75, of which 40 and 20 rows are in bucket 0, the weights in
bucket 0 are 0.1 and 0.15. So bucket 0 has a quarter of all rows drawn, and its sources
40% and 60% of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.order_form import OrderForm
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.mixing.schedule import constant
from tokenlake.runtime.mixing.streams import MixtureStream, RowStream, source_order

Part = tuple[float, Int64, Callable[[int, int], RowStream]]
"""(number of rows, if as many rows are drawn as all sources have; indices of its
sources, ascending, int64[sources]; function of batch size and number of the pass that
returns the order of its rows).
"""


def mixture_parts(
    mixture: Mixture,
    forms: Mapping[str, OrderForm],
    group_rows: Int64,
    first_groups: Int64,
    *,
    lanes: int,
    seed: int,
) -> list[Part]:
    """Return the mixture of each bucket.

    Args:
        mixture: Mixture with constant weights.
        forms: Form of the order of each source.
        group_rows: Rows of each bucket in each row group of all datasets,
            int64[buckets, G].
        first_groups: Number of the first row group of each dataset, and of all row
            groups, int64[datasets + 1].
        lanes: Number of lanes, as for :meth:`Mixture.stream`.
        seed: Random seed, as for :meth:`Mixture.stream`.

    Raises:
        ConfigError: The weights change, a source has none, or the mixture ends with its
            first exhausted source.
    """
    _check_mixture(mixture)
    source_weights = mixture.scheduler.pieces[0].first.given
    total_rows = sum(len(dataset) for dataset in mixture.datasets.values())

    # 1. The row groups and weight of each source in each bucket; sources without rows
    #    in it are left out.
    groups_of_bucket: list[dict[str, Int64]] = []
    weights_of_bucket: list[dict[str, float]] = []
    for rows_of_bucket in group_rows:
        groups: dict[str, Int64] = {}
        weights: dict[str, float] = {}
        bounds = pairwise(first_groups.tolist())
        for source_name, weight, (first_row, end_row) in zip(
            mixture.names, source_weights, bounds, strict=True
        ):
            source_groups = rows_of_bucket[first_row:end_row]
            rows = int(source_groups.sum())
            if rows:
                groups[source_name] = source_groups
                source_rows = len(mixture.datasets[source_name])
                weights[source_name] = weight * rows / source_rows
        groups_of_bucket.append(groups)
        weights_of_bucket.append(weights)

    # 2. The number of rows of each bucket.
    expected_rows = [
        total_rows * sum(weights.values()) for weights in weights_of_bucket
    ]
    rows_of_buckets: list[int | None] = [None] * len(expected_rows)
    if mixture.rows is not None:
        rows_of_buckets = [*_apportion(mixture.rows, expected_rows)]

    # 3. The stream of each bucket.
    parts: list[Part] = []
    for groups, weights, expected, rows in zip(
        groups_of_bucket, weights_of_bucket, expected_rows, rows_of_buckets, strict=True
    ):
        stream = partial(
            _bucket_stream, mixture, forms, groups, weights, rows, lanes, seed
        )
        sources = np.array([mixture.names.index(name) for name in groups], np.int64)
        parts.append((expected, sources, stream))
    return parts


def divisor_of(lanes: int, most: int) -> int:
    """Return the largest divisor of a number of lanes, from 1 to `most`."""
    return max(number for number in range(1, max(1, most) + 1) if lanes % number == 0)


def _bucket_stream(
    mixture: Mixture,
    forms: Mapping[str, OrderForm],
    groups: Mapping[str, Int64],
    weights: Mapping[str, float],
    rows: int | None,
    lanes: int,
    seed: int,
    batch_size: int,
    passes: int,
) -> MixtureStream:
    """Return the order of a bucket's rows in a pass.

    Args:
        mixture: Mixture that the bucket is part of.
        forms: Form of the order of each source.
        groups: Rows of each row group of each source, int64[row groups].
        weights: Weight of each source in the bucket.
        rows: Number of rows of the pass; None: as many as the mixture's `stop` gives.
        lanes: Number of lanes of the mixture.
        seed: Random seed of the run.
        batch_size: Rows of a batch of the bucket.
        passes: Number of the pass.
    """
    source_rows = {name: int(group_rows.sum()) for name, group_rows in groups.items()}
    lanes = divisor_of(lanes, min(source_rows.values()))
    total_weight = sum(weights.values())
    order = SourceMixture(
        source_rows,
        constant({name: weight / total_weight for name, weight in weights.items()}),
        lanes=lanes,
        batch_size=batch_size,
        block_size=mixture.block_size,
        step_rows=batch_size,
        seed=seed,
        stop=mixture.stop,
        order=mixture.order,
    )
    seed_of_pass = seed if passes == 0 else key_of(seed, passes)
    orders = [
        source_order(name, group_rows, lanes=lanes, seed=seed_of_pass, form=forms[name])
        for name, group_rows in groups.items()
    ]
    return MixtureStream(order, orders, rows=rows)


def _apportion(rows: int, weights: Sequence[float]) -> list[int]:
    """Divide rows by weights into whole numbers.

    Shares nearest to the next whole number are rounded up.
    """
    exact = [rows * weight / sum(weights) for weight in weights]
    counts = [int(number) for number in exact]
    nearest_first = sorted(
        range(len(exact)), key=lambda part: (counts[part] - exact[part], part)
    )
    for part in nearest_first[: rows - sum(counts)]:
        counts[part] += 1
    return counts


def _check_mixture(mixture: Mixture) -> None:
    """Raise ConfigError where a mixture cannot be divided into buckets."""
    if mixture.shortened:
        raise ConfigError(
            "padding.buckets: the sources are shortened, and their rows are chosen before the lengths are known; leave "
            "out max_fraction and the budgets, or pad to `multiple` or `length`"
        )
    if mixture.scheduler.changes:
        raise ConfigError(
            "padding.buckets: the weights of the mixture change with the number of rows, which each bucket counts by "
            "itself; give constant weights, or pad to `multiple` or `length`"
        )
    idle: list[str] = []
    for source_name, weight in mixture.scheduler.get_weights(0).items():
        if not weight:
            idle.append(source_name)
    if idle:
        raise ConfigError(
            f"padding.buckets: {', '.join(idle)} has weight 0 in the mixture; leave it out"
        )
    ends_at_one_place = mixture.stop != "restart" and mixture.rows is not None
    if mixture.stop == "first_exhausted" or ends_at_one_place:
        with_rows = "" if mixture.rows is None else " with rows"
        raise ConfigError(
            f"padding.buckets: stop {mixture.stop!r}{with_rows} ends at one position of the whole stream, but each "
            "bucket has its own stream; give stop='restart' (and rows, for an end) or stop='all_exhausted' without "
            "rows, or pad to `multiple` or `length`"
        )
