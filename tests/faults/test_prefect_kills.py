"""kill -9 at random moments of the real flow: of a worker, of the flow's own process, of the Prefect server.

The moments are drawn from a fixed seed, as parts of the time that an undisturbed run takes on this machine; so the
same parts of a run are met everywhere, if not the same instruction.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

import psutil
import pytest

from tests.faults.conftest import Cases
from tests.faults.crash_support import changed, damage, difference, finished_units, temporary, tree

ROOT: Final = Path(__file__).resolve().parents[2]
START_SECONDS: Final = 120
RUN_SECONDS: Final = 180

LAUNCH: Final = """
import json, sys
from tokenlake.prefect.server import launch
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


UNITS: Final = 10
KILLS: Final = {"worker": 7, "parent": 8, "server": 6}
DOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Calm:
    """An undisturbed run: its configuration without a store, its tree, and how long it took."""

    config: dict[str, Any]
    tree: dict[str, str]
    seconds: float

    def into(self, store: Path) -> dict[str, Any]:
        return self.config | {"save": {"output_dir": str(store)}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with PrefectServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def calm(
    server: PrefectServer,
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer_dir: Path,
    request: pytest.FixtureRequest,
) -> Calm:
    """Ten units of modules of the standard library, by the reference engine: seconds, not moments."""
    folder = tmp_path_factory.mktemp("calm")
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lines = [json.dumps({"text": path.read_text("utf-8", errors="ignore")}) + "\n" for path in modules]
    (folder / "in").mkdir()
    for unit in range(UNITS):
        (folder / "in" / f"{unit}.jsonl").write_text("".join(lines[unit::UNITS]))
    config = {
        "name": "set",
        "datasets": [{"name": "code", "data_files": str(folder / "in")}],
        "default_tokenizer": str(tokenizer_dir),
        "source": {"unit_size": "256KiB"},
        "tokenize": {"engine": "tokenizers"},
        "pack": {"enabled": True, "seq_length": 256},
    }
    seconds = 0.0
    # The first one is slower: nothing is in the cache.
    for attempt in ("first", "second")[: 2 if request.config.getoption("--faults") == "all" else 1]:
        store = folder / attempt
        begin = time.monotonic()
        with FlowRun(config | {"save": {"output_dir": str(store)}}, server.environment) as run:
            code, told, errors = run.wait()
        assert code == 0, (told, errors)
        seconds = time.monotonic() - begin
    return Calm(config, tree(store), seconds)


@pytest.mark.parametrize("whom", list(KILLS))
def test_a_random_kill_costs_nothing_that_was_finished(
    whom: str, server: PrefectServer, calm: Calm, tmp_path: Path, cases: Cases
) -> None:
    draw = random.Random(f"kill {whom}")
    # One in each slice of the run, so that all of it is met.
    many = KILLS[whom]
    parts = [(index + draw.random()) / many for index in range(many)]
    draw.shuffle(parts)
    for index, part in enumerate(cases.choose(parts, sample=1)):
        for attempt in range(4):
            # Again, earlier, where the run was over by then: machines are not equally busy all the time.
            store = tmp_path / f"{index}-{attempt}" / "store"
            if (verdict := disturbed(whom, server, part * 0.8**attempt, calm, store)) is not None:
                break
        assert verdict is not None, f"{whom}: four runs were over before the kill at {part:.4f}"
        wrong, redone = verdict
        note = f"at {part:.4f} of the run: {'; '.join(wrong)}" if wrong or redone else ""
        cases.add(f"kill -9: {whom}", survived=not wrong and not redone, redone=redone, note=note)


def disturbed(
    whom: str, server: PrefectServer, part: float, calm: Calm, store: Path
) -> tuple[list[str], int] | None:
    """Kill, look, run again; what is wrong and how many units were redone. None: the run was over before."""
    with FlowRun(calm.into(store), server.environment) as run:
        held = killed(whom, run, server, part, calm.seconds, store)
        if held is None:
            return None
        wrong = ended(whom, *run.wait())
    wrong += damage(store)
    finished = finished_units(store) if store.exists() else {}
    redone = sum(changed(path, inode) for path, inode in held.items())
    with FlowRun(calm.into(store), server.environment) as again:
        code, told, errors = again.wait()
    if code != 0 or told is None:
        return [*wrong, f"the rerun: {told} {errors[-2000:]}"], redone
    if told[0] != "exists" and told[2] != len(finished):
        wrong.append(f"the rerun: {told}, of {len(finished)} finished")
    redone += sum(changed(path, inode) for path, inode in finished.items())
    wrong += difference(store, calm.tree) + temporary(store)
    shutil.rmtree(store.parent)
    return wrong, redone


def killed(
    whom: str, run: FlowRun, server: PrefectServer, part: float, seconds: float, store: Path
) -> dict[Path, int] | None:
    """Wait for the moment and kill; return the units that were finished by then. None: too late."""
    begin = time.monotonic()
    victim: psutil.Process | None = None
    if whom == "worker":
        # Of its own life: from when there is one to the end.
        while not (workers := run.workers()) and run.process.poll() is None:
            time.sleep(0.01)
        victim = workers[0] if workers else None
    now = time.monotonic()
    moment = now + part * (begin + seconds - now)
    while time.monotonic() < moment and run.process.poll() is None:
        time.sleep(0.005)
    if run.process.poll() is not None or (victim is not None and not victim.is_running()):
        return None
    held = finished_units(store) if store.exists() else {}
    if whom == "parent":
        run.kill_parent()
    elif whom == "server":
        server.kill()
        time.sleep(DOWN_SECONDS)
        server.start()
    elif victim is not None:
        victim.kill()
    return held


def ended(whom: str, code: int, told: list[Any] | None, errors: str) -> list[str]:
    """Whether a disturbed run ended as it may; without its server it may fail, but must end."""
    if whom == "worker" and code != 0:
        return [f"a worker's death ended the run: {told} {errors[-2000:]}"]
    if whom == "parent" and code != -9:
        return [f"ended with {code}: {told} {errors[-2000:]}"]
    return [errors[-2000:]] if "did not end by itself" in errors else []
