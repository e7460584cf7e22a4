"""A mixture of 64 sources whose weights move over 10^12 rows: opening it, its first
batch, and seeking in it.

All sources are the same small dataset under 64 names. A name decides the order of its
source, so that the work is that of 64 datasets of this size. The mixture restarts
sources that end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import tokenlake as tl
from benchmarks.goals import Goal
from benchmarks.loader_input import CORPUS, LoaderInput
from benchmarks.systems.loader_sink import BATCH

SOURCES: Final = 64
ROWS: Final = 10**12
OPEN_SECONDS: Final = 1.0
FIRST_SECONDS: Final = 1.0
SEEK_SECONDS: Final = 0.05
_PLACES: Final = (0.0, 0.25, 0.5, 1.0)  # of the stream, where batches are located


def measure_many_sources(
    given: LoaderInput, repeats: int
) -> tuple[list[Goal], list[str]]:
    """Return goals for the three moments, and a note on where sources are located."""
    opening: list[float] = []
    first: list[float] = []
    seeking: list[float] = []
    lanes = 0
    for turn in range(repeats + 1):
        seconds, mixture = _timed(lambda: _mixture(given))
        first_seconds, loader = _timed(
            lambda mixture=mixture: _with_first_batch(mixture)
        )
        with loader:
            lanes = loader.plan.lanes
            seek_seconds = [_locate(loader, place) for place in _PLACES]
        if turn:  # the first is a warm-up
            opening.append(seconds)
            first.append(first_seconds)
            seeking.append(max(seek_seconds))
    what = f"mixture of {SOURCES} sources whose weights move over 10^12 rows"
    goals = [
        Goal(
            f"{what}: opening it",
            statistics.median(opening) * 1e3,
            "at most",
            OPEN_SECONDS * 1e3,
            " ms",
        ),
        Goal(
            f"{what}: first batch",
            statistics.median(first) * 1e3,
            "at most",
            FIRST_SECONDS * 1e3,
            " ms",
        ),
        Goal(
            f"{what}: locating the rows of a batch, slowest of {len(_PLACES)}",
            statistics.median(seeking) * 1e3,
            "at most",
            SEEK_SECONDS * 1e3,
            " CPU ms",
        ),
    ]
    return goals, [
        f"The mixture of {SOURCES} sources has {lanes} lanes, batches of {BATCH} rows"
    ]


def _mixture(given: LoaderInput) -> tl.Mixture:
    """Return the mixture, opened anew."""
    names = [f"source-{number:02d}" for number in range(SOURCES)]
    datasets = {name: tl.open(given.store, CORPUS) for name in names}
    # Weights from 1 to 64, and from 64 to 1 at the end.
    ascending = {name: 1.0 + number for number, name in enumerate(names)}
    descending = {name: float(SOURCES - number) for number, name in enumerate(names)}
    total = sum(ascending.values())
    points: list[dict[str, Any]] = []
    for step, weights in ((0, ascending), (ROWS // BATCH, descending)):
        points.append(
            {
                "step": step,
                "weights": {name: weight / total for name, weight in weights.items()},
            }
        )
    return tl.Mixture(datasets, tl.WeightScheduler(points, "linear"), rows=ROWS)


def _with_first_batch(mixture: tl.Mixture) -> tl.DataLoader:
    """Return a loader that delivered a batch."""
    loader = tl.DataLoader(mixture, BATCH, seed=0)
    next(iter(loader))
    loader.close()
    return loader


def _locate(loader: tl.DataLoader, place: float) -> float:
    """Return the CPU seconds of computing the stored rows of the batch at a place of
    the stream, 0 to 1.

    Only this thread counts: a thread that prepared batches may still be ending.
    """
    plan = loader.plan
    began = time.thread_time()
    last_step = ROWS // BATCH - 1
    batch = plan.batch(int(place * last_step))
    (rows,) = plan.rows([batch], np.arange)
    assert len(rows.row) == BATCH
    return time.thread_time() - began


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that an action takes, and its result."""
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result
