"""The name of a flow run, which says what it builds.

It replaces the name that the run was created with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run


def run_name(of: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    """Return a function that names the runs of a flow.

    Args:
        of: Function that makes a name of a run's parameters.
    """
    return lambda: of(flow_run.parameters or {})


def call_run(version: str) -> None:
    """Name the current run after the version that it builds.

    Args:
        version: Dataset and version, such as ``books v3``.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    # A repeated run, or one that names its version, has the name already.
    if run is not None and run.name != version:
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(run.id, version)
        run.name = version
