"""What a flow run shows of itself: its name, its progress, and the state it ends in if it was cancelled or failed."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final
from uuid import UUID

import httpx
from prefect import get_client
from prefect.artifacts import create_progress_artifact
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, ParameterTypeError
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Failed

from tokenlake import numbers
from tokenlake.errors import CancelledError, TokenlakeError
from tokenlake.observability.tally import RunTallies, step_name
from tokenlake.prefect.engine import LocalEngine

#: Seconds between two looks at whether somebody cancelled the run.
_LOOK_SECONDS: Final = 1.5


def result_of_flow(state: State[Any]) -> Any:
    """What a flow that another one called ended with.

    Raises:
        CancelledError: it was cancelled, and whoever called it ends so, too.
        TokenlakeError: what it failed with.
    """
    if state.is_cancelled():
        raise CancelledError(state.message or "cancelled")
    return state.result()


def final_state(error: KeyboardInterrupt | TokenlakeError) -> State[Any]:
    """The state of a run that ended with ``error``, which is said in one message and no traceback."""
    if isinstance(error, KeyboardInterrupt | CancelledError):
        message = "Cancelled. Finished units are kept, and a run with the same parameters resumes the build."
        get_run_logger().info(message)
        return Cancelled(message=message)
    message = f"{type(error).__name__}: {error}"
    get_run_logger().error(message)
    return Failed(data=error, message=message)


#: What a user did wrong: the message says all, and a traceback hides it.
_MISTAKES: Final = (TokenlakeError, ParameterTypeError)


def _without_traceback(record: logging.LogRecord) -> bool:
    """A logging filter: a task that fails on purpose says so in its message."""
    if record.exc_info and isinstance(record.exc_info[1], _MISTAKES):
        record.exc_info = None
    return True


def _told_once(record: logging.LogRecord) -> bool:
    """A logging filter: how a flow ended is in its log already, when its process ends with the same error."""
    return not (record.exc_info and isinstance(record.exc_info[1], _MISTAKES))


# What Prefect itself says when a task raises, and when a deployment's run has failed.
logging.getLogger("prefect.task_runs").addFilter(_without_traceback)
logging.getLogger("prefect.flow_runs").addFilter(_told_once)


@contextmanager
def cancellable(engine: LocalEngine) -> Generator[None]:
    """Cancel ``engine`` when the flow run is cancelled on the server.

    A worker ends a deployment's run by signal; a run started by a command has no such guard and
    looks for itself.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or run.deployment_id is not None:
        yield
        return
    done = threading.Event()
    threading.Thread(target=_watch, args=(engine, run.id, done), name="cancellation", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(engine: LocalEngine, flow_run: UUID, done: threading.Event) -> None:
    # No client before the first look: a run that ends at once takes its server with it.
    while not done.wait(_LOOK_SECONDS):
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(flow_run).state
        except Exception:
            # The server may be gone for a moment; the flow's own calls decide whether that is fatal.
            continue
        if state is not None and (state.is_cancelling() or state.is_cancelled()):
            engine.cancel()
            return


def run_name(of: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    """Return what names a run: as somebody called it, else by its parameters; it has a number and a time already."""

    def name() -> str:
        return given_name(flow_run.name) or of(flow_run.parameters or {})

    return name


def call_run(version: str, asked: Callable[[dict[str, Any]], str]) -> None:
    """Call the run after the version that it builds, unless somebody gave it a name.

    Args:
        version: such as ``books v3``.
        asked: what :func:`run_name` named it by.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is not None and run.name == asked(flow_run.parameters or {}):
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(run.id, version)
        run.name = version


def this_run() -> dict[str, str]:
    """Return id and name of the flow run, and the deployment that it is of."""
    found = {"id": flow_run.id, "name": flow_run.name, "deployment": deployment.name}
    return {key: str(value) for key, value in found.items() if value}


_GREEK: Final = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"),
    *("nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"),
)
_OF_THE_FORM: Final = re.compile(rf"({'|'.join(_GREEK)})[0-9]+-[a-z-]+")


def given_name(name: str | None) -> str | None:
    """The name of a run, unless Prefect made it up: `amber-fox`, or in the form of its pages `lambda560-forlond`."""
    if name is None or _OF_THE_FORM.fullmatch(name):
        return None
    made_up = name.count("-") == 1 and _words().issuperset(name.split("-"))
    return None if made_up else name


@cache
def _words() -> frozenset[str]:
    lists = [one for one in files("coolname").joinpath("data").iterdir() if one.name.endswith(".txt")]
    return frozenset(word for one in lists for word in one.read_text("utf-8").split())


#: Seconds between two updates.
EVERY_SECONDS: Final = 10.0


@contextmanager
def progress_shown(engine: LocalEngine, key: str) -> Generator[None]:
    """Keep an artifact of the flow run up to date while ``engine`` builds; the builds of its parts are in it."""
    if engine.is_part:
        yield
        return
    tallies, ended = engine.tallies, threading.Event()
    artifact = create_progress_artifact(0.0, key=key, description=progress_line(tallies))
    assert isinstance(artifact, UUID)
    updates = threading.Thread(target=_update, args=(tallies, artifact, ended), name="progress", daemon=True)
    updates.start()
    how = "stopped at "
    try:
        yield
        how = ""
    finally:
        ended.set()
        updates.join()
        with get_client(sync_client=True) as client:
            _show(client, artifact, tallies, how)


def progress_line(tallies: RunTallies, how: str = "") -> str:
    """``books v3: 45%, 7 of 9 units, 3.12 M tokens, 21.4 MB/s, 12 s left; tokenize takes 71% of the workers' time``.

    Args:
        how: what stands before the share.
    """
    tally, share = tallies.last, f"{how}{numbers.percent(tallies.share, 1, 0)}"
    if not tally.plan.dataset:
        return f"{share}, planning"
    step = [step_name(tally.step)] if tally.step.what else []
    line = ", ".join([f"{tally.name}: {share}", *step, *tally.line().split("  ")])
    return line + (f"; {slowest}" if (slowest := tally.slowest()) else "")


def _update(tallies: RunTallies, artifact: UUID, ended: threading.Event) -> None:
    """Update the artifact now and then until the run ends."""
    # No client before the first time: short runs need none.
    while not ended.wait(EVERY_SECONDS):
        with get_client(sync_client=True) as client:
            while not ended.is_set():
                _show(client, artifact, tallies)
                ended.wait(EVERY_SECONDS)


def _show(client: SyncPrefectClient, artifact: UUID, tallies: RunTallies, how: str = "") -> None:
    # The server may be gone for a moment, and nothing depends on this.
    with suppress(httpx.HTTPError, ObjectNotFound):
        done = ArtifactUpdate(data=round(100 * tallies.share, 1), description=progress_line(tallies, how))
        client.update_artifact(artifact, done)
