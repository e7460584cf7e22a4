"""The real parts together, on loopback: server, work pool, worker, deployments, and
launched runs.

One server with one home serves a whole module, and ends with it: an idle one and its
worker go on asking each other. Everything started here is ended here, by process id.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

SOURCES: Final = (ROOT / "lib", ROOT / "flows", ROOT / "tasks")
"""Folders of the three packages."""

# Slow enough to be interrupted: the reference engine, and a dozen units of 1 MiB.
SLOW: Final = (
    "tokenize.tokenizer_backend=tokenizers",
    "source.unit_size=1MiB",
    "pack.seq_length=256",
)

LAUNCH: Final = """
import json, sys
from tokenlake_flows.launch import launch
from tokenlake.errors import TokenlakeError

def tell(event):
    # One write: several threads tell.
    sys.stdout.write(json.dumps([type(event).__name__, getattr(event, "unit", None)]) + "\\n")
    sys.stdout.flush()

try:
    result = launch(sys.argv[1], sys.argv[2:], workers=2, on_event=tell)
    print(json.dumps(["result", [result.status, result.units_built, result.units_resumed]]))
except TokenlakeError as error:
    print(json.dumps(["error", type(error).__name__]))
    sys.exit(error.exit_code)
"""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 12 MB of JSONL: modules of the standard library."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [module.read_text("utf-8", errors="ignore") for module in modules]
    path = tmp_path_factory.mktemp("data") / "code.jsonl"
    with path.open("w") as file:
        while file.tell() < 12_000_000:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return path


SECRET: Final = "AKIAPLANTED7d1f0c55"


@pytest.fixture(scope="session")
def environment(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path
) -> dict[str, str]:
    """A home of its own and no server yet; of a worker whose owner bounds it, and
    has a secret.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PREFECT", "TOKENLAKE"))
    }
    root = tmp_path_factory.getbasetemp()
    # Every module that imports this has its own.
    (root / "configs").mkdir(exist_ok=True)
    return kept | {
        "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect")),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "TOKENLAKE_CACHE": str(tmp_path_factory.mktemp("cache")),
        "TOKENLAKE_ALLOWED_INPUTS": f"s3://lake/raw:{root}",
        "TOKENLAKE_ALLOWED_OUTPUTS": f"s3://lake/tokens:{root}",
        "TOKENLAKE_ALLOWED_TOKENIZERS": str(tokenizer_dir),
        "TOKENLAKE_ALLOWED_VARIABLES": "LAKE_*",
        "TOKENLAKE_ALLOWED_BLOCKS": "*",
        "TOKENLAKE_ALLOWED_CONFIGS": str(root / "configs"),
        "TOKENLAKE_RETRY_SECONDS": "1",
        "TOKENLAKE_LEASE_SECONDS": "6",
        "LAKE_KEY": SECRET,
        "PYTHONPATH": os.pathsep.join(map(str, (*SOURCES, ROOT))),
        "PYTHONWARNINGS": "ignore",
        "NO_COLOR": "1",
    }


class PrefectServer:
    """``prefect server start`` on loopback, on a port of its own; one that was killed
    may be started again.

    Attributes:
        environment: names it.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._own, url = environment, f"http://127.0.0.1:{self._port}/api"
        self.environment = environment | {"PREFECT_API_URL": url}
        self.start()

    def start(self) -> None:
        self.command = started(self._own, "server", "start", "--port", str(self._port))
        health, process = (
            f"{self.environment['PREFECT_API_URL']}/health",
            self.command.process,
        )
        try:
            until(
                lambda: answers(health) or process.poll() is not None,
                "the server answers",
                180,
            )
            assert process.poll() is None, "the server ended"
        except BaseException:
            kill_all(process)
            raise


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """A running server; the environment that names it."""
    server = PrefectServer(environment)
    with server.command:
        yield server.environment


@pytest.fixture(scope="module")
def worker(server: dict[str, str]) -> Iterator[dict[str, str]]:
    """The deployments, and a worker of their pool."""
    post(server, "work_pools/", name="tokenlake", type="process")
    prefect(server, "--no-prompt", "deploy", "--all")
    with started(server, "worker", "start", "--pool", "tokenlake", "--limit", "3"):
        yield server


def two_sources(folder: Path) -> dict[str, str]:
    """Some documents of code and of web; their files by source."""
    found: dict[str, str] = {}
    for name, many in (("code", 40), ("web", 200)):
        texts = [
            {"text": f"{name} {i} " + "flows to the sea. " * (i % 50 + 1)}
            for i in range(many)
        ]
        found[name] = str(folder / f"{name}.jsonl")
        Path(found[name]).write_text("".join(json.dumps(text) + "\n" for text in texts))
    return found


class Launched:
    """A process that launches a run and prints its events as JSON lines."""

    def __init__(
        self,
        environment: dict[str, str],
        config: Path | str,
        overrides: tuple[str, ...],
        code: str = LAUNCH,
    ) -> None:
        self.told: list[list[Any]] = []
        self.errors = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(config), *overrides],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *ignored: object) -> None:
        kill_all(self.process)
        self.process.communicate()

    def read_until(self, event: str, times: int) -> None:
        assert self.process.stdout is not None
        while sum(name == event for name, _ in self.told) < times:
            line = self.process.stdout.readline()
            assert line, f"ended before {event}: {self.process.communicate()}"
            self.told.append(json.loads(line))

    def wait(self) -> int:
        try:
            rest, self.errors = self.process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            kill_all(self.process)
            rest, errors = self.process.communicate()
            self.errors = f"{errors}\nit did not end by itself"
        self.told += [json.loads(line) for line in rest.splitlines()]
        return self.process.returncode


def kill_all(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its descendants; whatever of them is gone already is fine."""
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, 10)
    process.wait()


def launched(
    environment: dict[str, str], config: Path | str, *overrides: str
) -> Launched:
    return Launched(environment, config, overrides)


def asked(data: Path, tokenizer: Path, store: Path) -> dict[str, Any]:
    """A configuration of a dozen slow units; JSON is YAML."""
    return {
        "datasets": [{"name": "data", "data_files": str(data)}],
        "default_tokenizer": str(tokenizer),
        "source": {"unit_size": "1MiB"},
        "tokenize": {"tokenizer_backend": "tokenizers"},
        "pack": {"enabled": True, "seq_length": 256},
        "save": {"output_dir": str(store)},
    }


class started:  # noqa: N801 - reads as what it does
    """A command of Prefect in the background, ended by its process id."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *ignored: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prefect(environment: dict[str, str], *arguments: str) -> str:
    """Run a command of Prefect to its end and return what it printed."""
    return run_module(environment, "prefect", *arguments)


def run_module(environment: dict[str, str], module: str, *arguments: str) -> str:
    """Run a module to its end and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_workers(of: int | None = None) -> list[psutil.Process]:
    """Worker processes of runs below this process, or below ``of``; tests share
    others, children of this one itself.
    """
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(of).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if (
                    child.ppid() != os.getpid()
                    and "tokenlake.etl.worker" in child.cmdline()
                ):
                    found.append(child)
    return found


def begin(environment: dict[str, str], deployment: str, **parameters: Any) -> str:
    """Start a run of a deployment; return its id."""
    found = get(environment, f"deployments/name/{deployment}")["id"]
    name = {"name": parameters.pop("run_name")} if "run_name" in parameters else {}
    path = f"deployments/{found}/create_flow_run"
    return post(environment, path, parameters=parameters, **name)["id"]


def ended(environment: dict[str, str], run: str) -> dict[str, Any]:
    """Wait for the end of a run and return it; what the server knows of it holds no
    secret.
    """
    states = ("FAILED", "COMPLETED", "CANCELLED", "CRASHED")
    until(
        lambda: get(environment, f"flow_runs/{run}")["state_type"] in states,
        "the run ends",
        120,
    )
    found = get(environment, f"flow_runs/{run}")
    logs = post(environment, "logs/filter", logs={"flow_run_id": {"any_": [run]}})
    assert SECRET not in json.dumps([found, logs])
    return found


def process_of(run: str) -> psutil.Process:
    """Return the process that a worker of a pool runs a flow run in."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.environ().get(
                "PREFECT__FLOW_RUN_ID"
            ) == run and "prefect" in str(process.cmdline()):
                return process
    raise AssertionError(f"no process of run {run}")


def runs_of(environment: dict[str, str], deployment: str) -> list[dict[str, Any]]:
    """Return the runs of a deployment, oldest first."""
    found = get(environment, f"deployments/name/{deployment}")["id"]
    about = {"deployment_id": {"any_": [found]}}
    return post(environment, "flow_runs/filter", flow_runs=about, sort="START_TIME_ASC")


def cancel(environment: dict[str, str], run: str) -> None:
    """Ask for what `prefect flow-run cancel` asks for, without the seconds that the
    command takes to start.
    """
    post(environment, f"flow_runs/{run}/set_state", state={"type": "CANCELLING"})


def tasks_of(environment: dict[str, str], run: str) -> list[dict[str, Any]]:
    return post(environment, "task_runs/filter", flow_runs={"id": {"any_": [run]}})


def get(environment: dict[str, str], path: str) -> Any:
    with urllib.request.urlopen(
        f"{environment['PREFECT_API_URL']}/{path}", timeout=60
    ) as answer:
        return json.load(answer)


def post(
    environment: dict[str, str], path: str, method: str = "POST", **body: Any
) -> Any:
    request = urllib.request.Request(
        f"{environment['PREFECT_API_URL']}/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
        method=method,
    )
    for attempt in range(5):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            # The server's database is busy, nothing was done; Prefect's own client asks
            # again, too.
            if error.code != 503 or attempt == 4:
                raise
            time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def until(happened: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)
