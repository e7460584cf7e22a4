"""The cache of shards under several real processes: races, a killed one, a full
disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.servers.base import Fault, Request
from tests.store.remote_store_support import Served, serving
from tests.store.support import sha256 as sha
from tests.store.support import wait_for

SIZE = 50_000
SHARDS = {f"shard-{number}": bytes([number]) * SIZE for number in range(6)}
BIG = bytes(17 << 20)  # three pieces


class Worker:
    """A process of :mod:`tests.store.cache_worker`."""

    def __init__(self, url: str, folder: Path, max_bytes: int, *limits: int) -> None:
        arguments = [url, str(folder), *map(str, (max_bytes, *limits))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.cache_worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def ask(self, name: str, data: bytes, word: str = "open") -> None:
        self._say(f"{word} {name} {len(data)} {sha(data)}\n")

    def answer(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._say("end\n")
        self.process.communicate(timeout=120)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()


@contextlib.contextmanager
def workers(
    served: Served, folder: Path, number: int, max_bytes: int, *limits: int
) -> Iterator[list[Worker]]:
    found = [Worker(served.url, folder, max_bytes, *limits) for _ in range(number)]
    try:
        assert [worker.answer() for worker in found] == [["ready"]] * number
        yield found
    finally:
        for worker in found:
            worker.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with serving("http", {**SHARDS, "big": BIG}) as served:
        yield served


@pytest.fixture
def served(running: Served) -> Served:
    running.server.log.clear()
    return running


def kept(folder: Path) -> dict[str, int]:
    # Locked, room is neither made nor taken; a file may still get its name, after which
    # we look again.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            return {path.name: path.stat().st_size for path in folder.iterdir()}
    finally:
        os.close(descriptor)
    return kept(folder)


def every(worker: Worker, order: Sequence[int]) -> None:
    for number in order:
        worker.ask(f"shard-{number}", SHARDS[f"shard-{number}"])


def test_processes_race(served: Served, tmp_path: Path) -> None:
    """Four processes and one folder, over and over; one start of processes, because
    that is what takes long.
    """
    with workers(served, tmp_path, 4, 3 * SIZE) as found:
        # For one shard: two of them, then all four; one fetches it, slowly, and the
        # others wait for it.
        for name, racers in (("shard-0", found[:2]), ("shard-1", found)):
            served.break_down(Fault(wait=0.2))
            for worker in racers:
                worker.ask(name, SHARDS[name])
            for worker in racers:
                assert worker.answer() == [sha(SHARDS[name]), "copy"]
            assert len(served.server.requests("GET", name)) == 1
        # For different shards, more than the bound holds, each process in another
        # order.
        orders = [
            [(start + step * turn) % 6 for turn in range(24)]
            for start, step in ((0, 1), (3, 5), (1, 1), (4, 5))
        ]
        most = 0
        for worker, order in zip(found, orders, strict=True):
            every(worker, order)
        for turn in range(24):
            for worker, order in zip(found, orders, strict=True):
                hashed, where, *warned = worker.answer()
                assert hashed == sha(SHARDS[f"shard-{order[turn]}"])
                assert (
                    where == "copy"
                    or warned == []
                    or "used_by_open_shards" in warned[0]
                )
                most = max(most, sum(kept(tmp_path).values()))
        assert SIZE < most <= 3 * SIZE
        assert len(kept(tmp_path)) <= 3
        assert not any(name.startswith(".") for name in kept(tmp_path))


def test_what_another_process_has_open_is_not_removed(
    served: Served, tmp_path: Path
) -> None:
    with workers(served, tmp_path, 2, 2 * SIZE) as (holder, other):
        holder.ask("shard-0", SHARDS["shard-0"], "keep")
        assert holder.answer()[1] == "copy"
        for number in (1, 2, 3, 1):
            other.ask(f"shard-{number}", SHARDS[f"shard-{number}"])
            assert other.answer() == [sha(SHARDS[f"shard-{number}"]), "copy"]
            assert set(kept(tmp_path)) == {
                sha(SHARDS["shard-0"]),
                sha(SHARDS[f"shard-{number}"]),
            }
        holder.kill()  # and what it held is held no more
        for number in (2, 3):
            other.ask(f"shard-{number}", SHARDS[f"shard-{number}"])
            assert other.answer()[1] == "copy"
        assert set(kept(tmp_path)) == {sha(SHARDS["shard-2"]), sha(SHARDS["shard-3"])}


def test_a_process_that_is_killed_while_it_fetches(
    served: Served, tmp_path: Path
) -> None:
    def last_piece(request: Request) -> bool:
        return request.range is not None and request.range[0] == 16 << 20

    part, dead = tmp_path / f".part-{sha(BIG)}", threading.Event()
    with workers(served, tmp_path, 2, 20 << 20) as (victim, other):
        served.break_down(Fault(meanwhile=dead.wait, applies=last_piece))
        victim.ask("big", BIG)
        wait_for(
            lambda: (
                any(map(last_piece, served.server.log))
                and part.exists()
                and part.stat().st_blocks > 0
            )
        )
        other.ask("big", BIG)
        time.sleep(0.1)
        assert set(kept(tmp_path)) == {part.name}  # the other one waits
        victim.kill()
        dead.set()
        assert other.answer() == [sha(BIG), "copy"]
        assert kept(tmp_path) == {sha(BIG): len(BIG)}


def test_a_file_system_without_room(served: Served, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the same calls fail,
    with another number.
    """
    with workers(served, tmp_path, 1, 10 * SIZE, SIZE - 1) as (worker,):
        worker.ask("shard-0", SHARDS["shard-0"])
        hashed, where, warned = worker.answer()
        assert (hashed, where) == (sha(SHARDS["shard-0"]), "remote")
        assert "the_disk_is_full" in warned
        worker.ask("shard-1", SHARDS["shard-1"])
        assert worker.answer() == [sha(SHARDS["shard-1"]), "remote"]  # said once
        assert kept(tmp_path) == {}
