"""Time from the command `tokenlake run` to its first unit, with a warm home.

It is measured from outside: a unit has started when a worker process has a file of the
input open. /proc is polled, first for worker processes, then, every few milliseconds,
for the files that they have open.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.measure import ROOT, descendants
from benchmarks.vocabularies import Vocabulary

WORKER: Final = b"tokenlake.etl.worker"
"""Part of a worker's command line."""

LIMIT: Final = 300.0
"""Seconds to wait for a first unit."""

_POLL_PROCESSES: Final = 0.05
"""Seconds between two searches for worker processes. A search through all of /proc
takes milliseconds of processor time, which the command needs itself.
"""

_POLL_FILES: Final = 0.004
"""Seconds between two looks at the open files of the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Seconds from the command, one entry per run.

    Attributes:
        worker: Seconds to the first worker process.
        first_unit: Seconds to the first unit.
        finished: Seconds to the end.
    """

    worker: list[float]
    first_unit: list[float]
    finished: list[float]

    @property
    def median(self) -> float:
        """Median seconds to the first unit."""
        return statistics.median(self.first_unit)


class _RunTimes(NamedTuple):
    """Seconds of one run, from the command on."""

    worker: float
    first_unit: float
    finished: float


def measure_startup(
    work: Path, source: Input, vocabulary: Vocabulary, repeats: int
) -> Startup:
    """Run the flow once to warm the home, and then `repeats` times.

    Args:
        work: Folder for all files of the benchmark.
        source: Input of the build.
        vocabulary: Tokenizer of the build.
        repeats: Number of measured runs.

    Raises:
        RuntimeError: The flow failed, or the first unit was not seen.
    """
    startup = Startup(worker=[], first_unit=[], finished=[])
    _run_flow(work, source, vocabulary)
    for _ in range(repeats):
        times = _run_flow(work, source, vocabulary)
        startup.worker.append(times.worker)
        startup.first_unit.append(times.first_unit)
        startup.finished.append(times.finished)
    return startup


def _run_flow(work: Path, source: Input, vocabulary: Vocabulary) -> _RunTimes:
    """Run the flow once, with a fresh output.

    Raises:
        RuntimeError: The flow failed, or the first unit was not seen.
    """
    # 1. Prepare the configuration and an empty folder for the output.
    output = work / "scratch" / "startup"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    config = builds.write_config(
        output / "bench.yaml", source, vocabulary, output / "store"
    )
    environment = builds.environment(work, work / "warm-hash-cache")
    log_path = work / "logs" / "startup.log"
    log_path.parent.mkdir(exist_ok=True)

    # 2. Run, and watch the processes from outside.
    with log_path.open("wb") as sink:
        start = time.monotonic()
        process = subprocess.Popen(
            builds.flow_command(config, 2),
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
        try:
            worker, first_unit = _watch(process, source, start)
            exit_code = process.wait(LIMIT)
        finally:
            # After an error here, the command must not continue.
            process.terminate()

    # 3. Refuse the times of a failed run.
    if exit_code != 0:
        raise RuntimeError(
            f"`tokenlake run` ended with exit code {exit_code}; its output is in {log_path}"
        )
    return _RunTimes(worker, first_unit, time.monotonic() - start)


def _watch(
    process: subprocess.Popen[bytes], source: Input, start: float
) -> tuple[float, float]:
    """Wait for the first unit.

    Args:
        process: Process of the command.
        source: Input of the build.
        start: Monotonic time of the command.

    Returns:
        Seconds until a worker existed, and until one had a file of the input open. The
        second is 0 if the command failed.

    Raises:
        RuntimeError: The command ended, or the limit passed, before a unit was seen.
    """
    worker_seconds = 0.0
    while process.poll() is None and time.monotonic() - start < LIMIT:
        # 1. Look for workers.
        time.sleep(_POLL_PROCESSES)
        workers = list(_workers())
        if workers and not worker_seconds:
            worker_seconds = time.monotonic() - start
        # 2. Look at their files until the next search for workers.
        next_search = time.monotonic() + _POLL_PROCESSES
        while workers and time.monotonic() < next_search:
            if any(_has_open_file(pid, source.folder) for pid in workers):
                return worker_seconds, time.monotonic() - start
            time.sleep(_POLL_FILES)
    has_failed = bool(process.poll())
    if has_failed:
        return worker_seconds, 0.0  # the caller reports the exit code
    raise RuntimeError(
        "no worker was seen to open an input; expected it before the run ended: use a larger --megabytes"
    )


def _workers() -> Iterator[int]:
    """Yield the process number of every worker below this process."""
    for pid in descendants():
        try:
            if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid
        except OSError:
            continue


def _has_open_file(pid: int, folder: str) -> bool:
    """Return whether a process has a file of a folder open."""
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if str(link.readlink()).startswith(folder):
                return True
    except OSError:
        # The process ended, or closed the file.
        return False
    return False
