"""The process of an embedded Prefect server; started by :mod:`tokenlake.prefect.flows.embedded`, not by people.

It serves on a socket that its parent opened (so no port is ever raced for) and lives exactly as long as
its standard input: the parent holds the other end, and the kernel closes it however the parent ends.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: Seconds that a polite stop may take before the process ends itself.
_STOP_SECONDS: Final = 5.0


def main() -> None:
    """Serve on the file descriptor named by the only argument."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Imports make millions of objects and no garbage; collecting meanwhile costs a tenth of the start.
    gc.disable()
    # Here and not above: these take seconds, in which the parent may already have gone.
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_HOME

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with _alone(PREFECT_HOME.value()):
                await super().startup(sockets)
            gc.freeze()
            gc.enable()

    config = uvicorn.Config(create_app(), log_level="error", lifespan="on", timeout_graceful_shutdown=2)
    Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the home's lock: two servers that migrate one new database at a time both fail."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "tokenlake-server.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_with_parent() -> None:
    # Not through sys.stdin: its lock, held by a thread, makes an interpreter that wants to end abort.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
