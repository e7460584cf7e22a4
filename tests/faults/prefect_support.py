"""A Prefect server of our own, and runs of the flow against it, all of which may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final, Self, final

import psutil

ROOT: Final = Path(__file__).resolve().parents[2]
START_SECONDS: Final = 120
RUN_SECONDS: Final = 180

LAUNCH: Final = """
import json, sys
from tokenlake.prefect.launch import launch
from tokenlake.errors import TokenlakeError
try:
    result = launch(json.loads(sys.argv[1]), workers=2)
    print(json.dumps([result.status, result.units_built, result.units_resumed]))
except TokenlakeError as error:
    print(json.dumps([type(error).__name__, str(error)]))
    sys.exit(error.exit_code)
"""


@final
class PrefectServer:
    """``prefect server start`` on loopback, with a home and a port of its own."""

    def __init__(self, home: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{self._port}/api"
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("PREFECT", "TOKENLAKE"))
        }
        self._environment = kept | {
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "TOKENLAKE_CACHE": str(home / "cache"),
            "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}",
            "PYTHONWARNINGS": "ignore",
            "NO_COLOR": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a run needs to find the server."""
        return self._environment | {"PREFECT_API_URL": self._url}

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--port", str(self._port)],
            env=self._environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the server and whatever it started."""
        if self._process is not None:
            kill_all(self._process)
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                return True
        except OSError:
            return False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *ignored: object) -> None:
        self.kill()


@final
class FlowRun:
    """The flow in a process of its own, with two workers below it."""

    def __init__(self, config: dict[str, Any], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, json.dumps(config)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def workers(self) -> list[psutil.Process]:
        """The worker processes alive now."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "tokenlake.etl.worker" in child.cmdline():
                        found.append(child)
        return found

    def kill_parent(self) -> None:
        """Kill the flow's process alone, and see that its workers follow."""
        workers = self.workers()
        self.process.kill()
        _, left = psutil.wait_procs(workers, 120)
        for worker in left:
            worker.kill()
        assert not left, "workers outlived their parent"

    def wait(self) -> tuple[int, list[Any] | None, str]:
        """Wait for the end; exit code, what was printed, and what was said besides."""
        try:
            out, errors = self.process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            kill_all(self.process)
            out, errors = self.process.communicate()
            errors += "\nit did not end by itself"
        lines = out.splitlines()
        return self.process.returncode, json.loads(lines[-1]) if lines else None, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        kill_all(self.process)
        self.process.communicate()


def kill_all(process: subprocess.Popen[Any]) -> None:
    """Kill a process, its descendants and its group; whatever of them is gone already is fine."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, 10)
    process.wait()
