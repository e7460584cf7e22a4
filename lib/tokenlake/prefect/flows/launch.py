"""One run of a flow from a command: fast to its first unit, and nothing left behind.

The order is the point. The Prefect server starts at once, in a process of its own, unless one runs
already; while it starts, this process imports Prefect, starts the workers and plans. The flow then finds
everything ready. So Prefect must not be imported here.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tokenlake.errors import CancelledError
from tokenlake.prefect.flows.configured import configured_api_url
from tokenlake.prefect.flows.embedded import CLIENT_SETTINGS, EmbeddedServer

if TYPE_CHECKING:
    from tokenlake.build.events import Watcher
    from tokenlake.build.runner import BuildResult

_API_URL: Final = "PREFECT_API_URL"


def launch(
    config: str | Mapping[str, Any] | None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    on_event: Watcher | None = None,
) -> BuildResult:
    """Run the flow that a configuration is for, `tokenize` or `mix`, and return what it built.

    Call it from the main thread.

    Args:
        config: path of a YAML file, name of one in ``deployments/``, or a mapping; None: the demo.
        overrides: ``key=value`` texts.
        workers: worker processes; None: one per core.
        on_event: told everything that happens, from several threads.

    Raises:
        CancelledError: Ctrl-C, or the run was cancelled on the server. It can be resumed.
        TokenlakeError: what the run failed with.
    """
    for key, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(key, value)
    try:
        with _server() as server:
            with _no_collection():
                from tokenlake.prefect.flows.running import (
                    run_flow,  # takes a second, in which the server starts
                )
            return run_flow(server, config, overrides, workers, on_event)
    except KeyboardInterrupt:
        raise CancelledError("cancelled; what is finished stays, and the same command resumes it") from None


@contextmanager
def _server() -> Iterator[EmbeddedServer | None]:
    """A server of our own for as long as the context lasts; None where one is configured."""
    if configured_api_url() is not None:
        yield None
        return
    before = os.environ.get(_API_URL)
    server = EmbeddedServer()
    try:
        os.environ[_API_URL] = server.api_url
        yield server
    finally:
        # Back, so that a second run in this process does not take a stopped server for a configured one.
        os.environ.pop(_API_URL)
        if before is not None:
            os.environ[_API_URL] = before
        server.stop()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Imports make many objects and no garbage; looking for it meanwhile costs a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
