"""One run of a flow from a command: fast to its first unit, and nothing left behind.

The order is the point. Where the version is there already, nothing is started. Else the
server starts at once, in a process of its own, unless one runs already. It takes
seconds; while it starts, this process imports Prefect, starts the workers and plans,
and the flow then finds everything ready. So Prefect must not be imported here; its own
temporary server would start only with the first flow, and would be waited for.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from tokenlake.errors import CancelledError, TokenlakeError
from tokenlake_flows.interrupts import Interrupts
from tokenlake_flows.server import CLIENT_SETTINGS, EmbeddedServer
from tokenlake_flows.settings import (
    configured_api_url,
    import_prefect,
    profiles_path,
    require_prefect_home,
)

if TYPE_CHECKING:
    from tokenlake.etl.events import Watcher
    from tokenlake.etl.executors import ExecutorName
    from tokenlake.etl.runner import BuildResult

_RESUMES: Final = (
    "cancelled; finished units are kept, and the same command resumes the run"
)


def launch(
    config: str | Mapping[str, Any] | None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    on_event: Watcher | None = None,
    executor: ExecutorName | None = None,
    on_start: Callable[[], None] | None = None,
) -> BuildResult:
    """Run the flow that a configuration is for, `tokenize` or `mix`.

    The result is that of the build.

    A version that is there already is found without a flow, unless a server is
    configured, which is to have a record of every run. Call it from the main thread.

    Args:
        config: Path of a YAML file, name of one in ``deployments/``, or a mapping;
            None for the demo.
        overrides: Single values of the configuration, ``key=value``.
        workers: Number of worker processes, None for one per core.
        on_event: Function that receives all events of the run, from several threads.
        executor: Place where units run, None for this machine.
        on_start: Function that is called once a flow is needed, before Prefect starts.

    Returns:
        The result of the build.

    Raises:
        CancelledError: Ctrl-C, or the run was cancelled on the server. It can be
            resumed.
        TokenlakeError: The run failed.
    """
    # Settings that the user has made stay as they are.
    settings = {
        key: value for key, value in CLIENT_SETTINGS.items() if key not in os.environ
    }
    interrupts = Interrupts()
    try:
        with interrupts.handled():
            url = configured_api_url()
            # 1. A version that exists needs no server and no flow.
            if url is None and isinstance(config, str):
                result = _finished(config, overrides, on_event)
                if result is not None:
                    return result
            # 2. A server starts, and meanwhile this process imports Prefect.
            if url is None:
                require_prefect_home()
            if on_start is not None:
                on_start()
            profiles = {"PREFECT_PROFILES_PATH": str(profiles_path())}
            with _environment(settings | profiles), _server(url, interrupts) as server:
                # Takes a second, in which the server starts.
                with _no_collection(), interrupts.deferred():
                    import_prefect()
                    from tokenlake_flows.command import run_flow
                # 3. The flow, with the server as soon as it answers.
                served = None if server is None else server.wait
                return run_flow(
                    served,
                    config,
                    overrides,
                    workers,
                    on_event,
                    executor,
                    interrupts.set_engine,
                )
    except KeyboardInterrupt:
        raise CancelledError(_RESUMES) from None
    except Exception:
        # The exception of a Ctrl-C becomes another one where it falls into a callback
        # of C code.
        if interrupts.has_begun:
            raise CancelledError(_RESUMES) from None
        raise


def _finished(
    config: str, overrides: Sequence[str], on_event: Watcher | None
) -> BuildResult | None:
    """Return the result of the same configuration of a file; None if a flow must look."""
    with _no_collection():
        from tokenlake.config.load import load_config
        from tokenlake.etl.run_log import asked_before
    # Nothing is raised here: the name of a packaged configuration, no version yet, or an
    # error that the flow reports.
    with suppress(TokenlakeError):
        request = load_config(config, overrides)
        if asked_before(request):
            from tokenlake.etl.events import BuildRequested, ignore
            from tokenlake.etl.runner import finished_build

            (on_event or ignore)(BuildRequested(request.observability))
            return finished_build(request, on_event or ignore)
    return None


@contextmanager
def _server(
    url: str | None, interrupts: Interrupts
) -> Generator[EmbeddedServer | None]:
    """Provide a server of the run's own for as long as the context lasts.

    It is None where one is configured.
    """
    if url is not None:
        yield None
        return
    server = EmbeddedServer()
    interrupts.server = server
    try:
        with _environment(server.access):
            yield server
    finally:
        server.stop()


@contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """Set environment variables, and restore them at the end of the context.

    A second run must not take this one's values for the user's.
    """
    former_values = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in former_values.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


@contextmanager
def _no_collection() -> Generator[None]:
    """Turn garbage collection off.

    Imports make many objects and no garbage; looking for it meanwhile costs a tenth of
    the time.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            # The objects of the imports stay: they are never looked at again.
            gc.freeze()
            gc.enable()
