"""Mistakes of newcomers: each message says what to type instead."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest

from tokenlake.cli.app import main

Output: TypeAlias = pytest.CaptureFixture[str]

MISTAKES: dict[str, str] = {
    # Commands of other tools, and words that are no commands.
    "stats small": "did you mean 'show'?",
    "preview small": "did you mean 'peek'?",
    "compare a b": "did you mean 'diff'?",
    "prune": "did you mean 'gc'?",
    "train x.yaml": "training is Python: tl.DataLoader(",
    "serve": "`tokenlake report --serve`",
    "help run": "`tokenlake COMMAND --help`",
    "stop": "Ctrl-C stops a build",
    "--versoin": "has no option '--versoin' before a command",
    # Options that are keys, arguments, or have another name.
    "run x.yaml --seq-len 128": "write --set pack.seq_length=N",
    "run x.yaml --seq_length=128": "write --set pack.seq_length=N",
    "run x.yaml --tokenizer gpt2": "write --set default_tokenizer=NAME",
    "plan x.yaml --seed 1": "write --set seed=N",
    "run x.yaml --output out": "--store FOLDER or URL",
    "run x.yaml -o out": "--store FOLDER or URL",
    "run x.yaml --num_proc 2": "write --workers N",
    "run x.yaml -j 2": "write --workers N",
    "run x.yaml --dry-run": "`tokenlake plan CONFIG`",
    "run x.yaml --resume": "the same command resumes",
    "run x.yaml --overwrite": "a new version",
    "run --config x.yaml": "tokenlake run CONFIG",
    "run x.yaml --verbose": "write --set observability.log_level=DEBUG",
    "ls -q": "messages are on stderr",
    "run x.yaml --worker 2": "did you mean --workers?",
    "run x.yaml pack.seq_length=128": "write --set pack.seq_length=128",
    "export small --output out": "tokenlake export NAME FOLDER",
    "export small out -f jsonl": "write --format NAME",
    "peek small --rows 3": "write -n N",
    "peek small 5": "write -n 5",
    "verify small --full": "write --deep",
    "gc --older-than 7d": "--grace 7d",
    "rm small@v1 --force": "rm asks no questions",
    "push small org/repo": "needs the option --repo ORG/NAME",
    "init --data . --output x.yaml": "tokenlake init FILE.yaml --data SOURCE",
    "init x.yaml data": "write --data data",
    "sql select 1": "put the statement in quotes",
    "explain small": "tokenlake explain NAME --step 0 --batch-size 8",
    # Paths and other forms instead of names.
    "show lake/small/v1": "did you mean small@v1 --store lake?",
    "show lake/small": "did you mean small --store lake?",
    "show small/v1": "did you mean small@v1?",
    "show small:v1": "did you mean small@v1?",
    "show SMALL@V1": "did you mean small@v1?",
    "show small v1": "a version is written NAME@v1",
    "show small --version 1": "a version is written NAME@v3",
    "ls small@v1": "`tokenlake ls small`; `tokenlake show small@v1`",
    "tag prod small@v1": "`tokenlake tag small@v1 prod`",
    # Stores and inputs whose scheme is cut, and data instead of a configuration.
    "ls --store s3:/bucket/lake": "did you mean 's3://bucket/lake'?",
    "ls --store gs//bucket": "did you mean 'gs://bucket'?",
    "inspect s3:/bucket/x": "Did you mean 's3://bucket/x'?",
    "run data": "`tokenlake init --data data`",
    "plan data": "`tokenlake init --data data`",
    "run data/a.jsonl --no-prefect": "`tokenlake init --data data/a.jsonl`",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_by_the_words_to_type(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "a"}\n')
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert MISTAKES[line] in captured.err
    # Nothing is created where a path was mistaken for a store.
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_unknown_option_without_an_answer_has_no_wrong_one(capsys: Output) -> None:
    assert main(["ls", "--foo"]) == 2
    first_line = capsys.readouterr().err.splitlines()[0]
    assert first_line == "error: tokenlake ls has no option --foo"
