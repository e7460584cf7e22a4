"""Half a million units on a cluster that is only imagined: the library's own schedule,
a clock that jumps, no I/O.

Each slot lives for a time of its own. One that dies loses the unit that it was at, and
another takes its place after a minute. What is asked is how much later the last unit is
done than it would be if all slots were busy to the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt

from benchmarks.goals import Goal
from tokenlake.etl.reports.html import areas
from tokenlake.etl.schedule import Schedule

UNITS: Final = 500_000
SLOTS: Final = 2_000
FAILURES: Final = 0.01  # of the slots, in an hour
LATER: Final = 1.03  # the end, against all slots busy to the end
# Seconds of a unit: log-normal, as sizes and machines differ.
_MEAN, _SPREAD = 60.0, 0.5
_LONG: Final = 1e-5  # of the units take fifty times as long: files that cannot be split
_START: Final = 60.0  # seconds until a lost slot is replaced
_RETRIES: Final = 2
_POINTS: Final = 200


@final
@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of a build.

    Attributes:
        end: seconds until the last unit was done.
        ideal: seconds of all units, over the slots.
        done: units that were done; each once.
        lost: slots that died.
        busy: share of the slots that build, float64[points], over the time from 0 to
            `end`.
    """

    end: float
    ideal: float
    done: int
    lost: int
    busy: npt.NDArray[np.float64]


def durations(units: int, seed: int) -> npt.NDArray[np.float64]:
    """Return the seconds of each unit, float64[units]."""
    rng = np.random.default_rng(seed)
    seconds = _MEAN * rng.lognormal(-(_SPREAD**2) / 2, _SPREAD, units)
    seconds[rng.random(units) < _LONG] *= 50
    return seconds


def simulate(
    seconds: Sequence[float], slots: int, failures: float, seed: int
) -> Simulated:
    """Build units.

    Args:
        seconds: of each unit.
        slots: how many build at a time.
        failures: share of the slots that die in an hour.
        seed: of the moments at which they do.

    Raises:
        RuntimeError: a unit failed too often, or is done twice.
    """
    rng = np.random.default_rng(seed)
    schedule = Schedule(
        {unit: round(each * 1e6) for unit, each in enumerate(seconds)}, _RETRIES
    )
    death = (
        rng.exponential(3600 / failures, slots) if failures else np.full(slots, np.inf)
    ).tolist()
    free: list[tuple[float, int, int, bool]] = [
        (0.0, slot, -1, True) for slot in range(slots)
    ]
    done, spans, lost = bytearray(len(seconds)), list[tuple[float, float]](), 0
    while free:
        now, slot, unit, alive = heapq.heappop(free)
        if not alive:
            if not schedule.failed(unit, now):
                raise RuntimeError(f"unit {unit} failed too often")
            lost, now = lost + 1, now + _START
            death[slot] = now + float(rng.exponential(3600 / failures))
        elif unit >= 0:
            if done[unit]:
                raise RuntimeError(f"unit {unit} is done twice")
            done[unit] = 1
        if (taken := schedule.take(now)) is not None:
            begin = now + taken[1]
            end = begin + seconds[taken[0]]
            spans.append((begin, min(end, death[slot])))
            heapq.heappush(
                free, (min(end, death[slot]), slot, taken[0], end <= death[slot])
            )
    last = max(end for _, end in spans)
    return Simulated(
        last, sum(seconds) / slots, sum(done), lost, _busy(spans, last, slots)
    )


def _busy(
    spans: Sequence[tuple[float, float]], last: float, slots: int
) -> npt.NDArray[np.float64]:
    places = np.linspace(0, last, _POINTS)
    begins, ends = (np.sort([span[side] for span in spans]) for side in (0, 1))
    at_work = np.searchsorted(begins, places, "right") - np.searchsorted(
        ends, places, "right"
    )
    return at_work / slots


def measure_schedule(work: Path, *, quick: bool) -> tuple[list[Goal], list[str]]:
    """Return goals and a note; write the figure of the slots that were busy."""
    units, slots = (UNITS // 50, SLOTS // 50) if quick else (UNITS, SLOTS)
    found = simulate(durations(units, 0).tolist(), slots, FAILURES, 0)
    what = f"{units:,} units on {slots:,} slots, {FAILURES:.0%} of which die in an hour: end / ideal"
    goal = Goal(what, found.end / found.ideal, "at most", LATER, "x")
    minutes = np.linspace(0, found.end / 60, _POINTS)
    shares = [
        (minute, {"building": busy, "idle": 1 - busy})
        for minute, busy in zip(minutes.tolist(), found.busy.tolist(), strict=True)
    ]
    path = work / "schedule.html"
    path.write_text(str(areas(shares, "minute")))
    told = f"{found.lost} slots died; {found.done:,} units done, each once, in {found.end / 3600:.2f} h; slots busy: "
    return [goal], [f"{told}{_line(found.busy)} ({path})"]


def _line(busy: npt.NDArray[np.float64]) -> str:
    """``██████▇▁``: eight heights of shares."""
    return "".join(
        " ▁▂▃▄▅▆▇█"[round(8 * max(0.0, min(1.0, share)))]
        for share in busy[::4].tolist()
    )
