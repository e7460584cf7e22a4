"""The state that a run ends in, with the reason if it was cancelled or failed."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import ParameterTypeError
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Failed

from tokenlake.base.markup import markdown_text
from tokenlake.base.secrets import scrub
from tokenlake.errors import CancelledError, TokenlakeError
from tokenlake_tasks.assets import artifact_key


def result_of_flow(state: State[Any]) -> Any:
    """Return the result of a flow that another one called.

    Raises:
        CancelledError: It was cancelled, and its caller ends so, too.
        TokenlakeError: It failed.
    """
    if state.is_cancelled():
        raise CancelledError(state.message or "cancelled")
    return state.result()


def show_failure(name: str, error: TokenlakeError) -> None:
    """Publish why a run failed as an artifact of it.

    The page of a run shows its artifacts first, not its logs.

    Args:
        name: Name of the build, for the key of the artifact.
        error: Error that the run ends with.
    """
    # The paragraph behind an empty line is a remedy, such as a configuration to copy.
    message, _, remedy = str(error).partition("\n\n")
    lines = [
        f"# {name} failed\n",
        f"**{type(error).__name__}**: {markdown_text(scrub(message))}\n",
    ]
    if remedy:
        lines.append(f"```text\n{scrub(remedy)}\n```\n")
    lines.append(
        "Finished units are kept: a run with the same parameters resumes the build."
    )
    # The server itself may have failed; the state of the run says the same.
    with suppress(httpx.HTTPError):
        create_markdown_artifact(
            "\n".join(lines),
            key=artifact_key("failure", name),
            description=f"{name} failed",
        )


def final_state(error: KeyboardInterrupt | TokenlakeError) -> State[Any]:
    """Return the state of a run that ended with an error.

    It is Cancelled for Ctrl-C and for CancelledError (the Cancel button), and Failed for
    any other error. The state has one message and no traceback.
    """
    if isinstance(error, KeyboardInterrupt | CancelledError):
        message = "Cancelled. Finished units are kept, and a run with the same parameters resumes the build."
        get_run_logger().info(message)
        return Cancelled(message=message)
    message = f"{type(error).__name__}: {error}"
    get_run_logger().error(message)
    return Failed(data=error, message=message)


#: Mistakes of a user: the message says all, and a traceback hides it.
_MISTAKES: Final = (TokenlakeError, ParameterTypeError)


def _plain(record: logging.LogRecord) -> bool:
    """Shorten or drop a message of Prefect about an error that is no defect.

    Prefect logs when a task raises, and when a deployment's run has failed. A task that
    fails on purpose says so in its message. How a flow ended is in its log already,
    when its process ends with the same error.

    Returns:
        Whether the record is logged.
    """
    if record.exc_info and isinstance(record.exc_info[1], _MISTAKES):
        if record.name == "prefect.flow_runs":
            return False
        # The message stays, without the traceback.
        record.exc_info = None
    return True


logging.getLogger("prefect.task_runs").addFilter(_plain)
logging.getLogger("prefect.flow_runs").addFilter(_plain)
