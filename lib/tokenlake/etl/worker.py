"""Worker process, which receives jobs and sends answers.

:mod:`tokenlake.etl.job` writes both.
Its arguments are the file descriptors of the connection and of the note
(:mod:`tokenlake.etl.worker_process`), and folders of the user's own modules. An
unexpected exception becomes an error of type ``WorkerError`` whose message ends with
the traceback: a bug should be seen, and the pool should live.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final, final

from tokenlake.base.secrets import hide, provide_blocks, scrub
from tokenlake.errors import TokenlakeError, WorkerError, to_json
from tokenlake.etl.job.activity import last_told, listen
from tokenlake.etl.job.lines import WorkerAnswer, job_of, to_line
from tokenlake.etl.job.messages import SecretBlocks, WarmJob
from tokenlake.etl.step_clock.clock import CLOCK
from tokenlake.etl.workbench import Workbench
from tokenlake.etl.worker_process import NOTE_BYTES


def main() -> None:
    """Answer jobs until the connection ends."""
    # 1. Signals. Ctrl-C reaches the parent, which decides about its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # `nohup` ignores this signal, which ends a group that its parent left behind.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In the background of a terminal, a library that writes to it must not stop the
    # process.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    # 2. The interpreter. The folders come last, so that functions of the user are
    #    found, and none of their modules hides one of ours or of Python.
    sys.path += sys.argv[3:]
    # Parsed JSON is millions of objects without cycles: the search for cycles takes 15%
    # of a build of chats.
    gc.set_threshold(200_000, 50, 50)

    # 3. The connection. A thread reads it, to notice at once that the parent is gone.
    parent = Connection(int(sys.argv[1]))
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(parent, lines), daemon=True).start()

    # 4. The note of the current activity, and behind it the mark of the current step.
    descriptor = int(sys.argv[2])
    numbers = count(1)
    listen(lambda text: _write_note(descriptor, next(numbers), text))
    CLOCK.on_begin = lambda mark: os.pwrite(descriptor, mark, NOTE_BYTES)

    # 5. Jobs.
    sender = _Sender(parent)
    workbench = Workbench()
    while True:
        _answer(workbench, lines.get(), sender)


def _receive(parent: Connection, lines: queue.SimpleQueue[bytes]) -> None:
    """Queue incoming lines, and end the process after the last one.

    The parent is gone then, or needs no worker any more.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            lines.put(parent.recv_bytes())
    os._exit(0)


def _write_note(descriptor: int, number: int, text: str) -> None:
    """Write the next activity where the parent finds it.

    The parent can read it even when this process is stuck in C code.

    Args:
        descriptor: Descriptor of the note.
        number: Number of the activity; a higher one shows that the worker is alive.
        text: Description of the activity.
    """
    note = f"{number} {hide(text)}".encode(errors="backslashreplace")[: NOTE_BYTES - 1]
    os.pwrite(descriptor, note + b"\0", 0)


_SECONDS_BETWEEN_REPORTS: Final = 0.1
"""Smallest number of seconds before a message that only has progress: each message
costs both sides time.
"""


@final
class _Sender:
    """Sender of answers and progress.

    Progress waits for the next message where one has just been sent.
    """

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._waiting_progress: Counter[str] = Counter()
        self._last_message = 0.0

    def send(self, **answer: Any) -> None:
        """Send a message, with the progress that waits.

        Args:
            answer: Fields of :class:`~tokenlake.etl.job.lines.WorkerAnswer` except
                `progress`.
        """
        message = WorkerAnswer(progress=dict(self._waiting_progress) or None, **answer)
        self._waiting_progress.clear()
        self._parent.send_bytes(to_line(message))
        self._last_message = time.monotonic()

    def add_progress(self, fields: dict[str, int]) -> None:
        """Add progress to the next message."""
        self._waiting_progress.update(fields)

    def report_progress(self, fields: dict[str, int]) -> None:
        """Send progress now or with the next message."""
        self.add_progress(fields)
        if time.monotonic() - self._last_message > _SECONDS_BETWEEN_REPORTS:
            self.send()


def _answer(workbench: Workbench, line: bytes, sender: _Sender) -> None:
    """Run the job of a line and send its answer.

    Secrets and warm-ups are not answered.
    """
    result: Any = None
    error: dict[str, Any] | None = None
    try:
        CLOCK.clear()
        job = job_of(line)
        if isinstance(job, SecretBlocks):
            provide_blocks(job.values)
            return
        if isinstance(job, WarmJob):
            workbench.warm(job)
            return
        result = workbench.run(job, sender.report_progress)
    except TokenlakeError as exception:
        error = _without_secrets(to_json(exception))
    except MemoryError as exception:
        # Python, or Arrow, was refused memory.
        reason = ""
        if str(exception):
            reason = f" ({exception})"
        memory_error = WorkerError(
            f"a worker process could not allocate memory{reason}; it was {last_told()}. Use fewer workers or smaller "
            "records, or raise the memory limit"
        )
        error = _without_secrets(to_json(memory_error))
    except BaseException:
        message = scrub(
            f"unexpected error in a worker process; this is a bug:\n{traceback.format_exc()}"
        )
        error = _without_secrets(to_json(WorkerError(message)))
    # The times of the steps go with the answer, whatever it is.
    if error is not None:
        CLOCK.fail()
    sender.add_progress(CLOCK.fields())
    sender.send(result=result, error=error, rss=_resident_bytes())


def _without_secrets(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error without secrets.

    Its message may quote that of another library, and is logged and stored.
    """
    details = dict(error["details"])
    for detail_name, detail in details.items():
        if isinstance(detail, str):
            details[detail_name] = hide(detail)
    return {**error, "message": hide(error["message"]), "details": details}


def _resident_bytes() -> int:
    """Return the resident bytes now, or the peak if the system gives only that."""
    try:
        with open("/proc/self/statm", "rb") as stat:  # noqa: PTH123 - no Path needed in a hot loop
            return int(stat.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
