"""The real parts together, on loopback: server, work pool, worker, deployments, and launched runs.

One server with one home serves the whole file. Everything started here is ended here, by process id.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.store_support import build_store, copy_store
from tokenlake.catalog import Catalog
from tokenlake.storage import open_store

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).resolve().parents[2]

# Slow enough to be interrupted: the reference engine, and a dozen units of 1 MiB.
SLOW: Final = ("tokenize.engine=tokenizers", "source.unit_size=1MiB", "pack.seq_length=256")

LAUNCH: Final = """
import json, sys
from flows.launch import launch
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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 12 MB of JSONL: modules of the standard library."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [module.read_text("utf-8", errors="ignore") for module in modules]
    path = tmp_path_factory.mktemp("data") / "code.jsonl"
    with path.open("w") as file:
        while file.tell() < 12_000_000:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home of its own and no server yet."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT", "TOKENLAKE"))}
    return kept | {
        "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect")),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "TOKENLAKE_CACHE": str(tmp_path_factory.mktemp("cache")),
        "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}",
        "PYTHONWARNINGS": "ignore",
        "NO_COLOR": "1",
    }


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """A running server; the environment that names it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    with started(environment, "server", "start", "--port", str(port)):
        until(lambda: answers(f"{url}/health"), "the server answers")
        yield environment | {"PREFECT_API_URL": url}


@pytest.fixture(scope="module")
def worker(server: dict[str, str]) -> Iterator[dict[str, str]]:
    """The deployments, and a worker of their pool."""
    prefect(server, "work-pool", "create", "tokenlake", "--type", "process")
    prefect(server, "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    with started(server, "worker", "start", "--pool", "tokenlake", "--limit", "1"):
        yield server


def test_a_deployment_runs_to_a_committed_version(
    worker: dict[str, str], data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    shown = prefect(
        worker,
        *("deployment", "run", "tokenize/llama2-2048", "--watch"),
        *("--param", f"data_files={data}"),
        *("--param", f"tokenizer={tokenizer_dir}"),
        *("--param", f"output={tmp_path}"),
    )
    assert "Completed" in shown
    manifest = Catalog(open_store(str(tmp_path))).manifest("llama2-2048", 1)
    assert manifest.seq_length == 2048
    run = post(worker, "flow_runs/filter", sort="START_TIME_DESC")[0]
    assert run["name"] == "llama2-2048"
    names = {task["name"] for task in tasks_of(worker, run["id"])}
    assert names == {"plan", "unit 00000", "commit", "report"}
    [page] = post(worker, "artifacts/filter", artifacts={"key": {"any_": ["tokens-llama2-2048"]}})
    assert f"{manifest.account.tokens:,}" in page["data"]


def test_a_mixture_is_deployed_as_runs_of_tokenize_and_a_mixture_of_what_they_made(
    worker: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    sources = two_sources(tmp_path)
    store = tmp_path / "store"
    shown = prefect(
        worker,
        *("deployment", "run", "mix/pretrain-2048", "--watch"),
        *("--param", f"data_files={json.dumps(sources)}"),
        *("--param", f"weights={json.dumps({'code': 0.25, 'web': 0.75})}"),
        *("--param", f"tokenizer={tokenizer_dir}"),
        *("--param", f"output={store}"),
        *("--param", "name=pile"),
    )
    assert "Completed" in shown
    manifest = Catalog(open_store(str(store))).manifest("pile", 1)
    assert manifest.mixture is not None
    assert list(manifest.mixture.sources) == ["code", "web"]
    run = post(worker, "flow_runs/filter", sort="START_TIME_DESC", flows={"name": {"any_": ["mix"]}})[0]
    children = post(worker, "flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run["id"]]}})
    assert {child["name"]: child["state_type"] for child in children} == {
        "pile.code.tokens": "COMPLETED",
        "pile.web.tokens": "COMPLETED",
    }
    names = [task["name"] for task in tasks_of(worker, run["id"]) if "/" not in task["task_key"]]
    assert {"plan", "unit 00000", "commit", "report"} <= set(names)
    [page] = post(worker, "artifacts/filter", artifacts={"key": {"any_": ["tokens-pile"]}})
    for told in ("### Mixture", "| code | pile.code.tokens@v1 | 25.00% |", "### Order"):
        assert told in page["data"]


def test_a_verification_of_everything_fails_where_something_is_damaged(
    worker: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    store = copy_store(build_store(tmp_path, tokenizer_dir), tmp_path / "copy")
    shard = min(store.glob("small/v2/data/*.parquet"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    deployment = get(worker, "deployments/name/verify/everything")["id"]
    path = f"deployments/{deployment}/create_flow_run"
    run = post(worker, path, parameters={"store": str(store)})["id"]
    until(lambda: get(worker, f"flow_runs/{run}")["state_type"] in ("FAILED", "COMPLETED"), "it ends")
    ended = get(worker, f"flow_runs/{run}")
    state = ended["state"]
    assert ended["name"] == "everything"
    assert state["type"] == "FAILED"
    assert "1 of 2 versions damaged: small@v2" in state["message"]
    expected = dict.fromkeys(["small v1", "small v2", "report"], "COMPLETED")
    # The server writes down what became of tasks a moment after the run's end.
    until(
        lambda: {task["name"]: task["state_type"] for task in tasks_of(worker, run)} == expected,
        "all tasks are completed",
    )
    [page] = post(worker, "artifacts/filter", artifacts={"key": {"any_": ["verification"]}})
    assert f"data/{shard.name}" in page["data"] and "sha256" in page["data"]


def test_a_cancelled_mixture_stops_at_the_source_it_is_at_and_can_be_resumed(
    worker: dict[str, str], data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    short = two_sources(tmp_path)["web"]
    config = {
        **asked(data, tokenizer_dir, tmp_path / "store"),
        "name": "pile",
        "datasets": [{"name": "web", "data_files": short}, {"name": "slow", "data_files": str(data)}],
        "mix": {"weights": {"web": 0.5, "slow": 0.5}, "total_rows": 200, "lanes": 1, "seed": 0},
    }
    deployment = get(worker, "deployments/name/mix/pretrain-2048")["id"]
    path = f"deployments/{deployment}/create_flow_run"
    run = post(worker, path, parameters={"config": config})["id"]
    ledger = tmp_path / "store" / "pile.slow.tokens" / "v1" / "ledger"
    until(lambda: ledger.is_dir() and len(list(ledger.iterdir())) >= 1, "a unit is finished")
    builders = build_workers()

    cancel(worker, run)
    until(lambda: not any(process.is_running() for process in builders), "the worker processes are gone", 10)
    until(lambda: get(worker, f"flow_runs/{run}")["state_type"] == "CANCELLED", "the run is cancelled")
    children = post(worker, "flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run]}})
    assert {child["name"]: child["state_type"] for child in children} == {
        "pile.web.tokens": "COMPLETED",
        "pile.slow.tokens": "CANCELLED",
    }
    assert not (ledger.parent / "manifest.json").exists()

    (tmp_path / "pile.yaml").write_text(json.dumps(config))
    with launched(worker, tmp_path / "pile.yaml") as again:
        assert again.wait() == 0
    assert again.told[-1] == ["result", ["built", 1, 0]]
    told = [event for event, _ in again.told]
    assert told.count("Step") == 3
    assert told.count("Planned") == 3
    assert told.count("EngineCondemned") == 0


def test_a_flow_that_is_given_what_the_other_builds_names_it(worker: dict[str, str]) -> None:
    text: dict[str, Any] = {"name": "one", "datasets": [{"name": "a", "data_files": "/none"}]}
    mixed = text | {"mix": {"weights": {"a": 1.0}, "epochs": 1}}
    for flow, config, other in (("tokenize/demo", mixed, "mix"), ("mix/pretrain-2048", text, "tokenize")):
        deployment = get(worker, f"deployments/name/{flow}")["id"]
        run = post(worker, f"deployments/{deployment}/create_flow_run", parameters={"config": config})["id"]
        until(lambda run=run: get(worker, f"flow_runs/{run}")["state_type"] == "FAILED", "the run failed")
        assert f"the flow `{other}`" in get(worker, f"flow_runs/{run}")["state"]["message"]


def test_a_cancelled_run_stops_and_can_be_resumed(
    worker: dict[str, str], data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    # Enough to be heard before it is all done, on a machine with nothing else to do.
    copies = tmp_path / "in"
    copies.mkdir()
    for number in range(2):
        (copies / f"{number}.jsonl").write_bytes(data.read_bytes())
    data = copies
    values: dict[str, Any] = {
        "data_files": str(data),
        "tokenizer": str(tokenizer_dir),
        "output": str(tmp_path),
    }
    values |= {"name": "stopped", "overrides": list(SLOW)}
    deployment = get(worker, "deployments/name/tokenize/demo")["id"]
    run = post(worker, f"deployments/{deployment}/create_flow_run", parameters=values)["id"]
    ledger = tmp_path / "stopped" / "v1" / "ledger"
    until(lambda: ledger.is_dir() and len(list(ledger.iterdir())) >= 2, "two units are finished")
    builders = build_workers()
    assert builders

    cancel(worker, run)
    until(lambda: not any(process.is_running() for process in builders), "the worker processes are gone", 10)
    until(lambda: get(worker, f"flow_runs/{run}")["state_type"] == "CANCELLED", "the run is cancelled")
    assert not (ledger.parent / "manifest.json").exists()
    finished = len(list(ledger.iterdir()))

    values["overrides"] += [
        f"datasets={json.dumps([{'name': 'data', 'data_files': str(data)}])}",
        f"default_tokenizer={tokenizer_dir}",
        f"save.output_dir={tmp_path}",
        "name=stopped",
    ]
    with launched(worker, "demo", *values["overrides"]) as again:
        assert again.wait() == 0
    status, built, resumed = again.told[-1][1]
    assert (status, resumed) == ("resumed", finished)
    assert built > 0


def test_ctrl_c_and_a_killed_worker_cost_nothing_that_was_finished(
    environment: dict[str, str], server: dict[str, str], data: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "code.yaml"
    config.write_text(json.dumps(asked(data, tokenizer_dir, tmp_path)))

    with launched(environment, config) as first:
        first.read_until("UnitFinished", 2)
        children = psutil.Process(first.process.pid).children(recursive=True)
        assert len(children) == 3, "two workers and a server"
        interrupted = time.monotonic()
        first.process.send_signal(signal.SIGINT)
        assert first.wait() == 130
    assert time.monotonic() - interrupted < 15
    assert first.told[-1] == ["error", "CancelledError"]
    assert first.errors == ""
    assert not any(child.is_running() for child in children)

    with launched(server, config) as second:
        second.read_until("UnitStarted", 1)
        max(build_workers(second.process.pid), key=lambda process: process.cpu_times().user).kill()
        assert second.wait() == 0
    events = [name for name, _ in second.told]
    assert events.count("UnitRetried") == 1
    status, built, resumed = second.told[-1][1]
    assert status == "resumed"
    assert resumed >= 2
    assert built + resumed == len(list((tmp_path / "code" / "v1" / "ledger").iterdir()))
    run = post(server, "flow_runs/filter", sort="START_TIME_DESC")[0]
    tries = [task["run_count"] for task in tasks_of(server, run["id"])]
    assert sorted(tries)[-2:] == [1, 2]

    with launched(server, config) as third:
        assert third.wait() == 0
    assert third.told[-1] == ["result", ["exists", 0, 0]]


def test_a_bad_record_ends_the_run_at_once(
    server: dict[str, str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"text": 7}\n')
    config = tmp_path / "bad.yaml"
    config.write_text(json.dumps(asked(bad, tokenizer_dir, tmp_path)))
    with launched(server, config) as run:
        assert run.wait() == 1
    assert run.told[-1] == ["error", "BadRecordError"]
    assert "UnitRetried" not in [name for name, _ in run.told]
    recorded = post(server, "flow_runs/filter", sort="START_TIME_DESC")[0]
    assert recorded["state_type"] == "FAILED"
    assert "bad.jsonl:2" in recorded["state"]["message"]


def two_sources(folder: Path) -> dict[str, str]:
    """Some documents of code and of web; their files by source."""
    found: dict[str, str] = {}
    for name, many in (("code", 40), ("web", 200)):
        texts = [{"text": f"{name} {i} " + "flows to the sea. " * (i % 50 + 1)} for i in range(many)]
        found[name] = str(folder / f"{name}.jsonl")
        Path(found[name]).write_text("".join(json.dumps(text) + "\n" for text in texts))
    return found


class Launched:
    """A process that launches a run and prints its events as JSON lines."""

    def __init__(self, environment: dict[str, str], config: Path | str, overrides: tuple[str, ...]) -> None:
        self.told: list[list[Any]] = []
        self.errors = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(config), *overrides],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *ignored: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def read_until(self, event: str, times: int) -> None:
        assert self.process.stdout is not None
        while sum(name == event for name, _ in self.told) < times:
            line = self.process.stdout.readline()
            assert line, f"ended before {event}: {self.process.communicate()}"
            self.told.append(json.loads(line))

    def wait(self) -> int:
        rest, self.errors = self.process.communicate(timeout=90)
        self.told += [json.loads(line) for line in rest.splitlines()]
        return self.process.returncode


def launched(environment: dict[str, str], config: Path | str, *overrides: str) -> Launched:
    return Launched(environment, config, overrides)


def asked(data: Path, tokenizer: Path, store: Path) -> dict[str, Any]:
    """A configuration of a dozen slow units; JSON is YAML."""
    return {
        "datasets": [{"name": "data", "data_files": str(data)}],
        "default_tokenizer": str(tokenizer),
        "source": {"unit_size": "1MiB"},
        "tokenize": {"engine": "tokenizers"},
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
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prefect(environment: dict[str, str], *arguments: str) -> str:
    """Run a command of Prefect to its end and return what it printed."""
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_workers(of: int | None = None) -> list[psutil.Process]:
    """Our worker processes below this process, or below ``of``."""
    found = psutil.Process(of).children(recursive=True)
    return [process for process in found if "tokenlake.build.worker" in process.cmdline()]


def cancel(environment: dict[str, str], run: str) -> None:
    """Ask for what `prefect flow-run cancel` asks for, without the seconds that the command takes to start."""
    post(environment, f"flow_runs/{run}/set_state", state={"type": "CANCELLING"})


def tasks_of(environment: dict[str, str], run: str) -> list[dict[str, Any]]:
    return post(environment, "task_runs/filter", flow_runs={"id": {"any_": [run]}})


def get(environment: dict[str, str], path: str) -> Any:
    with urllib.request.urlopen(f"{environment['PREFECT_API_URL']}/{path}", timeout=10) as answer:
        return json.load(answer)


def post(environment: dict[str, str], path: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{environment['PREFECT_API_URL']}/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    for attempt in range(5):
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # The server's database is busy, nothing was done; Prefect's own client asks again, too.
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


def until(happened: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)
