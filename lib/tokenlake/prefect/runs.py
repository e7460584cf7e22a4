"""Runs: what a flow run shows of itself, the state it ends in, and the runs that build units for another.

A run shows its name and its progress, and ends in a state that says why, if it was cancelled or failed.

Runs of the deployment `work/units` build the units that another run waits for: started, watched, replaced. The run that
plans keeps so many of them going until no unit is left. The server knows of a run that crashed; of one whose machine is
gone it goes on to say that it runs. So each says in the store that it is there (:mod:`tokenlake.etl.shared_plan`); who
is silent for too long counts as lost. Its units are built by the others in any case; what is started in its place only
keeps their number. A run that was killed leaves its workers to the next one with the same parameters, which takes over
those that it finds.
"""

from __future__ import annotations

import contextvars
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final, Self, cast, final
from uuid import UUID

import httpx
from prefect import get_client
from prefect.artifacts import create_progress_artifact
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, ParameterTypeError, PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Cancelling, Crashed, Failed

from tokenlake import numbers
from tokenlake.errors import CancelledError, ConfigError, TokenlakeError, WorkerError
from tokenlake.etl.shared_plan import lease_seconds
from tokenlake.etl.store_engine import Awaited, StorePool
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


def _plain(record: logging.LogRecord) -> bool:
    """A logging filter for what Prefect itself says when a task raises, and when a deployment's run has failed.

    A task that fails on purpose says so in its message. How a flow ended is in its log already, when its process ends
    with the same error.
    """
    if record.exc_info and isinstance(record.exc_info[1], _MISTAKES):
        if record.name == "prefect.flow_runs":
            return False
        record.exc_info = None
    return True


logging.getLogger("prefect.task_runs").addFilter(_plain)
logging.getLogger("prefect.flow_runs").addFilter(_plain)


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
    done, own = threading.Event(), run.id

    def watch() -> None:
        # No client before the first look: a run that ends at once takes its server with it.
        while not done.wait(_LOOK_SECONDS):
            state = None
            # The server may be gone for a moment; the flow's own calls decide whether that is fatal.
            with suppress(Exception), get_client(sync_client=True) as client:
                state = client.read_flow_run(own).state
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                engine.cancel()
                return

    threading.Thread(target=watch, name="cancellation", daemon=True).start()
    try:
        yield
    finally:
        done.set()


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
    tallies, ended, how = engine.tallies, threading.Event(), "stopped at "
    artifact = create_progress_artifact(0.0, key=key, description=progress_line(tallies))
    assert isinstance(artifact, UUID)

    def update() -> None:
        # No client before the first time: short runs need none.
        while not ended.wait(EVERY_SECONDS):
            with get_client(sync_client=True) as client:
                while not ended.is_set():
                    _show(client, artifact, tallies)
                    ended.wait(EVERY_SECONDS)

    updates = threading.Thread(target=update, name="progress", daemon=True)
    updates.start()
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


def _show(client: SyncPrefectClient, artifact: UUID, tallies: RunTallies, how: str = "") -> None:
    # The server may be gone for a moment, and nothing depends on this.
    with suppress(httpx.HTTPError, ObjectNotFound):
        done = ArtifactUpdate(data=round(100 * tallies.share, 1), description=progress_line(tallies, how))
        client.update_artifact(artifact, done)


DEPLOYMENT: Final = "work/units"
_LOOK: Final = 3.0  # seconds between two looks
_WAIT: Final = "10m"  # of a run for the plan: it is there, unless another is about to take its place
_IN_VAIN: Final = 3  # runs in the place of one, without a unit built meanwhile, after which the build ends
_SLOW: Final = 60.0  # seconds without any run that runs, after which a line says so
_ACTIVE: Final = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED)
Log = Callable[[str], None]


@final
class WorkRuns:
    """Keeps runs of the deployment going while a run waits for its units; a context manager.

    Args:
        pool: that the run waits with.
        count: how many.
        workers: processes of each; 0: one per core.
        log: gets a line for each that begins or is lost.
    """

    def __init__(self, pool: StorePool, count: int, workers: int, log: Log) -> None:
        self._pool, self._count, self._workers, self._log = pool, count, workers, log
        self._runs: set[UUID] = set()
        self._since: dict[UUID, float] = {}
        self._of: Awaited | None = None
        self._tries, self._least, self._slow = 0, 0, 0.0
        self._closed = threading.Event()
        # What it starts is below this run: the thread must know which that is.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._mind,), name="work-runs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *ignored: object) -> None:
        self._closed.set()
        self._thread.join()
        with suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
            for run in self._read(client):
                self._end(client, run, failed=kind is not None)

    def _mind(self) -> None:
        while not self._closed.wait(_LOOK):
            awaited = self._pool.awaited()
            if awaited is None or not awaited.left:
                continue
            try:
                with get_client(sync_client=True) as client:
                    self._look(client, awaited)
            except TokenlakeError as error:
                self._pool.give_up(error)
                return
            except ObjectNotFound:
                why = f"has no deployment {DEPLOYMENT}, of which work_runs={self._count} are to be started"
                how = "deploy it: prefect deploy --name units"
                self._pool.give_up(ConfigError(f"the Prefect server {why}; {how}"))
                return
            except (httpx.HTTPError, PrefectException):
                continue  # the server may be gone for a moment; the flow's own calls decide whether that is fatal
            except Exception as error:  # or a run would wait for workers that nobody replaces
                self._pool.give_up(WorkerError(f"runs of {DEPLOYMENT} cannot be watched: {error!r}"))
                return

    def _look(self, client: SyncPrefectClient, awaited: Awaited) -> None:
        if self._of is None or (self._of.address, self._of.layout) != (awaited.address, awaited.layout):
            self._runs = set(self._found(client, awaited))
            self._tries, self._least, self._slow = 0, awaited.left, time.monotonic()
        self._of = awaited
        if awaited.left < self._least:
            self._tries, self._least = 0, awaited.left
        active = [run for run in self._read(client) if self._is_there(client, run, awaited)]
        self._runs = {run.id for run in active}
        if any(run.state_type == StateType.RUNNING for run in active):
            self._slow = math.inf
        elif active and time.monotonic() - self._slow > _SLOW:
            self._slow = math.inf
            self._log(
                f"no run of {DEPLOYMENT} has begun for a minute; its work pool needs a worker with room for "
                f"{numbers.plural(self._count, 'run')} beside this one"
            )
        for share in range(len(active), min(self._count, awaited.left)):
            self._start(share, awaited)

    def _found(self, client: SyncPrefectClient, awaited: Awaited) -> list[UUID]:
        """Return the runs that a killed run of the same build left."""
        deployment = client.read_deployment_by_name(DEPLOYMENT).id
        wanted = self._parameters(0, awaited)
        runs = client.read_flow_runs(
            flow_run_filter=filters.FlowRunFilter(
                deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment]),
                state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=list(_ACTIVE))),
            )
        )
        same = [
            run for run in runs if all(run.parameters.get(key) == wanted[key] for key in ("name", "store"))
        ]
        if same:
            self._log(f"{numbers.plural(len(same), 'run')} of {DEPLOYMENT} are at this build already")
        return [run.id for run in same]

    def _read(self, client: SyncPrefectClient) -> list[FlowRun]:
        """Return the runs that were active at the last look, as they are now."""
        if not self._runs:
            return []
        ids = filters.FlowRunFilterId(any_=list(self._runs))
        return client.read_flow_runs(flow_run_filter=filters.FlowRunFilter(id=ids))

    def _is_there(self, client: SyncPrefectClient, run: FlowRun, awaited: Awaited) -> bool:
        """Say whether a run is at it, or will be; a lost one is marked as crashed."""
        if run.state_type not in _ACTIVE:
            why = "" if run.state is None or not run.state.message else f": {run.state.message}"
            self._log(f"{run.name} is {(run.state_name or 'gone').lower()}{why}")
            self._give_up_if_in_vain(why)
            return False
        if run.state_type != StateType.RUNNING:
            return True
        began, now = self._since.setdefault(run.id, time.monotonic()), time.monotonic()
        silent = min(awaited.heard.get(str(run.id), now - began), now - began)
        if silent < 2 * lease_seconds():
            return True
        message = f"nothing was heard of it for {silent:.0f} seconds; others build its units"
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
        self._log(f"{run.name} is lost: {message}")
        self._give_up_if_in_vain(f": {message}")
        return False

    def _give_up_if_in_vain(self, why: str) -> None:
        self._tries += 1
        if self._tries > _IN_VAIN * self._count:
            raise WorkerError(
                f"{self._tries} runs of {DEPLOYMENT} ended, one after the other, and not a unit was built; the last "
                f"one ended{why or ' without a message'}"
            )

    def _start(self, share: int, awaited: Awaited) -> None:
        # Typed by Prefect as if it might be awaited, which it is in a loop of events only.
        start = cast("Callable[..., FlowRun]", run_deployment)
        run = start(DEPLOYMENT, parameters=self._parameters(share, awaited), timeout=0)
        self._runs.add(run.id)
        self._log(f"started {run.name}, {share + 1} of {self._count}")

    def _parameters(self, share: int, awaited: Awaited) -> dict[str, Any]:
        return {
            "name": f"{awaited.layout.dataset}@v{awaited.layout.version}",
            "store": awaited.address.url,
            "storage_options": dict(awaited.address.options),
            "share": f"{share}/{self._count}",
            "workers": self._workers,
            "wait": _WAIT,
        }

    def _end(self, client: SyncPrefectClient, run: FlowRun, *, failed: bool) -> None:
        """End a run that is not needed any more; one that builds sees the commit by itself."""
        if run.state_type in (StateType.SCHEDULED, StateType.PENDING):
            client.set_flow_run_state(run.id, Cancelled(message="the version is there"), force=True)
        elif run.state_type == StateType.RUNNING and failed:
            client.set_flow_run_state(run.id, Cancelling())
