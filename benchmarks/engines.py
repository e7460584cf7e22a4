"""CPU milliseconds per unit of each executor, compared with the local one.

A unit has four records of about 4 KB, so that nearly all of its time is spent in the
executor. Builds of few and of many units are measured, with all their processes. The
difference does not contain the starts of processes, clusters and schedulers.

As a program, ``python -m benchmarks.engines EXECUTOR CONFIG`` runs one build, with the
workers that it needs.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.measure import measure
from benchmarks.vocabularies import Vocabulary
from tokenlake.etl.runner import build_dataset

MOST: Final = {"store": 5.0, "ray": 5.0, "dask": 15.0}
"""Goals: CPU milliseconds per unit beyond those of the local executor."""

LEAST_SHARE: Final = 0.95
"""Goal: units per CPU second of eight workers, divided by those of one worker."""

UNITS: Final = (200, 1_000)
"""Number of units of the two builds."""

_JOINED_UNITS: Final = (2_000, 6_000)
"""Number of units if workers join by the store. Eight workers start one after the
other, and some have not started when 1,000 units are built.
"""

_RECORDS: Final = 4
"""Number of records per unit."""

_TEXT: Final = "a lake holds water, and rivers flow to it from the hills. " * 17


def measure_executors(
    work: Path, vocabulary: Vocabulary, repeats: int, *, quick: bool
) -> tuple[list[Goal], list[str]]:
    """Measure all executors in rotation.

    Args:
        work: Work folder of the benchmark.
        vocabulary: Tokenizer of the builds.
        repeats: Number of measurements of each executor.
        quick: True for a few units.

    Returns:
        Goals, and a note with the milliseconds of each executor.
    """
    unit_counts = UNITS
    joined_counts = _JOINED_UNITS
    if quick:
        unit_counts = (10, 30)
        joined_counts = (20, 60)
    # 1. Milliseconds per unit, from the difference of two builds.
    executors = ("local", *MOST, "store x1", "store x8")
    milliseconds: dict[str, list[float]] = {name: [] for name in executors}
    folder = work / "engines"
    for _ in range(repeats):
        for executor in executors:
            few, many = joined_counts if " x" in executor else unit_counts
            few_seconds = _cpu_seconds(folder, executor, few, vocabulary)
            many_seconds = _cpu_seconds(folder, executor, many, vocabulary)
            # The starts are in both builds, and cancel out.
            per_unit = (many_seconds - few_seconds) / (many - few) * 1e3
            milliseconds[executor].append(per_unit)
    # 2. Goals, of medians.
    medians: dict[str, float] = {}
    spans: list[str] = []
    for executor, values in milliseconds.items():
        medians[executor] = statistics.median(values)
        spans.append(f"{executor} {_span(values)}")
    goals: list[Goal] = []
    for executor, most in MOST.items():
        goals.append(
            Goal(
                f"a unit on {executor}, beyond a unit on the local executor",
                medians[executor] - medians["local"],
                "at most",
                most,
                " CPU ms",
            )
        )
    goals.append(
        Goal(
            "units per CPU s, eight workers that join by the store / one",
            medians["store x1"] / medians["store x8"],
            "at least",
            LEAST_SHARE,
            "x",
        )
    )
    # 3. The note.
    counts = (
        f"{unit_counts[0]:,} to {unit_counts[1]:,} of them, "
        f"for x1 and x8 {joined_counts[0]:,} to {joined_counts[1]:,}"
    )
    return goals, [f"CPU ms of a unit of 4 KB, from {counts}: {', '.join(spans)}"]


def _span(values: list[float]) -> str:
    """Return the median with the smallest and the largest value."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _cpu_seconds(
    folder: Path, executor: str, units: int, vocabulary: Vocabulary
) -> float:
    """Return the CPU seconds of a build, with all processes.

    Args:
        folder: Folder for the build, which is emptied.
        executor: Name of the executor, with ``xN`` for N workers that join.
        units: Number of units.
        vocabulary: Tokenizer.

    Raises:
        RuntimeError: The build failed.
    """
    # 1. The input and the configuration.
    shutil.rmtree(folder, ignore_errors=True)
    data_folder = folder / "data"
    data_folder.mkdir(parents=True)
    data_path = data_folder / "a.jsonl"
    with data_path.open("w") as data_file:
        for number in range(_RECORDS * units):
            data_file.write(json.dumps({"text": f"{number} {_TEXT}"}) + "\n")
    config = {
        "name": "tiny",
        "datasets": [{"name": "tiny", "data_files": str(data_folder)}],
        "default_tokenizer": vocabulary.folder,
        "source": {"unit_size": data_path.stat().st_size // units + 1},
        "pack": {"enabled": True, "seq_length": 512},
        "save": {"output_dir": str(folder / "store")},
    }
    config_path = folder / "config.json"
    config_path.write_text(json.dumps(config))
    # 2. The build. Processes of Ray ignore SIGCHLD and are billed to nobody: their
    #    sampled CPU seconds count.
    is_ray = executor == "ray"
    log_path = folder / "run.log"
    program = "benchmarks.engines"
    run = measure(
        [sys.executable, "-m", program, executor, str(config_path)],
        report=folder / "measured.json",
        log=log_path,
        env=builds.environment(folder.parent, folder / "cache"),
        billed=not is_ray,
    )
    if run.exit_code:
        raise RuntimeError(
            f"{executor} ended with {run.exit_code}: {log_path.read_text()[-2000:]}"
        )
    if is_ray:
        return max(run.cpu, run.sampled_cpu)
    return run.cpu


def main(executor: str, path: str) -> None:
    """Build with one worker, or with workers that join by the store.

    Args:
        executor: Name of the executor, with ``xN`` for N workers that join.
        path: Path of the configuration.
    """
    config: dict[str, Any] = json.loads(Path(path).read_text())
    name, _, count = executor.partition(" x")
    with ExitStack() as stack:
        workers: int | None = 1
        # Workers join by the store, each with its share of the units.
        if name == "store":
            workers = None  # the processes below are the workers
            worker_count = int(count or 1)
            store = config["save"]["output_dir"]
            program = [sys.executable, "-m", "tokenlake", "work", store, "tiny@v1"]
            for number in range(worker_count):
                options = ["--workers", "1", "--wait", "5m"]
                options += ["--share", f"{number}/{worker_count}"]
                worker = subprocess.Popen([*program, *options], env=os.environ)
                stack.callback(worker.wait)
        build_dataset(config, executor=name, workers=workers)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main(*sys.argv[1:])
