"""Run of `tokenize` or `mix` for a command, after Prefect was imported.

The steps before the import are in :mod:`tokenlake_flows.launch`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.context import SettingsContext, get_settings_context
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from pydantic import SecretStr

from tokenlake.errors import TokenlakeError
from tokenlake.etl.events import BuildRequested, Phase, Watcher, ignore
from tokenlake.etl.executors import ExecutorName
from tokenlake.etl.runner import BuildResult
from tokenlake.runs.build_run import BuildRun
from tokenlake.runs.request import resolve_request
from tokenlake_flows.mix import mix
from tokenlake_flows.prepared import prepared
from tokenlake_flows.records import drain, forget_old_runs
from tokenlake_flows.states import result_of_flow
from tokenlake_flows.tokenize import tokenize


def run_flow(
    served: Callable[[], Mapping[str, str]] | None,
    config: str | Mapping[str, Any] | None,
    overrides: Sequence[str],
    workers: int | None,
    on_event: Watcher | None,
    executor: ExecutorName | None = None,
    on_start: Callable[[BuildRun], None] | None = None,
) -> BuildResult:
    """Run the configuration's flow; see :func:`tokenlake_flows.launch.launch`.

    Args:
        served: Function that waits for the server of the run, and returns the settings
            that access it; None: the configured server.
        config: Configuration, as for the launch.
        overrides: Single values of the configuration, ``key=value``.
        workers: Number of worker processes; None: one per core.
        on_event: Function that receives the events of the run.
        executor: Place where units run; None: this machine.
        on_start: Function that receives the build run as soon as it can be cancelled.
    """
    request = resolve_request(config, overrides=overrides)
    build_flow = tokenize if request.is_text_build else mix
    watch = on_event or ignore
    watch(BuildRequested(request.observability))
    # 1. The build run plans and starts its workers while the server starts.
    with ExitStack() as stack:
        build_run = stack.enter_context(
            BuildRun(request, workers=workers, executor=executor, on_event=watch)
        )
        if on_start is not None:
            on_start(build_run)
        if served is not None:
            watch(Phase("starting Prefect", "flow"))
            stack.enter_context(_connected_to(served()))
            watch(Phase("starting the flow run", "flow"))
        # 2. The flow, which uses the prepared build run.
        stack.enter_context(prepared(build_run))
        flow_config = dict(config) if isinstance(config, Mapping) else config
        try:
            state = build_flow(
                config=flow_config,
                workers=workers,
                overrides=tuple(overrides),
                return_state=True,
            )
        except httpx.TransportError as cause:
            raise TokenlakeError(
                f"the Prefect server {PREFECT_API_URL.value()} stopped answering ({cause}); finished units are kept, "
                "and the same command resumes the run"
            ) from cause
        # 3. The records of the run are saved before the server of the run ends.
        if served is not None:
            watch(Phase("saving the records of the run, ending Prefect", "flow"))
            _save_records(state)
        result_of_flow(state)
        return build_run.result()


def _save_records(state: State[Any]) -> None:
    """Wait until the records of a run are saved, and delete those of old runs.

    Errors are ignored, because the version is complete without the records.
    """
    with (
        suppress(httpx.HTTPError, ObjectNotFound),
        get_client(sync_client=True) as client,
    ):
        drain(state, client)
        forget_old_runs(client)


@contextmanager
def _connected_to(access: Mapping[str, str]) -> Generator[None]:
    """Connect Prefect to a server within the context.

    A process may have read Prefect's settings before. They are copied and not read
    again, because files of the working directory must not change them.
    """
    context = get_settings_context()
    api_values = {
        "url": access["PREFECT_API_URL"],
        "auth_string": SecretStr(access["PREFECT_API_AUTH_STRING"]),
    }
    # Settings are frozen models: a copy with other values takes their place.
    settings = context.settings.model_copy(
        update={"api": context.settings.api.model_copy(update=api_values)}
    )
    with SettingsContext(profile=context.profile, settings=settings):
        yield


def _forget_services() -> None:
    """Remove Prefect's services from the callbacks for the exit of the interpreter.

    A forked process, such as a worker of PyTorch's data loader, does not have their
    threads. The wait would fail there, and the process would end with exit code 1.
    """
    callbacks: list[Any] = getattr(threading, "_threading_atexits", [])
    other_callbacks: list[Any] = []
    for callback in callbacks:
        # A callback is a bound method, or a `partial` of one.
        method = getattr(callback, "func", callback)
        owner = getattr(method, "__self__", None)
        if not type(owner).__module__.startswith("prefect."):
            other_callbacks.append(callback)
    callbacks[:] = other_callbacks


os.register_at_fork(after_in_child=_forget_services)
