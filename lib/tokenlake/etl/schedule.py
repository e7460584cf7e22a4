"""The order in which free workers take the units of a build.

A free worker takes the next unit, whichever it built before. So all workers are busy
until the units run out, and then idle for no longer than the longest of the last units
takes. Hence units that are much larger than the others, such as a file that cannot be
split, come first. For example, units of 10, 11, 100, 9, 300 and 10 bytes have a mean of
73 bytes. Only the unit of 300 bytes is larger than three times that, so it comes first,
and then the others in their order.

A unit that failed is tried again after a pause of 0.2 s, 0.4 s, 0.8 s ..., at most 5 s.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, final

_LARGE: Final = 3.0
"""Size of a unit that comes first, in multiples of the mean size."""

_FIRST_PAUSE: Final = 0.2
"""Number of seconds before a unit is tried again for the first time; each time the
pause is twice as long.
"""

_LONGEST_PAUSE: Final = 5.0
"""Largest number of seconds before a unit is tried again."""


@final
class Schedule:
    """The units of a build that are still to be built; thread-safe.

    It reads no clock and does no I/O: :mod:`benchmarks.schedule` simulates clusters of
    thousands of workers with it.

    Args:
        sizes: Input bytes of each unit, in plan order.
        retries: Number of times that a unit is tried again.
    """

    def __init__(self, sizes: Mapping[int, int], retries: int) -> None:
        # Large units first, the largest of them at the beginning; then all others in
        # plan order. The keys of a dict are distinct, so no unit comes twice.
        mean_size = sum(sizes.values()) / max(1, len(sizes))
        large_units = [
            unit for unit, size in sizes.items() if size > _LARGE * mean_size
        ]
        large_units.sort(key=lambda unit: -sizes[unit])
        self._fresh_units = deque(dict.fromkeys([*large_units, *sizes]))
        # Units that failed, each with the time at which it is tried again, earliest
        # first.
        self._failed_units: list[tuple[float, int]] = []
        self._failures = Counter[int]()
        self._retries = retries
        self._lock = threading.Lock()

    def take(self, now: float) -> tuple[int, float] | None:
        """Return a unit, and the number of seconds after which to begin it.

        The result is None if no unit is left.

        A worker whose unit failed calls :meth:`failed` before it takes another one. So
        no unit is lost when the other workers find none left.

        Args:
            now: Time in seconds, of any monotonic clock.
        """
        with self._lock:
            # A failed unit waits while there are others.
            if self._failed_units:
                due, unit = self._failed_units[0]
                if due <= now or not self._fresh_units:
                    heapq.heappop(self._failed_units)
                    return unit, max(0.0, due - now)
            if self._fresh_units:
                return self._fresh_units.popleft(), 0.0
            return None

    def failed(self, unit: int, now: float) -> bool:
        """Schedule a unit again after a pause.

        Args:
            unit: Index of the unit.
            now: Time in seconds, of the clock of :meth:`take`.

        Returns:
            False if the unit was tried as often as it may be.
        """
        with self._lock:
            self._failures[unit] += 1
            failures = self._failures[unit]
            if failures > self._retries:
                return False
            pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
            heapq.heappush(self._failed_units, (now + pause, unit))
            return True
