"""The order of a mixture: rows per CPU second of all lanes, near its beginning and a
million million rows into it.

Three sources in 64 lanes and batches of 256 rows, as a loader asks for them, with
weights that stay, move in a line or along a cosine, and along a cosine on which two of
them are always equal (so that their counts jump at the same times, which is the dearest
case). What lies between the beginning and far away is never walked through, so that
both must cost about the same.
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
RATE: Final = 10.0  # million rows per CPU second, at least
SLOWER: Final = 3.0  # times the CPU seconds at the beginning, at most
_LENGTHS: Final = {"web": 10**9, "code": 10**8, "math": 10**7}
_ROWS: Final = 2_000_000
_LANES: Final = 64
_SIZES: Final = {"lanes": _LANES, "batch_size": 256}
_AT_ONCE: Final = 1000  # rows that a lane is asked for


def mixtures() -> dict[str, Callable[[], SourceMixture]]:
    """What is measured: a name, and how to make the mixture afresh."""
    first, last = (
        {"web": 0.7, "code": 0.2, "math": 0.1},
        {"web": 0.2, "code": 0.3, "math": 0.5},
    )
    tied = (
        {"web": 0.6, "code": 0.2, "math": 0.2},
        {"web": 0.2, "code": 0.4, "math": 0.4},
    )

    def moving(
        a: dict[str, float], b: dict[str, float], how: str
    ) -> Callable[[], SourceMixture]:
        points = [{"step": 0, "weights": a}, {"step": 2 * FAR, "weights": b}]
        return lambda: SourceMixture(_LENGTHS, WeightScheduler(points, how), **_SIZES)

    return {
        "constant weights": lambda: SourceMixture(_LENGTHS, constant(first), **_SIZES),
        "weights in a line": moving(first, last, "linear"),
        "weights along a cosine": moving(first, last, "cosine"),
        "two equal weights along a cosine": moving(*tied, "cosine"),
    }


def measure_positions(repeats: int, rows: int = _ROWS) -> tuple[list[Goal], list[str]]:
    """Return what the goals judge, and what else is worth knowing.

    Args:
        repeats: runs of each, of which the median counts.
        rows: read at a time.
    """
    goals: list[Goal] = []
    for name, make in mixtures().items():
        near, far = (_cpu(make, start, rows, repeats) for start in (0, FAR))
        what = f"positions of a mixture, {name}"
        goals.append(
            Goal(f"{what}: million rows per CPU s", rows / near / 1e6, "at least", RATE)
        )
        goals.append(
            Goal(f"{what}: the same at row 10^12", rows / far / 1e6, "at least", RATE)
        )
        goals.append(
            Goal(
                f"{what}: CPU s at row 10^12 / at row 0",
                far / near,
                "at most",
                SLOWER,
                "x",
            )
        )
    return goals, [_seeking(repeats)]


def _cpu(
    make: Callable[[], SourceMixture], start: int, rows: int, repeats: int
) -> float:
    """Median CPU seconds of reading rows of a mixture that was never asked before,
    after a warm-up.
    """
    return statistics.median(
        [_once(make(), start, rows) for _ in range(repeats + 1)][1:]
    )


def _once(mixture: SourceMixture, start: int, rows: int) -> float:
    began = time.process_time()
    for first in range(start // _LANES, (start + rows) // _LANES, _AT_ONCE):
        for lane in range(_LANES):
            mixture.lane(lane, first, first + _AT_ONCE)
    return time.process_time() - began


def _seeking(repeats: int) -> str:
    """A line on what single questions cost: CPU milliseconds, each to a mixture that
    was never asked before.
    """
    points = [
        {"step": 0, "weights": {"a": 0.9, "b": 0.1}},
        {"step": FAR, "weights": {"a": 0.1, "b": 0.9}},
    ]
    scheduler = WeightScheduler(points, "cosine")
    at, before = [], []
    for number in range(max(repeats, 5)):
        mixture = SourceMixture(
            {"a": 10**9, "b": 10**7},
            scheduler,
            lanes=_LANES,
            batch_size=256,
            step_rows=256,
            seed=number,
        )
        began = time.process_time()
        mixture.at(FAR + number)
        asked = time.process_time()
        mixture.drawn_before(FAR + number)
        at.append(asked - began)
        before.append(time.process_time() - asked)
    return (
        f"Positions: the row at position 10^12 of {_LANES} lanes takes {statistics.median(at) * 1e3:.2f} CPU ms, "
        f"the rows of each source before it {statistics.median(before) * 1e3:.2f}"
    )
