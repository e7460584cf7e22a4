"""Runs of the deployment `work/units`, which build units for another run.

The run that plans a build starts a number of these runs. It checks them, and replaces
those that end, until no unit is left.

Prefect's server notices a run that crashed, but it shows a run as running after its
machine was lost. Therefore each run reports in the store that it is alive
(:mod:`tokenlake.etl.shared_plan`). A run that does not report for too long counts as
lost. The other runs build its units; a new run replaces it.

If the run that plans is killed, its work runs continue, and the next run with the same
parameters takes them over.
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
from tokenlake.etl.store_executor import Awaited, StorePool

DEPLOYMENT: Final = "work/units"
"""Deployment whose runs build units."""

_CHECK_SECONDS: Final = 3.0
"""Seconds between two checks of the runs."""

_PLAN_WAIT: Final = "10m"
"""Longest wait of a run for the plan.

The plan is missing only while a new plan replaces it.
"""

_MOST_FAILED: Final = 3
"""Number of replacements of each run after which the build fails.

The count begins again when a unit is built.
"""

_SLOW_START: Final = 60.0
"""Seconds without any run in the state Running, after which a line is logged."""

_ACTIVE: Final = (
    StateType.SCHEDULED,
    StateType.PENDING,
    StateType.RUNNING,
    StateType.PAUSED,
)

Log = Callable[[str], None]


@final
class WorkRuns:
    """Context manager that runs the deployment while another run waits for its units.

    Args:
        pool: Pool of the waiting run.
        count: Number of runs.
        workers: Number of worker processes in each run. 0: one per core.
        log: Function that logs a line. It is called for each run that starts or is
            lost.
    """

    def __init__(self, pool: StorePool, count: int, workers: int, log: Log) -> None:
        self._pool = pool
        self._count = count
        self._workers = workers
        self._log = log
        # Ids of the runs that were active at the last check.
        self._runs: set[UUID] = set()
        # When each run was first seen in the state Running.
        self._running_since: dict[UUID, float] = {}
        # The build whose units the runs build.
        self._build: Awaited | None = None
        # Runs that ended since a unit was last built, and the number of units that were
        # left then.
        self._failed_runs = 0
        self._fewest_left = 0
        # When the runs of this build were first needed; infinity once one of them runs.
        self._needed_since = 0.0
        self._closed = threading.Event()
        # Runs that the thread starts are children of the current run: the thread needs
        # its context.
        run_in_context = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run_in_context, args=(self._watch,), name="work-runs", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *ignored: object) -> None:
        self._closed.set()
        self._thread.join()
        with (
            suppress(httpx.HTTPError, PrefectException),
            get_client(sync_client=True) as client,
        ):
            for run in self._read_runs(client):
                self._end_run(client, run, failed=kind is not None)

    def _watch(self) -> None:
        """Check the runs until the context ends.

        A permanent error ends the build.
        """
        while not self._closed.wait(_CHECK_SECONDS):
            awaited = self._pool.awaited()
            if awaited is None or not awaited.left:
                continue
            try:
                with get_client(sync_client=True) as client:
                    self._check_runs(client, awaited)
            except TokenlakeError as error:
                self._pool.give_up(error)
                return
            except ObjectNotFound:
                error = ConfigError(
                    f"the Prefect server has no deployment {DEPLOYMENT}, which work_runs={self._count} needs; deploy "
                    "it: prefect deploy --name units"
                )
                self._pool.give_up(error)
                return
            except (httpx.HTTPError, PrefectException):
                # The server may be unreachable for a moment. The calls of the flow
                # decide whether that is fatal.
                continue
            except Exception as error:
                # Runs that end are not replaced any more, so that the build might wait
                # for ever.
                self._pool.give_up(
                    WorkerError(f"runs of {DEPLOYMENT} cannot be watched: {error!r}")
                )
                return

    def _check_runs(self, client: SyncPrefectClient, awaited: Awaited) -> None:
        """Start the runs that are missing."""
        # 1. Each version, and each plan of it, has its own runs.
        former_build = None
        if self._build is not None:
            former_build = (self._build.address, self._build.layout)
        if former_build != (awaited.address, awaited.layout):
            self._runs = {run.id for run in self._find_runs(client, awaited)}
            self._failed_runs = 0
            self._fewest_left = awaited.left
            self._needed_since = time.monotonic()
        self._build = awaited

        # 2. Failures count only while no unit is built.
        if awaited.left < self._fewest_left:
            self._failed_runs = 0
            self._fewest_left = awaited.left

        # 3. The runs that are still active, and a note if none starts.
        active: list[FlowRun] = []
        for run in self._read_runs(client):
            if self._is_active(client, run, awaited):
                active.append(run)
        self._runs = {run.id for run in active}
        if any(run.state_type == StateType.RUNNING for run in active):
            self._needed_since = math.inf
        elif active and time.monotonic() - self._needed_since > _SLOW_START:
            self._needed_since = math.inf
            self._log(
                f"no run of {DEPLOYMENT} has started within a minute; its work pool needs a worker with capacity for "
                f"{numbers.plural(self._count, 'run')} beside this one"
            )

        # 4. New runs, at most one for each unit, because a run without a unit ends at
        #    once.
        for share in range(len(active), min(self._count, awaited.left)):
            self._start_run(share, awaited)

    def _find_runs(self, client: SyncPrefectClient, awaited: Awaited) -> list[FlowRun]:
        """Return the active runs that a killed run of the same build started."""
        deployment_id = client.read_deployment_by_name(DEPLOYMENT).id
        active = client.read_flow_runs(
            flow_run_filter=filters.FlowRunFilter(
                deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment_id]),
                state=filters.FlowRunFilterState(
                    type=filters.FlowRunFilterStateType(any_=list(_ACTIVE))
                ),
            )
        )
        expected = self._parameters(0, awaited)
        runs: list[FlowRun] = []
        for run in active:
            is_same_name = run.parameters.get("name") == expected["name"]
            is_same_store = run.parameters.get("store") == expected["store"]
            if is_same_name and is_same_store:
                runs.append(run)
        if runs:
            self._log(
                f"{numbers.plural(len(runs), 'run')} of {DEPLOYMENT} already work on this build"
            )
        return runs

    def _read_runs(self, client: SyncPrefectClient) -> list[FlowRun]:
        """Return the current state of the runs that were active at the last check."""
        if not self._runs:
            return []
        run_ids = filters.FlowRunFilterId(any_=list(self._runs))
        return client.read_flow_runs(flow_run_filter=filters.FlowRunFilter(id=run_ids))

    def _is_active(
        self, client: SyncPrefectClient, run: FlowRun, awaited: Awaited
    ) -> bool:
        """Return whether a run builds units or will do so.

        A lost run is marked as crashed.
        """
        if run.state_type not in _ACTIVE:
            message = run.state.message if run.state is not None else None
            reason = f": {message}" if message else ""
            self._log(f"{run.name} is {(run.state_name or 'gone').lower()}{reason}")
            self._count_failure(reason)
            return False
        if run.state_type != StateType.RUNNING:
            return True

        # The silence of a run that has not reported yet begins when it was first seen
        # running.
        now = time.monotonic()
        running_seconds = now - self._running_since.setdefault(run.id, now)
        heard_seconds = awaited.heard.get(str(run.id), running_seconds)
        silent_seconds = min(heard_seconds, running_seconds)
        if silent_seconds < 2 * lease_seconds():
            return True
        message = (
            f"no sign of life for {silent_seconds:.0f} seconds; others build its units"
        )
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
        self._log(f"{run.name} is lost: {message}")
        self._count_failure(f": {message}")
        return False

    def _count_failure(self, reason: str) -> None:
        """Count a run that ended.

        Args:
            reason: Reason that the message has, after a colon; may be empty.

        Raises:
            WorkerError: Too many runs ended while no unit was built.
        """
        self._failed_runs += 1
        if self._failed_runs > _MOST_FAILED * self._count:
            raise WorkerError(
                f"{self._failed_runs} runs of {DEPLOYMENT} ended, one after the other, and no unit was built; the last "
                f"one ended{reason or ' without a message'}"
            )

    def _start_run(self, share: int, awaited: Awaited) -> None:
        # Prefect's types allow a coroutine, which it returns only inside an event loop.
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
            "wait": _PLAN_WAIT,
        }

    def _end_run(
        self, client: SyncPrefectClient, run: FlowRun, *, failed: bool
    ) -> None:
        """End a run that is no longer needed.

        A running run notices a commit by itself; it is cancelled if the build failed.
        """
        if run.state_type in (StateType.SCHEDULED, StateType.PENDING):
            client.set_flow_run_state(
                run.id, Cancelled(message="the version is committed"), force=True
            )
        elif run.state_type == StateType.RUNNING and failed:
            client.set_flow_run_state(run.id, Cancelling())
