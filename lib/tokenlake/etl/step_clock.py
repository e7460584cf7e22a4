"""When the steps of a unit begin and end, and how long each is busy.

Steps interleave: a unit is read, tokenized and packed block by block, and row groups are written in between. So a step
has a first begin, a last end, and the time between them that it was busy. The clock decides no byte.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, final

Stage: TypeAlias = Literal["load", "tokenize", "mix", "pack", "save"]

STAGES: Final[tuple[Stage, ...]] = ("load", "tokenize", "mix", "pack", "save")
"""The steps of units, in order. Load: inputs are read and parsed. Mix: rows of stored datasets are put in order. Save:
files are written and published."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of one try of a unit.

    Attributes:
        stage: Which step.
        began: Time of its first begin, in seconds since 1970.
        ended: Time of its last end, in seconds since 1970.
        busy: Seconds between the two that were spent on this step.
        has_failed: Whether the unit's error was raised in this step.
    """

    stage: Stage
    began: float
    ended: float
    busy: float
    has_failed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for the details of an error."""
        return asdict(self)


MARK_BYTES: Final = struct.calcsize("<Bq")
"""Size of :meth:`StepClock.mark`."""


@final
class StepClock:
    """The steps of the unit that this process builds: one unit at a time, in one thread."""

    def __init__(self) -> None:
        self.on_begin: Callable[[bytes], object] = lambda mark: None
        self.clear()

    def clear(self) -> None:
        """Forget the last unit."""
        self._busy: Counter[Stage] = Counter()
        self._began: dict[Stage, int] = {}
        self._ended: dict[Stage, int] = {}
        self._failed: Stage | None = None
        self._current: Stage | None = None
        self._since = 0
        self._saved_before = 0
        # Durations are differences of a clock that is never set; the distance to the wall clock is read once.
        self._to_wall_clock = time.time_ns() - time.perf_counter_ns()

    def begin(self, stage: Stage) -> None:
        """Begin a step, or continue it; the one under way ends."""
        self.end()
        self._current = stage
        self._since = time.perf_counter_ns()
        self._saved_before = self._busy["save"]
        if stage not in self._began:
            self._began[stage] = self._since
        self.on_begin(self._mark(stage))

    def end(self) -> None:
        """End the step under way, if any. Time after it belongs to no step."""
        if self._current is None:
            return
        now = time.perf_counter_ns()
        # Files that were written meanwhile count as saving alone.
        saved = self._busy["save"] - self._saved_before
        self._busy[self._current] += now - self._since - saved
        self._ended[self._current] = now
        self._current = None

    @contextmanager
    def saving(self) -> Generator[None]:
        """Count the body as the step `save`, inside of whatever step is under way."""
        began = time.perf_counter_ns()
        self._began.setdefault("save", began)
        self.on_begin(self._mark("save"))
        try:
            yield
        except BaseException:
            self._failed = "save"
            raise
        finally:
            now = time.perf_counter_ns()
            self._busy["save"] += now - began
            self._ended["save"] = now
        if self._current is not None:
            self.on_begin(self._mark(self._current))

    def fail(self) -> None:
        """Mark the step under way as the one that raised the unit's error."""
        self._failed = self._failed or self._current
        self.end()

    def fields(self) -> dict[str, int]:
        """Return all times in microseconds, as a worker reports them; :func:`step_times` reads them."""
        fields: dict[str, int] = {}
        for stage, began in self._began.items():
            ended = self._ended.get(stage, began)
            fields[stage] = self._busy[stage] // 1000
            fields[f"{stage}.began"] = (began + self._to_wall_clock) // 1000
            fields[f"{stage}.ended"] = (ended + self._to_wall_clock) // 1000
        if self._failed is not None:
            fields[f"{self._failed}.failed"] = 1
        return fields

    def _mark(self, stage: Stage) -> bytes:
        """Return the step and its first begin as bytes of a fixed size, for whoever outlives this process."""
        return struct.pack("<Bq", 1 + STAGES.index(stage), self._began[stage] + self._to_wall_clock)


_TIMES: Final = (".began", ".ended", ".failed")

CLOCK: Final = StepClock()
"""The clock of this process."""


def step_times(fields: Mapping[str, int]) -> tuple[StepTime, ...]:
    """Return the steps that :meth:`StepClock.fields` describes, in order; other fields are ignored."""
    return tuple(
        StepTime(
            stage=stage,
            began=fields[f"{stage}.began"] / 1e6,
            ended=fields[f"{stage}.ended"] / 1e6,
            busy=fields.get(stage, 0) / 1e6,
            has_failed=f"{stage}.failed" in fields,
        )
        for stage in STAGES
        if f"{stage}.began" in fields
    )


def countable(fields: Mapping[str, int]) -> dict[str, int]:
    """Return the fields that can be added up over several tries of a unit: all but the times of its steps."""
    return {name: value for name, value in fields.items() if not name.endswith(_TIMES)}


def step_of_mark(mark: bytes, ended: float) -> StepTime | None:
    """Return the step in which a process ended; None where it had begun none.

    Args:
        mark: The last one that :attr:`StepClock.on_begin` got.
        ended: When the process ended, in seconds since 1970.
    """
    if len(mark) < MARK_BYTES:
        return None
    number, began = struct.unpack("<Bq", mark[:MARK_BYTES])
    if not number:
        return None
    return StepTime(
        stage=STAGES[number - 1], began=began / 1e9, ended=ended, busy=ended - began / 1e9, has_failed=True
    )
