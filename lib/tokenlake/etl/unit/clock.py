"""Where a unit's time goes: one clock of the process, which is always on one stage.

A worker process does one unit at a time, in one thread, so that a unit need not be handed its clock. What the clock
says decides no byte.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final, Literal, TypeAlias

Stage: TypeAlias = Literal["load", "tokenize", "mix", "pack", "save", "rest"]

STAGES: Final[tuple[Stage, ...]] = ("load", "tokenize", "mix", "pack", "save")
"""Load: inputs are read and parsed. Mix: rows of stored datasets are put in order. Save: files are written and put in
their place."""


class StageClock:
    """Adds up the time between two switches for the stage it was on."""

    def __init__(self) -> None:
        self._spent: Counter[Stage] = Counter()
        self._stage: Stage = "rest"
        self._since = time.perf_counter_ns()

    def switch(self, stage: Stage) -> Stage:
        """Begin with a stage, and return the one before."""
        now, before = time.perf_counter_ns(), self._stage
        self._spent[before] += now - self._since
        self._stage, self._since = stage, now
        return before

    def take(self) -> dict[str, int]:
        """Return stage to microseconds since the last call, and begin again."""
        self.switch("rest")
        spent, self._spent = self._spent, Counter()
        return {stage: spent[stage] // 1000 for stage in STAGES if spent[stage]}


CLOCK: Final = StageClock()
"""This process's own."""
