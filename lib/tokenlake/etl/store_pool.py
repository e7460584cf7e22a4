"""The store engine, seen from the run that plans and commits: jobs lie in the store, and whoever can builds them.

The plan goes into the store (:mod:`tokenlake.etl.shared_plan`), any number of ``tokenlake work`` build its units
(:mod:`tokenlake.etl.store_worker`), and a unit is done when the ledger has its record. So this pool has no workers for
units: it waits. Nothing is lost when it goes: the workers need it for nothing but the commit, which the next run makes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, final

from tokenlake import errors
from tokenlake.etl import shared_plan
from tokenlake.etl.job import EngineJob, Job, PreflightJob, SignJob, WorkJob
from tokenlake.etl.pool import Jobs, Pool, Progress, WorkerPool
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.base import Store
from tokenlake.store.catalog import Catalog
from tokenlake.store.layout import LEDGER, Layout, ledger_unit

#: Seconds between two looks at the store: a listing or two each.
_LOOK: Final = 0.5

#: Units that are waited for at a time; any others that get done meanwhile are found at once.
_WAITING: Final = 32


@final
@dataclass(frozen=True, slots=True)
class Awaited:
    """What a run waits for, as its store said last.

    Attributes:
        address, layout: of the build.
        left: units without a record.
        heard: worker to the seconds since it said that it is there.
    """

    address: StoreAddress
    layout: Layout
    left: int
    heard: Mapping[str, float]


@final
class StorePool(Pool):
    """Waits for whoever builds the units of a plan in a store; engines are chosen here, in a process of its own."""

    def __init__(self) -> None:
        self.workers = _WAITING
        self._local = WorkerPool(1)
        self._chosen: dict[str, tuple[EngineJob, str]] = {}
        self._planned: dict[int, WorkJob] = {}
        self._board: _Board | None = None
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Publish the plan of these jobs, in the place of an older one."""
        planned = [job for job in jobs() if not isinstance(job, EngineJob | PreflightJob | SignJob)]
        if planned:
            with self._lock:
                self._publish({job.unit: job for job in planned})

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Wait for the record of a unit, and return it, sealed; choose an engine here.

        Raises:
            CancelledError: :meth:`cancel` was called; the workers go on.
            TokenlakeError: what a worker raised.
        """
        if isinstance(job, PreflightJob | SignJob):
            return self._local.run(job, on_progress)
        if isinstance(job, EngineJob):
            verdict = self._local.run(job, on_progress)
            self._chosen[job.source.name] = job, verdict["engine"]
            return verdict
        with self._lock:
            if self._planned.get(job.unit) != job:  # its engine was condemned meanwhile
                self._publish(self._planned | {job.unit: job})
            board = self._board
        assert board is not None
        return board.wait(job.unit, on_progress, self._cancelled)

    def awaited(self) -> Awaited | None:
        """Return what is waited for; None before there is a plan."""
        with self._lock:
            board, units = self._board, set(self._planned)
        return None if board is None else board.awaited(units)

    def give_up(self, error: errors.TokenlakeError) -> None:
        """Have running and later calls of :meth:`run` raise an error, as nobody will do the rest."""
        with self._lock:
            if self._board is not None:
                self._board.give_up(error)

    def cancel(self) -> None:
        self._cancelled.set()
        self._local.cancel()

    def close(self) -> None:
        """Stop looking."""
        self._cancelled.set()
        self._local.close()
        if self._board is not None:
            self._board.close()

    def pids(self) -> list[int]:
        return self._local.pids()

    def _publish(self, jobs: Mapping[int, WorkJob]) -> None:
        first = next(iter(jobs.values()))
        address, layout = first.store, Layout(first.dataset, first.version)
        if self._board is None or (self._board.address, self._board.layout) != (address, layout):
            if self._board is not None:
                self._board.close()
            self._board = _Board(address, layout)
        board = self._board
        board.forget_failures()
        claim = Catalog(board.store).read_claim(layout.dataset, layout.version)
        if claim is None:
            raise errors.StoreError(f"{layout.claim} is gone; run the build again", key=layout.claim)
        used = {job.source.name for job in jobs.values() if job.op == "unit"}
        engines = [chosen for source, chosen in self._chosen.items() if source in used]
        shared_plan.publish_plan(board.store, layout, claim.fingerprint, jobs.values(), engines)
        self._planned = dict(jobs)


@final
class _Board:
    """What the store says of the units of one build; a thread looks."""

    def __init__(self, address: StoreAddress, layout: Layout) -> None:
        self.store: Store = open_store(address)
        self.address, self.layout = address, layout
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._done: set[int] = set()
        self._failed: set[int] = set()
        self._marks: dict[int, shared_plan.Mark] = {}
        self._present: dict[str, tuple[shared_plan.Mark, float]] = {}
        self._problem: errors.TokenlakeError | None = None
        self._over: errors.TokenlakeError | None = None
        self._thread = threading.Thread(target=self._look_on, name="tokenlake-ledger", daemon=True)
        self._thread.start()

    def wait(self, unit: int, on_progress: Progress | None, cancelled: threading.Event) -> str:
        """Return the sealed record of a unit, once there is one."""
        seen: shared_plan.Mark | None = None
        told: dict[str, int] = {}
        while True:
            with self._changed:
                if cancelled.is_set():
                    raise errors.CancelledError(
                        "the run was cancelled; workers go on, run it again to commit"
                    )
                if (problem := self._over or self._problem) is not None:
                    raise problem
                done, failed, mark = unit in self._done, unit in self._failed, self._marks.get(unit)
                if not done and not failed and seen == mark:
                    self._changed.wait(_LOOK)
                    continue
            if done:
                with suppress(errors.NotFoundError):
                    return self.store.read(self.layout.ledger(unit)).decode()
                with self._changed:  # another run took it away
                    self._done.discard(unit)
            if failed and (error := self._failure(unit)) is not None:
                raise error
            seen = mark
            if mark is not None and on_progress is not None:
                now = shared_plan.progress_of(self.store, self.layout, unit)
                more = {name: max(0, count - told.get(name, 0)) for name, count in now.items()}
                told |= now
                if any(more.values()):
                    on_progress(more)

    def awaited(self, units: set[int]) -> Awaited:
        """Say how many of these units are left, and who is there."""
        with self._changed:
            now = time.monotonic()
            heard = {worker: now - since for worker, (_, since) in self._present.items()}
            return Awaited(self.address, self.layout, len(units - self._done), heard)

    def give_up(self, error: errors.TokenlakeError) -> None:
        """Have whoever waits get an error."""
        self._set(lambda: setattr(self, "_over", error))

    def forget_failures(self) -> None:
        """Have units that failed in an earlier run tried again."""
        for unit in shared_plan.failed_units(self.store.list(self.layout.key(shared_plan.WORK))):
            shared_plan.take_failure(self.store, self.layout, unit)

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join()

    def _failure(self, unit: int) -> errors.TokenlakeError | None:
        with self._changed:
            self._failed.discard(unit)
        error = shared_plan.take_failure(self.store, self.layout, unit, keep=True)
        if isinstance(
            error, errors.WorkerDiedError | errors.StoreError | errors.EngineMismatchError
        ):  # it may be built yet
            shared_plan.take_failure(self.store, self.layout, unit)
        return error

    def _look_on(self) -> None:
        while not self._closed.wait(_LOOK):
            try:
                self._look()
            except errors.StoreError as error:
                self._set(lambda error=error: setattr(self, "_problem", error))
            except Exception as error:  # or whoever waits would wait for ever
                self.give_up(
                    errors.WorkerError(f"the ledger of {self.layout.prefix} cannot be watched: {error!r}")
                )
                return

    def _look(self) -> None:
        ledger = [self.layout.path(info.key) for info in self.store.list(self.layout.key(LEDGER))]
        work = list(self.store.list(self.layout.key(shared_plan.WORK)))

        def found() -> None:
            self._done = {unit for unit in map(ledger_unit, ledger) if unit is not None}
            self._failed, self._marks, self._problem = (
                shared_plan.failed_units(work),
                shared_plan.leased_units(work),
                None,
            )
            self._present = shared_plan.last_changes(
                shared_plan.present_workers(work), self._present, time.monotonic()
            )

        self._set(found)

    def _set(self, change: Callable[[], object]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()
