"""Worker that joins a build, and builds units of the newest plan until none is left.

Each thread of the worker repeats these steps:

1. Look at the store, at most once a second: which units have a record, a lease or a
   note of failure, and whether there is a newer plan.
2. Take a lease of a free unit: first of the own share (units ``I, I + N, I + 2N ...``
   of share ``I/N``), in order, then of the shares of others, from the last unit
   backwards, because their workers begin at the first.
3. Build the unit, file its record, release the lease. Where it cannot be built, file a
   note of its error.
4. Without a unit, wait. The worker stays until the commit, or for the time of a lease:
   another plan may come, because a backend was condemned or a failed unit is tried
   again.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from tokenlake import errors
from tokenlake.etl.commit import require_held
from tokenlake.etl.job.messages import Job, WorkJob
from tokenlake.etl.pool import Pool, run_threads, worth_a_retry
from tokenlake.etl.shared_plan.failures import (
    failed_units,
    publish_failure,
    take_failure,
)
from tokenlake.etl.shared_plan.leases import Leases, lease_seconds, leased_units
from tokenlake.etl.shared_plan.published import SharedPlan, read_plan
from tokenlake.etl.step_clock import countable
from tokenlake.etl.store_executor.named_builds import wait_until_found
from tokenlake.etl.store_executor.store_listing import StoreListing
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.claims import is_committed
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import UnitRecord

_SECONDS_BETWEEN_LOOKS: Final = 1.0
"""Smallest number of seconds between two looks at the store."""

_LOOK_FRACTION: Final = 20
"""A look comes after this many times the duration of the last one: a listing of very
many units takes long.
"""

_ATTEMPTS: Final = 3
"""Number of attempts at a unit whose worker process dies or whose store fails."""

OnUnit: TypeAlias = Callable[[UnitRecord, float], None]
"""Function that receives the record of a unit that was built here, and the seconds that
it took. It is called from several threads.
"""


@final
@dataclass(frozen=True, slots=True)
class WorkDone:
    """Result of one worker.

    Attributes:
        built: Number of units whose record this worker filed.
        found: Number of units of the plan that others built.
    """

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
        where: Address of the store, as this machine reaches it.
        layout: Layout of the version.
        pool: Processes that build.
        share: Index of the worker's share, from 0, and number of shares.
        patience: Number of seconds to wait for a plan.
        on_unit: Function that receives each record of a unit that is built here.
        worker: Unique name of the worker; None makes one of the machine and the
            process.
        allow: Function that raises ConfigError for a job that must not run here.

    Raises:
        NotFoundError: The version has no plan.
        ConfigError: This process would write other bytes, or cannot build; the message
            says why.
        VersionConflictError: The build was given up.
        TokenlakeError: A unit cannot be built, and no run took note of it.
    """
    store = open_store(where)

    def find_plan() -> SharedPlan | None:
        plan = read_plan(store, layout)
        if plan is None and not is_committed(store, layout):
            raise errors.NotFoundError(
                f"{layout.prefix} has no plan in {store.url}; `tokenlake run CONFIG --executor store` publishes one. "
                "Start it first, or wait for it: --wait 10m",
                key=layout.prefix,
            )
        return plan

    plan = wait_until_found(find_plan, patience)
    if plan is None:
        # The version is committed already.
        return WorkDone(0, 0)
    if not worker:
        worker = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return _JoinedWorker(where, plan, pool, share, on_unit, worker, allow).run()


@final
@dataclass
class _JoinedWorker:
    """One worker on one build, whose threads share all fields.

    See :func:`join_build` for the arguments.
    """

    where: StoreAddress
    plan: SharedPlan
    pool: Pool
    share: tuple[int, int]
    on_unit: OnUnit
    worker: str
    allow: Callable[[Job], None]

    def __post_init__(self) -> None:
        self._store = open_store(self.where)
        self._layout = self.plan.layout
        self._leases = Leases(self._store, self._layout, self.worker, lease_seconds())
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        # The build, according to the last look.
        self._jobs: dict[int, WorkJob] = {}
        # Units without a record that seemed free at the last look, in the order in
        # which they are taken.
        self._free_units: list[int] = []
        self._done: set[int] = set()
        self._failed: set[int] = set()
        self._has_commit = False
        # Time since which nothing was left to build; None while something is.
        self._idle_since: float | None = None
        self._next_look = -math.inf
        self._built = 0

    def run(self) -> WorkDone:
        """Build until nothing is left."""
        with self._leases.kept():
            self._check_machine(self.plan)
            self._load_jobs(self.plan)
            self.pool.expect(len(self._jobs))
            run_threads(self._work, self.pool, self.pool.workers, self._is_over)
        return WorkDone(self._built, len(self._done) - self._built)

    def _work(self) -> None:
        """Take and build unit after unit; the work of each thread."""
        while not self._is_over.is_set():
            # One thread at a time looks at the store and takes a unit.
            with self._lock:
                if not self._may_get_work():
                    return
                unit = self._take_unit()
            if unit is None:
                self._is_over.wait(_SECONDS_BETWEEN_LOOKS)
                continue
            try:
                self._build(unit)
            finally:
                self._leases.release(unit)

    def _take_unit(self) -> int | None:
        """Take a lease of a unit without a record, and return the unit.

        None if no unit is free.
        """
        for unit in list(self._free_units):
            if not self._leases.take(unit):
                continue
            # Another worker may have filed the record and released its lease since the
            # last look.
            self._free_units.remove(unit)
            if not self._store.exists(self._layout.ledger(unit)):
                return unit
            self._leases.release(unit)
            self._done.add(unit)
        return None

    def _may_get_work(self) -> bool:
        """Whether a unit has no record according to the last look, or may lose it.

        Raises:
            TokenlakeError: A unit failed, with this error, and no run removed the note
                of it in the time of a lease.
        """
        # 1. A unit without a record that may succeed: it is free, or another worker
        #    builds it.
        self._look_if_due()
        units_without_record = self._jobs.keys() - self._done
        if units_without_record - self._failed:
            self._idle_since = None
            return True

        # 2. Nothing to do. For the time of a lease a run may still remove records, or
        #    the notes of failures.
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if not self._has_commit and now - self._idle_since < lease_seconds():
            return True

        # 3. The end, by an error if a unit has failed.
        if units_without_record:
            failure = take_failure(
                self._store, self._layout, min(units_without_record), keep=True
            )
            raise failure or _plan_is_gone(self._layout)
        return False

    def _look_if_due(self) -> None:
        """Look at the store, unless the last look is too recent."""
        begin_time = time.monotonic()
        if begin_time < self._next_look:
            return
        self._look()
        end_time = time.monotonic()
        pause = max(_SECONDS_BETWEEN_LOOKS, _LOOK_FRACTION * (end_time - begin_time))
        # With longer pauses, leases would expire unnoticed.
        longest_pause = max(_SECONDS_BETWEEN_LOOKS, lease_seconds() / 4)
        self._next_look = end_time + min(pause, longest_pause)

    def _look(self) -> None:
        """Learn what other workers did, and whether there is another plan."""
        # 1. The plan. It is removed after the commit.
        listing = StoreListing.of(self._store, self._layout)
        plan = read_plan(self._store, self._layout)
        if plan is None:
            self._has_commit = self._is_finished()
            if not self._has_commit:
                raise _plan_is_gone(self._layout)
            self._done = set(self._jobs)
            self._free_units = []
            return
        if plan.number != self.plan.number:
            self._load_jobs(plan)

        # 2. The units: their records, failures and leases.
        self._done = listing.done
        self._failed = failed_units(listing.notes)
        self._leases.look(leased_units(listing.notes))
        # The manifest is looked for only once it can exist.
        has_all_records = self._done >= self._jobs.keys()
        self._has_commit = has_all_records and is_committed(self._store, self._layout)
        units = self._units_in_order()
        self._free_units = [unit for unit in units if self._leases.is_free(unit)]

    def _units_in_order(self) -> list[int]:
        """Return the units without a record, in the order of this worker."""
        share_index, share_count = self.share
        own_units: list[int] = []
        units_of_others: list[int] = []
        for unit in sorted(self._jobs.keys() - self._done - self._failed):
            if unit % share_count == share_index:
                own_units.append(unit)
            else:
                units_of_others.append(unit)
        # The workers of other shares begin at the first unit.
        units_of_others.reverse()
        return own_units + units_of_others

    def _is_finished(self) -> bool:
        """Whether the version is committed, or has nothing more to commit.

        Raises:
            VersionConflictError: The build was given up.
        """
        try:
            require_held(self._store, self._layout, self.plan.claimed)
        except errors.VersionConflictError:
            # A repair removes its claim together with everything that it built.
            if self._store.exists(self._layout.claim):
                raise
            return True
        return is_committed(self._store, self._layout)

    def _load_jobs(self, plan: SharedPlan) -> None:
        """Work on this plan from now on.

        If another plan replaced it meanwhile, the next look finds that one.
        """
        with suppress(errors.NotFoundError):
            jobs = plan.jobs(self._store, self.where)
            # Another plan may have other requirements of a machine.
            if (plan.versions, plan.probes) != (self.plan.versions, self.plan.probes):
                self._check_machine(plan)
            self._jobs = jobs
            self.plan = plan

    def _check_machine(self, plan: SharedPlan) -> None:
        """Check that this machine may build and would write the same bytes.

        Raises:
            ConfigError: It would write other bytes, cannot read the inputs, or must
                not.
        """
        for job in plan.preflights(self.where):
            if job.probe is not None:
                self.allow(job.probe)
            self.pool.run(job)

    def _build(self, unit: int) -> None:
        """Build a unit and file its record, or the note of its error."""
        begin_time = time.monotonic()
        try:
            record = self._build_and_file(unit, self._jobs[unit])
        except errors.CancelledError:
            raise
        except errors.TokenlakeError as error:
            # Another worker may have filed the record, or the build may be over.
            if self._is_finished():
                return
            if not self._store.exists(self._layout.ledger(unit)):
                publish_failure(self._store, self._layout, unit, error)
            return
        with self._lock:
            self._built += 1
            self._done.add(unit)
        self.on_unit(record, time.monotonic() - begin_time)

    def _build_and_file(self, unit: int, job: WorkJob) -> UnitRecord:
        """Build a unit, with retries, and file its record."""
        attempt = 1
        while True:
            try:
                return self._build_once(unit, job)
            except errors.TokenlakeError as error:
                if attempt == _ATTEMPTS or not worth_a_retry(error):
                    raise
            # 0.4 s, then 0.8 s.
            self._is_over.wait(0.2 * 2**attempt)
            attempt += 1

    def _build_once(self, unit: int, job: WorkJob) -> UnitRecord:
        """Build a unit, and file its record."""
        self.allow(job)
        sealed: str = self.pool.run(
            job, lambda progress: self._leases.tell(unit, countable(progress))
        )
        # A record of a version that gc has swept would stay behind.
        require_held(self._store, self._layout, self.plan.claimed)
        self._store.put_new(self._layout.ledger(unit), sealed.encode())
        return UnitRecord.from_bytes(sealed.encode(), f"the record of unit {unit}")


def _plan_is_gone(layout: Layout) -> errors.NotFoundError:
    """Return the error for a plan that was removed before the commit."""
    return errors.NotFoundError(
        f"{layout.prefix} no longer has a plan; run the build again: it publishes a new one",
        key=layout.prefix,
    )
