"""Cancellation of a build whose flow run is cancelled on the server."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from prefect import get_client
from prefect.context import FlowRunContext

from tokenlake.runs.build_run import BuildRun

_LOOK_SECONDS: Final = 1.5
"""Seconds between two checks of the run's state."""


@contextmanager
def cancellable(build_run: BuildRun) -> Generator[None]:
    """Cancel a build when the flow run is cancelled on the server.

    A worker ends the run of a deployment by a signal. A run that a command started
    receives no signal and polls its own state.
    """
    # A call outside of a run, such as in a test, has no state on a server.
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or run.deployment_id is not None:
        yield
        return
    has_ended = threading.Event()
    run_id = run.id

    def watch() -> None:
        # The first client is opened after the first wait: a short run may end before,
        # and its server with it.
        while not has_ended.wait(_LOOK_SECONDS):
            state = None
            # The server may not answer for a moment. The calls of the flow decide
            # whether that is fatal.
            with suppress(Exception), get_client(sync_client=True) as client:
                state = client.read_flow_run(run_id).state
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                build_run.cancel()
                return

    threading.Thread(target=watch, name="cancellation", daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
