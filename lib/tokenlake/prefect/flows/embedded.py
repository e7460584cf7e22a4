"""A Prefect server of a run's own, in a second process.

Prefect is not imported here. Its server takes seconds to start and these seconds are spent on other
things: importing Prefect, planning, starting workers. Prefect's own temporary server would only start
when the first flow runs, and would be waited for.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final, final

from tokenlake.errors import TokenlakeError
from tokenlake.prefect.flows.configured import is_healthy

#: Seconds for a server to come up; the first start on an empty home makes its database.
STARTUP_SECONDS: Final = 120.0

#: Seconds for a server to end before it is killed.
_STOP_SECONDS: Final = 8.0

#: How often a server is started in one run, at most.
_MOST_STARTS: Final = 4

#: Settings of Prefect that its client and our own server share; what the user has set stays.
CLIENT_SETTINGS: Final = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(int(STARTUP_SECONDS)),
    # Progress bars own the terminal; everything still goes to the run's log on the server.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}

_SERVER_SETTINGS: Final = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_UI_ENABLED": "false",
    # Block types are registered by `prefect server start`; here nobody browses them.
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    # Written one by one, task runs lag behind a fast flow and are lost at its end.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
}


@final
class EmbeddedServer:
    """A Prefect server on loopback that ends when this process does, however that happens.

    A server that ends by itself once it was up is started again on the same socket: a run of hours must
    not fail, or hang on its last events, because the machine was short of memory for a moment.

    Attributes:
        api_url: what ``PREFECT_API_URL`` must be to use it.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.api_url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/api"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._starts_left = _MOST_STARTS
        self._up = self._stopping = False
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="server", daemon=True)
        self._watcher.start()

    def wait(self) -> None:
        """Return when the server answers.

        Raises:
            TokenlakeError: it ended instead, or did not answer in time; with the end of its output.
        """
        try:
            # Until the server is up the request waits in the socket's queue: no polling.
            self._up = is_healthy(self.api_url, STARTUP_SECONDS)
            reason = "answers, but is not healthy"
        except OSError as cause:
            reason = f"did not come up ({cause or type(cause).__name__})"
        if not self._up:
            self._end_all()
            raise TokenlakeError(f"the embedded Prefect server {reason}; its output ends:\n{self._output()}")

    def stop(self) -> None:
        """End the server politely, and after some seconds anyway."""
        self._end_all()
        self._log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts_left -= 1
        return subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("serve.py")), str(self._listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[self._listening.fileno()],
            env=_server_environment(),
            # Ctrl-C reaches the parent alone, which still has states to report.
            start_new_session=True,
        )

    def _watch(self) -> None:
        self._process.wait()
        while self._up and not self._stopping and self._starts_left:
            self._process = self._start()
            if self._stopping:  # it was being stopped meanwhile, and the one before was ended instead
                self._end(self._process)
            self._process.wait()
        # Whoever waits in its queue is sent away, and learns that there is no server.
        self._listening.close()

    def _end_all(self) -> None:
        self._stopping = True
        self._end(self._process)
        self._watcher.join()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _output(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:].strip() or "(nothing)"


def _server_environment() -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    # The server's own messages matter only when it fails.
    return {
        **_SERVER_SETTINGS,
        **CLIENT_SETTINGS,
        **inherited,
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "NOTSET",
    }
