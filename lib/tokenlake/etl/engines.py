"""Where the units of a build run: the engines, by name. Whatever runs them, the bytes are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from tokenlake.base.lazy_names import load
from tokenlake.errors import ConfigError
from tokenlake.etl.memory import default_workers, require_memory
from tokenlake.etl.pool import Pool, WorkerPool

if TYPE_CHECKING:
    from tokenlake.config.stages import RayConfig

EngineName: TypeAlias = Literal["local", "store", "ray", "dask"]
"""This machine's processes; whoever joins by the store (``tokenlake work``); a cluster of Ray's or Dask's."""

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)

Executor: TypeAlias = "Callable[[int | None, RayConfig], Pool]"
"""Opens the pool of an engine. Its arguments are the number of workers, None for as many as the engine has, and the
section `ray` of a configuration."""

EXECUTORS: Final[Mapping[str, str]] = {
    "local": "tokenlake.etl.engines:open_local_pool",
    "store": "tokenlake.etl.store_engine.waiting_run:open_store_pool",
    "ray": "tokenlake.etl.cluster_pool.pool:open_ray_pool",
    "dask": "tokenlake.etl.cluster_pool.pool:open_dask_pool",
}
"""Engine -> its :data:`Executor`, as ``module:name``. A module is imported when its engine is first asked for: together
they take as long to import as all that plans a build."""


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
        engine: Name of the engine. None: ray where its section is enabled, else local.
        workers: Number of workers; None for as many as the engine has. On this machine one for each processor, as far
            as the memory goes. They start when they are needed, or prepared for.
        ray: Section `ray` of a configuration.

    Raises:
        ConfigError: No such engine, `workers` of an engine that has none of its own, or more than memory allows.
        MissingExtraError: the engine's package is not installed.
    """
    name = engine or ("ray" if ray.enabled else "local")
    if name not in EXECUTORS:
        raise ConfigError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    open_executor: Executor = load(EXECUTORS[name], f"engine {name!r}", "etl")
    return open_executor(workers, ray)


def open_local_pool(workers: int | None, ray: RayConfig) -> Pool:
    """Return a pool of processes of this machine."""
    return local_pool(workers)
