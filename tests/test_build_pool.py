"""The worker pool: workers die, the pool lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tokenlake.build.pool import WorkerPool, _environment
from tokenlake.errors import CancelledError, WorkerDiedError, WorkerError

UNKNOWN = {"op": "nothing"}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def _wait_gone(pids: list[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(_alive, pids))


def test_an_error_in_a_job_leaves_the_worker_in_place():
    with WorkerPool(1) as pool:
        before = pool.pids()
        for _ in range(2):
            with pytest.raises(WorkerError, match="unknown job 'nothing'"):
                pool.run(UNKNOWN)
        assert pool.pids() == before


def test_a_bug_in_a_job_comes_back_with_its_traceback():
    with WorkerPool(1) as pool, pytest.raises(WorkerError, match=r"(?s)this is a bug.*KeyError: 'store'"):
        pool.run({"op": "unit"})


def test_a_killed_worker_is_replaced_and_only_its_job_is_lost():
    with WorkerPool(2) as pool:
        before = pool.pids()
        os.kill(before[0], signal.SIGKILL)
        outcomes = []
        for _ in range(3):
            with pytest.raises((WorkerDiedError, WorkerError)) as caught:
                pool.run(UNKNOWN)
            outcomes.append(type(caught.value))
        assert outcomes.count(WorkerDiedError) <= 1
        assert len(pool.pids()) == 2


def test_a_grown_worker_is_replaced_after_its_job():
    with WorkerPool(1, rss_limit=1) as pool:
        before = pool.pids()
        with pytest.raises(WorkerError):
            pool.run(UNKNOWN)
        assert pool.pids() != before


def test_cancel_wakes_callers_and_kills_workers():
    with WorkerPool(1) as pool:
        pids = pool.pids()
        (worker,) = pool._idle
        pool._idle.clear()
        outcome: list[type[BaseException]] = []

        def call() -> None:
            try:
                pool.run(UNKNOWN)
            except CancelledError as error:
                outcome.append(type(error))

        waiting = threading.Thread(target=call)
        waiting.start()
        pool.cancel()
        waiting.join(5)
        assert outcome == [CancelledError]
        worker.reap()
    assert _wait_gone(pids)


def test_workers_die_with_their_parent():
    script = """
        from tokenlake.build.pool import WorkerPool
        import os, signal
        print(*WorkerPool(2).pids(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    pids = [int(word) for word in out.stdout.split()]
    assert len(pids) == 2
    assert _wait_gone(pids)


def test_a_pool_without_workers_is_refused():
    with pytest.raises(WorkerError, match="at least one worker, got 0"):
        WorkerPool(0)
