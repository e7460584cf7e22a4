"""The part of a launched run that needs Prefect; :mod:`.launch` imports it once a server is on its way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from tokenlake.errors import TokenlakeError
from tokenlake.etl.events import BuildRequested, Watcher, ignore
from tokenlake.etl.runner import BuildResult, EngineName
from tokenlake.prefect.engine import LocalEngine, prepared
from tokenlake.prefect.flows import mix, tokenize
from tokenlake.prefect.request import resolve_request
from tokenlake.prefect.runs import result_of_flow
from tokenlake.prefect.server import EmbeddedServer

#: Seconds that the records of a finished run may take to reach the database.
_DRAIN_SECONDS: Final = 3.0

#: Finished runs that the database of an embedded server keeps. One has at most some 260 task runs, of 20 kB each.
KEPT_RUNS: Final = 100

_FORGOTTEN_AT_ONCE: Final = 10


def run_flow(
    server: EmbeddedServer | None,
    config: str | Mapping[str, Any] | None,
    overrides: Sequence[str],
    workers: int | None,
    on_event: Watcher | None,
    units_on: EngineName | None = None,
) -> BuildResult:
    """Run the configuration's flow on ``server`` (None: the configured one); see :func:`.launch.launch`."""
    request = resolve_request(config, overrides=overrides)
    run = tokenize if request.is_text_build else mix
    if on_event is not None:
        on_event(BuildRequested(request.observability))
    with ExitStack() as stack:
        engine = stack.enter_context(
            LocalEngine(request, workers=workers, engine=units_on, on_event=on_event or ignore)
        )
        if server is not None:
            # For a process that had imported Prefect, and with it the settings, before.
            access: dict[Any, str] = dict(server.access)
            stack.enter_context(temporary_settings(access))
            server.wait()
        stack.enter_context(prepared(engine))
        stored = dict(config) if isinstance(config, Mapping) else config
        try:
            state = run(config=stored, workers=workers, overrides=tuple(overrides), return_state=True)
        except httpx.TransportError as cause:
            why = f"the Prefect server {PREFECT_API_URL.value()} stopped answering ({cause})"
            how = "finished units are kept, and the same command resumes the run"
            raise TokenlakeError(f"{why}; {how}") from cause
        if server is not None:
            # What was built is there, whatever becomes of the records.
            with suppress(httpx.HTTPError, ObjectNotFound), get_client(sync_client=True) as client:
                _drain(state, client)
                forget_old_runs(client)
        result_of_flow(state)
        return engine.result()


def _drain(state: State[Any], client: SyncPrefectClient) -> None:
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


def _forget_services() -> None:
    """Take Prefect's services off the list of what the interpreter waits for at its end.

    Their threads are not in a process that was forked off, as PyTorch's loaders are: the wait fails there, and the
    process ends with 1.
    """
    awaited: list[Any] = getattr(threading, "_threading_atexits", [])
    owners = [getattr(getattr(each, "func", each), "__self__", None) for each in awaited]
    prefects = [type(owner).__module__.startswith("prefect.") for owner in owners]
    awaited[:] = [each for each, theirs in zip(awaited, prefects, strict=True) if not theirs]


os.register_at_fork(after_in_child=_forget_services)
