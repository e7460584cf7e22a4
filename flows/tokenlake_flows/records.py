"""Records of runs on the server of a command.

They are flushed before the server stops, and deleted when they are old.
"""

from __future__ import annotations

import time
from typing import Any, Final
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, State, TaskRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogHandler

from tokenlake_flows.mix import mix
from tokenlake_flows.tokenize import tokenize

_DRAIN_SECONDS: Final = 3.0
"""Longest time for the records of a finished run to reach the database."""

KEPT_RUNS: Final = 100
"""Number of finished runs that the database of an embedded server keeps. Each has up
to 276 task runs of 20 kB.
"""

_FORGOTTEN_AT_ONCE: Final = 10
"""Largest number of old runs that one run deletes."""

_POLL_SECONDS: Final = 0.15


def drain(state: State[Any], client: SyncPrefectClient) -> None:
    """Send the last events and logs of a run to the server, until it has written them."""
    EventsWorker.drain_all(timeout=_DRAIN_SECONDS)
    APILogHandler().flush()
    flow_run = state.state_details.flow_run_id
    if flow_run is None:
        return
    deadline = time.monotonic() + _DRAIN_SECONDS
    count_before = -1
    while time.monotonic() < deadline:
        task_runs = _task_runs(flow_run, client)
        is_final = all(
            run.state is not None and run.state.is_final() for run in task_runs
        )
        # Records arrive one by one: two equal counts in a row mean that no more are on
        # their way.
        if is_final and len(task_runs) == count_before:
            return
        count_before = len(task_runs)
        time.sleep(_POLL_SECONDS)


def _task_runs(flow_run: UUID, client: SyncPrefectClient) -> list[TaskRun]:
    """Return the task runs of a flow run and of the flow runs below it."""
    parent = filters.FlowRunFilterParentFlowRunId(any_=[flow_run])
    children = client.read_flow_runs(
        flow_run_filter=filters.FlowRunFilter(parent_flow_run_id=parent)
    )
    run_ids = filters.FlowRunFilterId(
        any_=[flow_run, *(child.id for child in children)]
    )
    return client.read_task_runs(flow_run_filter=filters.FlowRunFilter(id=run_ids))


def forget_old_runs(client: SyncPrefectClient, kept: int = KEPT_RUNS) -> None:
    """Delete our oldest finished runs beyond the newest ``kept``, a few at a time.

    Runs of deployments stay.
    """
    ours = filters.FlowFilter(
        name=filters.FlowFilterName(any_=[tokenize.name, mix.name])
    )
    finished = filters.FlowRunFilter(
        state=filters.FlowRunFilterState(
            type=filters.FlowRunFilterStateType(any_=list(TERMINAL_STATES))
        ),
        deployment_id=filters.FlowRunFilterDeploymentId(is_null_=True),
    )
    # The newest runs are skipped by the offset. Few of the others are deleted at a
    # time, so that no run waits long for its end.
    page: dict[str, Any] = {
        "sort": FlowRunSort.END_TIME_DESC,
        "offset": kept,
        "limit": _FORGOTTEN_AT_ONCE,
    }
    old = client.read_flow_runs(flow_filter=ours, flow_run_filter=finished, **page)
    for run in old:
        # Another project's flow may have the same name, but not these parameters.
        if not {"config", "workers", "overrides"} <= run.parameters.keys():
            continue
        # Deleting a run leaves its artifacts behind.
        only_this_run = filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=[run.id]))
        for artifact in client.read_artifacts(flow_run_filter=only_this_run):
            client.delete_artifact(artifact.id)
        client.delete_flow_run(run.id)
