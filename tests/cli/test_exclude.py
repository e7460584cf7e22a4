"""Lists of documents to leave out, in plans, configurations and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import tokenlake as tl
from tests.cli.small_build import write_config, write_lines
from tokenlake.cli.app import main

Output = pytest.CaptureFixture[str]


def _write_list(folder: Path, positions: list[int], name: str = "gone") -> Path:
    """Write a list of documents of ``texts.jsonl``."""
    path = folder / f"{name}.parquet"
    files = ["texts.jsonl"] * len(positions)
    pq.write_table(pa.table({"file": files, "position": positions}), path)
    return path


def _run(folder: Path, tokenizer: Path, path: Path | None, capsys: Output) -> Any:
    """Build a version with a list of documents, and return the record of the run."""
    dataset = {} if path is None else {"exclude": str(path)}
    config = write_config(folder, tokenizer, dataset=dataset)
    assert main(["run", str(config), "--no-prefect", "--workers=1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_versions_state_their_lists_and_diff_compares_them(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    write_lines(tmp_path / "texts.jsonl")
    first_line = (tmp_path / "texts.jsonl").read_text().partition("\n")[0]
    second = len(first_line) + 1
    one = _write_list(tmp_path, [0])
    _run(tmp_path, tokenizer_dir, None, capsys)
    _run(tmp_path, tokenizer_dir, one, capsys)
    _run(tmp_path, tokenizer_dir, _write_list(tmp_path, [0, second], "two"), capsys)
    store = tmp_path / "store"

    # The difference names the entries, as text and as JSON.
    assert main(["diff", "small@v1", "small@v2", f"--store={store}"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    digest = tl.open(store / "small@v2").manifest.config["sources"]["texts"]["exclude"]
    assert ["sources.texts.exclude.entries", "-", "1"] in rows
    assert ["sources.texts.exclude.sha256", "-", digest["sha256"][:12]] in rows
    difference = tl.diff("small@v2", "small@v3", store=store)
    entries, sha256 = difference.config
    assert (entries.key, entries.a, entries.b) == (
        "sources.texts.exclude.entries",
        1,
        2,
    )
    assert sha256.key == "sources.texts.exclude.sha256"

    # The completed configuration of a version has the list, if there is one.
    first = yaml.safe_load((store / "small" / "v1" / "config.yaml").read_text())
    third = yaml.safe_load((store / "small" / "v3" / "config.yaml").read_text())
    assert "exclude" not in first["sources"]["texts"]
    assert third["sources"]["texts"]["exclude"]["entries"] == 2
    assert main(["verify", "--all", "--deep", f"--store={store}"]) == 0


def test_the_path_of_a_list_makes_no_other_version(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    write_lines(tmp_path / "texts.jsonl")
    built = _run(tmp_path, tokenizer_dir, _write_list(tmp_path, [0]), capsys)
    again = _run(tmp_path, tokenizer_dir, _write_list(tmp_path, [0], "b"), capsys)
    assert (built["status"], again["status"]) == ("built", "exists")


def test_a_plan_shows_the_lists_of_its_sources(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    write_lines(tmp_path / "texts.jsonl")
    path = _write_list(tmp_path, [0])
    config = write_config(tmp_path, tokenizer_dir, dataset={"exclude": str(path)})
    assert main(["plan", str(config)]) == 0
    output = capsys.readouterr().out
    assert "1 document listed in" in output
    assert "gone.parquet" in output
    assert main(["plan", str(config), "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["exclude"]["path"] == str(path)
    assert source["exclude"]["entries"] == 1

    # Without a list the text has no such line, and the key is null.
    config = write_config(tmp_path, tokenizer_dir)
    assert main(["plan", str(config)]) == 0
    assert "excluded" not in capsys.readouterr().out
    assert main(["plan", str(config), "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["exclude"] is None
