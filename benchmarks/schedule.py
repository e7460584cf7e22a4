"""Simulated build of half a million units on a cluster.

The simulation uses the library's own schedule, a clock that jumps from event to event,
and no I/O:

1. Every slot builds one unit after the other.
2. A slot dies after a random time. It loses the unit that it was building, and another
   slot replaces it after a minute.
3. The figure is the end of the last unit, over the end that all slots would reach if
   they were busy to the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from benchmarks.goals import Goal
from tokenlake.etl.reports.html import areas
from tokenlake.etl.schedule import Schedule

UNITS: Final = 500_000
SLOTS: Final = 2_000
QUICK_PART: Final = 50
"""Divisor of the units and slots of a quick run."""

FAILURE_SHARE: Final = 0.01
"""Share of the slots that die in an hour."""

MOST_END_RATIO: Final = 1.03
"""Largest end, over the end of slots that are all busy to the end."""

# Seconds of a unit are log-normal, as sizes and machines differ.
_MEAN_SECONDS: Final = 60.0
_SPREAD: Final = 0.5
# Some units take fifty times as long: files that cannot be split.
_LONG_SHARE: Final = 1e-5
_LONG_FACTOR: Final = 50

_START_SECONDS: Final = 60.0
"""Time until a dead slot is replaced."""

_RETRIES: Final = 2
"""Number of times that the schedule tries a failed unit again."""

_POINTS: Final = 200
"""Number of points of the figure."""

_NO_UNIT: Final = -1
_HOUR: Final = 3600  # seconds


@final
@dataclass(frozen=True, slots=True)
class SimulatedBuild:
    """Result of a simulation.

    Attributes:
        end_seconds: Time of the end of the last unit.
        ideal_seconds: Seconds of all units, over the slots.
        done_units: Number of units that were done, each once.
        lost_slots: Number of slots that died.
        busy_shares: Share of the slots that build, float64[points], at equally spaced
            times from 0 to `end_seconds`.
    """

    end_seconds: float
    ideal_seconds: float
    done_units: int
    lost_slots: int
    busy_shares: npt.NDArray[np.float64]


class _FreeSlot(NamedTuple):
    """Slot that ends its unit, or dies. Events are in the order of their times.

    Attributes:
        time: Seconds since the beginning of the build.
        slot: Index of the slot.
        unit: Unit that it was building; -1 at the beginning.
        is_alive: False if it died before the end of the unit.
    """

    time: float
    slot: int
    unit: int
    is_alive: bool


class _Span(NamedTuple):
    """Time during which a slot builds a unit, in seconds."""

    begin: float
    end: float


def durations(units: int, seed: int) -> npt.NDArray[np.float64]:
    """Return the seconds of each unit, float64[units]."""
    rng = np.random.default_rng(seed)
    seconds = _MEAN_SECONDS * rng.lognormal(-(_SPREAD**2) / 2, _SPREAD, units)
    seconds[rng.random(units) < _LONG_SHARE] *= _LONG_FACTOR
    return seconds


def simulate(
    seconds: Sequence[float], slots: int, failure_share: float, seed: int
) -> SimulatedBuild:
    """Simulate a build.

    Args:
        seconds: Seconds of each unit.
        slots: Number of slots.
        failure_share: Share of the slots that die in an hour.
        seed: Seed of the times at which they do.

    Raises:
        RuntimeError: A unit failed too often, or is done twice.
    """
    rng = np.random.default_rng(seed)
    unit_sizes = {
        unit: round(unit_seconds * 1e6) for unit, unit_seconds in enumerate(seconds)
    }
    schedule = Schedule(unit_sizes, _RETRIES)
    deaths: list[float] = [float("inf")] * slots
    if failure_share:
        deaths = rng.exponential(_HOUR / failure_share, slots).tolist()
    is_done = bytearray(len(seconds))
    spans: list[_Span] = []
    lost_slots = 0

    events = [_FreeSlot(0.0, slot, _NO_UNIT, is_alive=True) for slot in range(slots)]
    while events:
        now, slot, unit, is_alive = heapq.heappop(events)
        # 1. Return the unit of the slot. A dead slot is replaced by a new one of the
        #    same index.
        if not is_alive:
            if not schedule.failed(unit, now):
                raise RuntimeError(f"unit {unit} failed too often")
            lost_slots += 1
            now += _START_SECONDS
            deaths[slot] = now + float(rng.exponential(_HOUR / failure_share))
        elif unit != _NO_UNIT:
            if is_done[unit]:
                raise RuntimeError(f"unit {unit} is done twice")
            is_done[unit] = 1
        # 2. Take the next unit, perhaps after a pause, until its end or the slot's
        #    death. A slot without a unit leaves the build.
        job = schedule.take(now)
        if job is None:
            continue
        next_unit, pause = job
        begin = now + pause
        end = begin + seconds[next_unit]
        is_alive_at_end = end <= deaths[slot]
        end_of_span = min(end, deaths[slot])
        spans.append(_Span(begin, end_of_span))
        heapq.heappush(events, _FreeSlot(end_of_span, slot, next_unit, is_alive_at_end))

    end_of_build = max(span.end for span in spans)
    return SimulatedBuild(
        end_seconds=end_of_build,
        ideal_seconds=sum(seconds) / slots,
        done_units=sum(is_done),
        lost_slots=lost_slots,
        busy_shares=_busy_shares(spans, end_of_build, slots),
    )


def _busy_shares(
    spans: Sequence[_Span], end: float, slots: int
) -> npt.NDArray[np.float64]:
    """Return the share of the slots that build, float64[points].

    Args:
        spans: Times during which slots build.
        end: Last time of the figure; the first is 0.
        slots: Number of slots.
    """
    times = np.linspace(0, end, _POINTS)
    begins = np.sort([span.begin for span in spans])
    ends = np.sort([span.end for span in spans])
    begun = np.searchsorted(begins, times, "right")
    ended = np.searchsorted(ends, times, "right")
    return (begun - ended) / slots


def measure_schedule(work: Path, *, quick: bool) -> tuple[list[Goal], list[str]]:
    """Simulate a build, and write a figure of the slots that are busy.

    Args:
        work: Folder for the figure.
        quick: Whether to simulate a small cluster.

    Returns:
        A goal and a note.
    """
    # 1. Simulate.
    units = UNITS
    slots = SLOTS
    if quick:
        units //= QUICK_PART
        slots //= QUICK_PART
    build = simulate(durations(units, 0).tolist(), slots, FAILURE_SHARE, 0)
    goal = Goal(
        f"{units:,} units on {slots:,} slots, {FAILURE_SHARE:.0%} of which die in an hour: end / ideal",
        build.end_seconds / build.ideal_seconds,
        "at most",
        MOST_END_RATIO,
        "x",
    )

    # 2. Draw the shares of slots over time.
    minutes = np.linspace(0, build.end_seconds / 60, _POINTS).tolist()
    points: list[tuple[float, dict[str, float]]] = []
    for minute, busy in zip(minutes, build.busy_shares.tolist(), strict=True):
        points.append((minute, {"building": busy, "idle": 1 - busy}))
    figure_path = work / "schedule.html"
    figure_path.write_text(str(areas(points, "minute")))

    note = (
        f"{build.lost_slots} slots died; {build.done_units:,} units done, each once, in "
        f"{build.end_seconds / _HOUR:.2f} h; slots busy: {_sparkline(build.busy_shares)} ({figure_path})"
    )
    return [goal], [note]


def _sparkline(shares: npt.NDArray[np.float64]) -> str:
    """Return every fourth share as one of nine heights, as ``██████▇▁``."""
    heights = " ▁▂▃▄▅▆▇█"
    blocks = ""
    for share in shares[::4].tolist():
        clipped = max(0.0, min(1.0, share))
        blocks += heights[round(8 * clipped)]
    return blocks
