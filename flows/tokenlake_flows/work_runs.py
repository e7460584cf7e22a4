"""Runs of the deployment `work/units`, which build the units that another run waits for.

The run that plans keeps a number of them going until no unit is left: they are started, watched and replaced. The
server notices a run that crashed, but goes on showing a run as running whose machine is gone. So each run reports in
the store that it is alive (:mod:`tokenlake.etl.shared_plan`), and a run that is silent for too long counts as lost.
The others build its units in any case; a run that is started in its place only keeps their number. A run that was
killed leaves its workers to the next one with the same parameters, which takes over those that it finds.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self, cast, final
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled, Cancelling, Crashed

from tokenlake.base import numbers
from tokenlake.errors import ConfigError, TokenlakeError, WorkerError
from tokenlake.etl.shared_plan import lease_seconds
from tokenlake.etl.store_engine import Awaited, StorePool

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
