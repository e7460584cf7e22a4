"""The task `save`, a step of units."""

from __future__ import annotations

from typing import Any

from tokenlake.runs.step_runs import StepRun
from tokenlake_tasks.retries import tried_once


@tried_once("save")
def save(step: StepRun) -> dict[str, Any]:
    """Write the Parquet files of units and publish them.

    It is done in the worker processes that build the units.

    Its runs are recorded by :mod:`tokenlake_tasks.recorded_steps` when the step is
    over. It returns the figures of the step, or raises its error.
    """
    return step.outcome()
