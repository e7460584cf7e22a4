"""Clock of the process that builds a unit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, final

from tokenlake.etl.step_clock.reported_steps import StepName, mark_of


@final
class StepClock:
    """Times of the steps of the unit that this process builds.

    It builds one unit at a time, in one thread.

    Attributes:
        on_begin: Function that receives a mark at every begin of a step, see
            :func:`~tokenlake.etl.step_clock.step_of_mark`.
    """

    def __init__(self) -> None:
        self.on_begin: Callable[[bytes], object] = lambda mark: None
        self.clear()

    def clear(self) -> None:
        """Forget the last unit."""
        # Times are nanoseconds of `time.perf_counter_ns`.
        self._busy: Counter[StepName] = Counter()
        self._began: dict[StepName, int] = {}
        self._ended: dict[StepName, int] = {}
        self._failed: StepName | None = None
        # The step under way, the time of its begin, and the busy time of `save` at that
        # time.
        self._current: StepName | None = None
        self._since = 0
        self._saved_before = 0
        # A wall clock may be set back, so that only its distance to the other clock is
        # read, and only once.
        self._to_wall_clock = time.time_ns() - time.perf_counter_ns()

    def begin(self, step_name: StepName) -> None:
        """Begin a step, or continue it; the one under way ends."""
        self.end()
        self._current = step_name
        self._since = time.perf_counter_ns()
        self._saved_before = self._busy["save"]
        if step_name not in self._began:
            self._began[step_name] = self._since
        self.on_begin(self._mark(step_name))

    def end(self) -> None:
        """End the step under way, if any. Time after it belongs to no step."""
        if self._current is None:
            return
        end_time = time.perf_counter_ns()
        # Files that were written meanwhile count as saving alone.
        saved_meanwhile = self._busy["save"] - self._saved_before
        self._busy[self._current] += end_time - self._since - saved_meanwhile
        self._ended[self._current] = end_time
        self._current = None

    @contextmanager
    def saving(self) -> Generator[None]:
        """Count the body as the step `save`, inside of the step under way."""
        begin_time = time.perf_counter_ns()
        self._began.setdefault("save", begin_time)
        self.on_begin(self._mark("save"))
        try:
            yield
        except BaseException:
            self._failed = "save"
            raise
        finally:
            end_time = time.perf_counter_ns()
            self._busy["save"] += end_time - begin_time
            self._ended["save"] = end_time
        if self._current is not None:
            self.on_begin(self._mark(self._current))

    def fail(self) -> None:
        """Mark the step under way as the one that raised the unit's error."""
        self._failed = self._failed or self._current
        self.end()

    def fields(self) -> dict[str, int]:
        """Return all times in microseconds, as a worker reports them.

        `step_times` reads them.
        """
        fields: dict[str, int] = {}
        for step_name, begin_time in self._began.items():
            end_time = self._ended.get(step_name, begin_time)
            fields[step_name] = self._busy[step_name] // 1000
            fields[f"{step_name}.began"] = (begin_time + self._to_wall_clock) // 1000
            fields[f"{step_name}.ended"] = (end_time + self._to_wall_clock) // 1000
        if self._failed is not None:
            fields[f"{self._failed}.failed"] = 1
        return fields

    def _mark(self, step_name: StepName) -> bytes:
        """Return the mark of a step, which a worker's note holds."""
        return mark_of(step_name, self._began[step_name] + self._to_wall_clock)


CLOCK: Final = StepClock()
"""The clock of this process."""
