"""The log of the run that a task belongs to, and the identity of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run

from tokenlake.runs.engine import LocalEngine


def log_of(engine: LocalEngine, level: str = "INFO") -> Callable[[str], None]:
    """Return a function that writes to the run's log.

    It writes nothing where `observability.log_level` is above `level`.
    """
    # The level holds for the lines of a build alone, not for Prefect's own.
    logger: Any = get_run_logger()
    if engine.display.tells(level):
        return getattr(logger, level.lower())
    return lambda line: None


def this_run() -> dict[str, str]:
    """Return id and name of the flow run, and the deployment that it belongs to."""
    run_facts = {
        "id": flow_run.id,
        "name": flow_run.name,
        "deployment": deployment.name,
    }
    return {
        fact_name: str(fact_value)
        for fact_name, fact_value in run_facts.items()
        if fact_value
    }
