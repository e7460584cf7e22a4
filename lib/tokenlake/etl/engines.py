"""Where the units of a build run: the engines, by name. Whatever runs them, the bytes are the same."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from tokenlake.errors import ConfigError
from tokenlake.etl.pool import Pool, WorkerPool
from tokenlake.etl.store_pool import StorePool
from tokenlake.threads import available_cpus

EngineName: TypeAlias = Literal["local", "store"]
"""This machine's processes, or whoever joins by the store (``tokenlake work``)."""

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)


def open_pool(engine: EngineName | None = None, workers: int | None = None) -> Pool:
    """Return the pool of an engine, a context manager.

    Args:
        engine: None: local.
        workers: how many; None: as the engine has it. On this machine one for each processor.

    Raises:
        ConfigError: no such engine, or `workers` of an engine that has none of its own.
    """
    if engine in (None, "local"):
        return WorkerPool(workers or available_cpus())
    if engine == "store":
        if workers:
            raise ConfigError(
                f"workers={workers} with the store engine, which starts none; give it to each `tokenlake work`"
            )
        return StorePool()
    raise ConfigError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
