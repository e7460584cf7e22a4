"""Order of a mixture: rows per CPU second of all lanes, at its beginning and at row
10^12.

The mixtures have three sources, 64 lanes and batches of 256 rows, as a loader has. The
weights are constant, or change linearly or along a cosine. In the last mixture, two of
the weights are always equal, so that the counts of both sources grow at the same
positions; this is the most expensive case. No mixture computes the rows before a
position, so that both positions must cost about the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

from benchmarks.goals import Goal
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.schedule import WeightScheduler, constant

FAR: Final = 10**12
"""Position far from the beginning."""

LEAST_RATE: Final = 10.0
"""Least million rows per CPU second."""

MOST_FAR_RATIO: Final = 3.0
"""Most CPU seconds far from the beginning, over those at the beginning."""

_LENGTHS: Final = {"web": 10**9, "code": 10**8, "math": 10**7}
"""Source -> number of rows."""

_ROWS: Final = 2_000_000
_LANES: Final = 64
_BATCH: Final = 256
_LANE_ROWS: Final = 1000
"""Number of rows of a lane that are computed at once."""

_LEAST_LOOKUPS: Final = 5
"""Least number of single positions that are looked up."""

MakeMixture = Callable[[], SourceMixture]


def mixtures() -> dict[str, MakeMixture]:
    """Return name -> function that returns the mixture, with nothing computed yet."""

    def changing(
        first_weights: dict[str, float], last_weights: dict[str, float], curve: str
    ) -> MakeMixture:
        points = [
            {"step": 0, "weights": first_weights},
            {"step": 2 * FAR, "weights": last_weights},
        ]
        return lambda: _mixture(WeightScheduler(points, curve))

    first_weights = {"web": 0.7, "code": 0.2, "math": 0.1}
    last_weights = {"web": 0.2, "code": 0.3, "math": 0.5}
    # Code and math are always equal.
    first_tied_weights = {"web": 0.6, "code": 0.2, "math": 0.2}
    last_tied_weights = {"web": 0.2, "code": 0.4, "math": 0.4}
    return {
        "constant weights": lambda: _mixture(constant(first_weights)),
        "weights in a line": changing(first_weights, last_weights, "linear"),
        "weights along a cosine": changing(first_weights, last_weights, "cosine"),
        "two equal weights along a cosine": changing(
            first_tied_weights, last_tied_weights, "cosine"
        ),
    }


def _mixture(scheduler: WeightScheduler) -> SourceMixture:
    """Return a mixture of the three sources."""
    return SourceMixture(_LENGTHS, scheduler, lanes=_LANES, batch_size=_BATCH)


def measure_positions(repeats: int, rows: int = _ROWS) -> tuple[list[Goal], list[str]]:
    """Measure all mixtures at both positions.

    Args:
        repeats: Number of runs of each; the median counts.
        rows: Number of rows of a run.

    Returns:
        Goals, and a note on single positions.
    """
    goals: list[Goal] = []
    for mixture_name, make_mixture in mixtures().items():
        # Both runs compute the same number of rows.
        near_seconds = _median_cpu(make_mixture, 0, rows, repeats)
        far_seconds = _median_cpu(make_mixture, FAR, rows, repeats)
        title = f"positions of a mixture, {mixture_name}"
        goals += [
            Goal(
                f"{title}: million rows per CPU s",
                rows / near_seconds / 1e6,
                "at least",
                LEAST_RATE,
            ),
            Goal(
                f"{title}: the same at row 10^12",
                rows / far_seconds / 1e6,
                "at least",
                LEAST_RATE,
            ),
            Goal(
                f"{title}: CPU s at row 10^12 / at row 0",
                far_seconds / near_seconds,
                "at most",
                MOST_FAR_RATIO,
                "x",
            ),
        ]
    return goals, [_note_on_lookups(repeats)]


def _median_cpu(
    make_mixture: MakeMixture, start: int, rows: int, repeats: int
) -> float:
    """Return the median CPU seconds of computing rows, after a warm-up.

    Every run has a new mixture, which has computed nothing before.

    Args:
        make_mixture: Function that returns the mixture.
        start: First position.
        rows: Number of rows.
        repeats: Number of measured runs.
    """
    _compute_rows(make_mixture(), start, rows)
    # A mixture keeps what it computed, so that every run needs a new one.
    times = [_compute_rows(make_mixture(), start, rows) for _ in range(repeats)]
    return statistics.median(times)


def _compute_rows(mixture: SourceMixture, start: int, rows: int) -> float:
    """Return the CPU seconds of computing the rows of all lanes from a position on."""
    start_time = time.process_time()
    # Position p of the stream is about place p / lanes of a lane.
    for first in range(start // _LANES, (start + rows) // _LANES, _LANE_ROWS):
        for lane in range(_LANES):
            mixture.lane(lane, first, first + _LANE_ROWS)
    return time.process_time() - start_time


def _note_on_lookups(repeats: int) -> str:
    """Return a note on the CPU time of looking up single positions.

    Every lookup is in a new mixture.

    Args:
        repeats: Number of lookups.
    """
    # Weights that change along a cosine, up to the position that is looked up.
    points = [
        {"step": 0, "weights": {"a": 0.9, "b": 0.1}},
        {"step": FAR, "weights": {"a": 0.1, "b": 0.9}},
    ]
    scheduler = WeightScheduler(points, "cosine")
    row_times: list[float] = []
    count_times: list[float] = []
    for number in range(max(repeats, _LEAST_LOOKUPS)):
        mixture = SourceMixture(
            {"a": 10**9, "b": 10**7},
            scheduler,
            lanes=_LANES,
            batch_size=_BATCH,
            step_rows=_BATCH,
            seed=number,
        )
        # A row at a position, and the counts of all sources before it.
        start_time = time.process_time()
        mixture.at(FAR + number)
        row_time = time.process_time()
        mixture.drawn_before(FAR + number)
        row_times.append(row_time - start_time)
        count_times.append(time.process_time() - row_time)
    return (
        f"Positions: the row at position 10^12 of {_LANES} lanes takes {statistics.median(row_times) * 1e3:.2f} CPU "
        f"ms, the rows of each source before it {statistics.median(count_times) * 1e3:.2f}"
    )
