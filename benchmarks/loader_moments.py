"""Waiting times of a trainer: opening a dataset, its first batch, and resuming.

They are wall times, each in a fresh process.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker
from benchmarks.loader_input import CORPUS, LoaderInput
from benchmarks.loader_many import MANY, SHARDS, make_many
from benchmarks.measure import ROOT
from benchmarks.systems.loader_sink import BATCH
from benchmarks.vocabularies import Vocabulary

MOST_OPEN_SECONDS: Final = 1.0
MOST_FIRST_SECONDS: Final = 0.150
MOST_RESUME_SECONDS: Final = 0.100

_OPEN: Final = "open"
_FIRST: Final = "first"


@dataclass(slots=True)
class _Wait:
    """Measurements of one waiting time.

    Attributes:
        arguments: Command line of the measured program.
        seconds: Wall seconds of each run.
        row_groups: Most row groups that were decoded by then.
    """

    arguments: Sequence[str]
    seconds: list[float] = field(default_factory=list)
    row_groups: int = 0

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    def milliseconds(self) -> str:
        """Return the median and the range in milliseconds, as ``87, 85-93``."""
        milliseconds = [seconds * 1e3 for seconds in self.seconds]
        value_range = f"{min(milliseconds):.0f}-{max(milliseconds):.0f}"
        return f"{statistics.median(milliseconds):.0f}, {value_range}"


def measure_moments(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    loader_input: LoaderInput,
    repeats: int,
) -> tuple[list[Goal], list[str]]:
    """Measure every waiting time `repeats` times in turns, after a warm-up.

    Args:
        work: Folder for all files of the benchmark.
        maker: Maker of inputs.
        vocabulary: Tokenizer of the datasets.
        loader_input: Dataset to read.
        repeats: Number of measured runs.

    Returns:
        Goals, and a note on every waiting time for a batch.
    """
    # 1. Write the states of a run at each step.
    many = str(make_many(work, maker, vocabulary))
    store = str(loader_input.store)
    steps = _steps(loader_input)
    step_numbers = [str(step) for step in steps.values()]
    states = work / "scratch" / "loader-states.json"
    states.parent.mkdir(exist_ok=True)
    states.write_text(
        json.dumps(_run_program(work, "states", store, CORPUS, *step_numbers))
    )

    # 2. Measure. The first turn is a warm-up.
    waits = {
        _OPEN: _Wait(("open", many, MANY)),
        _FIRST: _Wait(("first", store, CORPUS)),
    }
    for step_name, step in steps.items():
        waits[step_name] = _Wait(("resume", store, CORPUS, str(states), str(step)))
    for turn in range(repeats + 1):
        for wait in waits.values():
            # Every run is a fresh process, with nothing in memory.
            figures = _run_program(work, *wait.arguments)
            is_warm_up = turn == 0
            if not is_warm_up:
                wait.seconds.append(figures["seconds"])
                wait.row_groups = max(wait.row_groups, figures["groups"])
    return _goals(waits, list(steps)), [_note(waits, steps)]


def _steps(loader_input: LoaderInput) -> dict[str, int]:
    """Return name -> step to resume at: in the first epoch, and in epochs far ahead."""
    epoch = math.ceil(loader_input.rows / BATCH)
    return {
        "step 1": 1,
        "the middle": epoch // 2,
        "the last batch": epoch - 1,
        "epoch 10": 10 * epoch + epoch // 2,
        "epoch 1,000,000": 1_000_000 * epoch + epoch // 3,
    }


def _run_program(work: Path, *arguments: str) -> Any:
    """Return the figures that :mod:`benchmarks.systems.loader_latency` prints.

    Raises:
        RuntimeError: The program failed.
    """
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.systems.loader_latency", *arguments],
        cwd=ROOT,
        env=builds.environment(work, work / "scratch" / "hash-cache"),
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(
            f"loader_latency {arguments[0]} failed: {process.stderr.strip()[-400:]}"
        )
    return json.loads(process.stdout.splitlines()[-1])


def _goals(waits: Mapping[str, _Wait], steps: Sequence[str]) -> list[Goal]:
    """Return goals for opening, the first batch, and the slowest step to resume at.

    Args:
        waits: Measurements of each waiting time.
        steps: Names of the steps.
    """
    # All steps must meet the limit, so that the slowest is judged.
    slowest = max(steps, key=lambda name: waits[name].median)
    # Description, waiting time and limit of each goal.
    figures = (
        (
            f"opening a dataset of {SHARDS:,} shards",
            waits[_OPEN],
            MOST_OPEN_SECONDS,
        ),
        (
            "first batch after opening, four columns",
            waits[_FIRST],
            MOST_FIRST_SECONDS,
        ),
        (
            f"resume to the next batch, slowest of {len(steps)} steps: {slowest}",
            waits[slowest],
            MOST_RESUME_SECONDS,
        ),
    )
    goals: list[Goal] = []
    for description, wait, limit in figures:
        goals.append(
            Goal(
                f"{description} ({wait.milliseconds()})",
                wait.median * 1e3,
                "at most",
                limit * 1e3,
                " ms",
            )
        )
    return goals


def _note(waits: Mapping[str, _Wait], steps: Mapping[str, int]) -> str:
    """Return a note on every waiting time for a batch.

    Args:
        waits: Measurements of each waiting time.
        steps: Name of a step -> its number.
    """
    descriptions = [_describe("first batch", 0, waits[_FIRST])]
    for step_name, step in steps.items():
        descriptions.append(_describe(step_name, step, waits[step_name]))
    return f"Waiting for a batch, median and range in ms: {'; '.join(descriptions)}"


def _describe(name: str, step: int, wait: _Wait) -> str:
    """Return a description of a waiting time for a batch."""
    return (
        f"{name} (step {step:,}) {wait.milliseconds()}, "
        f"{wait.row_groups} row groups decoded by then"
    )
