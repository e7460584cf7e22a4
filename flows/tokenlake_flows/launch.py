"""Run of a flow from a command, with a Prefect server that ends with the run.

The order of the steps keeps the start short:

1. If the version exists already, nothing is started.
2. Otherwise a server starts in a separate process, unless one is configured. This takes
   some seconds.
3. Meanwhile this process imports Prefect, starts the workers and plans the build.
4. The flow runs as soon as the server answers.

Prefect is not imported at the top of this module: the server must start first.
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
    """Run the flow of a configuration, `tokenize` or `mix`, and return its result.

    A version that exists already needs no flow, unless a server is configured: that
    server then has a record of every run. The function is called from the main thread.

    Args:
        config: Path of a YAML file, name of one in ``deployments/``, or a mapping;
            None for the demo.
        overrides: Single values of the configuration, ``key=value``.
        workers: Number of worker processes; None: one per core.
        on_event: Function that receives all events of the run, from several threads.
        executor: Place where units run; None: this machine.
        on_start: Function that is called before Prefect starts, if a flow is needed.

    Returns:
        Result of the build.

    Raises:
        CancelledError: Ctrl-C was pressed, or the run was cancelled on the server. The
            run can be resumed.
        TokenlakeError: The run failed.
    """
    # Settings of the user take precedence.
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
                    interrupts.set_run,
                )
    except KeyboardInterrupt:
        raise CancelledError(_RESUMES) from None
    except Exception:
        # The exception of Ctrl-C may become another one in a callback of C code.
        if interrupts.has_begun:
            raise CancelledError(_RESUMES) from None
        raise


def _finished(
    config: str, overrides: Sequence[str], on_event: Watcher | None
) -> BuildResult | None:
    """Return the result of an earlier run of the same configuration.

    The result is None if a flow is needed.
    """
    with _no_collection():
        from tokenlake.config.load import load_config
        from tokenlake.etl.run_log import asked_before
    # Nothing is raised here: the configuration may be a packaged one, the version may
    # be missing, and errors are reported by the flow.
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
    """Provide a server for the run within the context.

    It is None if a server is configured.
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

    Otherwise a second run would take these values for settings of the user.
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
    """Turn garbage collection off within the context.

    Imports create many objects and no garbage. Collections would take a tenth of their
    time.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            # Later collections skip the objects of the imports, which stay in memory.
            gc.freeze()
            gc.enable()
