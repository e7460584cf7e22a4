"""``tokenlake sql`` as scripts and as a prompt; errors as JSON, narrow tables, names
that a shell completes.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.support import build_store
from tokenlake.cli.app import main

Output = pytest.CaptureFixture[str]

TEXTS = st.text(st.sampled_from("ab;'\"\u00e9 "), max_size=6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("sql"), tokenizer_dir)


@pytest.fixture(autouse=True)
def _this_store(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(store))
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3), st.booleans())
def test_only_a_semicolon_between_statements_ends_one(
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[tuple[str, str]],
    is_last_ended: bool,
) -> None:
    script: list[str] = []
    results: list[list[dict[str, str]]] = []
    for value, name in texts:
        literal = value.replace("'", "''")
        column = name.replace('"', '""')
        script.append(f"select '{literal}' as \"{column}x\" /* ; */")
        results.append([{f"{name}x": value}])
    text = ";\n".join(script) + (";\n-- ;\n" if is_last_ended else "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["sql", "--json"]) == 0
    assert list(documents(capsys.readouterr().out)) == results


def documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents that follow one another in a text."""
    decoder = json.JSONDecoder()
    while text:
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:].lstrip()


def test_a_script_runs_until_a_statement_fails(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys,
        "stdin",
        io.StringIO("select 1 as a; select ';' as b;\nselec; select 4 as d"),
    )
    assert main(["sql", "--csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "a\n1\nb\n;\n"
    assert 'syntax error at or near "selec"' in captured.err


class Typed(io.StringIO):
    """A terminal at which lines are typed; an exception is what the terminal raises
    instead of a line.
    """

    def __init__(self, *lines: str | type[BaseException]) -> None:
        super().__init__()
        self.lines = list(lines)

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        line = self.lines.pop(0) if self.lines else ""
        if isinstance(line, str):
            return line
        raise line


def test_a_prompt_goes_on_after_errors_and_cancelled_lines(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "select\n",
        KeyboardInterrupt,
        "\\d\n",
        "selec;\n",
        "select\n",
        "1 as n; select\n",
        "';' as t;\n",
    ]
    monkeypatch.setattr(sys, "stdin", Typed(*lines, "\\d small\n"))
    assert main(["sql", "--csv"]) == 0
    captured = capsys.readouterr()
    listing, _, answers = captured.out.partition("n\n1\n")
    assert "small/documents" in listing
    described = answers.replace("sql> ", "").replace("...> ", "").removeprefix("t\n;\n")
    assert (
        described.startswith("column_name,column_type,")
        and "input_ids,INTEGER[" in described
    )
    assert (
        "error: the statement is wrong" in captured.err
        or 'syntax error at or near "selec"' in captured.err
    )


def test_a_prompt_ends_by_sigterm(store: Path) -> None:
    program = (
        "import io, signal, sys\n"
        "from tokenlake.cli.app import main\n"
        "class Terminal(io.StringIO):\n"
        "    def isatty(self): return True\n"
        "    def readline(self, *size): signal.raise_signal(signal.SIGTERM)\n"
        "sys.stdin = Terminal()\n"
        "sys.argv = ['tokenlake', 'sql']\n"
        "raise SystemExit(main())\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert "cancelled" not in done.stderr and done.stderr.endswith("interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "type", "code"),
    [
        (["sql", "selec"], "ConfigError", 2),
        (["show", "smal"], "NotFoundError", 2),
        (["ls", "--foo"], "UsageError", 2),
        (["lss"], "UsageError", 2),
    ],
)
def test_errors_are_one_object_with_json(
    arguments: list[str], type: str, code: int, capsys: Output
) -> None:
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
    assert (
        main(
            [
                "sql",
                f"select {', '.join(f'{at} as {name}' for at, name in enumerate(columns))}",
            ]
        )
        == 0
    )
    assert [line.split() for line in screen.getvalue().splitlines()] == [
        [name, str(at)] for at, name in enumerate(columns)
    ]


def test_names_of_datasets_are_completed(capsys: Output) -> None:
    assert main(["__complete", "show", "sm"]) == 0
    assert "small" in capsys.readouterr().out
