"""Program of the Prefect server of a run; see :mod:`tokenlake_flows.server`."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tokenlake_flows.settings import import_prefect

_END_SECONDS: Final = 5.0
"""Longest time for a regular stop, after which the process ends at once."""

_PR_SET_PDEATHSIG: Final = 1
"""Option of Linux: the signal that a process receives when its parent ends."""


def serve() -> None:
    """Serve on the socket whose file descriptor is the only argument.

    The parent process opened the socket.

    The process ends at the end of its standard input. The parent holds the other end of
    this pipe, and the kernel closes it however the parent ends. On Linux the kernel
    also kills this process when the parent ends, in case it is stopped or does not
    react.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)  # the database holds Secret blocks, and their key
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Imports create millions of objects and no garbage. Collections would take a tenth
    # of the start.
    gc.disable()
    # These imports take seconds. The parent may end meanwhile, so that they come after
    # the thread that notices it.
    import_prefect()
    import uvicorn
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.middleware.trustedhost import TrustedHostMiddleware
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_HOME

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with _home_locked(PREFECT_HOME.value()):
                await super().startup(sockets)
            gc.freeze()
            gc.enable()

    app = create_app()
    close_pages(app)
    # Prefect allows pages of every origin to read its answers, and requests by any host
    # name. No browser uses this server, so neither is allowed.
    middleware: list[Any] = []
    for entry in app.user_middleware:
        if entry.cls is not CORSMiddleware:
            middleware.append(entry)
    app.user_middleware = middleware
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1"])
    config = uvicorn.Config(
        app, log_level="error", lifespan="on", timeout_graceful_shutdown=2
    )
    Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


def close_pages(app: Any) -> None:
    """Remove all routes of Prefect's server except the API.

    FastAPI serves the pages ``/docs``, ``/redoc`` and ``/openapi.json`` in each
    application, and those of the outer one need no password.

    Args:
        app: Application of ``create_app``; the API is mounted in it by the name
            ``api``.
    """
    api_mounts: list[Any] = []
    for route in app.router.routes:
        if getattr(route, "name", "") == "api":
            api_mounts.append(route)
    app.router.routes[:] = api_mounts
    for mount in app.router.routes:
        api = mount.app
        pages = {
            api.docs_url,
            api.redoc_url,
            api.openapi_url,
            api.swagger_ui_oauth2_redirect_url,
        }
        routes: list[Any] = []
        for route in api.router.routes:
            if getattr(route, "path", "") not in pages:
                routes.append(route)
        api.router.routes[:] = routes


@contextmanager
def _home_locked(home: Path) -> Generator[None]:
    """Hold the lock of Prefect's home folder within the context.

    Two servers that migrate a new database at the same time would both fail.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "tokenlake-server.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_with_parent() -> None:
    """Wait for the end of the standard input, then end this process."""
    # The descriptor is read directly: an interpreter that ends aborts if a thread holds
    # the lock of sys.stdin.
    while os.read(0, 1024):
        pass
    # A regular stop first, which closes the database.
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    serve()
