"""The tasks that do the work: a group of units each, in a worker process of the local engine."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Any, Final

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled, State
from prefect.tasks import Task

from tasks.engine import LocalEngine
from tasks.grouping import group_name
from tokenlake.errors import CancelledError, NotFoundError, StoreError, VersionConflictError, WorkerDiedError

#: Seconds before a second and a third try; short, because a cancelled run waits for them.
_RETRY_SECONDS: Final = [0.5, 2.0]


def is_worth_a_retry(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether the same work may succeed next time: a worker died, or the store had a hiccup.

    What is raised on purpose about the input, the configuration or a conflict fails at once.
    """
    error = state.result(raise_on_failure=False)
    if isinstance(error, NotFoundError | VersionConflictError):
        return False
    return isinstance(error, WorkerDiedError | StoreError)


def _name(parameters: dict[str, Any]) -> str:
    return group_name(parameters["units"])


@task(
    name="build-units",
    task_run_name=_name,
    retries=len(_RETRY_SECONDS),
    retry_delay_seconds=_RETRY_SECONDS,
    retry_jitter_factor=0.5,
    retry_condition_fn=is_worth_a_retry,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def build_units(engine: LocalEngine, units: Sequence[int]) -> dict[str, int | float] | State[Any]:
    """Build a group of units."""
    try:
        return engine.build(units, get_run_logger().info)
    except CancelledError as error:
        # A state and not an exception: a cancelled run is no failure and needs no traceback.
        return Cancelled(message=str(error))


def build_all(engine: LocalEngine) -> Iterator[dict[str, int | float]]:
    """Submit all groups of units, a few at a time, and yield what each came to as it ends.

    Raises:
        TokenlakeError: the first error of a group, after its retries.
    """
    finished: queue.SimpleQueue[PrefectFuture[Any]] = queue.SimpleQueue()
    running = 0
    for units in engine.groups():
        # One more than there are workers, so that no worker waits for Prefect.
        if running > engine.workers:
            yield _outcome(engine, finished.get())
            running -= 1
        future = build_units.submit(engine, units)
        future.add_done_callback(finished.put)
        running += 1
    for _ in range(running):
        yield _outcome(engine, finished.get())


def _outcome(engine: LocalEngine, future: PrefectFuture[Any]) -> dict[str, int | float]:
    engine.raise_if_cancelled()
    return future.result()
