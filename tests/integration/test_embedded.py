"""`tokenlake run` with a Prefect server of its own: from the wheel, in other
people's folders, under attack.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from tests.lazily import lazily
from tests.prefect.deployed import LAUNCH, ROOT, SLOW, Launched, asked, until
from tokenlake import Catalog
from tokenlake.runtime.store import open_store

prefect: Any = lazily("prefect")
settings: Any = lazily("prefect.settings")
states: Any = lazily("prefect.states")
flows: Any = lazily("tokenlake_flows.tokenize")
records: Any = lazily("tokenlake_flows.records")
prefect_server: Any = lazily("tokenlake_flows.server")

pytestmark = pytest.mark.integration

QUICK_CHECKS = """
from tokenlake_flows import server
server.CHECK_SECONDS, server.ANSWER_SECONDS = 0.2, 2.0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has who installed the wheel: a folder of packages, and no
    checkout.
    """
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(folder),
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "packages")
    return folder / "packages"


def tokenlake(
    environment: dict[str, str], wheel: Path, folder: Path, *arguments: str
) -> str:
    """Run the installed command in a folder; return what it printed, and behind it
    the configurations it knows.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "from tokenlake.cli.app import main\ncode = main()\n"
            "from tokenlake.runs.request import known_configurations\nprint(known_configurations())\n"
            "raise SystemExit(code)",
            *arguments,
        ],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_hostile(folder: Path) -> Path:
    """A folder with modules of its own, and with settings of Prefect that run code;
    return what the code makes.
    """
    folder.mkdir()
    ran = folder / "ran"
    for name in sys.stdlib_module_names | {
        "numpy",
        "pyarrow",
        "tokenizers",
        "xxhash",
        "sitecustomize",
    }:
        (folder / f"{name}.py").write_text(
            f"with open({str(ran)!r}, 'a') as ran: ran.write({name!r} + chr(10))\n"
        )
    for name in ("flows", "tokenlake_flows"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('other flows')")
    for name in ("tasks", "tokenlake_tasks"):
        (folder / f"{name}.py").write_text("raise SystemExit('other tasks')")
    handler = {"()": "os.system", "command": f"touch {ran}"}
    evil = {"version": 1, "handlers": {"evil": handler}, "root": {"handlers": ["evil"]}}
    (folder / "logging.yml").write_text(json.dumps(evil))
    (folder / ".env").write_text(
        "PREFECT_LOGGING_SETTINGS_PATH=logging.yml\nPREFECT_API_URL=http://127.0.0.1:9/api\n"
    )
    (folder / "prefect.toml").write_text(
        '[api]\nkey = "x"\nurl = "http://127.0.0.1:9/api"\n'
    )
    (folder / "pyproject.toml").write_text(
        '[tool.prefect.logging]\nconfig_path = "logging.yml"\n'
    )
    return ran


def test_the_wheel_runs_a_flow_in_any_folder_and_takes_nothing_from_it(
    environment: dict[str, str],
    wheel: Path,
    home: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "theirs"
    ran = make_hostile(folder)
    (folder / "in.jsonl").write_text('{"text": "flows to the sea"}\n' * 50)
    config = asked(Path("in.jsonl"), tokenizer_dir, Path("store")) | {
        "pack": {"enabled": False}
    }
    config["save"] |= {"format": "jsonl"}
    (folder / "small.yaml").write_text(json.dumps(config))
    environment = environment | {"PREFECT_HOME": str(home)}
    printed, _, known = tokenlake(
        environment, wheel, folder, "run", "small.yaml", "--json"
    ).rpartition("}\n")
    assert known == "['demo', 'llama2-2048', 'pretrain-2048']\n"
    told = json.loads(f"{printed}}}")
    assert (told["status"], told["version"]) == ("built", 1)
    [export] = told["exports"]
    assert len(list(Path(export).glob("*.jsonl"))) == 1
    assert (
        Catalog(open_store(str(folder / "store")))
        .manifest("small", 1)
        .account.documents
        == 50
    )
    assert not ran.exists(), ran.read_text()
    with sqlite3.connect(home / "prefect.db") as database:
        assert database.execute("select name, state_type from flow_run").fetchall() == [
            ("small v1", "COMPLETED")
        ]
        names = {
            name
            for (name,) in database.execute(
                "select name from task_run where state_type = 'COMPLETED'"
            )
        }
    steps = {f"{step} 00000" for step in ("load", "tokenize", "pack", "save")}
    assert names == {"plan", "unit 00000", *steps, "commit", "export", "report"}


@pytest.fixture(scope="module")
def home_of_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home_of_server: Path) -> Iterator[prefect_server.EmbeddedServer]:
    """A server that was killed before its first answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(home_of_server))
        patch.delenv("PREFECT_API_URL", raising=False)
        server = prefect_server.EmbeddedServer()
        until = time.monotonic() + 120
        # A process that has just begun has no command line yet.
        while not (found := serving()):
            assert time.monotonic() < until
            time.sleep(0.01)
        found[0].kill()
        try:
            server.wait()
            yield server
        finally:
            server.stop()
            assert not serving()


@pytest.fixture
def home(
    home_of_server: Path, server: prefect_server.EmbeddedServer, tmp_path: Path
) -> Path:
    """A home with the tables of another server's database: making them takes three
    CPU seconds.
    """
    home = tmp_path / "home"
    home.mkdir()
    with (
        closing(sqlite3.connect(home_of_server / "prefect.db")) as database,
        closing(sqlite3.connect(home / "prefect.db")) as copy,
    ):
        database.backup(copy)
    return home


def serving(of: int | None = None) -> list[psutil.Process]:
    """The embedded servers below this process, or below ``of``."""
    found: list[psutil.Process] = []
    for child in psutil.Process(of).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that ends meanwhile
            if any(
                part == "tokenlake_flows.server_process" for part in child.cmdline()
            ):
                found.append(child)
    return found


def ask(url: str, **headers: str) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)


def authorization(password: str) -> str:
    return f"Basic {base64.b64encode(password.encode()).decode()}"


def test_only_the_run_itself_may_use_its_server(
    server: prefect_server.EmbeddedServer,
) -> None:
    url = f"{server.api_url}/collections/views/aggregate-worker-metadata"
    password = authorization(server.access["PREFECT_API_AUTH_STRING"])
    root = server.api_url.removesuffix("/api")
    pages = (
        "docs",
        "redoc",
        "openapi.json",
        "docs/oauth2-redirect",
        "ui-settings",
        "",
        "admin",
        "static/x",
    )
    for page in pages:
        assert ask(f"{root}/{page}")[0] == 404, page
        assert ask(f"{root}/{page}", Authorization=password)[0] == 404, page
    for page in ("docs", "redoc", "openapi.json"):
        assert ask(f"{server.api_url}/{page}")[0] == 401, page
        assert ask(f"{server.api_url}/{page}", Authorization=password)[0] == 404, page
    assert ask(url)[0] == 401
    assert ask(url, Authorization=authorization("tokenlake:guessed"))[0] == 401
    assert ask(url, Authorization=password)[0] == 200
    for host in (
        "evil.org",
        f"evil.org:{server.api_url.split(':')[2][:-4]}",
        "localhost",
        "",
    ):
        assert ask(url, Authorization=password, Host=host)[0] == 400, host
    _, headers = ask(url, Authorization=password, Origin="http://evil.org")
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_the_password_is_on_no_command_line_and_in_no_file(
    server: prefect_server.EmbeddedServer,
) -> None:
    password = server.access["PREFECT_API_AUTH_STRING"]
    [process] = serving()
    assert password not in " ".join(process.cmdline())
    database = Path(os.environ["PREFECT_HOME"]) / "prefect.db"
    assert database.stat().st_mode & 0o077 == 0
    assert_in_no_file(password, database.parent)


def assert_in_no_file(password: str, folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path


def test_old_runs_are_forgotten_and_other_flows_are_not(
    server: prefect_server.EmbeddedServer,
) -> None:
    mine: dict[str, object] = {"config": "", "workers": 0, "overrides": []}

    @prefect.flow(name="tokenize")
    def theirs(text: str) -> None: ...

    def ended(flow: Any, parameters: dict[str, Any]) -> UUID:
        run = client.create_flow_run(flow, parameters=parameters)
        client.set_flow_run_state(run.id, states.Completed(), force=True)
        return run.id

    with (
        settings.temporary_settings({**server.access}),
        prefect.get_client(sync_client=True) as client,
    ):
        other = ended(theirs, {"text": "flows"})
        ours = [ended(flows.tokenize, mine) for _ in range(4)]
        waiting = client.create_flow_run(flows.tokenize, parameters=mine).id
        records.forget_old_runs(client, keep=2)
        assert {run.id for run in client.read_flow_runs()} == {
            other,
            waiting,
            *ours[2:],
        }


def stopped(run: Launched) -> psutil.Process:
    """The server of a run that is under way, frozen."""
    run.read_until("UnitFinished", 2)
    [process] = serving(run.process.pid)
    process.send_signal(signal.SIGSTOP)
    return process


def slow(
    environment: dict[str, str], data: Path, tokenizer_dir: Path, home: Path
) -> Launched:
    """A run of many slow units, with its store beside its home."""
    config = home.parent / "slow.yaml"
    config.write_text(json.dumps(asked(data, tokenizer_dir, home.parent / "store")))
    return Launched(
        environment | {"PREFECT_HOME": str(home)}, config, SLOW, QUICK_CHECKS + LAUNCH
    )


def tree(run: Launched) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def test_a_run_survives_a_server_that_freezes(
    environment: dict[str, str],
    data: Path,
    tokenizer_dir: Path,
    home: Path,
    tmp_path: Path,
) -> None:
    part = tmp_path / "part.jsonl"
    whole = data.read_bytes()
    part.write_bytes(whole[: whole.index(b"\n", len(whole) // 3) + 1])
    with slow(environment, part, tokenizer_dir, home) as run:
        frozen = stopped(run)
        assert run.wait() == 0, run.errors
    assert run.told[-1][0] == "result"
    assert not frozen.is_running()


def test_a_second_interrupt_ends_a_run_whose_server_froze_and_all_that_it_started(
    environment: dict[str, str],
    data: Path,
    tokenizer_dir: Path,
    home: Path,
    tmp_path: Path,
) -> None:
    with slow(environment, data, tokenizer_dir, home) as run:
        run.read_until("UnitFinished", 2)
        # Before it freezes: a frozen server is killed after a while.
        [server], below = serving(run.process.pid), tree(run)
        password = server.environ()["PREFECT_SERVER_API_AUTH_STRING"]
        assert not [
            process for process in below if password in " ".join(process.cmdline())
        ]
        server.send_signal(signal.SIGSTOP)
        run.process.send_signal(signal.SIGINT)
        assert run.process.stderr is not None
        while "Ctrl-C again" not in run.process.stderr.readline():
            assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        run.process.communicate(timeout=120)
        assert run.process.returncode == 130
        _, left = psutil.wait_procs(below, 120)
        assert not left
    assert_in_no_file(password, tmp_path)


def test_a_frozen_server_does_not_outlive_a_killed_parent(
    environment: dict[str, str], tmp_path: Path
) -> None:
    code = "from tokenlake_flows.server import EmbeddedServer\nserver = EmbeddedServer()\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment | {"PREFECT_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
    ) as parent:
        # Its first act is to ask the kernel to end with its parent; the one after that
        # can be seen.
        until(
            lambda: any(
                "Umask:\t0077" in status_of(each) for each in serving(parent.pid)
            ),
            "it is bound",
        )
        [server] = serving(parent.pid)
        server.send_signal(signal.SIGSTOP)
        parent.kill()
        _, left = psutil.wait_procs([server], 120)
        assert not left


def status_of(process: psutil.Process) -> str:
    """Return what the kernel says of a process."""
    return Path(f"/proc/{process.pid}/status").read_text()
