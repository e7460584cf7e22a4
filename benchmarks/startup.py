"""From the command `tokenlake run` to its first unit, on a warm home.

Seen from outside: a unit has started when a worker process has an input file open.
/proc is polled every few milliseconds, first for worker processes, then for the files
that those hold open.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.measure import ROOT, descendants
from benchmarks.vocabularies import Vocabulary

WORKER: Final = b"tokenlake.etl.worker"
LIMIT: Final = 300.0  # seconds to wait for a first unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Seconds from the command, an entry per run: to the first worker process, the
    first unit, the end.
    """

    worker: list[float]
    first_unit: list[float]
    finished: list[float]

    @property
    def median(self) -> float:
        """Median seconds to the first unit."""
        return statistics.median(self.first_unit)


def measure_startup(
    work: Path, source: Input, vocabulary: Vocabulary, repeats: int
) -> Startup:
    """Runs the flow once to warm the home, then `repeats` times."""
    runs = [_once(work, source, vocabulary) for _ in range(repeats + 1)][1:]
    worker, first_unit, finished = (list(times) for times in zip(*runs, strict=True))
    return Startup(worker=worker, first_unit=first_unit, finished=finished)


def _once(
    work: Path, source: Input, vocabulary: Vocabulary
) -> tuple[float, float, float]:
    output = work / "scratch" / "startup"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    config = builds.write_config(
        output / "bench.yaml", source, vocabulary, output / "store"
    )
    env = builds.environment(work, work / "warm-hash-cache")
    log = work / "logs" / "startup.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as sink:
        started = time.monotonic()
        command = builds.flow_command(config, 2)
        process = subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
        try:
            worker, first_unit = _watch(process, source, started)
            code = process.wait(LIMIT)
        finally:
            process.terminate()
    if code != 0:
        raise RuntimeError(
            f"`tokenlake run` ended with exit code {code}; its output is in {log}"
        )
    return worker, first_unit, time.monotonic() - started


def _watch(
    process: subprocess.Popen[bytes], source: Input, started: float
) -> tuple[float, float]:
    """Seconds until a worker exists, and until one has a file of the input open."""
    worker = 0.0
    while process.poll() is None and time.monotonic() - started < LIMIT:
        # Looking through all of /proc costs milliseconds of processor time, which the
        # command needs itself.
        time.sleep(0.05)
        pids = list(_workers())
        worker = worker or (time.monotonic() - started if pids else 0.0)
        again = time.monotonic() + 0.05
        while pids and time.monotonic() < again:
            if any(_has_open(pid, source.folder) for pid in pids):
                return worker, time.monotonic() - started
            time.sleep(0.004)
    if process.poll():
        return worker, 0.0  # it failed: its exit code says so
    raise RuntimeError(
        "no worker was seen to open an input; expected it before the run ended: use a larger --megabytes"
    )


def _workers() -> Iterator[int]:
    for pid in descendants():
        try:
            if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid
        except OSError:
            continue


def _has_open(pid: int, folder: str) -> bool:
    try:
        return any(
            str(link.readlink()).startswith(folder)
            for link in Path(f"/proc/{pid}/fd").iterdir()
        )
    except OSError:
        return False
