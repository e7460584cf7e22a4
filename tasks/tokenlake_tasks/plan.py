"""The task `plan`."""

from __future__ import annotations

from typing import Any

from tokenlake.base import numbers
from tokenlake.runs.build_run import BuildRun
from tokenlake_tasks.blocks import load_blocks
from tokenlake_tasks.retries import tried_once
from tokenlake_tasks.run_log import log_of


@tried_once("plan")
def plan(build_run: BuildRun) -> dict[str, Any]:
    """Wait for the plan, and log how much there is to do."""
    # Secrets are read here, in the run itself, and only if the configuration names
    # blocks.
    if build_run.blocks:
        build_run.provide(load_blocks(build_run.blocks))
    log_line = log_of(build_run)
    session = build_run.planned(log_line)
    unit_count = len(session.plan.units)
    pending = len(session.pending)
    input_bytes = session.plan.input_bytes
    log_line(
        f"{session.dataset} v{session.version} is {session.status}: {numbers.plural(unit_count, 'unit')} of "
        f"{numbers.size(input_bytes)}, {numbers.count(pending)} to build, {numbers.plural(build_run.workers, 'worker')}"
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
