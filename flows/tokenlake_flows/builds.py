"""Runs of the flows `tokenize` and `mix`: the build, its progress and final state."""

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
from tokenlake.etl.store_executor import StorePool
from tokenlake.runs.build_run import BuildRun
from tokenlake.runs.policy import check_paths
from tokenlake.runs.request import require_flow
from tokenlake_flows.cancellation import cancellable
from tokenlake_flows.prepared import take_prepared
from tokenlake_flows.progress import progress_shown
from tokenlake_flows.states import final_state, show_failure
from tokenlake_flows.work_runs import WorkRuns
from tokenlake_tasks.assets import artifact_key
from tokenlake_tasks.bounds import bounds_of_run
from tokenlake_tasks.summary import Summary

Graph: TypeAlias = Callable[[BuildRun], Summary]
"""Function that submits the tasks of a build and returns its summary."""


def run_build(
    flow: str,
    graph: Graph,
    request: Callable[..., PipelineConfig],
    *,
    workers: int | None,
    executor: str | None,
    work_runs: int | None,
) -> Summary | State[Any]:
    """Run a graph with the build run that a command has prepared.

    In the run of a deployment, a build run is made from the parameters.

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
            build_run = take_prepared()
            if build_run is None:
                bounds = bounds_of_run()
                config = request(report=get_run_logger().info, bounds=bounds)
                require_flow(flow, config)
                bounds.require(check_paths, config)
                # With runs of `work/units`, `workers` is the number of worker processes
                # in each of them, and this run has none.
                waits_for_others = executor == "store" and bool(work_runs)
                own_workers = None if waits_for_others else workers
                executor_name = cast("ExecutorName | None", executor or None)
                build_run = BuildRun(
                    config, workers=own_workers, executor=executor_name
                )
            # The watch for a cancellation, the progress and the runs that help end with
            # the build.
            build_name = build_run.config.name or "build"
            progress = progress_shown(build_run, artifact_key("progress", build_name))
            helpers = _helped(build_run, work_runs or 0, workers or 0)
            with build_run, cancellable(build_run), progress, helpers:
                return graph(build_run)
    except (KeyboardInterrupt, TokenlakeError) as error:
        # A cancelled run needs no page about a failure.
        is_cancelled = isinstance(error, KeyboardInterrupt | CancelledError)
        if not is_cancelled:
            show_failure(build_name, error)
        return final_state(error)


def _helped(
    build_run: BuildRun, work_runs: int, workers: int
) -> AbstractContextManager[object]:
    """Return a context in which runs of `work/units` build units for this run.

    It is an empty context if no such runs are requested.
    """
    # The sources of a mixture are built by the runs of the mixture.
    if not work_runs or build_run.is_part:
        return nullcontext()
    pool = build_run.pool
    if not isinstance(pool, StorePool):
        raise ConfigError(
            f"work_runs: got {work_runs}, but only the executor `store` waits for such runs; set executor=store"
        )
    return WorkRuns(pool, work_runs, workers, get_run_logger().info)
