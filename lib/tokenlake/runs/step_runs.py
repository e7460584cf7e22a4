"""The steps of a group of units as a run shows them.

Each step is shown once, with its true begin and end.

A unit is loaded, tokenized or mixed, packed and saved inside a worker process, which
measures the times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from tokenlake.base import numbers
from tokenlake.errors import WorkerError
from tokenlake.etl.step_clock import STEPS, StepName, StepTime


@final
@dataclass(frozen=True, slots=True)
class UnitTry:
    """One try of a unit.

    Attributes:
        unit: Index of the unit.
        number: Number of the try, from 1.
        steps: Times of its steps, as far as they are known.
        error: Message of the error that ended it. None: it succeeded.
    """

    unit: int
    number: int
    steps: tuple[StepTime, ...]
    error: str | None = None


@final
@dataclass(frozen=True, slots=True)
class StepRun:
    """One step of one unit, or of all units of a group that were built.

    Attributes:
        step_name: Step of a unit.
        name: Name for people, such as ``load 00017``, ``load 00000-00023`` or ``load
            00017, try 2``.
        began: Time of the first begin, in seconds since 1970.
        ended: Time of the last end, in seconds since 1970.
        busy: Seconds that workers spent on the step, summed over the units.
        units: Number of units.
        error: Message of the error that was raised in the step. None: it succeeded.
    """

    step_name: StepName
    name: str
    began: float
    ended: float
    busy: float
    units: int
    error: str | None = None

    def outcome(self) -> dict[str, Any]:
        """Return the figures of the step, which are JSON.

        Raises:
            WorkerError: The step failed.
        """
        # The task run of the step then fails like the step did.
        if self.error is not None:
            raise WorkerError(self.error, step=self.step_name)
        return {
            "units": self.units,
            "seconds": self.ended - self.began,
            "busy_seconds": self.busy,
        }

    @property
    def summary(self) -> str:
        """Busy time and duration, such as ``busy 1.2 s of 4.0 s``.

        For a group, the number of units comes first.
        """
        duration = numbers.duration(self.ended - self.began)
        busy_share = f"busy {numbers.duration(self.busy)} of {duration}"
        if self.units == 1:
            return busy_share
        return f"{numbers.plural(self.units, 'unit')}, {busy_share}"


def step_runs(units: Sequence[int], tries: Iterable[UnitTry]) -> list[StepRun]:
    """Return the steps to show for a group of units, in the order in which they began.

    A unit by itself shows all steps of every try. A group shows the sum over its units
    that were built, and each step that failed.

    Args:
        units: Indices of the units of the group, neighbours in ascending order.
        tries: The tries of these units that are not shown yet.
    """
    # Good tries of a group are summed, so that a group has five steps, however many
    # units it has. A failed step is shown by itself, with its error.
    runs: list[StepRun] = []
    finished_tries: list[UnitTry] = []
    for attempt in tries:
        if len(units) > 1 and attempt.error is None:
            finished_tries.append(attempt)
            continue
        for step in attempt.steps:
            if len(units) == 1 or step.has_failed:
                runs.append(_of_try(attempt, step))
    runs.extend(_of_group(units, finished_tries))
    return sorted(runs, key=lambda run: (run.began, STEPS.index(run.step_name)))


def _of_try(attempt: UnitTry, step: StepTime) -> StepRun:
    """Return a step of one try of a unit."""
    step_name = f"{step.step_name} {attempt.unit:05d}"
    if attempt.number > 1:
        step_name += f", try {attempt.number}"
    return StepRun(
        step_name=step.step_name,
        name=step_name,
        began=step.began,
        ended=step.ended,
        busy=step.busy,
        units=1,
        error=attempt.error if step.has_failed else None,
    )


def _of_group(units: Sequence[int], built: Sequence[UnitTry]) -> list[StepRun]:
    """Return the steps of a group, each summed over the units that were built."""
    runs: list[StepRun] = []
    for step_name in STEPS:
        steps: list[StepTime] = []
        for attempt in built:
            for step in attempt.steps:
                if step.step_name == step_name:
                    steps.append(step)
        # A build has either `tokenize` or `mix`, never both.
        if not steps:
            continue
        runs.append(
            StepRun(
                step_name=step_name,
                name=f"{step_name} {units[0]:05d}-{units[-1]:05d}",
                began=min(step.began for step in steps),
                ended=max(step.ended for step in steps),
                busy=sum(step.busy for step in steps),
                units=len(steps),
            )
        )
    return runs
