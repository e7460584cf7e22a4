"""Run that publishes a plan and waits until workers have built its units.

One thread lists the store twice a second, and writes the state of the build to a board.
The threads that wait for units read the board instead of the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake import errors
from tokenlake.etl.job.activity import Progress
from tokenlake.etl.job.messages import BackendJob, Job, PreflightJob, SignJob, WorkJob
from tokenlake.etl.pool import Jobs, Pool, WorkerPool
from tokenlake.etl.shared_plan.failures import failed_units, take_failure
from tokenlake.etl.shared_plan.leases import (
    Sighting,
    last_changes,
    leased_units,
    present_workers,
    progress_of,
)
from tokenlake.etl.shared_plan.notes import WORK, Mark
from tokenlake.etl.shared_plan.published import publish_plan
from tokenlake.etl.store_executor.store_listing import StoreListing
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout

if TYPE_CHECKING:
    from tokenlake.config.stages import RayConfig

_SECONDS_BETWEEN_LOOKS: Final = 0.5
"""Number of seconds between two looks at the store, each of two listings."""

_UNITS_AWAITED: Final = 32
"""Number of units that are awaited at a time; others that are finished meanwhile are
found at once.
"""

_MAY_SUCCEED_LATER: Final = (
    errors.WorkerDiedError,
    errors.StoreError,
    errors.EngineMismatchError,
)
"""Errors after which a unit is tried again, so that the note of its failure is
removed.
"""


@final
@dataclass(frozen=True, slots=True)
class Awaited:
    """Units and workers for which a run waits, by the last look at its store.

    Attributes:
        address: Address of the store.
        layout: Layout of the version.
        left: Number of units that have no record.
        heard: Seconds since the last sign of life of each worker, by its name.
    """

    address: StoreAddress
    layout: Layout
    left: int
    heard: Mapping[str, float]


@final
class _Board:
    """State of one build, according to the last look at its store.

    Attributes:
        address: Address of the store.
        layout: Layout of the version.
        store: Open store.
        done: Units that have a record.
        failed: Units that have a note of failure.
        marks: Mark of the lease of each unit that a worker builds.
        present: Present workers, each with the last change of its object.
        problem: Error of the last look; None where it succeeded.
        over: Error because of which the rest will never be built; None while it may be.
    """

    def __init__(self, address: StoreAddress, layout: Layout) -> None:
        self.address = address
        self.layout = layout
        self.store = open_store(address)
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self.marks: dict[int, Mark] = {}
        self.present: dict[str, Sighting] = {}
        self.problem: errors.TokenlakeError | None = None
        self.over: errors.TokenlakeError | None = None


@final
class StorePool(Pool):
    """Pool that waits for the workers of a plan in a store.

    Tokenizer backends are chosen by a process of its own.
    """

    def __init__(self) -> None:
        self.workers = _UNITS_AWAITED
        self._local = WorkerPool(1)
        # The newest plan.
        self._backend_choices: dict[str, tuple[BackendJob, str]] = {}
        self._published_jobs: dict[int, WorkJob] = {}
        self._publishing = threading.Lock()
        # The board, which a thread of this pool updates.
        self._changed = threading.Condition()
        self._board: _Board | None = None
        self._has_ended = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="tokenlake-ledger", daemon=True
        )

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Publish the plan of these jobs, instead of an older one."""
        unit_jobs: dict[int, WorkJob] = {}
        for job in jobs():
            if not isinstance(job, BackendJob | PreflightJob | SignJob):
                unit_jobs[job.unit] = job
        if unit_jobs:
            with self._publishing:
                self._publish(unit_jobs)

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Wait for the record of a unit and return it, sealed.

        A backend is chosen by a process of the pool.

        Raises:
            CancelledError: :meth:`cancel` was called; the workers continue.
            TokenlakeError: A worker raised this error.
        """
        if isinstance(job, BackendJob | PreflightJob | SignJob):
            answer = self._local.run(job, on_progress)
            if isinstance(job, BackendJob):
                self._backend_choices[job.source.name] = (job, answer["engine"])
            return answer
        with self._publishing:
            # The job differs from the published one where its backend was condemned
            # meanwhile.
            if self._published_jobs.get(job.unit) != job:
                self._publish(self._published_jobs | {job.unit: job})
            board = self._board
        assert board is not None
        return self._wait(board, job.unit, on_progress)

    def awaited(self) -> Awaited | None:
        """Return the awaited units and workers, None before there is a plan."""
        with self._publishing:
            board = self._board
            units = set(self._published_jobs)
        if board is None:
            return None
        with self._changed:
            now = time.monotonic()
            silences: dict[str, float] = {}
            for worker, (_, changed_at) in board.present.items():
                silences[worker] = now - changed_at
            left = len(units - board.done)
            return Awaited(board.address, board.layout, left, silences)

    def give_up(self, error: errors.TokenlakeError) -> None:
        """Raise an error in running and later calls of :meth:`run`.

        Nobody will build the rest.
        """
        if self._board is not None:
            with self._changed:
                self._board.over = error
                self._changed.notify_all()

    def cancel(self) -> None:
        self._has_ended.set()
        self._local.cancel()

    def close(self) -> None:
        """Stop watching the store."""
        self._has_ended.set()
        self._local.close()
        if self._thread.ident is not None:
            self._thread.join()

    def pids(self) -> list[int]:
        return self._local.pids()

    def _publish(self, jobs: Mapping[int, WorkJob]) -> None:
        """Publish the plan of some jobs.

        Raises:
            StoreError: The claim of the version is gone.
        """
        # 1. The board of this version, watched from now on.
        first_job = next(iter(jobs.values()))
        address = first_job.store
        layout = Layout(first_job.dataset, first_job.version)
        board = self._board
        if board is None or (board.address, board.layout) != (address, layout):
            board = _Board(address, layout)
            self._board = board
            if self._thread.ident is None:
                self._thread.start()

        # 2. Units that failed in an earlier run are tried again.
        for unit in failed_units(board.store.list(layout.key(WORK))):
            take_failure(board.store, layout, unit)

        # 3. The plan, with the backend choices of its sources.
        claim = Catalog(board.store).read_claim(layout.dataset, layout.version)
        if claim is None:
            raise errors.StoreError(
                f"{layout.claim} no longer exists; run the build again",
                key=layout.claim,
            )
        sources = {job.source.name for job in jobs.values() if job.op == "unit"}
        engines: list[tuple[BackendJob, str]] = []
        for source, choice in self._backend_choices.items():
            if source in sources:
                engines.append(choice)
        publish_plan(board.store, layout, claim.fingerprint, jobs.values(), engines)
        self._published_jobs = dict(jobs)

    def _wait(self, board: _Board, unit: int, on_progress: Progress | None) -> str:
        """Return the sealed record of a unit once it has one.

        Raises:
            TokenlakeError: The unit failed, with this error.
        """
        last_mark: Mark | None = None
        reported: dict[str, int] = {}
        while True:
            # 1. Wait for a change of the unit on the board.
            with self._changed:
                self._raise_if_over(board)
                is_done = unit in board.done
                has_failed = unit in board.failed
                mark = board.marks.get(unit)
                if not is_done and not has_failed and mark == last_mark:
                    self._changed.wait(_SECONDS_BETWEEN_LOOKS)
                    continue

            # 2. Return its record, or raise its error. The board may be older than the
            #    store.
            if is_done:
                with suppress(errors.NotFoundError):
                    return board.store.read(board.layout.ledger(unit)).decode()
                # Another run removed the record after the listing.
                with self._changed:
                    board.done.discard(unit)
            if has_failed:
                with self._changed:
                    board.failed.discard(unit)
                _raise_failure(board, unit)

            # 3. Its lease has changed, and has more progress.
            last_mark = mark
            if mark is not None and on_progress is not None:
                _report_progress(board, unit, reported, on_progress)

    def _raise_if_over(self, board: _Board) -> None:
        """Raise the error that ends all waiting, if there is one."""
        if self._has_ended.is_set():
            raise errors.CancelledError(
                "the run was cancelled; workers continue. Run it again to commit"
            )
        problem = board.over or board.problem
        if problem is not None:
            raise problem

    def _watch(self) -> None:
        """Look at the store until the pool ends; the thread of the pool."""
        while not self._has_ended.wait(_SECONDS_BETWEEN_LOOKS):
            board = self._board
            assert board is not None
            try:
                self._look(board)
            except errors.StoreError as error:
                board.problem = error
            except Exception as error:
                # Without this, all calls of `run` would wait forever.
                board.over = errors.WorkerError(
                    f"the ledger of {board.layout.prefix} cannot be watched: {error!r}"
                )
            with self._changed:
                self._changed.notify_all()

    def _look(self, board: _Board) -> None:
        """Update the board by a listing of the store."""
        # The requests come first: no thread waits for them.
        listing = StoreListing.of(board.store, board.layout)
        workers = present_workers(listing.notes)
        present = last_changes(workers, board.present, time.monotonic())
        failed = failed_units(listing.notes)
        marks = leased_units(listing.notes)
        with self._changed:
            board.done = listing.done
            board.failed = failed
            board.marks = marks
            board.present = present
            board.problem = None


def _raise_failure(board: _Board, unit: int) -> None:
    """Raise the error with which a unit failed.

    Return if another process removed the note of it.
    """
    error = take_failure(board.store, board.layout, unit, keep=True)
    if error is None:
        return
    if isinstance(error, _MAY_SUCCEED_LATER):
        take_failure(board.store, board.layout, unit)
    raise error


def _report_progress(
    board: _Board, unit: int, reported: dict[str, int], on_progress: Progress
) -> None:
    """Report the progress of a unit since the last report.

    Args:
        board: State of the build.
        unit: Index of the unit.
        reported: Sums of all reports so far; updated.
        on_progress: Function that receives the increments.
    """
    # A worker that takes a unit over counts from zero again.
    progress = progress_of(board.store, board.layout, unit)
    increments: dict[str, int] = {}
    for name, count in progress.items():
        increments[name] = max(0, count - reported.get(name, 0))
    reported.update(progress)
    if any(increments.values()):
        on_progress(increments)


def open_store_pool(workers: int | None, ray: RayConfig) -> StorePool:
    """Return the pool whose units are built by the workers that join.

    Raises:
        ConfigError: `workers` is given, but this executor starts none.
    """
    if workers:
        raise errors.ConfigError(
            f"workers: got {workers}, but the executor `store` starts no workers; give the option to each "
            "`tokenlake work`"
        )
    return StorePool()
