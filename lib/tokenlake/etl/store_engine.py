"""The store engine: the plan of a build lies in its store, and whoever can builds units; the ledger is the truth.

The run that plans and commits publishes the plan (:mod:`tokenlake.etl.shared_plan`) and waits: it has no workers for
units. A worker that joins takes the units of its share first, then any that nobody builds. It needs no other process:
not the run that published the plan, nor another worker. Each may end at any moment: what is finished has a ledger
record, what was not gets another worker when its lease is over, and the next run makes the commit.
"""

from __future__ import annotations

import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake import errors
from tokenlake.etl import shared_plan
from tokenlake.etl.commit import require_held
from tokenlake.etl.job import EngineJob, Job, PreflightJob, Progress, SignJob, WorkJob
from tokenlake.etl.pool import Jobs, Pool, WorkerPool, run_threads, worth_a_retry
from tokenlake.etl.step_clock import countable
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import ObjectInfo, Store
from tokenlake.runtime.store.catalog import Catalog, Reference
from tokenlake.runtime.store.claims import is_committed
from tokenlake.runtime.store.layout import LEDGER, Layout, ledger_unit
from tokenlake.runtime.store.ledger import UnitRecord

if TYPE_CHECKING:
    from tokenlake.config.stages import RayConfig

_WATCH: Final = 0.5  # seconds between two looks of the run that waits: a listing or two each
_WAITING: Final = 32  # units that it waits for at a time; others that get done meanwhile are found at once

_LOOK: Final = 1.0  # seconds between two looks of a worker at what others did, or more:
_PATIENCE: Final = 20  # times what the last look took, as a listing of very many units takes long
_TRIES: Final = 3  # of a unit whose worker process died, or whose store failed


@final
@dataclass(frozen=True, slots=True)
class Awaited:
    """What a run waits for, as its store said last: units that are left, and worker to the seconds since its last sign
    of life."""

    address: StoreAddress
    layout: Layout
    left: int
    heard: Mapping[str, float]


@final
class _Board:
    """What the store says of the units of one build, as it was looked at last: those with a record, with a note of why
    they have none, with a lease; who is there; why the last look failed, and why nobody will do the rest."""

    def __init__(self, address: StoreAddress, layout: Layout) -> None:
        self.address, self.layout, self.store = address, layout, open_store(address)
        self.done, self.failed = set[int](), set[int]()
        self.marks: dict[int, shared_plan.Mark] = {}
        self.present: dict[str, tuple[shared_plan.Mark, float]] = {}
        self.problem: errors.TokenlakeError | None = None
        self.over: errors.TokenlakeError | None = None


@final
class StorePool(Pool):
    """Waits for whoever builds the units of a plan in a store; engines are chosen here, in a process of its own."""

    def __init__(self) -> None:
        self.workers = _WAITING
        self._local = WorkerPool(1)
        self._chosen: dict[str, tuple[EngineJob, str]] = {}
        self._planned: dict[int, WorkJob] = {}
        self._publishing, self._changed = threading.Lock(), threading.Condition()
        self._board: _Board | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="tokenlake-ledger", daemon=True)

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Publish the plan of these jobs, in the place of an older one."""
        planned = [job for job in jobs() if not isinstance(job, EngineJob | PreflightJob | SignJob)]
        if planned:
            with self._publishing:
                self._publish({job.unit: job for job in planned})

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Wait for the record of a unit, and return it, sealed; choose an engine here.

        Raises:
            CancelledError: :meth:`cancel` was called; the workers go on.
            TokenlakeError: what a worker raised.
        """
        if isinstance(job, EngineJob | PreflightJob | SignJob):
            found = self._local.run(job, on_progress)
            if isinstance(job, EngineJob):
                self._chosen[job.source.name] = job, found["engine"]
            return found
        with self._publishing:
            if self._planned.get(job.unit) != job:  # its engine was condemned meanwhile
                self._publish(self._planned | {job.unit: job})
            board = self._board
        assert board is not None
        return self._wait(board, job.unit, on_progress)

    def awaited(self) -> Awaited | None:
        """Return what is waited for; None before there is a plan."""
        with self._publishing:
            board, units = self._board, set(self._planned)
        if board is None:
            return None
        with self._changed:
            now = time.monotonic()
            heard = {worker: now - since for worker, (_, since) in board.present.items()}
            return Awaited(board.address, board.layout, len(units - board.done), heard)

    def give_up(self, error: errors.TokenlakeError) -> None:
        """Have running and later calls of :meth:`run` raise an error, as nobody will do the rest."""
        if self._board is not None:
            with self._changed:
                self._board.over = error
                self._changed.notify_all()

    def cancel(self) -> None:
        self._ended.set()
        self._local.cancel()

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._local.close()
        if self._thread.ident is not None:
            self._thread.join()

    def pids(self) -> list[int]:
        return self._local.pids()

    def _publish(self, jobs: Mapping[int, WorkJob]) -> None:
        first = next(iter(jobs.values()))
        address, layout = first.store, Layout(first.dataset, first.version)
        board = self._board
        if board is None or (board.address, board.layout) != (address, layout):
            board = self._board = _Board(address, layout)
            if self._thread.ident is None:
                self._thread.start()
        # Units that failed in an earlier run are tried again.
        for unit in shared_plan.failed_units(board.store.list(layout.key(shared_plan.WORK))):
            shared_plan.take_failure(board.store, layout, unit)
        claim = Catalog(board.store).read_claim(layout.dataset, layout.version)
        if claim is None:
            raise errors.StoreError(f"{layout.claim} is gone; run the build again", key=layout.claim)
        used = {job.source.name for job in jobs.values() if job.op == "unit"}
        engines = [chosen for source, chosen in self._chosen.items() if source in used]
        shared_plan.publish_plan(board.store, layout, claim.fingerprint, jobs.values(), engines)
        self._planned = dict(jobs)

    def _wait(self, board: _Board, unit: int, on_progress: Progress | None) -> str:
        """Return the sealed record of a unit, once there is one."""
        store, layout = board.store, board.layout
        seen: shared_plan.Mark | None = None
        told: dict[str, int] = {}
        while True:
            with self._changed:
                if self._ended.is_set():
                    why = "the run was cancelled; workers go on, run it again to commit"
                    raise errors.CancelledError(why)
                if (problem := board.over or board.problem) is not None:
                    raise problem
                done, failed, mark = unit in board.done, unit in board.failed, board.marks.get(unit)
                if not done and not failed and seen == mark:
                    self._changed.wait(_WATCH)
                    continue
            if done:
                with suppress(errors.NotFoundError):
                    return store.read(layout.ledger(unit)).decode()
                with self._changed:  # another run took it away
                    board.done.discard(unit)
            if failed:
                with self._changed:
                    board.failed.discard(unit)
                if (error := shared_plan.take_failure(store, layout, unit, keep=True)) is not None:
                    # Of these it may be built yet.
                    if isinstance(
                        error, errors.WorkerDiedError | errors.StoreError | errors.EngineMismatchError
                    ):
                        shared_plan.take_failure(store, layout, unit)
                    raise error
            seen = mark
            if mark is not None and on_progress is not None:
                now = shared_plan.progress_of(store, layout, unit)
                more = {name: max(0, count - told.get(name, 0)) for name, count in now.items()}
                told |= now
                if any(more.values()):
                    on_progress(more)

    def _look_on(self) -> None:
        while not self._ended.wait(_WATCH):
            board = self._board
            assert board is not None
            try:
                done, work = _listed(board.store, board.layout)
                present = shared_plan.present_workers(work)
                present = shared_plan.last_changes(present, board.present, time.monotonic())
                failed, marks = shared_plan.failed_units(work), shared_plan.leased_units(work)
                with self._changed:
                    board.done, board.failed, board.marks, board.present = done, failed, marks, present
                    board.problem = None
            except errors.StoreError as error:
                board.problem = error
            except Exception as error:  # or whoever waits would wait for ever
                why = f"the ledger of {board.layout.prefix} cannot be watched: {error!r}"
                board.over = errors.WorkerError(why)
            with self._changed:
                self._changed.notify_all()


def _listed(store: Store, layout: Layout) -> tuple[set[int], list[ObjectInfo]]:
    """Return the units that have a record, and what lies beside the plan."""
    ledger = [layout.path(info.key) for info in store.list(layout.key(LEDGER))]
    work = list(store.list(layout.key(shared_plan.WORK)))
    return {unit for unit in map(ledger_unit, ledger) if unit is not None}, work


OnUnit = Callable[[UnitRecord, float], None]

_SHARE: Final = re.compile(r"([0-9]{1,7})/([1-9][0-9]{0,6})")


def parse_share(text: str) -> tuple[int, int]:
    """Return which share of how many a text such as ``0/4`` says; ConfigError where it says none."""
    found = _SHARE.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        raise errors.ConfigError(f"share {text!r}: expected I/N, such as 0/4 to 3/4 for four workers")
    return int(found[1]), int(found[2])


def named_build(where: StoreAddress, name: str, patience: float) -> Layout:
    """Return the version that is named, or the newest one, as soon as there is any.

    Args:
        name: ``NAME`` or ``NAME@v3``.
        patience: seconds to wait for one.
    """
    found = Reference.parse(name)
    if found.tag is not None:
        raise errors.ConfigError(f"{name}: tags name finished versions; expected NAME or NAME@v3")
    if found.version is not None:
        return Layout(found.dataset, found.version)
    catalog = Catalog(open_store(where))
    newest = _patiently(lambda: max(info.version for info in catalog.versions(found.dataset)), patience)
    return Layout(found.dataset, newest)


def _patiently(find: Callable[[], Any], patience: float) -> Any:
    """Return what is found, looked for again and again for so many seconds; then NotFoundError."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return find()
        except errors.NotFoundError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK)


@final
@dataclass(frozen=True, slots=True)
class WorkDone:
    """What one worker did: units whose record it filed, and units of the plan that others had built."""

    built: int
    found: int


def join_build(
    where: StoreAddress,
    layout: Layout,
    pool: Pool,
    *,
    share: tuple[int, int] = (0, 1),
    patience: float = 0.0,
    on_unit: OnUnit = lambda record, seconds: None,
    worker: str | None = None,
    allow: Callable[[Job], None] = lambda job: None,
) -> WorkDone:
    """Build units of the newest plan of a version until none is left.

    Args:
        where: the store, as this machine reaches it.
        pool: processes that build.
        share: which of how many, from 0.
        patience: seconds to wait for a plan.
        on_unit: told of each unit that was built here, with its seconds; from several threads.
        worker: its name, which no other has; None: of the machine and the process.
        allow: raises ConfigError for a job that is not to be done here.

    Raises:
        NotFoundError: there is no plan.
        ConfigError: this process would make other bytes, or cannot: what differs is in the message.
        VersionConflictError: the build was given up.
        TokenlakeError: a unit cannot be built, and nobody took note of it.
    """
    store = open_store(where)

    def find() -> shared_plan.SharedPlan | None:
        plan = shared_plan.read_plan(store, layout)
        if plan is None and not is_committed(store, layout):
            raise errors.NotFoundError(
                f"{layout.prefix} has no plan in {store.url}; `tokenlake run CONFIG --engine store` publishes one. "
                "Start it first, or wait for it: --wait 10m",
                key=layout.prefix,
            )
        return plan

    if (plan := _patiently(find, patience)) is None:
        return WorkDone(0, 0)
    worker = worker or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return _PlanWorker(where, plan, pool, share, on_unit, worker, allow).run()


@final
@dataclass
class _PlanWorker:
    """One worker on one plan; its threads share everything. Arguments as of :func:`join_build`."""

    where: StoreAddress
    plan: shared_plan.SharedPlan
    pool: Pool
    share: tuple[int, int]
    on_unit: OnUnit
    worker: str
    allow: Callable[[Job], None]

    def __post_init__(self) -> None:
        self._store, self._layout = open_store(self.where), self.plan.layout
        self._leases = shared_plan.Leases(self._store, self._layout, self.worker, shared_plan.lease_seconds())
        self._lock, self._over = threading.Lock(), threading.Event()
        self._jobs: dict[int, WorkJob] = {}
        self._open: list[int] = []
        self._done, self._failed = set[int](), set[int]()
        self._committed = False
        self._idle_since: float | None = None
        self._next_look = -math.inf
        self._built = 0

    def run(self) -> WorkDone:
        """Build until nothing is left."""
        with self._leases.kept():
            self._check_here(self.plan)
            self._load(self.plan)
            self.pool.expect(len(self._jobs))
            run_threads(self._work, self.pool, self.pool.workers, self._over)
        return WorkDone(self._built, len(self._done) - self._built)

    def _work(self) -> None:
        while not self._over.is_set():
            with self._lock:
                if not self._is_left():
                    return
                unit = self._taken()
            if unit is None:
                self._over.wait(_LOOK)
                continue
            try:
                self._build(unit)
            finally:
                self._leases.release(unit)

    def _taken(self) -> int | None:
        """Lease a unit that nobody has built or builds; None where there is none."""
        for unit in list(self._open):
            if self._leases.take(unit):
                self._open.remove(unit)
                if not self._store.exists(self._layout.ledger(unit)):
                    return unit
                self._leases.release(unit)
                self._done.add(unit)
        return None

    def _is_left(self) -> bool:
        """Say whether any unit has no record, as far as a listing of late knows, or may yet lose it.

        A worker with nothing to do stays until the commit, or for as long as a lease takes: another plan may come,
        because an engine was condemned or a unit is to be tried again.

        Raises:
            TokenlakeError: why a unit cannot be built.
        """
        if (began := time.monotonic()) >= self._next_look:
            self._look()
            ended = time.monotonic()
            most = shared_plan.lease_seconds() / 4  # or leases are over unnoticed
            self._next_look = ended + max(_LOOK, min(_PATIENCE * (ended - began), most))
        left = self._jobs.keys() - self._done
        if left - self._failed:
            self._idle_since = None
            return True
        self._idle_since = self._idle_since or time.monotonic()
        if not self._committed and time.monotonic() - self._idle_since < shared_plan.lease_seconds():
            return True
        if left:
            failure = shared_plan.take_failure(self._store, self._layout, min(left), keep=True)
            raise failure or _nobody(self._layout)
        return False

    def _look(self) -> None:
        """Learn what others did, and whether there is another plan."""
        done, work = _listed(self._store, self._layout)
        if (plan := shared_plan.read_plan(self._store, self._layout)) is None:
            self._committed = self._is_over()
            if not self._committed:
                raise _nobody(self._layout)
            self._done, self._open = set(self._jobs), []
            return
        if plan.number != self.plan.number:
            self._load(plan)
        self._done, self._failed = done, shared_plan.failed_units(work)
        self._leases.look(shared_plan.leased_units(work))
        self._committed = self._done >= self._jobs.keys() and is_committed(self._store, self._layout)
        missing, (own, shares) = sorted(self._jobs.keys() - self._done - self._failed), self.share
        mine = [unit for unit in missing if unit % shares == own]
        # Those of others from behind: whoever has them begins at the front.
        order = mine + [unit for unit in reversed(missing) if unit % shares != own]
        self._open = [unit for unit in order if self._leases.is_free(unit)]

    def _is_over(self) -> bool:
        """Say whether there is a commit, or nothing more to commit.

        Raises:
            VersionConflictError: the build was given up.
        """
        try:
            require_held(self._store, self._layout, self.plan.claimed)
        except errors.VersionConflictError:
            # A repair takes its claim away with all else that it had built.
            if self._store.exists(self._layout.claim):
                raise
            return True
        return is_committed(self._store, self._layout)

    def _load(self, plan: shared_plan.SharedPlan) -> None:
        with suppress(errors.NotFoundError):  # a newer one comes, and is read at the next look
            jobs = plan.jobs(self._store, self.where)
            if (plan.versions, plan.probes) != (self.plan.versions, self.plan.probes):
                self._check_here(plan)
            self._jobs, self.plan = jobs, plan

    def _check_here(self, plan: shared_plan.SharedPlan) -> None:
        """Raise ConfigError where this machine makes other bytes, or cannot read what is to be read, or must not."""
        for job in plan.preflights(self.where):
            if job.probe is not None:
                self.allow(job.probe)
            self.pool.run(job)

    def _build(self, unit: int) -> None:
        """Have a unit built and file its record, or why there is none."""
        began, job = time.monotonic(), self._jobs[unit]
        try:
            record = self._filed(unit, job)
        except errors.CancelledError:
            raise
        except errors.TokenlakeError as error:
            if not self._is_over() and not self._store.exists(self._layout.ledger(unit)):  # else it was filed
                shared_plan.publish_failure(self._store, self._layout, unit, error)
            return
        with self._lock:
            self._built += 1
            self._done.add(unit)
        self.on_unit(record, time.monotonic() - began)

    def _filed(self, unit: int, job: WorkJob) -> UnitRecord:
        for attempt in range(1, _TRIES + 1):
            try:
                self.allow(job)
                sealed: str = self.pool.run(
                    job, lambda progress: self._leases.tell(unit, countable(progress))
                )
                require_held(self._store, self._layout, self.plan.claimed)
                self._store.put_new(self._layout.ledger(unit), sealed.encode())
                return UnitRecord.from_bytes(sealed.encode(), f"the record of unit {unit}")
            except errors.TokenlakeError as error:
                if attempt == _TRIES or not worth_a_retry(error):
                    raise
                self._over.wait(0.2 * 2**attempt)
        raise AssertionError("unreachable")


def _nobody(layout: Layout) -> errors.NotFoundError:
    why = f"{layout.prefix} has a plan no more; run the build again: it publishes another"
    return errors.NotFoundError(why, key=layout.prefix)


def open_store_pool(workers: int | None, ray: RayConfig) -> StorePool:
    """Return the pool whose units are built by whoever joins.

    Raises:
        ConfigError: `workers` is given: the engine starts none.
    """
    if workers:
        raise errors.ConfigError(
            f"workers={workers} with the store engine, which starts none; give it to each `tokenlake work`"
        )
    return StorePool()
