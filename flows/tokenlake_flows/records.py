"""Records of runs on the server of a command: written before it stops, and not kept for ever."""

from __future__ import annotations

import time
from typing import Any, Final

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogHandler

from tokenlake_flows.mix import mix
from tokenlake_flows.tokenize import tokenize

#: Seconds that the records of a finished run may take to reach the database.
_DRAIN_SECONDS: Final = 3.0

#: Finished runs that the database of an embedded server keeps. One has at most some 260 task runs, of 20 kB each.
KEPT_RUNS: Final = 100

_FORGOTTEN_AT_ONCE: Final = 10


def drain(state: State[Any], client: SyncPrefectClient) -> None:
    """Give the server the run's last events and logs, and time to write them down, before it is stopped."""
    EventsWorker.drain_all(timeout=_DRAIN_SECONDS)
    APILogHandler().flush()
    run = [one for one in [state.state_details.flow_run_id] if one is not None]
    deadline = time.monotonic() + _DRAIN_SECONDS
    known = -1
    while time.monotonic() < deadline:
        children = filters.FlowRunFilter(parent_flow_run_id=filters.FlowRunFilterParentFlowRunId(any_=run))
        ids = [*run, *(child.id for child in client.read_flow_runs(flow_run_filter=children))]
        runs = client.read_task_runs(
            flow_run_filter=filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=ids))
        )
        if len(runs) == known and all(one.state is not None and one.state.is_final() for one in runs):
            return
        known = len(runs)
        time.sleep(0.15)


def forget_old_runs(client: SyncPrefectClient, kept: int = KEPT_RUNS) -> None:
    """Delete our oldest finished runs beyond the newest ``kept``, a few at a time; runs of deployments stay."""
    ours = filters.FlowFilter(name=filters.FlowFilterName(any_=[tokenize.name, mix.name]))
    finished = filters.FlowRunFilter(
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=list(TERMINAL_STATES))),
        deployment_id=filters.FlowRunFilterDeploymentId(is_null_=True),
    )
    page: dict[str, Any] = {"sort": FlowRunSort.END_TIME_DESC, "offset": kept, "limit": _FORGOTTEN_AT_ONCE}
    old = client.read_flow_runs(flow_filter=ours, flow_run_filter=finished, **page)
    # Another flow may have the name, but not the parameters.
    for run in (run for run in old if {"config", "workers", "overrides"} <= run.parameters.keys()):
        of_run = filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=[run.id]))
        for artifact in client.read_artifacts(flow_run_filter=of_run):
            client.delete_artifact(artifact.id)
        client.delete_flow_run(run.id)
