"""Task runs for the steps of units, recorded when they are over.

They have the begin and end of the steps themselves.

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
from tokenlake.etl.step_clock import StepName
from tokenlake.runs.step_runs import StepRun
from tokenlake_tasks.load import load
from tokenlake_tasks.mix import mix
from tokenlake_tasks.pack import pack
from tokenlake_tasks.save import save
from tokenlake_tasks.tokenize import tokenize

STEP_TASKS: Final[Mapping[StepName, Task[..., Any]]] = {
    "load": load,
    "tokenize": tokenize,
    "mix": mix,
    "pack": pack,
    "save": save,
}


def record_steps(steps: Iterable[StepRun]) -> None:
    """Record a task run for each step, below the current one, in sequence."""
    context = TaskRunContext.get()
    # Outside of a flow run, such as in a test, nothing is recorded.
    if context is None or context.task_run.flow_run_id is None:
        return
    parent = context.task_run
    previous_run: UUID | None = None
    for step in steps:
        previous_run = _record(step, parent, previous_run)


def _record(step: StepRun, parent: TaskRun, previous_run: UUID | None) -> UUID:
    """Record one step and return the id of its task run.

    Args:
        step: The step.
        parent: The task run of the group of units.
        previous_run: Id of the task run that an arrow leads from. None: no arrow.
    """
    # A clock may be set back while a step runs. Prefect expects no negative duration.
    begin_time = datetime.fromtimestamp(step.began, UTC)
    end_time = max(datetime.fromtimestamp(step.ended, UTC), begin_time)
    running = _state(StateType.RUNNING, begin_time)
    if step.error is None:
        final_state = _state(StateType.COMPLETED, end_time, step.summary)
    else:
        final_state = _state(StateType.FAILED, end_time, scrub(step.error))
    # The page of the run draws its graph from these inputs: the group of units around
    # the step, and the step before it.
    inputs: dict[str, list[Any]] = {"__parents__": [TaskRunResult(id=parent.id)]}
    if previous_run is not None:
        inputs["wait_for"] = [TaskRunResult(id=previous_run)]
    run_fields: dict[str, Any] = {
        "id": uuid4(),
        "name": step.name,
        "flow_run_id": parent.flow_run_id,
        "task_key": STEP_TASKS[step.step_name].task_key,
        "dynamic_key": str(uuid4()),
        "tags": parent.tags,
        "task_inputs": inputs,
        "run_count": 1,
        "expected_start_time": begin_time,
        "start_time": begin_time,
    }
    # Two events, as Prefect's engine would send them: the step runs, and the step
    # ended. The second one follows the first.
    begun_run = TaskRun.model_validate(run_fields | {"state": running})
    end_fields = {
        "state": final_state,
        "end_time": end_time,
        "total_run_time": end_time - begin_time,
    }
    ended_run = TaskRun.model_validate(run_fields | end_fields)
    start_event = emit_task_run_state_change_event(
        task_run=begun_run, initial_state=None, validated_state=running
    )
    emit_task_run_state_change_event(
        task_run=ended_run,
        initial_state=running,
        validated_state=final_state,
        follows=start_event,
    )
    return ended_run.id


def _state(
    state_type: StateType, reached: datetime, message: str | None = None
) -> State[Any]:
    """Return a state that was reached at a time."""
    state_name = state_type.value.capitalize()
    return State[Any].model_validate(
        {
            "type": state_type,
            "name": state_name,
            "message": message,
            "timestamp": reached,
        }
    )
