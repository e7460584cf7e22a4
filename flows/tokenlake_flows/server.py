"""Prefect server of one run, in a separate process that ends with this one.

Its program is :mod:`tokenlake_flows.server_process`.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from tokenlake import errors
from tokenlake.errors import TokenlakeError
from tokenlake_flows.settings import is_healthy

STARTUP_SECONDS: Final = 120.0
"""Longest time for a server to start. The first start creates its database."""

_STOP_SECONDS: Final = 8.0
"""Longest time for a server to end before it is killed."""

_MOST_STARTS: Final = 4
"""Largest number of times that a server is started in one run."""

CHECK_SECONDS = 5.0
"""Time between two health checks."""

ANSWER_SECONDS = 10.0
"""Longest time for the answer to a health check."""

_MOST_MISSED: Final = 3
"""Number of failed health checks in a row after which a server is killed."""

CLIENT_SETTINGS: Final = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(int(STARTUP_SECONDS)),
    # The terminal shows progress bars; messages go to the log of the run on the server.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}
"""Settings of Prefect's client and of the server. Settings of the user replace them."""

_SERVER_SETTINGS: Final = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_UI_ENABLED": "false",
    # `prefect server start` registers block types for its user interface; there is none
    # here.
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    # If they were written one by one, the last task runs of a fast flow would be lost
    # at its end.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
}


@final
class EmbeddedServer:
    """Prefect server on loopback that ends when this process ends.

    A server that dies or no longer answers is replaced on the same socket, so that a
    long run does not fail when the machine is short of memory for a moment. Other users
    of the machine can reach the socket; a random password for each run keeps them out.

    Attributes:
        api_url: Address of its API.
        access: Environment variables of a client that uses it: address and password.
    """

    def __init__(self) -> None:
        # The socket is opened once, in this process: no other process can take the
        # port, and requests wait in its queue while a server starts.
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.api_url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/api"
        self._password = f"tokenlake:{secrets.token_urlsafe(32)}"
        self.access = {
            "PREFECT_API_URL": self.api_url,
            "PREFECT_API_AUTH_STRING": self._password,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._starts_left = _MOST_STARTS
        self._came_up = False
        self._stopping = False
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="server", daemon=True)
        self._watcher.start()

    def wait(self) -> dict[str, str]:
        """Return :attr:`access` when the server answers.

        Raises:
            TokenlakeError: The server ended, or did not answer in time. The message has
                the end of its output.
        """
        self._settled.wait()
        if not self._came_up:
            self._end()
            self._log.seek(0)
            output = self._log.read().decode(errors="replace")[-4000:].strip()
            raise TokenlakeError(
                f"the embedded Prefect server did not start; its output ends:\n{output or '(nothing)'}"
            )
        return self.access

    def stop(self) -> None:
        """Stop the server, and kill it if that takes too long.

        A server that is still starting is killed at once.
        """
        if not self._came_up:
            # It is importing Prefect and has no data yet. It would take seconds to
            # react to a request to stop.
            self.kill()
            self._process.wait()
            # A health check that waits in the queue of the socket then fails at once.
            self._listening.close()
        self._end()
        self._log.close()

    def kill(self) -> None:
        """End the server at once.

        Any thread and a signal handler may call this method.
        """
        self._stopping = True
        self._process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        # The user's settings replace ours, except for the address, which is that of
        # another server.
        user_settings = dict(os.environ)
        user_settings.pop("PREFECT_API_URL", None)
        self._starts_left -= 1
        environment = {
            **_SERVER_SETTINGS,
            **CLIENT_SETTINGS,
            **user_settings,
            # The server's own messages matter only when it fails.
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "NOTSET",
            # All users of the machine can read the command line, but not this.
            "PREFECT_SERVER_API_AUTH_STRING": self._password,
            "PYTHONPATH": _python_path(),
        }
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "tokenlake_flows.server_process",
                str(self._listening.fileno()),
            ],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[self._listening.fileno()],
            env=environment,
            # Ctrl-C then reaches this process only, which reports states to the server.
            start_new_session=True,
        )

    def _watch(self) -> None:
        """Check the server's health until the end.

        A server that died or does not answer is replaced.
        """

        def answers() -> bool:
            # The request waits in the queue of the socket until the server has started.
            with suppress(OSError):
                return is_healthy(self.api_url, ANSWER_SECONDS)
            return False

        is_up = False
        missed_checks = 0
        while True:
            if self._has_ended(CHECK_SECONDS if is_up else 0.1):
                if not self._start_again():
                    break
                is_up = False
                missed_checks = 0
            elif answers():
                is_up = True
                missed_checks = 0
                self._came_up = True
                self._settled.set()
            else:
                missed_checks += 1
                # A server that starts gets more time than one that answered before.
                most_missed = STARTUP_SECONDS / ANSWER_SECONDS
                if is_up:
                    most_missed = _MOST_MISSED
                if missed_checks >= most_missed:
                    self._process.kill()
        # Requests that wait in the queue of the socket are refused, so that their
        # senders learn that no server runs.
        self._listening.close()
        self._settled.set()

    def _has_ended(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _start_again(self) -> bool:
        """Replace the server that ended, and return whether there is a new one.

        A server that was stopped, or that reported that it cannot start, is not
        replaced.
        """
        with self._lock:
            refuses = self._process.returncode > 0 and not self._came_up
            if self._stopping or refuses or not self._starts_left:
                return False
            _close_input(self._process)
            self._process = self._start()
            return True

    def _end(self) -> None:
        with self._lock:
            self._stopping = True
        _close_input(self._process)
        self._process.terminate()
        if not self._has_ended(_STOP_SECONDS):
            self._process.kill()
        self._watcher.join()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _python_path() -> str:
    """Return the folders of this package and the library, then the user's entries."""
    packages: list[str] = []
    for file in (__file__, errors.__file__):
        packages.append(str(Path(file).resolve().parents[1]))
    user_entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = [*packages, *(entry for entry in user_entries if entry)]
    return os.pathsep.join(dict.fromkeys(entries))
