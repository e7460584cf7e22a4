"""``tokenlake init``: a configuration that builds, written once, from options or from answers."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from tokenlake.cli.app import main
from tokenlake.config.load import load_config

Output = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    lines = (json.dumps({"text": f"line {number} of a lake"}) for number in range(50))
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_what_it_writes_is_built_by_the_command_it_names(
    data: Path, tmp_path: Path, tokenizer_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--tokenizer", str(tokenizer_dir), "--seq-length", "64", "--store", "lake"]
    assert main(["init", "new", "--data", str(data), *options]) == 0
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


def test_nothing_is_replaced_and_nothing_is_written_for_what_cannot_be_built(
    data: Path, tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    assert main(["init", str(path), "--data", str(data)]) == 2
    assert path.read_text() == "mine" and "is there already" in capsys.readouterr().err
    (data / "a.jsonl").write_text('{"number": 1}\n')
    assert main(["init", str(tmp_path / "new.yaml"), "--data", str(data), "--json"]) == 1
    told = json.loads(capsys.readouterr().err)
    assert told["type"] == "SourceError" and "tokenlake inspect" in told["message"]
    assert not (tmp_path / "new.yaml").exists()


class Terminal(io.StringIO):
    """Standard input of somebody who sits in front of it."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_asks_for_the_rest(
    data: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Terminal(f"\n{data}\n\nnone\n128\n{tmp_path}/lake\n")
    monkeypatch.setattr(sys, "stdin", answers)
    path = tmp_path / "asked.yaml"
    assert main(["init", str(path)]) == 0
    captured = capsys.readouterr()
    assert "'none' is not a whole number" in captured.err
    assert "First set default_tokenizer" in captured.out
    config = load_config(path)
    assert (config.pack.seq_length, config.save.output_dir) == (128, f"{tmp_path}/lake")
