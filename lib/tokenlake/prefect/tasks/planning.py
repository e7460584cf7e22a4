"""The first task: the plan stands and its version is claimed."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tokenlake.prefect.tasks.blocks import load_blocks
from tokenlake.prefect.tasks.engine import LocalEngine
from tokenlake.report import numbers


@task(name="plan", task_run_name="plan", persist_result=False, cache_policy=NO_CACHE)
def plan_build(engine: LocalEngine) -> dict[str, Any]:
    """Wait for the plan and say what it comes to."""
    if engine.blocks:
        engine.provide(load_blocks(engine.blocks))
    session = engine.planned(get_run_logger().info)
    total = sum(unit.bytes for unit in session.plan.units)
    plan = {
        "dataset": session.dataset,
        "version": session.version,
        "status": session.status,
        "units": len(session.plan.units),
        "pending": len(session.pending),
        "input_bytes": total,
    }
    get_run_logger().info(
        "%s v%d is %s: %s of %s, %s to build, %s",
        session.dataset,
        session.version,
        session.status,
        numbers.plural(len(session.plan.units), "unit"),
        numbers.size(total),
        numbers.count(len(session.pending)),
        numbers.plural(engine.workers, "worker"),
    )
    for note in session.plan.notes:
        get_run_logger().info(note)
    return plan
