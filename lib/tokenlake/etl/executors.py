"""Executors: the places where the units of a build run, by name.

A build has the same bytes in all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from tokenlake.base.lazy_names import load
from tokenlake.config.former_names import renaming_note
from tokenlake.errors import ConfigError
from tokenlake.etl.memory import default_workers, require_memory
from tokenlake.etl.pool import Pool, WorkerPool

if TYPE_CHECKING:
    from tokenlake.config.stages import RayConfig

ExecutorName: TypeAlias = Literal["local", "store", "ray", "dask"]
"""Processes of this machine; machines that join by the store (``tokenlake work``); a
cluster of Ray or Dask.
"""

EXECUTOR_NAMES: Final[tuple[ExecutorName, ...]] = get_args(ExecutorName)

Executor: TypeAlias = "Callable[[int | None, RayConfig], Pool]"
"""Function that opens the pool of an executor. Its arguments are the number of workers,
None for as many as the executor has, and the section `ray` of a configuration.
"""

EXECUTORS: Final[Mapping[str, str]] = {
    "local": "tokenlake.etl.executors:open_local_pool",
    "store": "tokenlake.etl.store_executor.waiting_run:open_store_pool",
    "ray": "tokenlake.etl.cluster_pool.pool:open_ray_pool",
    "dask": "tokenlake.etl.cluster_pool.pool:open_dask_pool",
}
"""Name -> its :data:`Executor`, as ``module:name``. A module is imported when its
executor is first used: together they take as long to import as everything that plans a
build.
"""


def local_pool(workers: int | None, *, started: int = 0) -> WorkerPool:
    """Return a pool of worker processes of this machine.

    Args:
        workers: Number of processes; None or 0 for one for each processor, as far as
            the memory goes.
        started: Number of processes that are started at once.

    Raises:
        ConfigError: The memory of the machine is too small for so many.
    """
    # The number of the caller is checked; the default fits the memory anyway.
    if workers:
        require_memory(workers)
    return WorkerPool(workers or default_workers(), started=started)


def open_pool(
    executor: ExecutorName | None, workers: int | None, ray: RayConfig
) -> Pool:
    """Return the pool of an executor.

    Args:
        executor: Name of the executor. None: ray if its section is enabled, otherwise
            local.
        workers: Number of workers; None for as many as the executor has. On this
            machine one for each processor, as far as the memory goes. They start when
            they are needed, or prepared for.
        ray: Section `ray` of a configuration.

    Raises:
        ConfigError: No such executor, `workers` of an executor that starts none, or
            more than memory allows.
        MissingExtraError: The executor's package is not installed.
    """
    # An executor that the caller names comes before the configuration.
    name = executor
    if not name:
        name = "local"
        if ray.enabled:
            name = "ray"
    if name not in EXECUTORS:
        raise ConfigError(
            f"executor: got {executor!r}, expected one of {', '.join(EXECUTOR_NAMES)}"
        )
    # A package that is not installed is noticed here.
    open_executor: Executor = load(EXECUTORS[name], f"executor {name!r}", "etl")
    return open_executor(workers, ray)


def present_executor(
    executor: ExecutorName | None, engine: ExecutorName | None
) -> ExecutorName | None:
    """Return the executor of the argument `executor`, or of its former name `engine`.

    Args:
        executor: Value of the argument; None for no value.
        engine: Value of the argument under its former name; None for no value.

    Raises:
        ConfigError: Both have a value.
    """
    if engine is None:
        return executor
    if executor is not None:
        raise ConfigError(
            f"got executor={executor!r} and engine={engine!r}, its former name; leave engine out"
        )
    # The third frame is the caller of the public function.
    warnings.warn(renaming_note("engine", "executor"), FutureWarning, stacklevel=3)
    return engine


def open_local_pool(workers: int | None, ray: RayConfig) -> Pool:
    """Return a pool of processes of this machine."""
    return local_pool(workers)
