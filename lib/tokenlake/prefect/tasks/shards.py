"""The tasks that do the work: a group of units each, in a worker process of the local engine."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Final, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled
from prefect.tasks import Task

from tokenlake.build.runner import worth_a_retry
from tokenlake.errors import CancelledError
from tokenlake.prefect.tasks.engine import LocalEngine
from tokenlake.prefect.tasks.grouping import group_name

#: Seconds before a second and a third try; short, because a cancelled run waits for them.
RETRY_SECONDS: Final = [0.5, 2.0]


def is_worth_a_retry(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether the same work may succeed next time: a worker died, or the store had a hiccup.

    What is raised on purpose about the input, the configuration or a conflict fails at once.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and worth_a_retry(error)


def _name(parameters: dict[str, Any]) -> str:
    return group_name(parameters["units"])


@task(
    name="build-units",
    task_run_name=cast("Any", _name),  # typed by Prefect as if it took nothing,
    retries=len(RETRY_SECONDS),
    retry_delay_seconds=RETRY_SECONDS,
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


def build_all(engine: LocalEngine) -> None:
    """Submit all groups of units, a few at a time, until every unit is built.

    Raises:
        TokenlakeError: the first error of a group, after its retries.
    """
    # An engine found wrong makes finished units pending again.
    while groups := engine.groups():
        _build_round(engine, groups)


def _build_round(engine: LocalEngine, groups: Sequence[tuple[int, ...]]) -> None:
    finished: queue.SimpleQueue[PrefectFuture[Any]] = queue.SimpleQueue()
    running = 0
    for units in groups:
        # One more than there are workers, so that no worker waits for Prefect.
        if running > engine.workers:
            _check(engine, finished.get())
            running -= 1
        build_units.submit(engine, units).add_done_callback(finished.put)
        running += 1
    for _ in range(running):
        _check(engine, finished.get())


def _check(engine: LocalEngine, future: PrefectFuture[Any]) -> None:
    """Raise what a task run ended with."""
    engine.raise_if_cancelled()
    future.result()
