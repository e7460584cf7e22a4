"""Which unit a free worker builds next, and when one that failed is tried again.

No clock and no I/O: :mod:`tokenlake.etl.runner` asks with threads and workers, :mod:`benchmarks.schedule` with a
cluster of thousands that is only imagined. A free worker takes the next unit, whoever built the one before. So all are
busy until the units run out, and then idle for no longer than the longest of the last units takes. Hence those that are
much larger than the others, such as a file that cannot be split, come first.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, final

_LARGE: Final = 3.0  # times the mean: larger units come first
_PAUSE: Final = 0.2  # seconds before a unit is tried again, twice as many each time
_LONGEST: Final = 5.0


@final
class Schedule:
    """The units of a build that are still to be built; thread-safe.

    Args:
        sizes: unit to input bytes, in plan order.
        retries: how often a unit is tried again.
    """

    def __init__(self, sizes: Mapping[int, int], retries: int) -> None:
        limit = _LARGE * sum(sizes.values()) / max(1, len(sizes))
        large = sorted((unit for unit in sizes if sizes[unit] > limit), key=lambda unit: -sizes[unit])
        self._fresh = deque(dict.fromkeys([*large, *sizes]))
        self._again: list[tuple[float, int]] = []
        self._failures = Counter[int]()
        self._retries = retries
        self._lock = threading.Lock()

    def take(self, now: float) -> tuple[int, float] | None:
        """Return a unit, and the seconds after which to begin it; None where none is left.

        Whoever has one and fails says so before taking another, so that none is lost when the others find none left.

        Args:
            now: seconds, on any clock that goes on evenly.
        """
        with self._lock:
            if self._again and (not self._fresh or self._again[0][0] <= now):
                when, unit = heapq.heappop(self._again)
                return unit, max(0.0, when - now)
            return (self._fresh.popleft(), 0.0) if self._fresh else None

    def failed(self, unit: int, now: float) -> bool:
        """Have a unit tried again after a pause; False where it was tried often enough."""
        with self._lock:
            self._failures[unit] += 1
            if (times := self._failures[unit]) > self._retries:
                return False
            heapq.heappush(self._again, (now + min(_PAUSE * 2 ** (times - 1), _LONGEST), unit))
            return True
