"""Names of flow runs.

A run of a build is renamed after the version that it builds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run


def run_name(name_of: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    """Return a function that names the current run of a flow.

    Args:
        name_of: Function of the parameters of a run that returns its name.
    """
    return lambda: name_of(flow_run.parameters or {})


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
