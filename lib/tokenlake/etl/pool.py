"""A pool of worker processes that survives the death of its workers.

Each worker is ``python -m tokenlake.etl.worker``: a fresh interpreter that takes jobs
as JSON and answers with JSON. Values of secret blocks go before a job, in a message of
their own that is not answered. Nothing is pickled, nothing is forked, and the parent's
``__main__`` is not imported again. A thread that calls :meth:`WorkerPool.run` borrows
one worker for one job. When that worker dies, this thread gets
:class:`~tokenlake.errors.WorkerDiedError`, and the pool starts another worker.

A worker that neither answers nor begins another activity for a long time is stuck, in a
function of the user or in a regular expression that never ends. It is killed, and its
job fails for good with an error that names the activity. The time is half an hour, or
the seconds of the environment variable ``TOKENLAKE_WORKER_SECONDS``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Final, Protocol, Self, TypeAlias, final, runtime_checkable

from tokenlake.errors import (
    CancelledError,
    ConfigError,
    NotFoundError,
    StoreError,
    VersionConflictError,
    WorkerDiedError,
    WorkerError,
    from_json,
)
from tokenlake.etl.job.activity import Progress
from tokenlake.etl.job.lines import to_line
from tokenlake.etl.job.messages import Job, WarmJob
from tokenlake.etl.memory import GROWTH_BYTES, share_of
from tokenlake.etl.worker_process import ProcessGroup, SilenceError, WorkerProcess

Jobs: TypeAlias = Callable[[], Iterable[Job]]
"""Function that returns the jobs that will come, new ones at each call. To make them
may run other jobs.
"""


class Pool(Protocol):
    """Workers of a build: of this machine, of a cluster, or joined by the store.

    Attributes:
        workers: Number of jobs that should run at a time.
    """

    workers: int

    def expect(self, count: int, jobs: Jobs = tuple, /) -> None:
        """Prepare for jobs.

        Args:
            count: Number of jobs that are expected.
            jobs: Function that returns them, more or less as :meth:`run` will get them.
        """
        ...

    def run(self, job: Job, on_progress: Progress | None = None, /) -> Any:
        """Run one job and return its result; blocks the calling thread.

        See :meth:`WorkerPool.run`.
        """
        ...

    def cancel(self) -> None:
        """Raise CancelledError in running and later calls of :meth:`run`."""
        ...

    def close(self) -> None:
        """End everything that the pool started."""
        ...

    def pids(self) -> list[int]:
        """Return the process ids of the workers on this machine."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@runtime_checkable
class EarlyPool(Protocol):
    """A pool whose workers can prepare before there are jobs for them."""

    def prepare(self, count: int, /) -> None:
        """Start workers for a build that is still planned.

        :meth:`Pool.expect` ends those in excess.

        Args:
            count: Approximate number of jobs.
        """
        ...

    def warm(self, job: WarmJob, /) -> None:
        """Load everything that units need in all idle workers but one.

        That one will choose the backend meanwhile.
        """
        ...


def worth_a_retry(error: BaseException) -> bool:
    """Whether the same work may succeed when it is tried again."""
    # These are store errors that another attempt meets again.
    if isinstance(error, VersionConflictError | NotFoundError | CancelledError):
        return False
    return isinstance(error, WorkerDiedError | StoreError)


def run_threads(
    work: Callable[[], None], pool: Pool, count: int, over: threading.Event
) -> None:
    """Run a function in several threads.

    The first error ends all threads, cancels the pool and is raised.

    Args:
        work: Function that takes and runs unit after unit, until none is left or `over`
            is set.
        pool: Pool on which the units run.
        count: Number of threads.
        over: Event that is set after an error.
    """
    with ThreadPoolExecutor(count, thread_name_prefix="tokenlake-unit") as threads:
        try:
            # This wakes up once, and not for each of thousands of units.
            futures = [threads.submit(work) for _ in range(count)]
            finished_futures, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished_futures:
                future.result()
        except BaseException:
            over.set()
            pool.cancel()
            raise


VARIABLE: Final = "TOKENLAKE_WORKER_SECONDS"
"""Environment variable: number of seconds without a sign of life after which a
worker is stuck.
"""

_SECONDS: Final = 1800.0
"""Default of :data:`VARIABLE`: half an hour."""

_UNREAD_BYTES: Final = 1 << 15
"""Bytes that a pipe takes before they are read. More would block the thread that writes
until the worker has started.
"""


def patience() -> float:
    """Return the number of seconds after which a silent worker is stuck.

    Raises:
        ConfigError: The environment variable is no valid number.
    """
    return seconds_from(VARIABLE, _SECONDS)


def seconds_from(variable: str, default: float) -> float:
    """Return the number of seconds of an environment variable.

    Args:
        variable: Name of the variable.
        default: Number of seconds where it is not set, or empty.

    Raises:
        ConfigError: The variable is no valid number.
    """
    setting = os.environ.get(variable, "")
    if not setting:
        return default
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 1e6:
        raise ConfigError(
            f"{variable}={setting!r}: expected a number of seconds, more than 0 and at most 1000000"
        )
    return seconds


@final
class WorkerPool(Pool):
    """Worker processes of this machine.

    They start in the background. Each takes half a CPU second to start.

    Args:
        workers: Largest number of processes, at least 1.
        rss_limit: Resident bytes after which a worker is replaced; None for a share of
            the machine's memory, see :mod:`tokenlake.etl.memory`.
        seconds: Number of seconds without a sign of life after which a worker is stuck;
            None for that of :func:`patience`.
        started: Number of processes that are started at once.
    """

    def __init__(
        self,
        workers: int,
        *,
        rss_limit: int | None = None,
        seconds: float | None = None,
        started: int = 1,
    ) -> None:
        if workers < 1:
            raise WorkerError(
                f"a pool needs at least one worker, got {workers}", workers=workers
            )
        self.workers = workers
        # A limit of the caller is exact. A share of the memory leaves room to grow,
        # because a tokenizer may be larger than a share.
        self._may_grow = rss_limit is None
        if rss_limit is None:
            rss_limit = share_of(workers)
        self._rss_limit = rss_limit
        if seconds is None:
            seconds = patience()
        self._seconds = seconds
        self._has_prepared = False

        # The workers; the condition guards everything below.
        self._changed = threading.Condition()
        self._cancelled = False
        self._closed = False
        self._all: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._group = ProcessGroup()
        self.expect(started)

    def prepare(self, count: int) -> None:
        with self._changed:
            workers_before = len(self._all)
            self._start_up_to(count)
            self._has_prepared = self._has_prepared or len(self._all) > workers_before

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Start the workers that a number of jobs needs, in the background.

        More start when a job finds none idle.

        Workers that :meth:`prepare` started in excess of that number are ended, if they
        have done nothing yet.
        """
        surplus: list[WorkerProcess] = []
        with self._changed:
            self._start_up_to(count)
            if self._has_prepared:
                surplus = self._take_surplus(count)
            self._has_prepared = False
        # Without the lock, because waiting for their end takes time.
        for worker in surplus:
            worker.kill()
            worker.reap()

    def warm(self, job: WarmJob) -> None:
        # A longer line would block this thread until the worker reads it.
        line = to_line(job)
        if len(line) > _UNREAD_BYTES:
            return
        # Without the lock, another thread could borrow one of them and write into its
        # pipe at the same time.
        with self._changed:
            # The last idle worker gets the next job, which chooses the backend.
            for worker in self._idle[:-1]:
                if worker.is_fresh:
                    worker.tell(line)

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Run one job in one worker and return its result; blocks the calling thread.

        Args:
            job: The job.
            on_progress: Function that receives the progress of the job.

        Raises:
            WorkerDiedError: The worker ended without an answer; the job may be tried
                again.
            CancelledError: :meth:`cancel` was called.
            WorkerError: The worker was stuck.
            TokenlakeError: The job itself raised this error.
        """
        worker = self._borrow()
        try:
            answer = worker.ask(job, on_progress, self._seconds)
        except SilenceError:
            raise self._replace_stuck(worker) from None
        except (OSError, EOFError, ValueError) as cause:
            # The note with the step is closed when the worker is replaced.
            step = worker.step()
            self._replace(worker)
            if self._cancelled:
                raise CancelledError(
                    "the build was cancelled; run it again to resume"
                ) from None
            raise WorkerDiedError(
                f"worker process {worker.pid} {worker.ending()}",
                pid=worker.pid,
                step=step,
            ) from cause
        except BaseException:
            self._replace(worker)
            raise
        # Caches of a backend never shrink, so a large worker is replaced between jobs.
        if self._is_too_large(worker, answer.rss):
            self._replace(worker)
        else:
            self._give_back(worker)
        if answer.error is not None:
            raise from_json(answer.error)
        return answer.result

    def cancel(self) -> None:
        """Kill all workers.

        Running and later calls of :meth:`run` raise CancelledError.
        """
        with self._changed:
            self._cancelled = True
            for worker in self._all:
                worker.kill()
            self._changed.notify_all()

    def close(self) -> None:
        """End the workers; running jobs raise WorkerDiedError."""
        with self._changed:
            self._closed = True
            workers = self._all
            idle = self._idle
            self._all = set()
            self._idle = []
            self._changed.notify_all()
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
        # The thread that waits for a busy worker closes its pipe: a descriptor that is
        # closed twice may be that of another file by then.
        for worker in idle:
            worker.reap()
        self._group.end()

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        with self._changed:
            return sorted(worker.pid for worker in self._all)

    def _is_too_large(self, worker: WorkerProcess, rss: int) -> bool:
        """Whether a new worker should replace one with so many resident bytes."""
        byte_limit = self._rss_limit
        if self._may_grow:
            byte_limit = max(byte_limit, worker.first_rss + GROWTH_BYTES)
        return rss > byte_limit

    def _start_up_to(self, count: int) -> None:
        """Start workers until there are `count`, as far as the pool may have them."""
        if self._cancelled or self._closed:
            return
        for _ in range(len(self._all), min(count, self.workers)):
            self._start_one()

    def _take_surplus(self, count: int) -> list[WorkerProcess]:
        """Remove idle workers from the pool until it has no more than `count`.

        Only workers that have done nothing yet are removed.

        Returns:
            The workers that were removed.
        """
        fresh = [worker for worker in self._idle if worker.is_fresh]
        surplus = fresh[: max(0, len(self._all) - count)]
        for worker in surplus:
            self._all.discard(worker)
            self._idle.remove(worker)
        return surplus

    def _start_one(self) -> None:
        """Start a worker, in a new group if the old one was killed."""
        if self._group.ended():
            self._group.end()
            self._group = ProcessGroup()
        worker = WorkerProcess(self._group.id)
        self._all.add(worker)
        self._idle.append(worker)

    def _borrow(self) -> WorkerProcess:
        """Return an idle worker, as soon as there is one."""
        with self._changed:
            while not self._idle and not self._cancelled and not self._closed:
                # A worker that has just started counts as idle: it reads its job later.
                if len(self._all) < self.workers:
                    self._start_one()
                else:
                    self._changed.wait()
            if self._cancelled or self._closed:
                raise CancelledError("the build was cancelled; run it again to resume")
            return self._idle.pop()

    def _give_back(self, worker: WorkerProcess) -> None:
        """Make a worker idle, or reap it if the pool was closed meanwhile."""
        with self._changed:
            is_in_pool = worker in self._all
            if is_in_pool:
                self._idle.append(worker)
                self._changed.notify()
        if not is_in_pool:
            worker.reap()

    def _replace_stuck(self, worker: WorkerProcess) -> WorkerError:
        """Replace a worker that is stuck, and return the error of its job."""
        # Both are read before the worker's note is closed.
        activity = worker.at
        step = worker.step()
        self._replace(worker)
        return WorkerError(
            f"worker process {worker.pid} was stuck and was killed: it gave no sign of life for {self._seconds:g} "
            f"seconds. It was {activity}. A function of the configuration may not return, or a pattern of the "
            "tokenizer may not end on one of the texts there; leave that record out, or fix the function. Where the "
            f"work is only slow, set {VARIABLE} to more",
            at=activity,
            pid=worker.pid,
            seconds=self._seconds,
            step=step,
        )

    def _replace(self, worker: WorkerProcess) -> None:
        """Kill a worker, and start another one in its place."""
        # The end of the process is awaited without the lock.
        worker.kill()
        worker.reap()
        with self._changed:
            self._all.discard(worker)
            if not self._cancelled and not self._closed:
                self._start_one()
                self._changed.notify()
