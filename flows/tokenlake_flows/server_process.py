"""The program of a run's own Prefect server; see :mod:`tokenlake_flows.server`."""

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

#: Seconds that a polite stop may take before the process ends itself.
_END_SECONDS: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


def serve() -> None:
    """Serve on the socket whose descriptor is the only argument.

    The parent opened it, so that no port is raced for.

    The process lives exactly as long as its standard input: the parent holds the other
    end, and the kernel closes it however the parent ends. On Linux the kernel also
    kills the process then, should it be stopped or stuck.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)  # the database holds Secret blocks, and their key
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Imports make millions of objects and no garbage; collecting meanwhile costs a
    # tenth of the start.
    gc.disable()
    # Here and not above: these take seconds, in which the parent may already have gone.
    import_prefect()
    import uvicorn
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.middleware.trustedhost import TrustedHostMiddleware
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_HOME

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with _alone(PREFECT_HOME.value()):
                await super().startup(sockets)
            gc.freeze()
            gc.enable()

    app = create_app()
    close_pages(app)
    # Prefect lets pages of every origin read its answers, and answers to every name:
    # here no browser calls.
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
    """Leave of Prefect's server the API alone, without the pages that describe it.

    FastAPI serves ``/docs``, ``/redoc`` and ``/openapi.json`` in each application; the
    outer ones ask for no password.

    Args:
        app: The application of ``create_app``; the API is mounted in it by the name
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
def _alone(home: Path) -> Generator[None]:
    """Hold the home's lock.

    Two servers that migrate one new database at a time both fail.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "tokenlake-server.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_with_parent() -> None:
    """Wait for the end of the standard input, then end this process."""
    # Not through sys.stdin: its lock, held by a thread, makes an interpreter that wants
    # to end abort.
    while os.read(0, 1024):
        pass
    # Politely first, so that the database is closed well.
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    serve()
