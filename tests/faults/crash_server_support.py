"""A process that has imported the library and forks one run after another, of which
strace disturbs one thread.

    python -m tests.faults.crash_server_support

One JSON request per line in, one JSON answer per line out. A run is a call of the
library as a user makes it, in a process of its own: the imports are done, so that it
takes a tenth of the time and the traced calls are the run's own. strace is attached to
exactly one thread, at a moment when that thread is at rest:

``main``    the caller's thread, before the call: claim, preamble, sweep, resume, commit;
``unit``    the thread that drives the first unit, when it begins: ledger records;
``worker``  the main thread of the first worker process, before its first job: shards.

So the ordinal N of strace's ``inject=CALL:...:when=N`` is the N-th call of that thread
and of nobody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from tokenlake import Catalog
from tokenlake.errors import TokenlakeError
from tokenlake.etl import BuildPlanned, Event, UnitStarted, build_dataset
from tokenlake.runtime.store import open_store

SECONDS: Final = 90  # after which a run is ended; none takes ten
BUG: Final = 70
PR_SET_PTRACER: Final = 0x59616D61


def main() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(serve(json.loads(line))) + "\n")
        sys.stdout.flush()


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Fork a run, wait until it, its workers and its strace are gone, and tell how
    it ended.
    """
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run(request, source, sink)
    os.close(sink)
    said, ended = _read(source)
    os.close(source)
    if not ended:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
    status = os.waitpid(pid, 0)[1]
    return {"code": os.waitstatus_to_exitcode(status), "said": said, "ended": ended}


def _read(source: int) -> tuple[str, bool]:
    """Read until everybody who could write is gone."""
    said, deadline = b"", time.monotonic() + SECONDS
    while (left := deadline - time.monotonic()) > 0:
        if select.select([source], [], [], left)[0]:
            if not (data := os.read(source, 1 << 16)):
                return said.decode(errors="replace"), True
            said += data
    return said.decode(errors="replace"), False


def _run(request: dict[str, Any], source: int, sink: int) -> None:
    """Be the run: print its result, or its error, and end with the code that the
    command line ends with.
    """
    code = BUG
    try:
        os.close(source)
        os.setsid()
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        with open(os.devnull) as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        os.environ.update(request.get("env", {}))
        if "file_size" in request:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (request["file_size"], resource.RLIM_INFINITY)
            )
        print(json.dumps({"result": _do(request)}), flush=True)
        code = 0
    except TokenlakeError as error:
        print(
            json.dumps({"error": type(error).__name__, "message": str(error)}),
            flush=True,
        )
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _do(request: dict[str, Any]) -> Any:
    attach = Attachment(request)
    attach.begin()
    if request["op"] == "tag":
        catalog = Catalog(open_store(request["store"]))
        return str(
            catalog.set_tag(request["dataset"], request["tag"], request["version"]).was
        )
    result = build_dataset(
        request["config"],
        workers=request["workers"],
        on_event=attach.on_event,
        retries=request["retries"],
    )
    return [
        result.status,
        result.units_built,
        result.units_resumed,
        result.units_reused,
    ]


class Attachment:
    """Where strace is to be attached, and when."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._strace: list[str] | None = request.get("strace")
        self._role: str = request.get("role", "main")
        self._lock = threading.Lock()
        self._done = self._strace is None

    def begin(self) -> None:
        if self._role == "main":
            self._attach(threading.get_native_id)

    def on_event(self, event: Event) -> None:
        if self._role == "worker" and isinstance(event, BuildPlanned) and event.pending:
            self._attach(_idle_worker)
        if self._role == "unit" and isinstance(event, UnitStarted):
            self._attach(threading.get_native_id)

    def _attach(self, whom: Callable[[], int]) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            assert self._strace is not None
            # Where only ancestors may trace (Yama), a process can allow others to.
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, -1, 0, 0, 0)
            # It keeps our standard output open, so that whoever reads that waits for
            # strace's last word, too.
            command = [*self._strace, "-p", str(whom())]
            strace = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            assert strace.stderr is not None
            said = strace.stderr.readline()
            if b"attached" not in said:
                raise RuntimeError(f"strace did not attach: {said!r}")


def _idle_worker() -> int:
    """Wait until the first worker has nothing left to do but wait for a job."""
    workers = [child for child in psutil.Process().children() if _is_worker(child)]
    [worker, *_] = sorted(workers, key=lambda child: child.pid)
    used, quiet = worker.cpu_times(), 0
    while quiet < 3:
        time.sleep(0.01)
        # Its second thread, which reads jobs, is started when everything is imported.
        asleep = worker.num_threads() > 1 and worker.status() == psutil.STATUS_SLEEPING
        now = worker.cpu_times()
        quiet, used = (quiet + 1 if asleep and now == used else 0), now
    return worker.pid


def _is_worker(process: psutil.Process) -> bool:
    return "tokenlake.etl.worker" in process.cmdline()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert Path("/proc/self").exists()
    main()
