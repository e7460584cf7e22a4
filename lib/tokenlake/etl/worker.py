"""The worker process: one JSON job per line in, JSON lines out. Arguments: folders of a user's own modules.

The lines are those of :mod:`tokenlake.etl.job`. An unexpected exception is an error of type ``WorkerError`` whose
message ends with the traceback: a bug should be seen, and the pool should live.
"""

from __future__ import annotations

import gc
import os
import queue
import resource
import signal
import sys
import threading
import traceback
from importlib.abc import MetaPathFinder
from typing import Any, BinaryIO

from tokenlake.config.references import hide, provide_blocks, scrub
from tokenlake.errors import TokenlakeError, WorkerError, to_json
from tokenlake.etl.job import Job, MixJob, RepackJob, SecretBlocks, WorkerAnswer, job_of, to_line
from tokenlake.etl.workbench import Workbench
from tokenlake.etl.worker_io import last_told, listen


def main() -> None:
    """Serve jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What `nohup` has ignored, and what ends a group that its parent left behind.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In the background of a terminal; what a library writes to it must not stop the process.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # Behind everything else: a user's own functions are found, and no module of ours or Python's is hidden by theirs.
    sys.path += sys.argv[1:]
    # Parsed JSON is millions of objects without a cycle among them: looking for one takes 15% of a build of chats.
    gc.set_threshold(200_000, 50, 50)
    sys.meta_path.insert(0, _WithoutPandas())
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # Whatever a library prints must not land between our lines.
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    listen(lambda text: _send(answers, WorkerAnswer(at=hide(text))))
    workbench = Workbench()
    while True:
        _answer(workbench, jobs.get(), answers)


class _WithoutPandas(MetaPathFinder):
    """Hides pandas, which pyarrow imports at the first array made from Python (0.4 CPU seconds, for nothing)."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=fullname)


def _let_pandas_in(job: Job) -> None:
    """Functions of a user's own may use what they like."""
    if not isinstance(job, MixJob | RepackJob) and job.source.texts.callables:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WithoutPandas)]


def _receive(jobs: queue.SimpleQueue[bytes]) -> None:
    """Queue incoming lines; the end of the input means that the parent is gone or done with us."""
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)


def _answer(workbench: Workbench, line: bytes, answers: BinaryIO) -> None:
    def progress(fields: dict[str, int]) -> None:
        _send(answers, WorkerAnswer(progress=fields))

    result, error = None, None
    try:
        job = job_of(line)
        if isinstance(job, SecretBlocks):
            provide_blocks(job.values)
            return
        _let_pandas_in(job)
        result = workbench.run(job, progress)
    except TokenlakeError as wrong:
        error = _hidden(to_json(wrong))
    except MemoryError as wrong:
        error = _hidden(to_json(_out_of_memory(wrong)))
    except BaseException:
        bug = scrub(f"unexpected error in a worker process; this is a bug:\n{traceback.format_exc()}")
        error = _hidden(to_json(WorkerError(bug)))
    _send(answers, WorkerAnswer(result=result, error=error, rss=_resident()))


def _out_of_memory(error: MemoryError) -> WorkerError:
    """Return the error of a job that Python, or Arrow, was refused memory for."""
    why = f" ({error})" if str(error) else ""
    return WorkerError(
        f"a worker process got no more memory{why}; it was {last_told()}. Use fewer workers or smaller records, or "
        "raise the limit of memory that this runs under"
    )


def _hidden(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error without secrets: a message may quote another library's, and is logged and stored."""
    details = {
        key: hide(value) if isinstance(value, str) else value for key, value in error["details"].items()
    }
    return {**error, "message": hide(error["message"]), "details": details}


def _send(answers: BinaryIO, answer: WorkerAnswer) -> None:
    # One write per line: a pipe keeps it whole for its single reader.
    data = to_line(answer)
    while data:
        data = data[answers.write(data) or 0 :]


def _resident() -> int:
    """Resident bytes now (Linux), else the peak."""
    try:
        with open("/proc/self/statm", "rb") as stat:  # noqa: PTH123 - no Path needed in a hot loop
            return int(stat.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
