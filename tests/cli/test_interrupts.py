"""Ctrl-C, and a system that refuses memory, threads or processes: a code and a
sentence, no traceback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli import interrupted
from tests.store.support import build_store
from tokenlake import sql
from tokenlake.cli import COMMANDS
from tokenlake.cli.app import main

ENDLESS = "select sum(x) from range(300000000000) t(x)"
RESULT = "select x from range(300000000000) t(x)"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What each command ends with, by event."""
    done = subprocess.run(
        [sys.executable, interrupted.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_ctrl_c_ends_every_command_with_130_and_a_word(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    found = outcomes["Ctrl-C"]
    as_json = found.pop("ls --json")
    assert found == {name: [130, "interrupted\n"] for name in COMMANDS}
    assert as_json[0] == 130
    assert json.loads(as_json[1])["message"] == "interrupted"


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (
            "no thread",
            "error: the system refuses another thread, process or memory (can't start new thread)",
        ),
        ("no process", "error: the system refuses another thread, process or memory"),
        ("no memory", "error: there is not enough memory; finished units are kept\n"),
        (
            "no library",
            "error: a package cannot be loaded: package.so: failed to map segment",
        ),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    outcomes: dict[str, dict[str, Any]], event: str, sentence: str
) -> None:
    for name, (code, written) in outcomes[event].items():
        assert code == 1, name
        assert written.startswith(sentence), (name, written)


@contextmanager
def ctrl_c_when(is_time: Callable[[], bool]) -> Generator[None]:
    """Press Ctrl-C once, as soon as it is time."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            if is_time():
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_querying() -> bool:
    return any(thread.name == "tokenlake-sql" for thread in threading.enumerate())


@pytest.mark.parametrize("statement", [ENDLESS, RESULT])
def test_ctrl_c_ends_a_query(
    statement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ctrl_c_when(is_querying), pytest.raises(KeyboardInterrupt):
        sql(tmp_path, statement)
    with ctrl_c_when(is_querying):
        assert main(["sql", statement, "--store", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_while_the_thread_of_a_query_starts_ends_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread begins after the signal was answered."""
    start_thread = threading.Thread.start
    threads: list[threading.Thread] = []

    def start_late(thread: threading.Thread) -> None:
        if thread.name != "tokenlake-sql":
            start_thread(thread)
            return
        threads.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_late)
    with pytest.raises(KeyboardInterrupt):
        sql(tmp_path, ENDLESS)
    [thread] = threads
    start_thread(thread)
    thread.join(60)
    assert not thread.is_alive()


def test_ctrl_c_in_a_process_is_its_exit_code() -> None:
    # A dataclass is made of a text; Python ends by the signal itself where Ctrl-C falls
    # into one.
    code = (
        "import signal, sys\n"
        "from tokenlake.cli import app\n"
        "def called(tokens):\n"
        "    exec('signal.raise_signal(signal.SIGINT)', {'signal': signal})\n"
        "app._called = called\n"
        "raise SystemExit(app.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


# -- SIGTERM


@pytest.mark.parametrize(
    "ignored", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"]
)
def test_sigterm_in_a_process_does_what_ctrl_c_does_with_an_exit_code_of_its_own(
    ignored: str,
) -> None:
    code = (
        "import signal\n"
        "from tokenlake.cli import app\n"
        f"{ignored}"
        "app._called = lambda tokens: signal.raise_signal(signal.SIGTERM)\n"
        "raise SystemExit(app.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (143, "interrupted\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_worker_that_waits_for_a_plan_ends_by_a_signal(
    number: int, code: int, tmp_path: Path
) -> None:
    program = (
        "import signal, sys\n"
        "from tokenlake.cli.app import main\n"
        "import time\n"
        f"time.sleep = lambda seconds: signal.raise_signal({int(number)})\n"
        f"sys.argv[1:] = ['work', {str(tmp_path)!r}, 'books@v1', '--wait', '10m', '--workers', '1']\n"
        "raise SystemExit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        code,
        "cancelled: finished units are kept, and other workers build the rest\n",
    )


_WAITING = """
import os, time
from pathlib import Path

def wait(row):
    if row["text"] == "now":
        Path(os.environ["AT_IT"]).touch()
        time.sleep(600)
    return row
"""


def test_sigterm_cancels_a_build_and_leaves_word_and_no_process(
    tmp_path: Path, tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(_WAITING)
    # The planner runs the function, too, on the first records.
    rows = [{"text": f"a lake {number} " * 20} for number in range(3000)] + [
        {"text": "now"}
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "lake",
        "datasets": [{"data_files": "in.jsonl", "transforms": [{"apply": "own:wait"}]}],
        "default_tokenizer": str(tokenizer_dir),
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": "store"},
    }
    (tmp_path / "lake.yaml").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "tokenlake",
        "run",
        "--no-prefect",
        "--workers",
        "2",
        "lake.yaml",
    ]
    at_it = tmp_path / "at it"
    environment = os.environ | {
        "AT_IT": str(at_it),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    with subprocess.Popen(
        command,
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not at_it.exists() and process.poll() is None:
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, written = process.communicate()
    assert process.returncode == 143, written
    assert "cancelled: finished units are kept. To resume:  tokenlake run" in written
    assert len(children) >= 2
    assert not any(child.is_running() for child in children)
    assert main(["ls", "--store", str(tmp_path / "store"), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["state"] == "cancelled"


# -- Encodings


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("encodings"), tokenizer_dir)


SHOWN = """
import sys
from tokenlake.cli.app import main
from tokenlake.cli.streams import take_over
take_over()
for arguments in [
    ["ls"],
    ["show", "small"],
    ["peek", "small", "-n", "1"],
    ["explain", "small", "--step", "0", "--batch-size", "1"],
    ["sql", "select 'na\\u00efve \\u2603' as x"],
    ["sql", "--csv", "select 'na\\u00efve \\u2603' as x"],
]:
    assert main(arguments) == 0, arguments
assert main(["show", "n\\u00f6ne"]) == 2
sys.stdout.flush()
"""
AS_JSON = """
import sys
from tokenlake.cli.app import main
from tokenlake.cli.streams import take_over
take_over()
assert main(["sql", "--json", "select 'na\\u00efve \\u2603 \\U0001f600' as x"]) == 0
assert main(["show", "n\\u00f6ne\\u2603", "--json"]) == 2
sys.stdout.flush()
"""


def run_with(code: str, encoding: str, store: Path) -> tuple[str, str]:
    environment = {
        **os.environ,
        "PYTHONIOENCODING": encoding,
        "TOKENLAKE_STORE": str(store),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(encoding), done.stderr.decode(encoding)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("ascii", "na\\xefve \\u2603"), ("latin-1", "na\u00efve \\u2603")],
)
def test_what_a_terminal_cannot_show_is_escaped(
    encoding: str, text: str, store: Path
) -> None:
    out, error = run_with(SHOWN, encoding, store)
    assert out.count(text) == 2
    assert "\n-- " in out
    assert "names no dataset" in error


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_stays_json_in_every_encoding(encoding: str, store: Path) -> None:
    out, error = run_with(AS_JSON, encoding, store)
    assert json.loads(out) == [{"x": "na\u00efve \u2603 \U0001f600"}]
    assert "n\u00f6ne\u2603" in json.loads(error)["message"]


def test_names_of_files_are_utf_8_whatever_the_locale_says(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    folder = tmp_path / "gr\u00fcn"
    folder.mkdir()
    (folder / "t\u00ebxt.jsonl").write_text('{"text": "words"}\n' * 4)
    (tmp_path / "tok\u00ebnizer").symlink_to(tokenizer_dir)
    config = tmp_path / "c\u00f6nf.yaml"
    config.write_text(
        "name: green\ndatasets: [{data_files: gr\u00fcn/t\u00ebxt.jsonl, tokenizer: tok\u00ebnizer}]\n"
        "pack: {enabled: true, seq_length: 16}\n",
        "utf-8",
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    environment.pop("PYTHONIOENCODING", None)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tokenlake", "plan", str(config)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    done.stdout.decode("ascii")  # the terminal's encoding stays
