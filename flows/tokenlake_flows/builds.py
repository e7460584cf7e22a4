"""The runs of the flows `tokenize` and `mix`: an engine, progress and a final state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, cast

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from tokenlake.base import termination
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.errors import CancelledError, ConfigError, TokenlakeError
from tokenlake.etl.executors import ExecutorName
from tokenlake.etl.store_engine import StorePool
from tokenlake.runs.engine import LocalEngine
from tokenlake.runs.policy import check_paths
from tokenlake.runs.request import require_flow
from tokenlake_flows.cancellation import cancellable
from tokenlake_flows.prepared import take_engine
from tokenlake_flows.progress import progress_shown
from tokenlake_flows.states import final_state, show_failure
from tokenlake_flows.work_runs import WorkRuns
from tokenlake_tasks.assets import artifact_key
from tokenlake_tasks.bounds import bounds_of_run
from tokenlake_tasks.summary import Summary

Graph: TypeAlias = Callable[[LocalEngine], Summary]
"""Submits the tasks of a build and returns its summary."""


def run_build(
    flow: str,
    graph: Graph,
    request: Callable[..., PipelineConfig],
    *,
    workers: int | None,
    executor: str | None,
    work_runs: int | None,
) -> Summary | State[Any]:
    """Run a graph with the engine of a command, or with one for a deployment's run.

    The engine of a deployment's run is made from its parameters.

    Args:
        flow: Name of the flow.
        graph: Function that submits the tasks.
        request: Function that returns the configuration that the parameters describe;
            it takes `report` and `bounds`.
        workers: Number of worker processes. 0 or None: one per core.
        executor: Place where units run. Empty or None: this machine.
        work_runs: Number of runs of `work/units` to start. 0 or None: none.
    """
    # The flow's name stands for the build in messages until the configuration is known.
    build_name = flow
    try:
        # Prefect may have replaced the handler of SIGTERM: a stop must still end the
        # workers.
        with termination.handled_again():
            engine = take_engine()
            if engine is None:
                bounds = bounds_of_run()
                config = request(report=get_run_logger().info, bounds=bounds)
                require_flow(flow, config)
                bounds.require(check_paths, config)
                # The number of worker processes is that of each run that is started.
                # This run has none.
                waits_for_others = executor == "store" and bool(work_runs)
                own_workers = None if waits_for_others else workers
                executor_name = cast("ExecutorName | None", executor or None)
                engine = LocalEngine(
                    config, workers=own_workers, executor=executor_name
                )
            # Everything from here on ends with the build: the watch for a cancellation,
            # the progress, and the runs that help.
            build_name = engine.config.name or "build"
            progress = progress_shown(engine, artifact_key("progress", build_name))
            helpers = _helped(engine, work_runs or 0, workers or 0)
            with engine, cancellable(engine), progress, helpers:
                return graph(engine)
    except (KeyboardInterrupt, TokenlakeError) as error:
        # A cancelled run needs no page about a failure.
        is_cancelled = isinstance(error, KeyboardInterrupt | CancelledError)
        if not is_cancelled:
            show_failure(build_name, error)
        return final_state(error)


def _helped(
    engine: LocalEngine, work_runs: int, workers: int
) -> AbstractContextManager[object]:
    """Return a context in which runs of `work/units` build for an engine that waits.

    Without such runs, it is an empty context.
    """
    # The sources of a mixture are built by the runs of the mixture.
    if not work_runs or engine.is_part:
        return nullcontext()
    pool = engine.pool
    if not isinstance(pool, StorePool):
        raise ConfigError(
            f"work_runs: got {work_runs}, but only the executor `store` waits for such runs; set executor=store"
        )
    return WorkRuns(pool, work_runs, workers, get_run_logger().info)
