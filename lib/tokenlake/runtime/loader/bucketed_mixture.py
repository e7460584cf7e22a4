"""A mixture whose rows are in buckets by length: each bucket is a mixture of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.mixing.schedule import constant
from tokenlake.runtime.mixing.streams import MixtureStream, RowStream, source_order

Part = tuple[float, Int64, Callable[[int, int], RowStream]]
"""Rows of a part, of as many as all sources have; which sources it has rows of, ascending; and the order of its rows by
the size of its batches and the number of the pass."""


def mixture_parts(
    mixture: Mixture, group_rows: Int64, first_groups: Int64, *, lanes: int, seed: int
) -> list[Part]:
    """Take a mixture apart: rows of each source in several parts, of which each is a mixture of its own.

    In a part a source weighs as much as in the mixture, times the share of its rows that the part holds. So all parts
    together, drawn by their weights, have the weights of the mixture.

    Args:
        mixture: of weights that do not change.
        group_rows: of each part, rows of each row group of all datasets, int64[parts, G].
        first_groups: where the row groups of each dataset begin, int64[datasets + 1].
        lanes, seed: as of :meth:`Mixture.stream`.

    Raises:
        ConfigError: the weights change, a source has none, or it is to end with the first source.
    """
    _check_parts(mixture)
    ends = pairwise(first_groups.tolist())
    columns = {name: slice(*both) for name, both in zip(mixture.names, ends, strict=True)}
    totals = {name: len(dataset) for name, dataset in mixture.datasets.items()}
    given = dict(zip(mixture.names, mixture.scheduler.pieces[0].first.given, strict=True))
    groups = [{name: part[own] for name, own in columns.items() if part[own].sum()} for part in group_rows]
    weights = [
        {name: given[name] * int(rows.sum()) / totals[name] for name, rows in part.items()} for part in groups
    ]
    sums = [sum(totals.values()) * sum(part.values()) for part in weights]
    cuts = [None] * len(sums) if mixture.rows is None else _shared_out(mixture.rows, sums)
    found = list[Part]()
    for part, weight, whole, cut in zip(groups, weights, sums, cuts, strict=True):
        stream = partial(_part_stream, mixture, part, weight, cut, lanes, seed)
        found.append((whole, np.array([mixture.names.index(name) for name in part], np.int64), stream))
    return found


def _part_stream(
    mixture: Mixture,
    groups: Mapping[str, Int64],
    weights: Mapping[str, float],
    cut: int | None,
    lanes: int,
    seed: int,
    batch_size: int,
    passes: int,
) -> MixtureStream:
    rows = {name: int(each.sum()) for name, each in groups.items()}
    lanes, dealt = divisor_of(lanes, min(rows.values())), seed if passes == 0 else key_of(seed, passes)
    order = SourceMixture(
        rows,
        constant({name: weight / sum(weights.values()) for name, weight in weights.items()}),
        lanes=lanes,
        batch_size=batch_size,
        block_size=mixture.block_size,
        step_rows=batch_size,
        seed=seed,
        stop=mixture.stop,
        order=mixture.order,
    )
    orders = [source_order(name, each, lanes=lanes, seed=dealt) for name, each in groups.items()]
    return MixtureStream(order, orders, rows=cut)


def _shared_out(rows: int, weights: Sequence[float]) -> list[int]:
    """Share out rows by weights: whole numbers, those nearest to the next one rounded up."""
    exact = [rows * weight / sum(weights) for weight in weights]
    found = [int(each) for each in exact]
    nearest = sorted(range(len(exact)), key=lambda part: (found[part] - exact[part], part))
    for part in nearest[: rows - sum(found)]:
        found[part] += 1
    return found


def divisor_of(lanes: int, most: int) -> int:
    """Return the largest divisor of a number of lanes that is at most `most`, and at least 1."""
    return max(number for number in range(1, max(1, most) + 1) if lanes % number == 0)


def _check_parts(mixture: Mixture) -> None:
    if mixture.shortened:
        raise ConfigError(
            "padding.buckets: sources are shortened, whose rows are chosen before their lengths are known; leave out "
            "max_fraction and the budgets, or pad to `multiple` or `length`"
        )
    if mixture.scheduler.changes:
        raise ConfigError(
            "padding.buckets: the weights of the mixture change with its rows, of which each bucket has its own count; "
            "give weights that stay, or pad to `multiple` or `length`"
        )
    if idle := [name for name, weight in mixture.scheduler.get_weights(0).items() if not weight]:
        raise ConfigError(f"padding.buckets: {', '.join(idle)} weighs 0 in the mixture; leave it out of it")
    if mixture.stop == "first_exhausted" or (mixture.stop != "restart" and mixture.rows is not None):
        raise ConfigError(
            f"padding.buckets: stop {mixture.stop!r}{'' if mixture.rows is None else ' with rows'} ends at one place "
            "of the whole stream, and each bucket has a stream of its own; give stop='restart' (and rows, for an end) "
            "or stop='all_exhausted' without rows, or pad to `multiple` or `length`"
        )
