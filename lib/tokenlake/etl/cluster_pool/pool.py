"""Pool whose workers are the slots of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

from tokenlake import errors
from tokenlake.config.stages import RayConfig
from tokenlake.etl.cluster_pool.dask_nodes import DaskNodes
from tokenlake.etl.cluster_pool.ray_nodes import RayNodes
from tokenlake.etl.cluster_pool.slots import Nodes, SlotLostError
from tokenlake.etl.job.activity import Progress
from tokenlake.etl.job.lines import answer_of, to_line
from tokenlake.etl.job.messages import (
    NO_BACKEND,
    BackendJob,
    Job,
    PreflightJob,
    SignJob,
    UnitJob,
)
from tokenlake.etl.job.versions import produced_by
from tokenlake.etl.pool import Jobs, Pool
from tokenlake.etl.shared_plan.open_jobs import check_open

_SECONDS_BETWEEN_LOOKS: Final = 2.0
"""Number of seconds after which a thread that waits for a slot checks whether the
cluster has grown.
"""


@final
class ClusterPool(Pool):
    """Pool whose workers are slots of a cluster, which start as they are needed.

    Args:
        open_nodes: Function that joins the cluster, or starts one.
    """

    def __init__(self, open_nodes: Callable[[], Nodes]) -> None:
        self._nodes = open_nodes()
        self.workers = self._nodes.workers
        self._changed = threading.Condition()
        self._slots: list[Any] = []
        self._idle_slots: list[Any] = []
        self._is_cancelled = False
        # The job that chose the backend of each source of texts, and the backend.
        self._backend_choices: dict[str, tuple[BackendJob, str]] = {}
        # The line of each check of a machine, by all that it depends on.
        self._preflights: dict[tuple[str, ...], bytes] = {}

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Start the slots that this number of jobs needs."""
        with self._changed:
            if self._is_cancelled:
                return
            for _ in range(len(self._slots), min(count, self._most_slots())):
                self._start_slot()

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Run one job in one slot and return its result.

        Its progress is reported at its end.

        Raises:
            ConfigError: The job holds secrets, or a machine of the cluster would write
                other bytes.
            WorkerDiedError: The slot or its worker is gone; the job may be tried again.
            CancelledError: :meth:`cancel` was called.
            TokenlakeError: The job itself raised this error.
        """
        # 1. The job and the check of the machine, which leave this machine.
        line = to_line(job)
        preflight = self._preflight_of(job)
        check_open(line.decode())

        # 2. The answer of a slot. A slot that raised is not used again.
        slot = self._borrow()
        try:
            answer = answer_of(self._nodes.ask(slot, preflight, line))
        except BaseException as error:
            self._end_slot(slot)
            if self._is_cancelled:
                raise errors.CancelledError(
                    "the build was cancelled; run it again to resume"
                ) from None
            if isinstance(error, SlotLostError):
                raise errors.WorkerDiedError(
                    f"a worker on the cluster was lost: {error}"
                ) from error
            raise
        with self._changed:
            self._idle_slots.append(slot)
            self._changed.notify()

        # 3. The result.
        if answer.progress and on_progress is not None:
            on_progress(answer.progress)
        if answer.error is not None:
            raise errors.from_json(answer.error)
        if isinstance(job, BackendJob):
            self._backend_choices[job.source.name] = (job, answer.result["engine"])
        return answer.result

    def cancel(self) -> None:
        with self._changed:
            self._is_cancelled = True
            slots = self._slots
            self._slots = []
            self._idle_slots = []
            self._changed.notify_all()
        for slot in slots:
            self._nodes.end(slot)

    def close(self) -> None:
        self.cancel()
        self._nodes.close()

    def _preflight_of(self, job: Job) -> bytes:
        """Return the line of the machine check before a unit.

        It is empty for a job that builds no unit.
        """
        if isinstance(job, BackendJob | PreflightJob | SignJob):
            return b""
        # Units of texts need the same backend, other units only the same packages.
        source = ""
        engine = None
        if isinstance(job, UnitJob):
            source = job.source.name
            engine = job.engine
        preflight_key = (
            job.store.url,
            job.dataset,
            str(job.version),
            source,
            engine or "",
        )
        if preflight_key not in self._preflights:
            probe, chosen_backend = self._backend_choices.get(
                source, (None, NO_BACKEND)
            )
            preflight = PreflightJob(
                store=job.store,
                dataset=job.dataset,
                version=job.version,
                versions=produced_by() | produced_by(engine),
                probe=probe,
                engine=chosen_backend,
            )
            self._preflights[preflight_key] = to_line(preflight)
        return self._preflights[preflight_key]

    def _most_slots(self) -> int:
        """Return the largest number of slots.

        A slot without room would wait for it, and a unit with it.
        """
        return max(1, min(self.workers, self._nodes.room()))

    def _start_slot(self) -> None:
        """Start a slot; the caller holds the lock."""
        slot = self._nodes.start()
        self._slots.append(slot)
        self._idle_slots.append(slot)

    def _end_slot(self, slot: Any) -> None:
        """End a slot that lost its worker or raised an error."""
        self._nodes.end(slot)
        # After `cancel` the slot is in no list.
        with self._changed, suppress(ValueError):
            self._slots.remove(slot)
            self._changed.notify()

    def _borrow(self) -> Any:
        """Return an idle slot, as soon as there is one."""
        with self._changed:
            while not self._idle_slots and not self._is_cancelled:
                if len(self._slots) < self._most_slots():
                    self._start_slot()
                else:
                    # The cluster may grow meanwhile, of which nothing tells this
                    # thread.
                    self._changed.wait(_SECONDS_BETWEEN_LOOKS)
            if self._is_cancelled:
                raise errors.CancelledError(
                    "the build was cancelled; run it again to resume"
                )
            return self._idle_slots.pop()


def open_ray_pool(workers: int | None, ray: RayConfig) -> ClusterPool:
    """Return a pool on a Ray cluster."""
    return ClusterPool(lambda: RayNodes(ray, workers))


def open_dask_pool(workers: int | None, ray: RayConfig) -> ClusterPool:
    """Return a pool on a Dask cluster."""
    return ClusterPool(lambda: DaskNodes(workers))
