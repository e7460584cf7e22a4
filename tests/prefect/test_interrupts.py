"""Ctrl-C while a run starts, and the folder that its server needs."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.builds import config_of
from tests.lazily import lazily
from tokenlake import load_config
from tokenlake.base import termination
from tokenlake.cli.app import main
from tokenlake.errors import CancelledError, ConfigError
from tokenlake.etl import InProcessPool

build_runs: Any = lazily("tokenlake.runs.build_run")
interrupting: Any = lazily("tokenlake_flows.interrupts")
launching: Any = lazily("tokenlake_flows.launch")
server: Any = lazily("tokenlake_flows.server")
settings: Any = lazily("tokenlake_flows.settings")

Output = pytest.CaptureFixture[str]
ANSWER = "\ncancelling; press Ctrl-C again to end at once\n"


class Backend:
    """Stands for a build run: it only notes that it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def test_ctrl_c_is_answered_at_once_and_raised(capfd: Output) -> None:
    interrupts = interrupting.Interrupts()
    with pytest.raises(KeyboardInterrupt), interrupts.handled():
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ANSWER
    assert interrupts.has_begun
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_an_import_is_answered_at_once_and_raised_behind_it(
    capfd: Output,
) -> None:
    interrupts = interrupting.Interrupts()
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts.handled(), interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        steps.append(capfd.readouterr().err)
        steps.append("the import ends")
    assert steps == [ANSWER, "the import ends"]


def test_a_build_is_cancelled_though_a_callback_swallows_the_exception(
    capfd: Output,
) -> None:
    interrupts = interrupting.Interrupts()
    noting = Backend()
    with interrupts.handled():
        interrupts.set_run(noting)
        with contextlib.suppress(KeyboardInterrupt):  # as an import's callback does
            signal.raise_signal(signal.SIGINT)
        assert noting.cancelled.wait(10)
    assert capfd.readouterr().err == ANSWER


def test_a_signal_that_arrives_while_the_first_is_answered_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    """A second signal may arrive after the thread that cancels was made and before
    it has started.
    """
    start_thread = threading.Thread.start

    def start_interrupted(thread: threading.Thread) -> None:
        if thread.name == "cancel":
            signal.raise_signal(signal.SIGINT)
        start_thread(thread)

    monkeypatch.setattr(threading.Thread, "start", start_interrupted)
    interrupts = interrupting.Interrupts()
    noting = Backend()
    with pytest.raises(KeyboardInterrupt), interrupts.handled():
        interrupts.set_run(noting)
        signal.raise_signal(signal.SIGINT)
    assert noting.cancelled.wait(10)
    assert capfd.readouterr().err == ANSWER


def test_a_build_leaves_word_of_its_cancellation_at_once(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    """A second Ctrl-C may end the process before the build run is closed."""
    (tmp_path / "in.jsonl").write_text('{"text": "a lake holds water"}\n')
    config = config_of(tmp_path, tmp_path / "in.jsonl", tokenizer_dir, pack=16)
    running = build_runs.BuildRun(load_config(config), pool=InProcessPool())
    session = running.session()
    running.cancel()
    assert listed_state(tmp_path / "store", capsys) == "cancelled"
    session.failed(ConfigError("what the cancellation led to"))
    assert listed_state(tmp_path / "store", capsys) == "cancelled"


def listed_state(store: Path, capsys: Output) -> str:
    """Return the state of the only version of a store, as `tokenlake ls` lists it."""
    assert main(["ls", "--store", str(store), "--json"]) == 0
    [line] = json.loads(capsys.readouterr().out)
    return line["state"]


def test_a_build_that_comes_after_ctrl_c_is_not_begun() -> None:
    interrupts = interrupting.Interrupts()
    interrupts.has_begun = True
    with pytest.raises(KeyboardInterrupt):
        interrupts.set_run(Backend())


def test_sigterm_is_answered_as_ctrl_c_is(
    monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    requested = threading.Event()
    monkeypatch.setattr(termination, "_REQUESTED", requested)
    interrupts = interrupting.Interrupts()
    noting = Backend()
    before = signal.signal(signal.SIGTERM, termination.terminate)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts.handled():
            interrupts.set_run(noting)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert noting.cancelled.wait(10)
    assert requested.is_set()
    assert capfd.readouterr().err == ANSWER


def test_a_second_ctrl_c_waits_for_the_word_that_the_build_was_cancelled(
    monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    """The first one cancels in another thread, which may not have written it down
    yet.
    """
    steps: list[str] = []
    is_pressed_again = threading.Event()

    class Slow:
        def cancel(self) -> None:
            is_pressed_again.wait(10)
            steps.append("word is left")

    def end(code: int) -> None:
        steps.append(f"ended with {code}")

    monkeypatch.setattr(interrupting.os, "_exit", end)
    interrupts = interrupting.Interrupts()
    with contextlib.suppress(KeyboardInterrupt), interrupts.handled():
        interrupts.set_run(Slow())
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        threading.Timer(0.01, is_pressed_again.set).start()
        signal.raise_signal(signal.SIGINT)
    assert steps == ["word is left", "ended with 130"]
    assert "finished units are kept" in capfd.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_ctrl_c_becomes_the_run_was_cancelled(
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: Output,
) -> None:
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error("Error calling function") from None

    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with pytest.raises(CancelledError, match="the same command resumes the run"):
        launching.launch({"name": "set"}, on_start=interrupted)
    assert capfd.readouterr().err == ANSWER


def test_a_server_that_is_still_starting_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    starting = server.EmbeddedServer()
    process = starting._process
    starting.stop()
    assert process.returncode == -signal.SIGKILL
    assert not starting._watcher.is_alive()


@pytest.mark.parametrize("home", ["file/below", "file"])
def test_a_folder_that_prefect_cannot_write_is_a_sentence(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / home))
    with pytest.raises(
        ConfigError, match=r"cannot be written \(.*\): set PREFECT_HOME .*--no-prefect"
    ):
        launching.launch({"name": "set"})


def test_a_folder_that_is_not_there_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "a" / "b"))
    settings.require_prefect_home()
    assert (tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []
