"""A worker that no scheduler tells what to do: it joins a build by the plan in its store, and the ledger is the truth.

It takes the units of its share first, then any that nobody builds. It needs no other process: not the run that
published the plan, nor another worker. Each may end at any moment; what is finished has a ledger record, and what was
not gets another worker when its lease is over.
"""

from __future__ import annotations

import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import CancelledError, ConfigError, NotFoundError, TokenlakeError, VersionConflictError
from tokenlake.etl import shared_plan
from tokenlake.etl.commit import require_held
from tokenlake.etl.job import Job, WorkJob
from tokenlake.etl.pool import Pool
from tokenlake.etl.runner import worth_a_retry
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.catalog import Catalog, Reference
from tokenlake.store.claims import is_committed
from tokenlake.store.layout import LEDGER, Layout, ledger_unit
from tokenlake.store.ledger import UnitRecord

_LOOK: Final = 1.0  # seconds between two looks at what others did, or more:
_PATIENCE: Final = 20  # times what the last look took, as a listing of very many units takes long
_TRIES: Final = 3  # of a unit whose worker process died, or whose store failed

OnUnit = Callable[[UnitRecord, float], None]


_SHARE: Final = re.compile(r"([0-9]{1,7})/([1-9][0-9]{0,6})")


def parse_share(text: str) -> tuple[int, int]:
    """Return which share of how many a text such as ``0/4`` says; ConfigError where it says none."""
    found = _SHARE.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(f"share {text!r}: expected I/N, such as 0/4, 1/4, 2/4 and 3/4 for four workers")
    return int(found[1]), int(found[2])


def named_build(where: StoreAddress, name: str, patience: float) -> Layout:
    """Return the version that is named, or the newest one, as soon as there is any.

    Args:
        name: ``NAME`` or ``NAME@v3``.
        patience: seconds to wait for one.
    """
    found = Reference.parse(name)
    if found.tag is not None:
        raise ConfigError(f"{name}: tags name finished versions; expected NAME or NAME@v3")
    if found.version is not None:
        return Layout(found.dataset, found.version)
    catalog, deadline = Catalog(open_store(where)), time.monotonic() + patience
    while True:
        try:
            return Layout(found.dataset, max(info.version for info in catalog.versions(found.dataset)))
        except NotFoundError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK)


@final
@dataclass(frozen=True, slots=True)
class WorkDone:
    """What one worker did.

    Attributes:
        built: units whose record it filed.
        found: units of the plan that others had built.
    """

    built: int
    found: int


def shared_order(units: Sequence[int], share: int, shares: int) -> list[int]:
    """Return units in the order in which a worker wants them: those of its share, then those of others from behind.

    >>> shared_order([0, 1, 2, 3, 4], 0, 2)
    [0, 2, 4, 3, 1]
    """
    mine = [unit for unit in units if unit % shares == share]
    return mine + [unit for unit in reversed(units) if unit % shares != share]


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
    deadline = time.monotonic() + patience
    while (plan := shared_plan.read_plan(store, layout)) is None:
        if is_committed(store, layout):
            return WorkDone(0, 0)
        if time.monotonic() >= deadline:
            raise NotFoundError(
                f"{layout.prefix} has no plan in {store.url}; `tokenlake run CONFIG --engine store` publishes one. "
                "Start it first, or wait for it: --wait 10m",
                key=layout.prefix,
            )
        time.sleep(_LOOK)
    worker = worker or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return _PlanWorker(where, plan, pool, share, on_unit, worker, allow).run()


@final
class _PlanWorker:
    """One worker on one plan; its threads share everything."""

    def __init__(
        self,
        where: StoreAddress,
        plan: shared_plan.SharedPlan,
        pool: Pool,
        share: tuple[int, int],
        on_unit: OnUnit,
        worker: str,
        allow: Callable[[Job], None],
    ) -> None:
        self._where, self._store, self._layout = where, open_store(where), plan.layout
        self._plan, self._pool, self._share, self._on_unit = plan, pool, share, on_unit
        self._allow = allow
        self._leases = shared_plan.Leases(self._store, self._layout, worker, shared_plan.lease_seconds())
        self._lock, self._over = threading.Lock(), threading.Event()
        self._jobs: dict[int, WorkJob] = {}
        self._open: list[int] = []
        self._done: set[int] = set()
        self._failed: set[int] = set()
        self._committed = False
        self._idle_since: float | None = None
        self._next_look = -math.inf
        self._built = 0

    def run(self) -> WorkDone:
        """Build until nothing is left."""
        with self._leases.kept(), ThreadPoolExecutor(self._pool.workers) as threads:
            try:
                self._check_here(self._plan)
                self._load(self._plan)
                self._pool.expect(len(self._jobs))
                loops = [threads.submit(self._work) for _ in range(self._pool.workers)]
                done, _ = wait(loops, return_when=FIRST_EXCEPTION)
                for loop in done:
                    loop.result()
            except BaseException:
                self._over.set()
                self._pool.cancel()
                raise
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
            pause = min(
                _PATIENCE * (ended - began), shared_plan.lease_seconds() / 4
            )  # leases are over unnoticed else
            self._next_look = ended + max(_LOOK, pause)
        left = self._jobs.keys() - self._done
        if left - self._failed:
            self._idle_since = None
            return True
        self._idle_since = self._idle_since or time.monotonic()
        if not self._committed and time.monotonic() - self._idle_since < shared_plan.lease_seconds():
            return True
        if left:
            raise shared_plan.take_failure(self._store, self._layout, min(left), keep=True) or _nobody(
                self._layout
            )
        return False

    def _look(self) -> None:
        """Learn what others did, and whether there is another plan."""
        ledger = [self._layout.path(info.key) for info in self._store.list(self._layout.key(LEDGER))]
        work = list(self._store.list(self._layout.key(shared_plan.WORK)))
        if (plan := shared_plan.read_plan(self._store, self._layout)) is None:
            self._committed = self._is_over()
            if not self._committed:
                raise _nobody(self._layout)
            self._done, self._open = set(self._jobs), []
            return
        if plan.number != self._plan.number:
            self._load(plan)
        self._done = {unit for unit in map(ledger_unit, ledger) if unit is not None}
        self._failed = shared_plan.failed_units(work)
        self._leases.look(shared_plan.leased_units(work))
        self._committed = self._done >= self._jobs.keys() and is_committed(self._store, self._layout)
        missing = sorted(self._jobs.keys() - self._done - self._failed)
        self._open = [unit for unit in shared_order(missing, *self._share) if self._leases.is_free(unit)]

    def _is_over(self) -> bool:
        """Say whether there is a commit, or nothing more to commit.

        Raises:
            VersionConflictError: the build was given up.
        """
        try:
            require_held(self._store, self._layout, self._plan.claimed)
        except VersionConflictError:
            # A repair takes its claim away with all else that it had built.
            if self._store.exists(self._layout.claim):
                raise
            return True
        return is_committed(self._store, self._layout)

    def _load(self, plan: shared_plan.SharedPlan) -> None:
        with suppress(NotFoundError):  # a newer one comes, and is read at the next look
            jobs = plan.jobs(self._store, self._where)
            if (plan.versions, plan.probes) != (self._plan.versions, self._plan.probes):
                self._check_here(plan)
            self._jobs, self._plan = jobs, plan

    def _check_here(self, plan: shared_plan.SharedPlan) -> None:
        """Raise ConfigError where this machine makes other bytes, or cannot read what is to be read, or must not."""
        for job in plan.preflights(self._where):
            if job.probe is not None:
                self._allow(job.probe)
            self._pool.run(job)

    def _build(self, unit: int) -> None:
        """Have a unit built and file its record, or why there is none."""
        began, job = time.monotonic(), self._jobs[unit]
        try:
            record = self._filed(unit, job)
        except CancelledError:
            raise
        except TokenlakeError as error:
            if not self._is_over() and not self._store.exists(self._layout.ledger(unit)):  # else it was filed
                shared_plan.publish_failure(self._store, self._layout, unit, error)
            return
        with self._lock:
            self._built += 1
            self._done.add(unit)
        self._on_unit(record, time.monotonic() - began)

    def _filed(self, unit: int, job: WorkJob) -> UnitRecord:
        for attempt in range(1, _TRIES + 1):
            try:
                self._allow(job)
                sealed: str = self._pool.run(job, lambda progress: self._leases.tell(unit, progress))
                require_held(self._store, self._layout, self._plan.claimed)
                self._store.put_new(self._layout.ledger(unit), sealed.encode())
                return UnitRecord.from_bytes(sealed.encode(), f"the record of unit {unit}")
            except TokenlakeError as error:
                if attempt == _TRIES or not worth_a_retry(error):
                    raise
                self._over.wait(0.2 * 2**attempt)
        raise AssertionError("unreachable")


def _nobody(layout: Layout) -> NotFoundError:
    return NotFoundError(
        f"{layout.prefix} has a plan no more; run the build again: it publishes another", key=layout.prefix
    )
