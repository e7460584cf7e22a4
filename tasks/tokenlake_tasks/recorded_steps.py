"""Task runs for the steps of units, which are over when they are recorded: with their
own begin and end.

Prefect times the task runs that it executes. The steps of a unit run in a worker
process, block by block and in turn, so that Prefect cannot execute them. Their task
runs are recorded as its own engine records those that it executes: one event for each
state, with the time at which the state was reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

from prefect.client.schemas.objects import State, StateType, TaskRun, TaskRunResult
from prefect.context import TaskRunContext
from prefect.tasks import Task
from prefect.utilities.engine import emit_task_run_state_change_event

from tokenlake.base.secrets import scrub
from tokenlake.etl.step_clock import Stage
from tokenlake.runs.step_runs import StepRun
from tokenlake_tasks.load import load
from tokenlake_tasks.mix import mix
from tokenlake_tasks.pack import pack
from tokenlake_tasks.save import save
from tokenlake_tasks.tokenize import tokenize

STEP_TASKS: Final[Mapping[Stage, Task[..., Any]]] = {
    "load": load,
    "tokenize": tokenize,
    "mix": mix,
    "pack": pack,
    "save": save,
}


def record_steps(steps: Iterable[StepRun]) -> None:
    """Record a task run for each step, below the current task run and one after the
    other.
    """
    context = TaskRunContext.get()
    if context is None or context.task_run.flow_run_id is None:
        return
    parent = context.task_run
    before: UUID | None = None
    for step in steps:
        before = _record(step, parent, before)


def _record(step: StepRun, parent: TaskRun, before: UUID | None) -> UUID:
    """Record one step and return the id of its task run.

    Args:
        step: The step.
        parent: The task run of the group of units.
        before: Id of the task run that an arrow leads from. None: no arrow.
    """
    began = datetime.fromtimestamp(step.began, UTC)
    ended = max(datetime.fromtimestamp(step.ended, UTC), began)
    running = _state(StateType.RUNNING, began)
    if step.error is None:
        final = _state(StateType.COMPLETED, ended, step.summary)
    else:
        final = _state(StateType.FAILED, ended, scrub(step.error))
    inputs: dict[str, list[Any]] = {"__parents__": [TaskRunResult(id=parent.id)]}
    if before is not None:
        inputs["wait_for"] = [TaskRunResult(id=before)]
    facts: dict[str, Any] = {
        "id": uuid4(),
        "name": step.name,
        "flow_run_id": parent.flow_run_id,
        "task_key": STEP_TASKS[step.stage].task_key,
        "dynamic_key": str(uuid4()),
        "tags": parent.tags,
        "task_inputs": inputs,
        "run_count": 1,
        "expected_start_time": began,
        "start_time": began,
    }
    begun_run = TaskRun.model_validate(facts | {"state": running})
    ended_run = TaskRun.model_validate(
        facts | {"state": final, "end_time": ended, "total_run_time": ended - began}
    )
    event = emit_task_run_state_change_event(
        task_run=begun_run, initial_state=None, validated_state=running
    )
    emit_task_run_state_change_event(
        task_run=ended_run, initial_state=running, validated_state=final, follows=event
    )
    return ended_run.id


def _state(
    kind: StateType, reached: datetime, message: str | None = None
) -> State[Any]:
    """Return a state that was reached at a time."""
    name = kind.value.capitalize()
    return State[Any].model_validate(
        {"type": kind, "name": name, "message": message, "timestamp": reached}
    )
