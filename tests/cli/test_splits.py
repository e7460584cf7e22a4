"""Figures by split in the summary of a run and in ``tokenlake show``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokenlake as tl
from tests.cli.small_build import write_config, write_lines
from tokenlake.cli.app import main
from tokenlake.etl.reports import dataset

Output = pytest.CaptureFixture[str]
HALVES = {"splits": {"train": 0.5, "validation": 0.5}}


def test_a_run_and_show_state_the_figures_of_each_split(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    write_lines(tmp_path / "texts.jsonl")
    config = write_config(tmp_path, tokenizer_dir, source=HALVES)
    run = ["run", str(config), "--no-prefect", "--workers=1"]
    assert main(run) == 0
    text = capsys.readouterr().out
    assert main([*run, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)

    # The splits add up to the whole, places in rows included.
    splits = record["splits"]
    assert list(splits) == ["train", "validation"]
    for name, total in record["totals"].items():
        assert sum(figures[name] for figures in splits.values()) == total
    filled = sum(figures["fill"] * figures["rows"] * 64 for figures in splits.values())
    account = record["account"]
    assert round(filled) == account["slots"] - account["pad"]

    # Text has the same figures, in the summary and in `show`.
    assert main(["show", "small", f"--store={tmp_path / 'store'}"]) == 0
    shown = capsys.readouterr().out
    for output in (text, shown):
        table = output.partition("\nSplits\n")[2].partition("\n\n")[0]
        headings, *rows = [line.split() for line in table.splitlines()]
        assert headings[:5] == ["split", "sequences", "full", "tokens", "documents"]
        assert [row[0] for row in rows] == list(splits)
        for row in rows:
            figures = splits[row[0]]
            assert row[1:5] == [
                f"{figures['rows']:,}",
                f"{figures['fill']:.2%}",
                f"{figures['tokens']:,}",
                f"{figures['documents']:,}",
            ]


def test_the_summary_of_a_single_split_has_no_table_of_splits(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    write_lines(tmp_path / "texts.jsonl")
    config = write_config(tmp_path, tokenizer_dir)
    assert main(["run", str(config), "--no-prefect", "--workers=1"]) == 0
    assert "Splits" not in capsys.readouterr().out
    manifest = tl.open(tmp_path / "store" / "small").manifest
    figures = dataset.split_figures(manifest)["train"]
    assert f"{figures['fill']:.2%}" == dataset.fill(manifest)


def test_rows_that_are_not_packed_have_no_fill(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    write_lines(tmp_path / "texts.jsonl")
    config = write_config(
        tmp_path, tokenizer_dir, source=HALVES, pack={"enabled": False}
    )
    run = ["run", str(config), "--no-prefect", "--workers=1"]
    assert main([*run, "--json"]) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert [figures["fill"] for figures in splits.values()] == [None, None]
    assert main(run) == 0
    table = capsys.readouterr().out.partition("\nSplits\n")[2]
    assert table.split()[:3] == ["split", "rows", "tokens"]
