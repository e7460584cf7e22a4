"""Mixture of 64 sources whose weights change over 10^12 rows.

Measured are opening it, its first batch, and finding the rows of a batch far ahead.

All sources are the same small dataset under 64 names. The name of a source is part of
the seed of its order, so that the work is that of 64 datasets of this size. Sources
that end begin again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

import tokenlake as tl
from benchmarks.goals import Goal
from benchmarks.loader_input import CORPUS, LoaderInput
from benchmarks.systems.loader_sink import BATCH

SOURCES: Final = 64
ROWS: Final = 10**12

MOST_OPEN_SECONDS: Final = 1.0
MOST_FIRST_SECONDS: Final = 1.0
MOST_LOCATE_SECONDS: Final = 0.05

_POSITIONS: Final = (0.0, 0.25, 0.5, 1.0)
"""Positions in the stream, as shares of its length, of batches whose rows are located."""


def measure_many_sources(
    loader_input: LoaderInput, repeats: int
) -> tuple[list[Goal], list[str]]:
    """Measure the mixture `repeats` times, after a warm-up.

    Args:
        loader_input: Datasets to read.
        repeats: Number of measured runs.

    Returns:
        Goals, and a note on the size of the mixture.
    """
    # 1. Measure.
    open_times: list[float] = []
    first_times: list[float] = []
    locate_times: list[float] = []
    lanes = 0
    for turn in range(repeats + 1):
        open_seconds, mixture = _timed(partial(_mixture, loader_input))
        first_seconds, loader = _timed(partial(_with_first_batch, mixture))
        with loader:
            lanes = loader.plan.lanes
            locate_seconds = max(_locate(loader, position) for position in _POSITIONS)
        is_warm_up = turn == 0
        if not is_warm_up:
            open_times.append(open_seconds)
            first_times.append(first_seconds)
            locate_times.append(locate_seconds)

    # 2. Judge the medians.
    title = f"mixture of {SOURCES} sources whose weights move over 10^12 rows"
    goals = [
        Goal(
            f"{title}: opening it",
            statistics.median(open_times) * 1e3,
            "at most",
            MOST_OPEN_SECONDS * 1e3,
            " ms",
        ),
        Goal(
            f"{title}: first batch",
            statistics.median(first_times) * 1e3,
            "at most",
            MOST_FIRST_SECONDS * 1e3,
            " ms",
        ),
        Goal(
            f"{title}: locating the rows of a batch, slowest of {len(_POSITIONS)}",
            statistics.median(locate_times) * 1e3,
            "at most",
            MOST_LOCATE_SECONDS * 1e3,
            " CPU ms",
        ),
    ]
    note = (
        f"The mixture of {SOURCES} sources has {lanes} lanes, batches of {BATCH} rows"
    )
    return goals, [note]


def _mixture(loader_input: LoaderInput) -> tl.Mixture:
    """Open the datasets and return the mixture."""
    datasets: dict[str, tl.Dataset] = {}
    first_weights: dict[str, float] = {}
    last_weights: dict[str, float] = {}
    # Weights from 1 to 64 at the beginning, and from 64 to 1 at the end, over their sum.
    total = SOURCES * (SOURCES + 1) / 2
    for number in range(SOURCES):
        source_name = f"source-{number:02d}"
        datasets[source_name] = tl.open(loader_input.store, CORPUS)
        first_weights[source_name] = (1 + number) / total
        last_weights[source_name] = (SOURCES - number) / total
    points: list[dict[str, Any]] = [
        {"step": 0, "weights": first_weights},
        {"step": ROWS // BATCH, "weights": last_weights},
    ]
    return tl.Mixture(datasets, tl.WeightScheduler(points, "linear"), rows=ROWS)


def _with_first_batch(mixture: tl.Mixture) -> tl.DataLoader:
    """Return a loader that has delivered a batch."""
    loader = tl.DataLoader(mixture, BATCH, seed=0)
    next(iter(loader))
    # Its threads would take CPU time from the next measurement.
    loader.close()
    return loader


def _locate(loader: tl.DataLoader, position: float) -> float:
    """Return the CPU seconds of computing the stored rows of a batch.

    Args:
        loader: Loader of the mixture.
        position: Position in the stream as a share of its length.
    """
    plan = loader.plan
    # Only this thread counts: a thread that prepared batches may still be ending.
    start = time.thread_time()
    last_step = ROWS // BATCH - 1
    batch = plan.batch(int(position * last_step))
    # A single host needs all rows of the batch.
    (rows,) = plan.rows([batch], np.arange)
    assert len(rows.row) == BATCH
    return time.thread_time() - start


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the wall seconds of an action, and its result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result
