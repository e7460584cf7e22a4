"""The name of a flow run: what it builds. It replaces the name that the run was
created with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run


def run_name(of: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    """Return what names the runs of a flow.

    Args:
        of: Makes a name of a run's parameters.
    """
    return lambda: of(flow_run.parameters or {})


def call_run(version: str) -> None:
    """Call the current run after the version that it builds.

    Args:
        version: Such as ``books v3``.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is not None and run.name != version:
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(run.id, version)
        run.name = version
