"""How a run ends when it does not end well: asked to stop, or wrong on purpose."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Failed

from tokenlake.errors import CancelledError, TokenlakeError

#: Seconds between two looks at whether somebody cancelled the run.
_LOOK_SECONDS: Final = 1.5


class Cancellable(Protocol):
    """An engine, or several."""

    def cancel(self) -> None:
        """Kill the workers at once; from any thread."""
        ...


def result_of_flow(state: State[Any]) -> Any:
    """What a flow that another one called ended with.

    Raises:
        CancelledError: it was cancelled, and whoever called it ends so, too.
        TokenlakeError: what it failed with.
    """
    if state.is_cancelled():
        raise CancelledError(state.message or "cancelled")
    return state.result()


def final_state(error: KeyboardInterrupt | TokenlakeError) -> State[Any]:
    """The state of a run that ended with ``error``, which is said in one message and no traceback."""
    if isinstance(error, KeyboardInterrupt | CancelledError):
        message = "Cancelled. What is finished stays, and the same run resumes it."
        get_run_logger().info(message)
        return Cancelled(message=message)
    message = f"{type(error).__name__}: {error}"
    get_run_logger().error(message)
    return Failed(data=error, message=message)


def _without_traceback(record: logging.LogRecord) -> bool:
    """A logging filter: an error that was raised on purpose says all in its message."""
    if record.exc_info and isinstance(record.exc_info[1], TokenlakeError):
        record.exc_info = None
    return True


# What Prefect itself says when a task raises.
logging.getLogger("prefect.task_runs").addFilter(_without_traceback)


@contextmanager
def cancellable(engine: Cancellable) -> Generator[None]:
    """Cancel ``engine`` when the flow run is cancelled on the server.

    A worker ends a deployment's run by signal; a run started by a command has no such guard and
    looks for itself.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or run.deployment_id is not None:
        yield
        return
    done = threading.Event()
    threading.Thread(target=_watch, args=(engine, run.id, done), name="cancellation", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(engine: Cancellable, flow_run: UUID, done: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        while not done.wait(_LOOK_SECONDS):
            try:
                state = client.read_flow_run(flow_run).state
            except Exception:
                # The server may be gone for a moment; the flow's own calls decide whether that is fatal.
                continue
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                engine.cancel()
                return
