"""``tokenlake sql`` as scripts and as a prompt; errors as JSON, narrow tables, names that a shell completes."""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.support import build_store
from tokenlake.base import termination
from tokenlake.cli.app import main
from tokenlake.cli.sql import converse, cut
from tokenlake.errors import ConfigError

Output = pytest.CaptureFixture[str]

TEXTS = st.text(st.sampled_from("ab;'\"\u00e9 "), max_size=6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("sql"), tokenizer_dir)


@pytest.fixture(autouse=True)
def _this_store(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(store))
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4))
def test_only_a_semicolon_between_statements_cuts(texts: list[tuple[str, str]]) -> None:
    doubled = [(a.replace("'", "''"), b.replace('"', '""')) for a, b in texts]
    statements = [f"select '{a}' as \"{b}x\" /* ; */" for a, b in doubled]
    assert cut(";\n".join([*statements, "-- ;\n"])) == (statements, "")
    assert cut(";".join([*statements, "select 1"])) == (statements, "select 1")


def test_a_script_runs_until_a_statement_fails(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("select 1 as a; select ';' as b;\nselec; select 4 as d"))
    assert main(["sql", "--csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "a\n1\nb\n;\n"
    assert 'syntax error at or near "selec"' in captured.err


def test_a_prompt_goes_on_after_errors_and_cancelled_lines(capsys: Output) -> None:
    asked: list[str | None] = []
    typed = iter(["select", KeyboardInterrupt, "\\d", "bad;", "select", "1; from", "a;", '\\d a"b', EOFError])

    def read(prompt: str) -> str:
        line = next(typed)
        if not isinstance(line, str):
            raise line
        return line

    def run(statement: str | None) -> None:
        asked.append(statement)
        if statement == "bad":
            raise ConfigError("no such statement")

    converse(run, read)
    assert asked == [None, "bad", "select\n1", "from\na", 'describe "a""b"']
    assert "error: no such statement" in capsys.readouterr().err


def test_a_prompt_ends_by_sigterm(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    requested = threading.Event()
    monkeypatch.setattr(termination, "_REQUESTED", requested)

    def read(prompt: str) -> str:
        requested.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converse(lambda statement: None, read)
    assert "cancelled" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "type", "code"),
    [
        (["sql", "selec"], "ConfigError", 2),
        (["show", "smal"], "NotFoundError", 2),
        (["ls", "--foo"], "UsageError", 2),
        (["lss"], "UsageError", 2),
    ],
)
def test_errors_are_one_object_with_json(arguments: list[str], type: str, code: int, capsys: Output) -> None:
    assert main([*arguments, "--json"]) == code
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    told = json.loads(line)
    assert (captured.out, told["type"], told["exit_code"]) == ("", type, code)
    assert told["message"] and {"place", "hint", "details"} < told.keys()


class Narrow(io.StringIO):
    """A terminal of 60 columns."""

    def isatty(self) -> bool:
        return True


def test_rows_that_are_too_wide_become_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", screen := Narrow())
    columns = [f"{'x' * 20}{number}" for number in range(5)]
    assert main(["sql", f"select {', '.join(f'{at} as {name}' for at, name in enumerate(columns))}"]) == 0
    assert [line.split() for line in screen.getvalue().splitlines()] == [
        [name, str(at)] for at, name in enumerate(columns)
    ]


def test_names_of_datasets_are_completed(capsys: Output) -> None:
    assert main(["__complete", "show", "sm"]) == 0
    assert "small" in capsys.readouterr().out
