"""How long a trainer waits: opening, the first batch, resuming; by the clock on the
wall, each in a fresh process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
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

OPEN_SECONDS: Final = 1.0
FIRST_SECONDS: Final = 0.150
RESUME_SECONDS: Final = 0.100


def measure_moments(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    given: LoaderInput,
    repeats: int,
) -> tuple[list[Goal], list[str]]:
    """Goals, and a note that has each step's own figure."""
    many, store = str(make_many(work, maker, vocabulary)), str(given.store)
    steps = _steps(given)
    states = work / "scratch" / "loader-states.json"
    states.parent.mkdir(exist_ok=True)
    states.write_text(
        json.dumps(_run(work, "states", store, CORPUS, *map(str, steps.values())))
    )
    actions = {
        "open": ("open", many, MANY),
        "first": ("first", store, CORPUS),
        **{
            name: ("resume", store, CORPUS, str(states), str(step))
            for name, step in steps.items()
        },
    }
    times: dict[str, list[float]] = {name: [] for name in actions}
    groups: dict[str, int] = {}
    for turn in range(repeats + 1):
        for name, action in actions.items():
            found = _run(work, *action)
            if turn:  # the first is a warm-up
                times[name].append(found["seconds"])
                groups[name] = max(groups.get(name, 0), found["groups"])
    return _goals(times, list(steps)), [_note(times, groups, steps)]


def _steps(given: LoaderInput) -> dict[str, int]:
    """The beginning, the middle and the end of an epoch, and epochs far away."""
    epoch = -(-given.rows // BATCH)
    places = {"step 1": 1, "the middle": epoch // 2, "the last batch": epoch - 1}
    return places | {
        "epoch 10": 10 * epoch + epoch // 2,
        "epoch 1,000,000": 1_000_000 * epoch + epoch // 3,
    }


def _run(work: Path, *arguments: str) -> Any:
    program = [sys.executable, "-m", "benchmarks.systems.loader_latency", *arguments]
    env = builds.environment(work, work / "scratch" / "hash-cache")
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"loader_latency {arguments[0]} failed: {done.stderr.strip()[-400:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def _goals(times: dict[str, list[float]], steps: Sequence[str]) -> list[Goal]:
    slowest = max(steps, key=lambda name: statistics.median(times[name]))
    wanted = (
        (f"opening a dataset of {SHARDS:,} shards", "open", OPEN_SECONDS),
        ("first batch after opening, four columns", "first", FIRST_SECONDS),
        (
            f"resume to the next batch, slowest of {len(steps)} steps: {slowest}",
            slowest,
            RESUME_SECONDS,
        ),
    )
    return [
        Goal(
            f"{what} ({_span(times[name])})",
            statistics.median(times[name]) * 1e3,
            "at most",
            limit * 1e3,
            " ms",
        )
        for what, name, limit in wanted
    ]


def _note(
    times: dict[str, list[float]], groups: dict[str, int], steps: dict[str, int]
) -> str:
    places = {"first batch": 0} | steps
    each = [
        f"{name} (step {step:,}) {_span(times[key])}, {groups[key]} row groups decoded by then"
        for (name, step), key in zip(places.items(), ["first", *steps], strict=True)
    ]
    return f"Waiting for a batch, median and range in ms: {'; '.join(each)}"


def _span(seconds: Sequence[float]) -> str:
    ms = [value * 1e3 for value in seconds]
    return f"{statistics.median(ms):.0f}, {min(ms):.0f}-{max(ms):.0f}"
