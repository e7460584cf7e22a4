"""Declarations of tasks: tried once or several times, with no stored result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.tasks import Task

from tokenlake.errors import SourceError
from tokenlake.etl.pool import worth_a_retry
from tokenlake.runs.engine import RETRY_SECONDS

_P = ParamSpec("_P")
_R = TypeVar("_R")


def is_worth_a_retry(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Say whether the same work may succeed next time.

    It may if a worker died, or the store did not answer.

    An error that is raised on purpose, about the input, the configuration or a
    conflict, fails at once.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and worth_a_retry(error)


def is_worth_another_push(
    task: Task[..., Any], run: TaskRun, state: State[Any]
) -> bool:
    """Say whether the same push may succeed next time.

    It may if the Hub or the store could not be reached.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, SourceError) or is_worth_a_retry(task, run, state)


def retried(
    name: str,
    run_name: str | Callable[[dict[str, Any]], str],
    condition: Any = is_worth_a_retry,
    make: Callable[..., Any] = task,
) -> Callable[[Callable[_P, _R]], Task[_P, _R]]:
    """Declare a task that is tried up to three times.

    Its result is not stored, because it may be unpickled later.
    """
    # The waits vary by half, so that tasks that failed together do not come back
    # together.
    return make(
        name=name,
        task_run_name=cast("Any", run_name),  # typed by Prefect as if it took nothing
        retries=len(RETRY_SECONDS),
        retry_delay_seconds=list(RETRY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=condition,
        persist_result=False,
        cache_policy=NO_CACHE,
    )


def tried_once(name: str) -> Callable[[Callable[_P, _R]], Task[_P, _R]]:
    """Declare a task that is not tried again. Its result is not stored."""
    return task(
        name=name, task_run_name=name, persist_result=False, cache_policy=NO_CACHE
    )


def submitted(
    task: Task[..., _R], *arguments: Any, after: Sequence[Any]
) -> PrefectFuture[_R]:
    """Submit a task that comes after others, as the arrows of the run's graph show.

    Args:
        task: The task.
        arguments: Its arguments.
        after: Futures, and states of flows. Not their results: Prefect draws wrong
            arrows between equal values.
    """
    submit: Any = task.submit  # its types do not have wait_for
    return submit(*arguments, wait_for=after)
