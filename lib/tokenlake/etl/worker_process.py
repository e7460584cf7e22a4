"""One worker process and its connection, and the process group that ends with us.

No worker outlives its parent, however the parent ends. The workers of a pool are one
process group, and a small process in it reads a pipe from the parent and kills the
group at the pipe's end. It needs nothing of a worker, which may be stopped, or inside C
code that holds the interpreter. Where the small process is stopped too, the kernel
sends SIGHUP to the group, which has become an orphaned one. Both are POSIX: Linux and
macOS.

A worker writes its current activity into a file without a name. The parent reads it
only after it has heard nothing for a while: messages about it would cost both sides as
much as a small unit's files do. The file has the number of the activity (which rises),
a space, its description and a zero and, at byte :data:`NOTE_BYTES`, the mark of the
current step of a unit.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Final, final

from tokenlake.base.secrets import provided_blocks
from tokenlake.etl.job.activity import Progress
from tokenlake.etl.job.lines import WorkerAnswer, answer_of, to_line
from tokenlake.etl.job.messages import Job, SecretBlocks
from tokenlake.etl.step_clock.reported_steps import MARK_BYTES, step_of_mark

_GROUP_PROGRAM: Final = "import os; os.read(0, 1); os.killpg(0, 9)"
"""Program that waits for the end of its input, and then kills its whole process group,
itself included.
"""

_LOOKS_PER_SILENCE: Final = 8
"""Number of looks at a worker's note in the time after which it is stuck."""

NOTE_BYTES: Final = 1 << 13
"""Largest size of a worker's note."""


class SilenceError(Exception):
    """A worker gave no sign of life for too long. It never leaves this package."""


@final
class ProcessGroup:
    """Process group that ends with this process, see the beginning of the module.

    Ctrl-C reaches only the group of the parent, which decides about its workers.

    Attributes:
        id: Id of the group.
    """

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GROUP_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self.id = self._guard.pid

    def ended(self) -> bool:
        """Whether the process that guards the group was killed."""
        return self._guard.poll() is not None

    def end(self) -> None:
        """Kill all processes of the group."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


@final
class WorkerProcess:
    """One worker process and the parent's end of its connection.

    Args:
        group: Id of the process group that it joins.

    Attributes:
        pid: Id of the process.
        kill: Function that kills the process.
        wait: Function that waits for its end.
        is_fresh: Whether it has had no job yet.
        first_rss: Resident bytes after its first job; 0 before that.
    """

    def __init__(self, group: int) -> None:
        # 1. The process, with the connection and the note as open descriptors.
        self._pipe, worker_end = Pipe()
        self._note = _open_note()
        descriptors = (worker_end.fileno(), self._note)
        self._process = subprocess.Popen(
            # With -P, and folders by name, a json.py in the current folder does not
            # run.
            [
                sys.executable,
                "-P",
                "-m",
                "tokenlake.etl.worker",
                str(worker_end.fileno()),
                str(self._note),
                *_folders_of_user(),
            ],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            # Output of a library must not land in the output of a command.
            stdout=2,
            env=_environment(),
            process_group=group,
        )
        # With this end closed, the connection ends when the process does.
        worker_end.close()
        # Connection.poll would make one of these for every message.
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)

        # 2. Its state, as the parent knows it.
        self.pid = self._process.pid
        self.kill = self._process.kill
        self.wait = self._process.wait
        self.is_fresh = True
        self.first_rss = 0
        # Secret blocks that the worker has, and the kind of its last job.
        self._sent_blocks: dict[str, str] = {}
        self._op = ""

    def tell(self, line: bytes) -> None:
        """Send a message that is not answered.

        A worker that is gone is noticed when it gets a job.
        """
        with suppress(OSError):
            self._send_blocks()
            self._pipe.send_bytes(line)

    def ask(
        self, job: Job, on_progress: Progress | None, seconds: float
    ) -> WorkerAnswer:
        """Send a job, and return its answer.

        Args:
            job: Job to run.
            on_progress: Function that receives the progress of the job.
            seconds: Number of seconds without a sign of life after which the worker is
                stuck.

        Raises:
            OSError, EOFError, ValueError: The process is gone.
            SilenceError: It gave no sign of life for so many seconds.
        """
        # 1. Send the job. An old note would look like a sign of life.
        os.truncate(self._note, 0)
        self._op = job.op
        self.is_fresh = False
        self._send_blocks()
        self._pipe.send_bytes(to_line(job))

        # 2. Wait for the answer. A sign of life is a message, or another note.
        last_sign = time.monotonic()
        last_note = self._read_note()
        while time.monotonic() - last_sign < seconds:
            if self._poll.poll(seconds * 1e3 / _LOOKS_PER_SILENCE):
                answer = answer_of(self._pipe.recv_bytes())
                if answer.progress is not None and on_progress is not None:
                    on_progress(answer.progress)
                # Only an answer has the resident bytes; others are progress.
                if answer.rss:
                    self.first_rss = self.first_rss or answer.rss
                    return answer
                last_sign = time.monotonic()
            else:
                note = self._read_note()
                if note != last_note:
                    last_sign = time.monotonic()
                    last_note = note
        raise SilenceError

    def _send_blocks(self) -> None:
        """Send the values of secret blocks, where the worker has others."""
        blocks = provided_blocks()
        if blocks != self._sent_blocks:
            # The environment is no place for them: other programs of this user can read
            # it.
            self._pipe.send_bytes(to_line(SecretBlocks(values=blocks)))
            self._sent_blocks = blocks

    @property
    def at(self) -> str:
        """Description of the current activity."""
        _, _, activity = self._read_note().partition(b" ")
        return activity.decode(errors="replace") or f"beginning a job ({self._op})"

    def step(self) -> dict[str, Any] | None:
        """Return the step of a unit in which the worker ends now, as JSON.

        None if it has begun none.
        """
        mark = os.pread(self._note, MARK_BYTES, NOTE_BYTES)
        step = step_of_mark(mark, time.time())
        if step is None:
            return None
        return step.to_json()

    def _read_note(self) -> bytes:
        """Return the note up to its zero."""
        note, _, _ = os.pread(self._note, NOTE_BYTES, 0).partition(b"\0")
        return note

    def reap(self) -> None:
        """Wait for the end of the process, and close the connection."""
        self.wait()
        self._pipe.close()
        os.close(self._note)

    def ending(self) -> str:
        """Return a phrase about the end of the process, for people."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL), probably because the machine ran out of memory: use fewer workers"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code} without an answer"


def _open_note() -> int:
    """Return the descriptor of a file without a name, in memory if possible."""
    if sys.platform == "linux":
        return os.memfd_create("tokenlake")
    with tempfile.TemporaryFile() as temporary_file:
        return os.dup(temporary_file.fileno())


def _folders_of_user() -> list[str]:
    """Return the folders from which this process imports modules of the user.

    Functions of the user are found in them: beside a script or, in a notebook, in the
    current folder.
    """
    # Every interpreter of the environment has its own folders, and gets those of the
    # Python path by the environment.
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    homes = {Path(prefix).resolve() for prefix in prefixes}
    python_path = {Path(folder).resolve() for folder in _python_path()}
    folders = dict.fromkeys(Path(folder).resolve() for folder in sys.path)

    def is_of_user(folder: Path) -> bool:
        is_below_home = not homes.isdisjoint({folder, *folder.parents})
        return folder.is_dir() and folder not in python_path and not is_below_home

    return [str(folder) for folder in folders if is_of_user(folder)]


def _python_path() -> list[str]:
    """Return the folder of the library, then those of the user's environment.

    Empty entries of the environment, which mean the current folder, are left out.
    """
    library = str(Path(__file__).resolve().parents[2])
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [library, *filter(None, entries)]


def _environment() -> dict[str, str]:
    """Return the environment of a worker.

    It is that of this process, with settings of native libraries.
    """
    return {
        # glibc returns every freed block of 16 MB to the kernel and faults it in again:
        # 3% of a build's CPU. Larger blocks are still returned at once, so that a long
        # document leaves no mark.
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(_python_path()),
        # Each worker has one processor.
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
    }
