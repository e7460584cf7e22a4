"""A pool of worker processes that survives the death of its workers.

Each worker is ``python -m tokenlake.etl.worker``: a fresh interpreter that takes jobs as JSON and answers with JSON;
values of secret blocks go before a job in a message of their own, which is not answered. Nothing is pickled, nothing is
forked, the parent's ``__main__`` is not imported again. A thread that calls :meth:`WorkerPool.run` borrows one worker
for one job; when that worker dies, this thread gets :class:`~tokenlake.errors.WorkerDiedError` and the pool starts
another.

No worker outlives its parent, however that ends: the workers of a pool are one process group, and a small process
in it reads a pipe from the parent and kills the group at the pipe's end. It needs nothing of a worker, which may be
stopped, or inside C code that holds the interpreter. Where that process is stopped too, the kernel sends SIGHUP to
what has become an orphaned process group. Both are POSIX: Linux and macOS.

What a worker is at it writes into a file without a name, which the parent reads only where it has heard nothing for a
while: messages about it would cost both sides as much as a small unit's files do. A worker that neither answers nor
begins anything for a long time is stuck, in a function of a user's own or in a regular expression
that goes astray: it is killed, and its job fails for good with an error that says what it was at. The time is half an
hour, or what the environment variable ``TOKENLAKE_WORKER_SECONDS`` says.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Final, Protocol, Self, final, runtime_checkable

from tokenlake.base.secrets import provided_blocks
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
from tokenlake.etl.job.lines import WorkerAnswer, answer_of, to_line
from tokenlake.etl.job.messages import Job, SecretBlocks, WarmJob
from tokenlake.etl.memory import GROWTH_BYTES, share_of
from tokenlake.etl.step_clock.reported_steps import MARK_BYTES, step_of_mark

Jobs = Callable[[], Iterable[Job]]
"""Gives the jobs that will come, each call anew; making them may run others."""


class Pool(Protocol):
    """Where the jobs of a build are done: processes of this machine, of a cluster, or whoever reads the store.

    Attributes:
        workers: jobs that are worth having under way at a time.
    """

    workers: int

    def expect(self, count: int, jobs: Jobs = tuple, /) -> None:
        """Get ready for so many jobs; those that :meth:`run` will be called with, more or less."""
        ...

    def run(self, job: Job, on_progress: Progress | None = None, /) -> Any:
        """Have one job done and return its result, as :meth:`WorkerPool.run` does; blocks the calling thread."""
        ...

    def cancel(self) -> None:
        """Have running and later calls of :meth:`run` raise CancelledError."""
        ...

    def close(self) -> None:
        """End whatever the pool started."""
        ...

    def pids(self) -> list[int]:
        """Process ids of the workers that are on this machine."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@runtime_checkable
class EarlyPool(Protocol):
    """A pool whose workers can get ready before there are jobs for them."""

    def prepare(self, count: int, /) -> None:
        """Start workers for about so many jobs of a build that is still planned; `expect` ends those in excess."""
        ...

    def warm(self, job: WarmJob, /) -> None:
        """Have each idle worker but one load what its first unit needs, while the one chooses the engine."""
        ...


def worth_a_retry(error: BaseException) -> bool:
    """Whether the same work may succeed when tried again."""
    if isinstance(error, VersionConflictError | NotFoundError | CancelledError):
        return False
    return isinstance(error, WorkerDiedError | StoreError)


def run_threads(work: Callable[[], None], pool: Pool, count: int, over: threading.Event) -> None:
    """Do work that takes unit after unit in so many threads; the first error ends all, cancels the pool and is raised.

    Args:
        over: set then; whoever works looks at it.
    """
    with ThreadPoolExecutor(count, thread_name_prefix="tokenlake-unit") as threads:
        try:
            # Woken once, and not by each of thousands of units.
            done, _ = wait([threads.submit(work) for _ in range(count)], return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            over.set()
            pool.cancel()
            raise


#: At the end of its input, the process ends its whole group, itself included.
_WATCH: Final = "import os; os.read(0, 1); os.killpg(0, 9)"

VARIABLE: Final = "TOKENLAKE_WORKER_SECONDS"
"""Environment variable: how many seconds a worker may be silent."""
_SECONDS: Final = 1800.0
_LOOKS: Final = 8  # at what a worker notes, in the time after which it is stuck

_UNREAD_BYTES: Final = 1 << 15
"""Bytes that a pipe takes though nobody reads them yet: a worker that is starting must not be waited for."""

NOTE_BYTES: Final = 1 << 13
"""Of what a worker notes, at most: a number that rises, a space, what it does, and a zero."""


def open_note() -> int:
    """Return the descriptor of a file without a name, in memory where the system has such files."""
    if sys.platform == "linux":
        return os.memfd_create("tokenlake")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SilenceError(Exception):
    """Nothing came for too long. Never leaves this package."""


def patience() -> float:
    """Return how many seconds a worker may be silent; ConfigError where the environment says no number."""
    return seconds_from(VARIABLE, _SECONDS)


def seconds_from(variable: str, default: float) -> float:
    """Return the seconds that an environment variable says; ConfigError where it says no number."""
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 1e6:
        raise ConfigError(
            f"{variable}={text!r}: expected a number of seconds, more than 0 and at most 1000000"
        )
    return seconds


@final
class WorkerPool(Pool):
    """Up to ``workers`` processes, the first started at once and in the background: each takes half a CPU second.

    Args:
        workers: Largest number of processes, at least 1.
        rss_limit: Resident bytes after which a worker is replaced; None for a share of the machine's memory, see
            :mod:`tokenlake.etl.memory`.
        seconds: Seconds without a word from it after which a worker is stuck; None for what the environment says.
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
            raise WorkerError(f"a pool needs at least one worker, got {workers}", workers=workers)
        self.workers = workers
        self._rss_limit = share_of(workers) if rss_limit is None else rss_limit
        self._may_grow = rss_limit is None
        self._has_prepared = False
        self._seconds = patience() if seconds is None else seconds
        self._changed = threading.Condition()
        self._cancelled = self._closed = False
        self._all: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._group = _Group()
        self.expect(started)

    def prepare(self, count: int) -> None:
        with self._changed:
            before = len(self._all)
            self._start_up_to(count)
            self._has_prepared = self._has_prepared or len(self._all) > before

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Start, in the background, the workers that so many jobs need; later ones start when a job finds none idle.

        Workers that :meth:`prepare` started are ended where they are more than so many and have done nothing yet.
        """
        with self._changed:
            self._start_up_to(count)
            surplus = self._take_surplus(count) if self._has_prepared else []
            self._has_prepared = False
        for worker in surplus:
            worker.kill()
            worker.reap()

    def warm(self, job: WarmJob) -> None:
        line = to_line(job)
        if len(line) > _UNREAD_BYTES:
            return
        # Under the lock, or another thread could borrow one of them and write into its pipe at the same time.
        with self._changed:
            # The last idle one gets the next job, which chooses the engine.
            for worker in self._idle[:-1]:
                if worker.is_fresh:
                    worker.tell(line)

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Do one job in one worker and return its result; blocks the calling thread.

        Raises:
            WorkerDiedError: the worker ended without an answer; the job may be tried again.
            CancelledError: :meth:`cancel` was called.
            WorkerError: the worker was stuck.
            TokenlakeError: what the job itself raised, rebuilt.
        """
        worker = self._borrow()
        try:
            answer = worker.ask(job, on_progress, self._seconds)
        except SilenceError:
            at = worker.at  # before its note is closed
            step = worker.step()
            self._replace(worker)
            raise WorkerError(
                f"worker process {worker.pid} was stuck and was killed: nothing was heard of it for {self._seconds:g} "
                f"seconds. It was {at}. A function of the configuration may not return, or a pattern of the tokenizer "
                "may not end on one of the texts there; leave that record out, or fix the function. Where the work is "
                f"only slow, set {VARIABLE} to more",
                at=at,
                pid=worker.pid,
                seconds=self._seconds,
                step=step,
            ) from None
        except (OSError, EOFError, ValueError) as cause:
            step = worker.step()  # before its note is closed
            self._replace(worker)
            if self._cancelled:
                raise CancelledError("the build was cancelled; run it again to resume") from None
            raise WorkerDiedError(
                f"worker process {worker.pid} {worker.ending()}", pid=worker.pid, step=step
            ) from cause
        except BaseException:
            self._replace(worker)
            raise
        if self._is_too_large(worker, answer.rss):
            self._replace(worker)
        else:
            with self._changed:
                if there := worker in self._all:  # the pool was not closed meanwhile
                    self._idle.append(worker)
                    self._changed.notify()
            if not there:
                worker.reap()
        if answer.error is not None:
            raise from_json(answer.error)
        return answer.result

    def cancel(self) -> None:
        """Kill all workers; running and later calls of :meth:`run` raise CancelledError."""
        with self._changed:
            self._cancelled = True
            for worker in self._all:
                worker.kill()
            self._changed.notify_all()

    def close(self) -> None:
        """End the workers; jobs still running lose theirs."""
        with self._changed:
            self._closed = True
            workers, self._all = self._all, set()
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
        # Whoever waits for a busy one closes its pipe: a number closed twice may be another file's by then.
        for worker in idle:
            worker.reap()
        self._group.end()

    def pids(self) -> list[int]:
        """Process ids of the workers alive now."""
        with self._changed:
            return sorted(worker.pid for worker in self._all)

    def _is_too_large(self, worker: _Worker, rss: int) -> bool:
        """Say whether a worker holds so many bytes that a new one is to take its place."""
        limit = self._rss_limit
        if self._may_grow:
            limit = max(limit, worker.first_rss + GROWTH_BYTES)
        return rss > limit

    def _start_up_to(self, count: int) -> None:
        """Start workers until there are so many, as far as the pool may have them."""
        if self._cancelled or self._closed:
            return
        for _ in range(len(self._all), min(count, self.workers)):
            self._start_one()

    def _take_surplus(self, count: int) -> list[_Worker]:
        """Take workers that have done nothing yet out of the pool, until there are no more than `count`."""
        fresh = [worker for worker in self._idle if worker.is_fresh]
        surplus = fresh[: max(0, len(self._all) - count)]
        for worker in surplus:
            self._all.discard(worker)
            self._idle.remove(worker)
        return surplus

    def _start_one(self) -> None:
        if self._group.ended():
            self._group.end()
            self._group = _Group()
        worker = _Worker(self._group.id)
        self._all.add(worker)
        self._idle.append(worker)

    def _borrow(self) -> _Worker:
        with self._changed:
            while not self._idle and not self._cancelled and not self._closed:
                if len(self._all) < self.workers:
                    self._start_one()
                else:
                    self._changed.wait()
            if self._cancelled or self._closed:
                raise CancelledError("the build was cancelled; run it again to resume")
            return self._idle.pop()

    def _replace(self, worker: _Worker) -> None:
        worker.kill()
        worker.reap()
        with self._changed:
            self._all.discard(worker)
            if not self._cancelled and not self._closed:
                self._start_one()
                self._changed.notify()


@final
class _Group:
    """A process group that ends with this process: see the module's first words.

    Ctrl-C reaches the parent's group alone; the parent decides.
    """

    def __init__(self) -> None:
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self.id = self._watcher.pid

    def ended(self) -> bool:
        """Say whether somebody killed the process that watches."""
        return self._watcher.poll() is not None

    def end(self) -> None:
        """Kill whatever is in it."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()


@final
class _Worker:
    """One process and our end of what connects it."""

    def __init__(self, group: int) -> None:
        self._pipe, theirs = Pipe()
        self._note = open_note()
        ends = theirs.fileno(), self._note
        self._process = subprocess.Popen(
            # -P, and folders by name: a json.py in the current folder must not run.
            [sys.executable, "-P", "-m", "tokenlake.etl.worker", *map(str, ends), *_own_folders()],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=2,  # whatever a library prints must not land in the output of a command
            env=_environment(),
            process_group=group,
        )
        theirs.close()
        # Connection.poll makes one of these for every message.
        self._heard = select.poll()
        self._heard.register(self._pipe.fileno(), select.POLLIN)
        self.pid, self.kill, self.wait = self._process.pid, self._process.kill, self._process.wait
        self._told: dict[str, str] = {}
        self._op = ""
        self.is_fresh = True
        """Whether it had no job yet."""
        self.first_rss = 0
        """Resident bytes after its first job."""

    def tell(self, line: bytes) -> None:
        """Send a message that is not answered; a worker that is gone is noticed when it gets a job."""
        with suppress(OSError):
            self._send_blocks()
            self._pipe.send_bytes(line)

    def ask(self, job: Job, on_progress: Progress | None, seconds: float) -> WorkerAnswer:
        """Send a job and read messages until its answer.

        Raises:
            OSError, EOFError, ValueError: the process is gone.
            SilenceError: it said nothing for so many seconds.
        """
        os.truncate(self._note, 0)
        self._op = job.op
        self.is_fresh = False
        self._send_blocks()
        self._pipe.send_bytes(to_line(job))
        since, seen = time.monotonic(), self._noted()
        while time.monotonic() - since < seconds:
            if self._heard.poll(seconds * 1e3 / _LOOKS):
                answer = answer_of(self._pipe.recv_bytes())
                if answer.progress is not None and on_progress is not None:
                    on_progress(answer.progress)
                if answer.rss:
                    self.first_rss = self.first_rss or answer.rss
                    return answer
                since = time.monotonic()
            elif (now := self._noted()) != seen:
                since, seen = time.monotonic(), now
        raise SilenceError

    def _send_blocks(self) -> None:
        """Send the values of secret blocks, where they are not those that it has."""
        blocks = provided_blocks()
        if blocks != self._told:
            # Not by the environment, which other programs of this user can read.
            self._pipe.send_bytes(to_line(SecretBlocks(values=blocks)))
            self._told = blocks

    @property
    def at(self) -> str:
        """What it noted that it does."""
        return self._noted().partition(b" ")[2].decode(errors="replace") or f"beginning a job ({self._op})"

    def step(self) -> dict[str, Any] | None:
        """Return the step of a unit in which it ends now, as JSON; None where it has begun none."""
        step = step_of_mark(os.pread(self._note, MARK_BYTES, NOTE_BYTES), time.time())
        return None if step is None else step.to_json()

    def _noted(self) -> bytes:
        return os.pread(self._note, NOTE_BYTES, 0).partition(b"\0")[0]

    def reap(self) -> None:
        self.wait()
        self._pipe.close()
        os.close(self._note)

    def ending(self) -> str:
        """How the process ended, for people."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL); if nobody did, the machine ran out of memory: use fewer workers"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code} without an answer"


def _own_folders() -> list[str]:
    """Return the folders that this process imports from, but not every interpreter of this environment does.

    A function of a user's own is found in them: beside a script, or, from a notebook, in the current folder.
    """
    homes = {Path(home).resolve() for home in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    given = {Path(folder).resolve() for folder in _python_path()}
    places = dict.fromkeys(Path(folder).resolve() for folder in sys.path)
    return [
        str(place)
        for place in places
        if place.is_dir() and place not in given and not homes & {place, *place.parents}
    ]


def _python_path() -> list[str]:
    """Return where the library is, then what the user's environment says; an empty entry is the current folder."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(__file__).resolve().parents[2]), *filter(None, given)]


def _environment() -> dict[str, str]:
    """The parent's environment, with the library importable and native thread pools kept small."""
    # glibc returns every freed block of 16 MB to the kernel and faults it in again: 3% of a build's CPU.
    # Larger blocks are still returned at once, so a long document leaves no mark.
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
    one = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"), "1")
    own = {"PYTHONPATH": os.pathsep.join(_python_path()), "TOKENIZERS_PARALLELISM": "false"}
    return allocator | os.environ | own | one
