"""The lines that ``tokenlake run`` prints under "Train" train on what was built, as
printed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.text.chat_samples import CHATML
from tokenlake.cli.app import main

PAIRS = [{"prompt": "a", "chosen": " b", "rejected": " c"}] * 3
ANSWERS = [
    {"prompt": "a", "completion": " b", "label": True},
    {"prompt": "a", "completion": " c", "label": False},
]
TEXTS = [{"text": f"a lake holds water {number}"} for number in range(40)]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": f"hi {number}"},
        ]
    }
    for number in range(4)
]
PACKED = {"pack": {"enabled": True, "seq_length": 16}}
RAGGED = {"pack": {"enabled": False}}
CHAT = {"chat": {"template": CHATML}}

# rows, settings of the dataset, settings of the build, and a column that batches have
BUILDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], str]] = {
    "packed": (TEXTS, {}, PACKED, "input_ids"),
    "tokens": (TEXTS, {}, RAGGED, "input_ids"),
    "chat": (CHATS, CHAT, PACKED, "loss_mask"),
    "chat tokens": (CHATS, CHAT, RAGGED, "loss_mask"),
    "dpo": (PAIRS, {"preference": {"method": "dpo"}}, RAGGED, "chosen_input_ids"),
    "reward": (
        PAIRS,
        {"preference": {"method": "reward"}},
        RAGGED,
        "rejected_input_ids",
    ),
    "kto": (ANSWERS, {"preference": {"method": "kto"}}, RAGGED, "label"),
    "grpo": (ANSWERS, {"preference": {"method": "grpo"}}, RAGGED, "prompt_input_ids"),
    "splits": (
        TEXTS,
        {},
        {**PACKED, "source": {"splits": {"a": 0.5, "b": 0.5}}},
        "input_ids",
    ),
    "one split": (
        TEXTS,
        {},
        {**PACKED, "source": {"splits": {"only": 1.0}}},
        "input_ids",
    ),
}


def printed_lines(
    config: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run a configuration, and return what it prints under "Train"."""
    path = folder / "set.json"
    path.write_text(json.dumps(config))
    assert main(["run", str(path), "--no-prefect", "--workers", "1"]) == 0
    return capsys.readouterr().out.partition("\nTrain\n")[2]


def batches_of(lines: str) -> dict[str, Any]:
    """Run the lines, and return their names."""
    names: dict[str, Any] = {}
    exec(lines, names)
    return names


@pytest.mark.parametrize("build", BUILDS)
def test_the_lines_work_as_printed(
    build: str, tmp_path: Path, tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, dataset, settings, column = BUILDS[build]
    data = tmp_path / "in.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "set",
        "datasets": [
            {"data_files": str(data), "tokenizer": str(tokenizer_dir), **dataset}
        ],
        "save": {"output_dir": str(tmp_path / "store")},
        **settings,
    }
    lines = printed_lines(config, tmp_path, capsys)
    batch = batches_of(lines)["batch"]
    assert column in batch
    assert all(name in lines for name in batch)


def test_the_lines_of_a_mixture_work_as_printed(
    tmp_path: Path, tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "in.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    config = {
        "name": "set",
        "datasets": [
            {"name": name, "data_files": str(data), "tokenizer": str(tokenizer_dir)}
            for name in ("x", "y")
        ],
        "mix": {"weights": {"x": 0.5, "y": 0.5}, "total_rows": 16, "lanes": 1},
        "save": {"output_dir": str(tmp_path / "store")},
        **PACKED,
    }
    assert "input_ids" in batches_of(printed_lines(config, tmp_path, capsys))["batch"]
