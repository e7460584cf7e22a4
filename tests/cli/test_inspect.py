"""``tokenlake inspect``: a page on a terminal, a runnable proposal elsewhere;
``init``: a configuration that builds.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml
from rich.console import Console

from tests.introspection.test_introspector import (
    CHAT,
    prose,
    write_lines,
    write_parquet,
)
from tokenlake import load_config
from tokenlake.cli.app import main

Output = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for i in range(3):
        write_lines(
            folder / f"web-{i}.jsonl",
            [{"id": n, "content": text} for n, text in enumerate(prose(10))],
        )
    write_lines(folder / "chat.jsonl", [{"messages": CHAT}] * 3)
    return folder


def page(columns: int, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What the command prints on a terminal of that width, without colours."""
    written = io.StringIO()
    console = Console(
        file=written, width=columns, force_terminal=True, highlight=False, emoji=False
    )
    monkeypatch.setattr("tokenlake.cli.inspect.stdout", lambda: console)
    assert main(["inspect", *arguments, "--no-yaml"]) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())


# -- into a file


def test_into_a_file_goes_the_proposal_and_it_runs(
    data: Path, tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    assert main(["inspect", str(data), "--tokenizer", str(tokenizer_dir)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    config = tmp_path / "books.yaml"
    config.write_text(captured.out)
    store = str(tmp_path / "store")
    assert (
        main(
            [
                "run",
                str(config),
                "--no-prefect",
                "--workers",
                "1",
                "--store",
                store,
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["dataset"] == "books"
    assert main(["show", "books", "--store", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["documents"] == 30


def test_without_a_tokenizer_stderr_says_what_is_missing(
    data: Path, capsys: Output
) -> None:
    assert main(["inspect", str(data), "--yaml"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["datasets"][0]["content_field"] == "content"
    assert "names no tokenizer" in captured.err


def test_what_cannot_be_built_ends_with_1(data: Path, capsys: Output) -> None:
    (data / "numbers.jsonl").write_text('{"number": 1}\n')
    assert main(["inspect", str(data / "numbers.jsonl")]) == 1
    captured = capsys.readouterr()
    assert all(line.startswith("#") or not line for line in captured.out.splitlines())
    assert "cannot build a dataset from these files" in captured.err


def test_damage_is_told_on_stderr_too(data: Path, capsys: Output) -> None:
    (data / "broken.parquet").write_bytes(b"PAR1")
    assert main(["inspect", str(data), "--tokenizer", "x"]) == 0
    captured = capsys.readouterr()
    assert "1 file cannot be read" in captured.err
    assert "# - broken.parquet: its footer cannot be read" in captured.out


# -- options


def test_json_has_everything(data: Path, capsys: Output) -> None:
    assert main(["inspect", str(data), "--json", "--rows", "1"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [group["kind"] for group in found["groups"]] == ["text", "chat"]
    assert [len(group["sample"]) for group in found["groups"]] == [1, 1]
    assert found["runnable"] is True
    assert yaml.safe_load(found["proposal"])["datasets"]


def test_options_reach_the_look(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train", "test"):
        fsspec.filesystem("memory").pipe_file(f"/look/{name}.dat", b'{"text": "a"}\n')
    monkeypatch.setenv("TOKENLAKE_ALLOWED_SCHEMES", "memory")
    monkeypatch.setenv("A", "x")
    arguments = [
        "inspect",
        "memory://look/*.dat",
        "--type",
        "jsonl",
        "--split",
        "test",
        "--json",
    ]
    assert main([*arguments, "--storage-options", '{"key": {"env": "A"}}']) == 0
    found = json.loads(capsys.readouterr().out)
    entry = found["groups"][0]["entry"]
    assert (found["files"], entry["data_files"], entry["split"]) == (
        1,
        "memory://look/*.dat",
        "test",
    )
    assert found["groups"][0]["entry"]["storage_options"] == {"key": {"env": "A"}}


def test_several_sources_are_one(data: Path, tmp_path: Path, capsys: Output) -> None:
    more = write_parquet(tmp_path / "more.parquet", {"content": prose(5)})
    assert main(["inspect", str(data / "web-0.jsonl"), str(more)]) == 0
    (dataset,) = yaml.safe_load(capsys.readouterr().out)["datasets"]
    assert dataset["data_files"] == [str(data / "web-0.jsonl"), str(more)]


# -- errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{data}/web-9.jsonl"], 2, "Did you mean"),
        (["org/books"], 2, "nothing matches 'org/books'"),
        (["{data}/empty"], 2, "holds nothing"),
        (["{data}", "--type", "parket"], 2, "parket"),
        (["{data}", "--rows", "-1"], 2, "rows: got -1"),
        (["{data}", "--split", "test"], 2, "names a split"),
        (["{data}", "--storage-options", "{{"], 2, "not YAML"),
        (["{data}", "--storage-options", '{{"key": "abc"}}'], 2, "literal secret"),
        ([], 2, "SOURCE"),
    ],
)
def test_errors_end_as_those_of_other_commands(
    data: Path, capsys: Output, arguments: list[str], code: int, message: str
) -> None:
    (data / "empty").mkdir()
    assert (
        main(["inspect", *(argument.format(data=data) for argument in arguments)])
        == code
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert "abc" not in captured.err


# -- the page


@pytest.mark.parametrize("columns", [80, 120])
def test_the_page_fits_the_terminal(
    data: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {
        "a_rather_long_name_of_a_column": "x " * 500,
        "esc": "\x1b[2J",
        "deep": [{"k": {"l": ["m"] * 50}}],
    }
    write_lines(data / "wide.jsonl", [record])
    shown = page(columns, monkeypatch, str(data))
    assert (
        max(len(line.rstrip()) for line in shown.splitlines() if str(data) not in line)
        <= columns
    )
    assert "web raw text" in shown
    assert "chat chats" in shown
    assert "content  string  no     text (synonym)" in shown
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown
    assert "Proposed configuration" in shown


def test_a_terminal_gets_the_page_without_being_asked(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command on a real terminal."""
    import pty

    master, slave = pty.openpty()
    command = [sys.executable, "-m", "tokenlake", "inspect", str(data), "--rows", "0"]
    with subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL) as process:
        os.close(slave)
        out = b""
        while b"seq_length" not in out and (part := os.read(master, 65536)):
            out += part
    os.close(master)
    assert process.returncode == 0
    assert b"taken for" in out


def test_the_page_can_be_had_in_a_pipe_and_is_not_wrapped(
    data: Path, capsys: Output
) -> None:
    assert main(["inspect", str(data), "--no-yaml"]) == 0
    out = capsys.readouterr().out
    assert "taken for" in out
    assert all(line == line.rstrip() for line in out.splitlines())


# -- init


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    texts = (json.dumps({"text": f"line {number} of a lake"}) for number in range(50))
    (folder / "a.jsonl").write_text("\n".join(texts) + "\n")
    return folder


def test_what_it_writes_is_built_by_the_command_it_names(
    lines: Path,
    tmp_path: Path,
    tokenizer_dir: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "--tokenizer",
        str(tokenizer_dir),
        "--seq-length",
        "64",
        "--store",
        "lake",
    ]
    assert main(["init", "new", "--data", str(lines), *options]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert command == "tokenlake run new/tokenlake.yaml"
    assert "seq_length: 64" in (tmp_path / "new/tokenlake.yaml").read_text()
    assert main([*shlex.split(command)[1:], "--no-prefect", "--workers", "1"]) == 0
    told = capsys.readouterr().out
    assert (tmp_path / "lake/data/v1/manifest.json").is_file()
    (line,) = [line for line in told.splitlines() if "tl.open(" in line]
    assert f"{tmp_path}/lake/data@v1" in line
    script = told.partition("\nTrain\n")[2]
    space: dict[str, object] = {}
    exec(script, space)  # it trains as it is printed
    assert space["batch"]["input_ids"].shape[1] == 64  # type: ignore[index]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("code.yaml", "code"),
        ("My Web.yml", "my-web"),
        ("\u65e5\u672c.yaml", "data"),  # no character that a name may have
        ("tokenlake.yaml", "data"),
        ("folder", "data"),
    ],
)
def test_the_stem_of_the_file_names_the_dataset(
    lines: Path, tmp_path: Path, capsys: Output, target: str, name: str
) -> None:
    path = tmp_path / target
    assert main(["init", str(path), "--data", str(lines), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["path"]
    assert load_config(written).name == name


def test_a_run_notes_a_version_without_the_inputs_of_the_version_before(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    options = ["--tokenizer", str(tokenizer_dir), "--store", str(tmp_path / "lake")]
    notes: list[list[str]] = []
    # The second run reads a further file, and the third one only other files.
    for names in (["a"], ["a", "b"], ["c"]):
        paths: list[str] = []
        for name in names:
            text = {"text": f"the words of {name}"}
            paths.append(str(write_lines(tmp_path / f"{name}.jsonl", [text])))
        path = tmp_path / f"{len(notes)}" / "lake.yaml"
        data = [argument for place in paths for argument in ("--data", place)]
        assert main(["init", str(path), *data, *options]) == 0
        capsys.readouterr()
        run = ["run", str(path), "--no-prefect", "--workers", "1", "--json"]
        # One name of the source, so that only the paths decide.
        assert main([*run, "--set", "datasets.0.name=x"]) == 0
        notes.append(json.loads(capsys.readouterr().out)["notes"])
    assert notes[:2] == [[], []]
    (note,) = notes[2]
    assert note.startswith("lake v3 reads none of the input files of v2 (2 files)")
    assert "`tokenlake rm lake@v3`" in note


def test_sizes_say_what_is_stored_and_what_is_read(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    """Compressed Parquet: `init` has its size on disk, `plan` both."""
    data = write_parquet(
        tmp_path / "p.parquet",
        {"text": ["the same " * 99] * 3000},
        use_dictionary=False,
    )
    path = tmp_path / "p.yaml"
    options = ["--tokenizer", str(tokenizer_dir), "--store", str(tmp_path / "lake")]
    assert main(["init", str(path), "--data", str(data), *options]) == 0
    stored = re.search(r"([\d.]+ KiB) stored", path.read_text())
    assert stored
    capsys.readouterr()
    assert main(["plan", str(path)]) == 0
    page = capsys.readouterr().out
    assert f"({stored[1]} stored)" in page
    assert main(["plan", str(path), "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["stored_bytes"] == data.stat().st_size < source["bytes"]


def test_init_with_a_tokenizer_that_cannot_be_used_writes_nothing(
    tmp_path: Path, lines: Path, capsys: Output
) -> None:
    path = tmp_path / "new.yaml"
    (tmp_path / "tokenizer").mkdir()
    tokenizer = ["--tokenizer", str(tmp_path / "tokenizer")]
    assert main(["init", str(path), "--data", str(lines), *tokenizer]) == 1
    assert "no tokenizer.json" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("name", ["missing", "tokenizer.json"])
def test_init_with_a_tokenizer_that_is_missing_writes_nothing(
    tmp_path: Path, lines: Path, capsys: Output, name: str
) -> None:
    path = tmp_path / "new.yaml"
    tokenizer = ["--tokenizer", str(tmp_path / name)]
    assert main(["init", str(path), "--data", str(lines), *tokenizer]) == 2
    assert "no such file or directory" in capsys.readouterr().err
    assert not path.exists()


def test_nothing_is_replaced_and_nothing_is_written_for_what_cannot_be_built(
    lines: Path, tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    assert main(["init", str(path), "--data", str(lines)]) == 2
    assert path.read_text() == "mine" and "already exists" in capsys.readouterr().err
    (lines / "a.jsonl").write_text('{"number": 1}\n')
    assert (
        main(["init", str(tmp_path / "new.yaml"), "--data", str(lines), "--json"]) == 1
    )
    told = json.loads(capsys.readouterr().err)
    assert told["type"] == "SourceError" and "tokenlake inspect" in told["message"]
    assert not (tmp_path / "new.yaml").exists()


class Terminal(io.StringIO):
    """Standard input of somebody who sits in front of it."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_asks_for_the_rest(
    lines: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Terminal(f"\n{lines}\n\nnone\n128\n{tmp_path}/lake\n")
    monkeypatch.setattr(sys, "stdin", answers)
    path = tmp_path / "asked.yaml"
    assert main(["init", str(path)]) == 0
    captured = capsys.readouterr()
    assert "'none' is not a whole number" in captured.err
    assert "First set default_tokenizer" in captured.out
    config = load_config(path)
    assert (config.pack.seq_length, config.save.output_dir) == (128, f"{tmp_path}/lake")
