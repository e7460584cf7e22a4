"""The worker pool: workers die, the pool lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.no_job import no_job
from tokenlake.errors import CancelledError, WorkerDiedError, WorkerError
from tokenlake.etl import WorkerPool

UNKNOWN = no_job("nothing")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met


def test_an_error_in_a_job_leaves_the_worker_in_place():
    with WorkerPool(1) as pool:
        before = pool.pids()
        for _ in range(2):
            with pytest.raises(WorkerError, match="unknown job 'nothing'"):
                pool.run(UNKNOWN)
        assert pool.pids() == before


def test_a_bug_in_a_job_comes_back_with_its_traceback():
    with (
        WorkerPool(1) as pool,
        pytest.raises(WorkerError, match=r"(?s)this is a bug.*missing required field"),
    ):
        pool.run(no_job("unit"))


def test_a_killed_worker_is_replaced_and_only_its_job_is_lost():
    with WorkerPool(2) as pool:
        pool.expect(2)
        before = pool.pids()
        os.kill(before[0], signal.SIGKILL)
        outcomes = []
        for _ in range(3):
            with pytest.raises((WorkerDiedError, WorkerError)) as caught:
                pool.run(UNKNOWN)
            outcomes.append(type(caught.value))
        assert outcomes.count(WorkerDiedError) <= 1
        assert len(pool.pids()) == 2


def test_a_pool_starts_no_more_workers_than_there_is_work_for():
    with WorkerPool(8) as pool:
        for _ in range(2):  # one after the other
            with pytest.raises(WorkerError):
                pool.run(UNKNOWN)
        assert len(pool.pids()) == 1
        pool.expect(3)
        assert len(pool.pids()) == 3
    # Jobs that find no idle worker start one each, up to the number of the pool.
    with WorkerPool(2) as pool:
        with ThreadPoolExecutor(3) as callers:
            errors = [
                call.exception()
                for call in [callers.submit(pool.run, UNKNOWN) for _ in range(3)]
            ]
        assert {type(error) for error in errors} == {WorkerError}
        assert len(pool.pids()) == 2


def test_a_grown_worker_is_replaced_after_its_job():
    with WorkerPool(1, rss_limit=1) as pool:
        before = pool.pids()
        with pytest.raises(WorkerError):
            pool.run(UNKNOWN)
        assert pool.pids() != before


def test_a_worker_that_is_large_from_the_beginning_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new one would be as large after its first job: the tokenizer may take more
    than a share of the memory.
    """
    monkeypatch.setattr("tokenlake.etl.pool.share_of", lambda workers: 1)
    with WorkerPool(1) as pool:
        before = pool.pids()
        for _ in range(2):
            with pytest.raises(WorkerError):
                pool.run(UNKNOWN)
        assert pool.pids() == before
        # As if it had grown since.
        monkeypatch.setattr("tokenlake.etl.pool.GROWTH_BYTES", -1)
        with pytest.raises(WorkerError):
            pool.run(UNKNOWN)
        assert pool.pids() != before


def test_workers_that_were_prepared_in_excess_are_ended_unless_they_were_used() -> None:
    with WorkerPool(8, started=0) as pool:
        assert pool.pids() == []
        pool.prepare(2)
        assert len(pool.pids()) == 2
        with pytest.raises(WorkerError):
            pool.run(UNKNOWN)
        (used,) = (worker.pid for worker in pool._all if not worker.is_fresh)
        pool.prepare(4)
        before = pool.pids()
        pool.expect(3)
        assert len(pool.pids()) == 3
        pool.prepare(4)
        pool.expect(0)  # nothing is left to do
        assert pool.pids() == [used]
        assert _within(
            120, lambda: not any(_alive(pid) for pid in before if pid != used)
        )
        pool.expect(2)
        pool.expect(1)  # these were not prepared, but expected: a pool keeps them
        assert len(pool.pids()) == 2


def test_a_warm_job_is_for_the_idle_workers_but_the_next() -> None:
    with WorkerPool(3, started=3) as pool:
        told: list[int] = []
        for worker in pool._all:
            worker.tell = lambda line, pid=worker.pid: told.append(pid)  # type: ignore[method-assign]
        next_one = pool._idle[-1].pid
        pool.warm(no_job("warm"))
        assert sorted([*told, next_one]) == pool.pids()


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
        waiting.join(120)
        assert outcome == [CancelledError]
        worker.reap()
    assert _within(120, lambda: not any(map(_alive, pids)))


def test_a_pool_that_closes_under_its_callers_closes_each_pipe_once():
    def call(pool: WorkerPool, ends: list[str]) -> None:
        while not ends or ends[-1] in {"WorkerError", "WorkerDiedError"}:
            try:
                pool.run(UNKNOWN)
            except Exception as error:
                ends.append(type(error).__name__)

    for _ in range(2):
        ends: list[list[str]] = [[], []]
        with WorkerPool(2) as pool:
            callers = [
                threading.Thread(target=call, args=(pool, each)) for each in ends
            ]
            for caller in callers:
                caller.start()
            assert _within(120, lambda ends=ends: all(len(each) > 5 for each in ends))
        for caller in callers:
            caller.join(120)
        assert [each[-1] for each in ends] == ["CancelledError", "CancelledError"]


_PARENT = """
import sys
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import build_dataset

if __name__ == "__main__":
    with WorkerPool(2) as pool:
        pool.expect(2)
        build_dataset(sys.argv[1], pool=pool)
"""

_ASTRAY = """
import os, re
from pathlib import Path

def astray(row):
    if row["text"] == "now":
        Path(os.environ["AT_IT"]).touch()
        re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter: no thread of the process runs again
    return row
"""


@pytest.mark.parametrize("stopped", ["nothing", "a worker", "all children"])
def test_no_worker_outlives_its_parent(
    stopped: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    """One worker is in C code that never returns; others are stopped, too."""
    (tmp_path / "parent.py").write_text(_PARENT)
    (tmp_path / "own.py").write_text(_ASTRAY)
    # Behind what planning looks at, which happens in the parent.
    rows = [{"text": f"a lake {i} " * 20} for i in range(3000)] + [{"text": "now"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {
        "name": "pages",
        "data_files": str(tmp_path / "in.jsonl"),
        "transforms": [{"apply": "own:astray"}],
    }
    config = {
        "name": "astray",
        "datasets": [source],
        "default_tokenizer": str(tokenizer_dir),
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": str(tmp_path / "store")},
    }
    (tmp_path / "lake.yaml").write_text(json.dumps(config))
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "lake.yaml")]
    environment = (
        os.environ
        | {"PYTHONPATH": os.pathsep.join(sys.path)}
        | {"AT_IT": str(tmp_path / "at it")}
    )
    # A group of its own in a session with this process, as a shell starts it.
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, process_group=0
    ) as parent:
        assert _within(120, (tmp_path / "at it").exists)
        children = psutil.Process(parent.pid).children()
        workers = [
            child for child in children if "tokenlake.etl.worker" in child.cmdline()
        ]
        assert len(workers) == 2
        for child in {"nothing": [], "a worker": workers[:1], "all children": children}[
            stopped
        ]:
            child.suspend()
        parent.kill()
    gone = _within(120, lambda: not any(map(_alive, [child.pid for child in children])))
    left = [child.pid for child in children if _alive(child.pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert gone, left


def test_the_group_is_made_anew_when_somebody_kills_what_watches() -> None:
    with WorkerPool(1) as pool:
        watcher, worker = pool._group.id, pool.pids()[0]
        for pid in (watcher, worker):
            os.kill(pid, signal.SIGKILL)
            assert _within(120, lambda pid=pid: not _alive(pid))
        for _ in range(2):
            with pytest.raises((WorkerDiedError, WorkerError)):
                pool.run(UNKNOWN)
        assert os.getpgid(pool.pids()[0]) == pool._group.id != watcher


def test_functions_beside_a_script_and_in_the_folder_of_a_notebook_are_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").mkdir()
    module = "tokenlake.etl.worker_process"
    script = f"from {module} import _folders_of_user as folders; print(*folders(), sep=chr(10))"
    (tmp_path / "own" / "script.py").write_text(script)
    for command, folder in ((["own/script.py"], "own"), (["-c", script], ".")):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert str((tmp_path / folder).resolve()) in done.stdout.splitlines()


def test_a_pool_without_workers_is_refused():
    with pytest.raises(WorkerError, match="at least one worker, got 0"):
        WorkerPool(0)
