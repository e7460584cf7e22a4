"""The task `plan`."""

from __future__ import annotations

from typing import Any

from tokenlake.base import numbers
from tokenlake.runs.engine import LocalEngine
from tokenlake_tasks.blocks import load_blocks
from tokenlake_tasks.retries import tried_once
from tokenlake_tasks.run_log import log_of


@tried_once("plan")
def plan(engine: LocalEngine) -> dict[str, Any]:
    """Wait for the plan, and log how much there is to do."""
    # Secrets are read here, in the run itself, and only if the configuration names
    # blocks.
    if engine.blocks:
        engine.provide(load_blocks(engine.blocks))
    log_line = log_of(engine)
    session = engine.planned(log_line)
    unit_count = len(session.plan.units)
    pending = len(session.pending)
    input_bytes = session.plan.input_bytes
    log_line(
        f"{session.dataset} v{session.version} is {session.status}: {numbers.plural(unit_count, 'unit')} of "
        f"{numbers.size(input_bytes)}, {numbers.count(pending)} to build, {numbers.plural(engine.workers, 'worker')}"
    )
    for note in session.plan.notes:
        log_line(note)
    return {
        "dataset": session.dataset,
        "version": session.version,
        "status": session.status,
        "units": unit_count,
        "pending": pending,
        "input_bytes": input_bytes,
    }
