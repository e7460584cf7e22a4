"""The folder in which the code of the pages and of docstrings runs: inputs,
tokenizers, and a store of versions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builds import Lender
from tokenlake.etl import build_dataset

TOKENIZERS: Final = (
    "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-2-7b",
    "meta-llama/Llama-2-7b-chat-hf",
    "openai-community/gpt2",
)
CHAT: Final = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    "<|endoftext|>{% endgeneration %}{% else %}{{ m['content'] }}\n{% endif %}{% endfor %}"
)


def _documents(word: str, count: int) -> str:
    rows = (
        {"text": f"{word} {i}. " + "A lake holds water. " * (20 + i % 90), "lang": "en"}
        for i in range(count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def world(
    tokenizer_dir: Path, lender: Lender, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the inputs, tokenizers and versions that the pages speak of."""
    folder = tmp_path_factory.mktemp("pages")
    for name in TOKENIZERS:
        shutil.copytree(tokenizer_dir, folder / name)
        settings = folder / name / "tokenizer_config.json"
        settings.write_text(
            json.dumps(json.loads(settings.read_text()) | {"chat_template": CHAT})
        )
    for name in ("code", "web", "books"):
        path = folder / "data" / name / "a.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(_documents(name, 120))
    (folder / "data" / "a.jsonl").write_text(_documents("top", 120))
    chat = [
        {"role": "user", "content": "How deep is it?"},
        {"role": "assistant", "content": "Nine metres."},
    ]
    (folder / "data" / "chat").mkdir()
    (folder / "data" / "chat" / "a.jsonl").write_text(
        "".join(json.dumps({"messages": chat * (1 + i % 5)}) + "\n" for i in range(64))
    )
    pair = {
        "prompt": "How deep is it?",
        "chosen": " Nine metres.",
        "rejected": " Deep.",
    }
    (folder / "data" / "pairs").mkdir()
    (folder / "data" / "pairs" / "a.jsonl").write_text((json.dumps(pair) + "\n") * 64)
    (folder / "more").mkdir()
    (folder / "more" / "a.jsonl").write_text(_documents("more", 5))
    (folder / "tokenized").mkdir()
    pq.write_table(
        pa.table({"input_ids": [[1, 2, 3]] * 9}), folder / "tokenized" / "a.parquet"
    )
    pq.write_table(
        pa.table({"text": ["A lake holds water. " * 20] * 9}),
        folder / "data" / "a.parquet",
    )
    with lender.lend(1) as pool:
        for name, rows, options in (
            ("books", 80, {}),
            ("books", 100, {}),
            ("books", 120, {}),
            ("llama2-2048", 80, {}),
            ("llama2-2048", 100, {}),
            ("llama2-2048", 120, {}),
            ("code", 80, {}),
            ("code", 100, {}),
            ("code", 120, {}),
            ("web", 120, {}),
            ("chat", 64, {"content_field": "messages"}),
            ("pairs", 64, {"preference": {"method": "dpo"}}),
        ):
            build_dataset(_build(folder, name, rows, options), pool=pool)
    return folder


def _build(
    folder: Path, name: str, rows: int, options: dict[str, Any]
) -> dict[str, Any]:
    data = folder / "data" / ("books" if name == "llama2-2048" else name)
    source = {"name": name, "data_files": str(data), "num_rows": rows, **options}
    return {
        "name": name,
        "datasets": [source],
        "default_tokenizer": str(folder / TOKENIZERS[0]),
        "source": {"splits": {"train": 0.8, "validation": 0.2}},
        "pack": {"enabled": not options, "seq_length": 64},
        "save": {"output_dir": str(folder / "artifacts")},
    }
