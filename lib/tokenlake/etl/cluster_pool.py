"""The workers of a build on the nodes of a cluster: slots, each with a worker process of its own.

A slot is this library's :class:`WorkerPool` of one process, on whatever node; a job goes to it as a line of JSON, and
the answer comes as one. With it goes what a machine must have (:class:`tokenlake.etl.job.PreflightJob`), at which each
slot looks once. So a cluster's system moves a few short texts for each unit, and knows nothing of units. A slot
whose node died is replaced, and its job fails as that of a dead worker does: whoever asked tries it again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast, final

from tokenlake.errors import CancelledError, TokenlakeError, WorkerDiedError, from_json, to_json
from tokenlake.etl.job import (
    NO_ENGINE,
    EngineJob,
    Job,
    PreflightJob,
    SignJob,
    UnitJob,
    WorkerAnswer,
    answer_of,
    job_of,
    produced_by,
    to_line,
)
from tokenlake.etl.pool import Jobs, Progress, WorkerPool
from tokenlake.etl.shared_plan import check_open

_LOOK: Final = 2.0  # seconds between two looks at whether the cluster has grown


@final
class Slot:
    """A worker process, in a process of the cluster's."""

    def __init__(self) -> None:
        self._pool = WorkerPool(1)
        self._passed: set[bytes] = set()

    def run(self, preflight: bytes, line: bytes) -> bytes:
        """Do the job of a line, after that of a preflight that was not done here before; the answer is a line, too."""
        told: Counter[str] = Counter()
        try:
            if preflight and preflight not in self._passed:
                self._pool.run(cast("Job", job_of(preflight)))
                self._passed.add(preflight)
            result = self._pool.run(cast("Job", job_of(line)), told.update)
        except TokenlakeError as error:
            return to_line(WorkerAnswer(progress=dict(told), error=to_json(error), rss=1))
        return to_line(WorkerAnswer(progress=dict(told), result=result, rss=1))

    def close(self) -> None:
        """End the process."""
        self._pool.close()


class SlotLostError(Exception):
    """The process or the node of a slot is gone. Never leaves this package."""


class Nodes(Protocol):
    """A cluster: where slots are.

    Attributes:
        workers: slots that it has room for.
    """

    workers: int

    def room(self) -> int:
        """Return for how many slots there is room now, those that are there included: clusters grow and shrink."""
        ...

    def start(self) -> Any:
        """Return a new slot, which may still be starting."""
        ...

    def ask(self, slot: Any, preflight: bytes, line: bytes) -> bytes:
        """Have a slot do a job, as :meth:`Slot.run` does; SlotLostError where it is gone, or was ended."""
        ...

    def end(self, slot: Any) -> None:
        """End a slot, also one that is at a job, or gone."""
        ...

    def close(self) -> None:
        """Leave the cluster, and end what was started of it."""
        ...


@final
class ClusterPool:
    """A pool whose workers are slots of a cluster; they start as they are needed.

    Args:
        open_nodes: joins the cluster, or starts one.
    """

    def __init__(self, open_nodes: Callable[[], Nodes]) -> None:
        self._nodes = open_nodes()
        self.workers = self._nodes.workers
        self._changed = threading.Condition()
        self._all: list[Any] = []
        self._idle: list[Any] = []
        self._cancelled = False
        self._chosen: dict[str, tuple[EngineJob, str]] = {}
        self._preflights: dict[tuple[str, ...], bytes] = {}

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Start the slots that so many jobs need."""
        with self._changed:
            most = min(count, self._most())
            while len(self._all) < most and not self._cancelled:
                self._start_one()

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Do one job in one slot; what is done of it is told at its end.

        Raises:
            ConfigError: the job holds secrets, or a machine of the cluster would make other bytes.
            WorkerDiedError: the slot or its worker is gone; the job may be tried again.
            CancelledError: :meth:`cancel` was called.
            TokenlakeError: what the job itself raised, rebuilt.
        """
        line, preflight = to_line(job), self._preflight(job)
        check_open(line.decode())
        slot = self._borrow()
        try:
            answer = answer_of(self._nodes.ask(slot, preflight, line))
        except BaseException as error:
            self._drop(slot)
            if self._cancelled:
                raise CancelledError("the build was cancelled; run it again to resume") from None
            if isinstance(error, SlotLostError):
                raise WorkerDiedError(f"a worker on the cluster is gone: {error}") from error
            raise
        with self._changed:
            self._idle.append(slot)
            self._changed.notify()
        if answer.progress and on_progress is not None:
            on_progress(answer.progress)
        if answer.error is not None:
            raise from_json(answer.error)
        if isinstance(job, EngineJob):
            self._chosen[job.source.name] = job, answer.result["engine"]
        return answer.result

    def _preflight(self, job: Job) -> bytes:
        """Return the line of what a machine must have for a unit; an empty one for what is no unit."""
        if isinstance(job, EngineJob | PreflightJob | SignJob):
            return b""
        engine, source = (job.engine, job.source.name) if isinstance(job, UnitJob) else (None, "")
        key = (job.store.url, job.dataset, str(job.version), source, engine or "")
        if key not in self._preflights:
            probe, chosen = self._chosen.get(source, (None, NO_ENGINE))
            versions = produced_by() | produced_by(engine)
            self._preflights[key] = to_line(
                PreflightJob(
                    store=job.store,
                    dataset=job.dataset,
                    version=job.version,
                    versions=versions,
                    probe=probe,
                    engine=chosen,
                )
            )
        return self._preflights[key]

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            slots, self._all, self._idle = self._all, [], []
            self._changed.notify_all()
        for slot in slots:
            self._nodes.end(slot)

    def close(self) -> None:
        self.cancel()
        self._nodes.close()

    def pids(self) -> list[int]:
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _most(self) -> int:
        """Return how many slots there may be: one without room would wait for it, and a unit with it."""
        return max(1, min(self.workers, self._nodes.room()))

    def _start_one(self) -> None:
        slot = self._nodes.start()
        self._all.append(slot)
        self._idle.append(slot)

    def _borrow(self) -> Any:
        with self._changed:
            while not self._idle and not self._cancelled:
                if len(self._all) < self._most():
                    self._start_one()
                else:
                    self._changed.wait(_LOOK)
            if self._cancelled:
                raise CancelledError("the build was cancelled; run it again to resume")
            return self._idle.pop()

    def _drop(self, slot: Any) -> None:
        self._nodes.end(slot)
        with self._changed, suppress(ValueError):
            self._all.remove(slot)
            self._changed.notify()
