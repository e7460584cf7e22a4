"""Where the units of a build run: the engines, by name. Whatever runs them, the bytes are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from tokenlake.errors import ConfigError
from tokenlake.etl.memory import default_workers, require_memory
from tokenlake.etl.pool import Pool, WorkerPool

if TYPE_CHECKING:
    from tokenlake.config.stages import RayConfig

EngineName: TypeAlias = Literal["local", "store", "ray", "dask"]
"""This machine's processes; whoever joins by the store (``tokenlake work``); a cluster of Ray's or Dask's."""

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)


def local_pool(workers: int | None, *, started: int = 0) -> WorkerPool:
    """Return a pool of worker processes of this machine.

    Args:
        workers: Number of processes; None or 0 for one for each processor, as far as the memory goes.
        started: Number of processes that are started at once.

    Raises:
        ConfigError: The memory of the machine is too small for so many.
    """
    if workers:
        require_memory(workers)
    return WorkerPool(workers or default_workers(), started=started)


def open_pool(engine: EngineName | None, workers: int | None, ray: RayConfig) -> Pool:
    """Return the pool of an engine.

    Args:
        engine: None: ray where its section is enabled, else local.
        workers: Number of workers; None for as many as the engine has. On this machine one for each processor, as far
            as the memory goes. They start when they are needed, or prepared for.
        ray: the section of a configuration.

    Raises:
        ConfigError: No such engine, `workers` of an engine that has none of its own, or more than memory allows.
        MissingExtraError: the engine's package is not installed.
    """
    # Each engine is imported by those who use it: together they take as long as all that plans a build.
    match engine or ("ray" if ray.enabled else "local"):
        case "local":
            return local_pool(workers)
        case "store" if workers:
            raise ConfigError(
                f"workers={workers} with the store engine, which starts none; give it to each `tokenlake work`"
            )
        case "store":
            from tokenlake.etl.store_engine import StorePool

            return StorePool()
        case "ray" | "dask" as name:
            from tokenlake.etl.cluster_pool import ClusterPool, DaskNodes, RayNodes

            return ClusterPool(lambda: RayNodes(ray, workers) if name == "ray" else DaskNodes(workers))
    raise ConfigError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
