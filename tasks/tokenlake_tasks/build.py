"""The task `build`: a group of units, and all groups of a build, a few at a time."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, TypeAlias

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Cancelled

from tokenlake.errors import CancelledError
from tokenlake.runs.engine import LocalEngine
from tokenlake.runs.groups import group_name
from tokenlake_tasks.recorded_steps import record_steps
from tokenlake_tasks.retries import retried, submitted
from tokenlake_tasks.run_log import log_of


@retried("build", lambda parameters: group_name(parameters["units"]))
def build(
    engine: LocalEngine, units: Sequence[int]
) -> dict[str, int | float] | State[Any]:
    """Build a group of units, and record the steps of each try."""
    try:
        return engine.build(units, log_of(engine))
    except CancelledError as error:
        # A state and not an exception: a cancelled run is no failure and needs no
        # traceback.
        return Cancelled(message=str(error))
    finally:
        record_steps(engine.step_runs(units))


Built: TypeAlias = PrefectFuture[dict[str, int | float] | State[Any]]
"""A group of units that is built or under way."""


def build_all(engine: LocalEngine, after: Sequence[Any] = ()) -> list[Built]:
    """Submit all groups of units, a few at a time, until every unit is built.

    Args:
        engine: Engine of the run.
        after: Futures and states that come before, for the arrows of the run's graph.

    Returns:
        Futures of the groups.

    Raises:
        TokenlakeError: The first error of a group, after its retries.
    """
    futures: list[Built] = []
    finished: queue.SimpleQueue[PrefectFuture[Any]] = queue.SimpleQueue()

    def wait() -> None:
        """Wait for the next task run that ends, and raise its error."""
        future = finished.get()
        engine.raise_if_cancelled()
        future.result()

    # A tokenizer that is found wrong makes finished units pending again.
    while groups := engine.groups():
        # A new group is submitted when one ends, so that workers are never without
        # units and Prefect never holds all groups of a large build.
        parallel_groups = engine.groups_at_once(groups)
        for group_index, unit_group in enumerate(groups):
            if group_index >= parallel_groups:
                wait()
            source_tags = [
                f"source:{source_name}" for source_name in engine.sources_of(unit_group)
            ]
            build_task = build.with_options(tags=source_tags)
            futures.append(submitted(build_task, engine, unit_group, after=after))
            futures[-1].add_done_callback(finished.put)
        for _ in groups[-parallel_groups:]:
            wait()
    return futures
