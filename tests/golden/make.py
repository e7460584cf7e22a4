"""Writes the released versions that `test_golden.py` reads and rebuilds: `python -m
tests.golden.make`.

Run it only when a release changes bytes on purpose, and say so in the changelog.
Everything in `data/` comes from here: the inputs and tokenizers of each configuration,
and the store that its build left, without what no reader needs. What an earlier release
wrote in another way stays in `data/earlier`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.text import chat_samples, preference_support
from tests.tokenizers import tokenizer_samples
from tokenlake.etl import build_dataset

DATA = Path(__file__).parent / "data"

Config = dict[str, Any]

_TEXT: Config = {
    "name": "text",
    "data_files": "inputs/text/*.jsonl",
    "where": "length(text) > 12",
}
_TABLE: Config = {
    "name": "table",
    "data_files": "inputs/table",
    "content_field": "body",
}
_SOURCE: Config = {"unit_size": 3000, "splits": {"train": 0.8, "validation": 0.2}}
_PLAIN: Config = {
    "default_tokenizer": "tokenizers/bytes",
    "datasets": [_TEXT, _TABLE],
    "source": _SOURCE,
}

CONFIGS: dict[str, Config] = {
    "packed": {
        **_PLAIN,
        "pack": {"enabled": True, "seq_length": 64, "window_tokens": 2048},
    },
    "best-fit": {
        **_PLAIN,
        "pack": {"enabled": True, "seq_length": 64, "strategy": "best_fit"},
    },
    "indices": {  # enough ids of a row group for those of 16 bits
        "default_tokenizer": "tokenizers/bytes",
        "datasets": [{"name": "text", "data_files": "inputs/long.jsonl"}],
        "pack": {"enabled": True, "seq_length": 4096},
    },
    "tokens": {
        **_PLAIN,
        "datasets": [{**_TEXT, "additional_fields": ["kind"]}],
        "tokenize": {"max_length": 40},
    },
    "mixture": {
        "default_tokenizer": "tokenizers/bytes",
        "datasets": [
            {"name": "text", "data_files": "inputs/text/*.jsonl"},
            {"name": "table", "data_files": "inputs/table", "content_field": "body"},
        ],
        "mix": {
            "weights": {"text": 0.75, "table": 0.25},
            "total_rows": 96,
            "lanes": 2,
            "unit_rows": 48,
            "batch_size": 8,
            "block_size": 20,
            "order": 2,
        },
        "pack": {"enabled": True, "seq_length": 64},
    },
    "mixture-of-stored": {
        "datasets": [
            {"name": "text", "dataset": "mixture.text.tokens@v1"},
            {"name": "table", "dataset": "mixture.table.tokens@v1"},
        ],
        "mix": {
            "weight_schedule": [
                {"step": 0, "weights": {"text": 0.75, "table": 0.25}},
                {"step": 10, "weights": {"text": 0.25, "table": 0.75}},
            ],
            "weight_schedule_type": "linear",
            "total_rows": 96,
            "lanes": 4,
            "unit_rows": 48,
            "batch_size": 8,
            "block_size": 20,
            "order": 3,
        },
        "pack": {"enabled": True, "seq_length": 64},
    },
    "chat": {
        "default_tokenizer": "tokenizers/chatml",
        "datasets": [
            {
                "name": "chat",
                "data_files": "inputs/chat.jsonl",
                "content_field": "messages",
            }
        ],
        "pack": {"enabled": True, "seq_length": 128, "strategy": "first_fit"},
    },
    "preference": {
        "datasets": [
            {
                "name": "pairs",
                "data_files": "inputs/pairs.jsonl",
                "tokenizer": "tokenizers/llama",
                "preference": {"method": "dpo"},
            }
        ],
    },
}


def configure(name: str) -> Config:
    """Return one configuration; its paths are relative to the folder that it is built
    in.

    Released versions have the unit size that was the default when they were built.
    """
    released = {"source": {"unit_size": "128MiB"}}
    return {"name": name, **released, **CONFIGS[name], "save": {"output_dir": "store"}}


def main() -> None:
    """Write `data/` anew."""
    for path in DATA.iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != "earlier":
            shutil.rmtree(path)
    os.chdir(DATA)
    _write_inputs(Path("inputs"))
    _write_tokenizers(Path("tokenizers"))
    for name in CONFIGS:
        Path(f"{name}.yaml").write_text(
            yaml.safe_dump(configure(name), sort_keys=False)
        )
        build_dataset(configure(name), workers=1)
    for part in ("*/*/runs", "*/*/claim.json"):
        for path in Path("store").glob(part):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write_inputs(folder: Path) -> None:
    (folder / "text").mkdir(parents=True)
    (folder / "table").mkdir()
    for part in range(2):
        _lines(
            folder / "text" / f"{part}.jsonl", [_text(part * 40 + i) for i in range(40)]
        )
    _lines(folder / "long.jsonl", [{"text": f"{i} sheep. " * 90} for i in range(80)])
    table = pa.table(
        {"body": [f"Row {i}: " + "a lake is wide; " * (i % 7) for i in range(60)]}
    )
    pq.write_table(table, folder / "table" / "rows.parquet", row_group_size=25)
    chats = [
        chat_samples.conversation(seed, system=seed % 3 == 0, turns=1 + seed % 3)
        for seed in range(24)
    ]
    _lines(folder / "chat.jsonl", [{"messages": messages} for messages in chats])
    _lines(folder / "pairs.jsonl", [_pair(i) for i in range(30)])


def _text(index: int) -> Config:
    text = f"Note {index}. " + "The r\u00edver rose \u65e5\u672c overnight. " * (
        index % 9
    )
    return {"text": text, "kind": "long" if index % 9 > 4 else "short"}


def _pair(index: int) -> Config:
    return {
        "prompt": f"Question {index}: what is {index} and {index}?",
        "chosen": f" It is {2 * index}." + " Sure." * (index % 4),
        "rejected": f" It is {2 * index + 1}, I think.",
    }


def _lines(path: Path, rows: list[Config]) -> None:
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8"
    )


def _write_tokenizers(folder: Path) -> None:
    files = {
        "bytes": tokenizer_samples.byte_level(),
        "chatml": chat_samples.speaking(chat_samples.MARKED_CHATML),
        "llama": preference_support.llama(),
    }
    for name, tokenizer in files.items():
        (folder / name).mkdir(parents=True)
        for file, data in tokenizer.files.items():
            (folder / name / file).write_bytes(data)


if __name__ == "__main__":
    main()
