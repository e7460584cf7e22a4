"""Final state of a flow run, with the reason if it was cancelled or failed."""

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
    """Return the result of a flow that another flow called.

    Raises:
        CancelledError: The flow was cancelled; the calling flow is cancelled as well.
        TokenlakeError: The flow failed.
    """
    if state.is_cancelled():
        raise CancelledError(state.message or "cancelled")
    return state.result()


def show_failure(name: str, error: TokenlakeError) -> None:
    """Publish the reason for a failure as an artifact of the run.

    The page of a run shows its artifacts before its logs.

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
    # The server itself may have failed. The state of the run has the same message.
    with suppress(httpx.HTTPError):
        create_markdown_artifact(
            "\n".join(lines),
            key=artifact_key("failure", name),
            description=f"{name} failed",
        )


def final_state(error: KeyboardInterrupt | TokenlakeError) -> State[Any]:
    """Return the state of a run that ended with an error.

    It is Cancelled for Ctrl-C and for CancelledError (the Cancel button), and Failed
    for any other error. The state has one message and no traceback.
    """
    if isinstance(error, KeyboardInterrupt | CancelledError):
        message = "Cancelled. Finished units are kept, and a run with the same parameters resumes the build."
        get_run_logger().info(message)
        return Cancelled(message=message)
    message = f"{type(error).__name__}: {error}"
    get_run_logger().error(message)
    return Failed(data=error, message=message)


_USER_ERRORS: Final = (TokenlakeError, ParameterTypeError)
"""Errors whose message explains everything. A traceback would hide it."""


def _filter_user_errors(record: logging.LogRecord) -> bool:
    """Return whether a message of Prefect is logged, and remove its traceback.

    Prefect logs the traceback of an error that a task raises, and logs an error again
    when the run of a deployment fails. Errors of users need no traceback, and the log
    of the flow has them already.
    """
    if record.exc_info and isinstance(record.exc_info[1], _USER_ERRORS):
        if record.name == "prefect.flow_runs":
            return False
        # The message is logged without the traceback.
        record.exc_info = None
    return True


logging.getLogger("prefect.task_runs").addFilter(_filter_user_errors)
logging.getLogger("prefect.flow_runs").addFilter(_filter_user_errors)
