"""Processing of shards side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from tokenlake.base.checks import whole_number
from tokenlake.base.lazy_names import naming_extra
from tokenlake.base.threads import Prefetched
from tokenlake.errors import NotAvailableError

with naming_extra("tokenlake.distributed", "etl"):
    from tokenlake.rowwise.shards import Row
    from tokenlake.rowwise.source import ShardedDataSource

# Names of EasyDeL's module that have no counterpart: a build runs on Ray by itself.
_OF_RAY: Final = ("RayPreprocessor", "RayTokenizeWorker", "tokenize_with_ray")


def parallel_process_shards(
    source: ShardedDataSource,
    process_fn: Callable[[list[Row]], list[Row]],
    num_workers: int = 4,
) -> Iterator[Row]:
    """Return the rows that a function makes of the rows of each shard.

    They come in the order of the shards.

    Args:
        source: Source of the shards. Up to ``2 * num_workers`` shards are in memory as
            a whole.
        process_fn: Function from the rows of a shard to any rows. Threads of this
            process call it side by side.
        num_workers: Number of threads.

    Raises:
        ConfigError: `num_workers` is no whole number from 1 on. Whatever `process_fn`
            raises comes in its place.
    """
    workers = whole_number("num_workers", num_workers, 1)

    def processed_rows(shard: str) -> list[Row]:
        return process_fn(list(source.open_shard(shard)))

    # As many shards are read ahead as are processed at a time.
    shards = Prefetched(
        iter(source.shard_names), processed_rows, workers=workers, ahead=workers
    )
    return chain.from_iterable(shards)


def __getattr__(name: str) -> Any:
    if name in _OF_RAY:
        raise NotAvailableError(
            f"tokenlake.distributed.{name} is not available; "
            "build_dataset(config, executor='ray') tokenizes on Ray, into a version of a store"
        )
    raise AttributeError(f"module 'tokenlake.distributed' has no attribute {name!r}")
