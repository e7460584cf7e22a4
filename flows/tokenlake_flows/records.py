"""Records of runs on the server of a command.

They are saved before the server stops. Old ones are deleted.
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
"""Number of finished runs that the database of an embedded server keeps.

Each has up to 276 task runs of 20 kB.
"""

_FORGOTTEN_AT_ONCE: Final = 10
"""Largest number of old runs that one run deletes."""

_POLL_SECONDS: Final = 0.15


def drain(state: State[Any], client: SyncPrefectClient) -> None:
    """Send the last events and logs of a run, and wait for the server."""
    EventsWorker.drain_all(timeout=_DRAIN_SECONDS)
    APILogHandler().flush()
    flow_run = state.state_details.flow_run_id
    if flow_run is None:
        return
    deadline = time.monotonic() + _DRAIN_SECONDS
    count_before = -1
    while time.monotonic() < deadline:
        task_runs = _task_runs(flow_run, client)
        is_final = True
        for task_run in task_runs:
            if task_run.state is None or not task_run.state.is_final():
                is_final = False
        # Records arrive one by one. Two equal counts in a row mean that all have
        # arrived.
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


def forget_old_runs(client: SyncPrefectClient, keep: int = KEPT_RUNS) -> None:
    """Delete the oldest finished runs of commands, a few at a time.

    Runs of deployments are not deleted.

    Args:
        client: Client of the server.
        keep: Number of newest runs to keep.
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
        "offset": keep,
        "limit": _FORGOTTEN_AT_ONCE,
    }
    old = client.read_flow_runs(flow_filter=ours, flow_run_filter=finished, **page)
    for run in old:
        # A flow of another project may have the same name, but not these parameters.
        if not {"config", "workers", "overrides"} <= run.parameters.keys():
            continue
        # The server does not delete the artifacts of a deleted run.
        only_this_run = filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=[run.id]))
        for artifact in client.read_artifacts(flow_run_filter=only_this_run):
            client.delete_artifact(artifact.id)
        client.delete_flow_run(run.id)
