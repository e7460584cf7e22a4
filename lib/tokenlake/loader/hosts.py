"""Which rows of each batch a host has, where no sharding says so."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.batchplan import Wanted
from tokenlake.loader.steps import BatchSizes
from tokenlake.order.random import Int64


def rows_of_host(host: tuple[int, int] | None, sizes: BatchSizes) -> Wanted:
    """Return which rows of a batch one of several hosts has: the index-th of equal parts.

    Args:
        host: (index, number of hosts); None: there is one.

    Raises:
        ConfigError: it is no such pair, or batches cannot be cut into so many parts.
    """
    pair: object = (0, 1) if host is None else host
    match pair:
        case (int(index), int(hosts)) if 0 <= index < hosts and not sizes.common % hosts:
            pass
        case _:
            raise ConfigError(
                f"host: got {host!r}, must be (index, number of hosts), with a number that divides {sizes.common}"
            )

    @lru_cache(8)
    def rows(size: int) -> Int64:
        return np.arange(size // hosts * index, size // hosts * (index + 1), dtype=np.int64)

    return rows
