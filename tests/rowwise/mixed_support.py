"""Sources to mix, and the walk through a mixture slot by slot that everything else
must equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tests.rowwise.sharded_support import Known, Plain
from tokenlake import WeightScheduler
from tokenlake.rowwise import Row, ShardedDataSource
from tokenlake.runtime.mixing import constant, counts_of, key_of, shuffled


def rows_of(name: str, sizes: Sequence[int]) -> dict[str, list[Row]]:
    """Return shards of rows {"id": "a0"}, {"id": "a1"}, ..., which go on through all
    shards.
    """
    ids = iter(range(sum(sizes)))
    return {
        f"{name}.{place}": [{"id": f"{name}{next(ids)}"} for _ in range(size)]
        for place, size in enumerate(sizes)
    }


def known(**sizes: Sequence[int] | int) -> dict[str, ShardedDataSource]:
    """Return sources that know how many rows they have."""
    return {name: Known(rows_of(name, _listed(size))) for name, size in sizes.items()}


def unknown(**sizes: Sequence[int] | int) -> dict[str, ShardedDataSource]:
    """Return the same sources, which do not know."""
    return {name: Plain(rows_of(name, _listed(size))) for name, size in sizes.items()}


def with_gaps(**sizes: Sequence[int] | int) -> dict[str, ShardedDataSource]:
    """Return the same sources, in which every other row is left out."""
    sources: dict[str, ShardedDataSource] = {}
    for name, size in sizes.items():
        shards = {
            shard: [row for kept in rows for row in ({"id": None}, kept)]
            for shard, rows in rows_of(name, _listed(size)).items()
        }
        sources[name] = Known(shards).filter(lambda row: row["id"] is not None)
    return sources


KINDS = {"known": known, "unknown": unknown, "gaps": with_gaps}


def ids(rows: Iterator[Row], most: int | None = None) -> list[Any]:
    return [row["id"] for row in islice(rows, most)]


def walk(
    sizes: Mapping[str, int],
    weights: Mapping[str, float] | WeightScheduler,
    stop: str,
    *,
    block_size: int = 1000,
    seed: int = 0,
    most: int = 1000,
) -> list[tuple[str, int]]:
    """Return (source, how many of its rows came before), a slot after the other, as
    the stop strategy says.
    """
    scheduler = weights if isinstance(weights, WeightScheduler) else constant(weights)
    drawn = dict.fromkeys(sizes, 0)
    out: list[tuple[str, int]] = []
    for name in _slots(scheduler, block_size, seed):
        if len(out) == most or (
            stop == "all_exhausted" and all(drawn[n] == sizes[n] for n in sizes)
        ):
            break
        if stop != "restart" and drawn[name] == sizes[name]:
            if stop == "first_exhausted":
                break
            continue
        out.append((name, drawn[name]))
        drawn[name] += 1
    return out


def _slots(scheduler: WeightScheduler, block_size: int, seed: int) -> Iterator[str]:
    counts, block = counts_of(scheduler, block_size=block_size), 0
    while True:
        before, after = (
            counts.draws_before(block * block_size),
            counts.draws_before((block + 1) * block_size),
        )
        each = np.array(after) - np.array(before)
        slots = np.empty(block_size, np.int64)
        slots[shuffled(block_size, key_of(seed, 0, block))] = np.repeat(
            np.arange(len(each)), each
        )
        for place in slots.tolist():
            yield scheduler.names[place]
        block += 1


def _listed(size: Sequence[int] | int) -> Sequence[int]:
    return [size] if isinstance(size, int) else size
