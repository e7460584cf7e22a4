"""One store that is built once for all tests of contracts: two packed datasets, and
one of documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenlake.etl import InProcessPool, build_dataset

SEQ_LENGTH = 16


def write_texts(path: Path, count: int, word: str) -> Path:
    """Write texts of many lengths as JSON Lines."""
    texts = [
        f"{word} {number} " + f"{word} of many, " * (number % 9)
        for number in range(count)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def config_of(
    store: Path, data: Path, tokenizer: Path, name: str, pack: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "datasets": [
            {"name": name, "data_files": str(data), "tokenizer": str(tokenizer)}
        ],
        "source": {"unit_size": "4KiB"},
        "pack": pack,
        "save": {"output_dir": str(store), "max_shard_size": "8KiB"},
    }


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> str:
    """Address of a store with the packed datasets "web" and "code", and the
    documents "notes".
    """
    folder = tmp_path_factory.mktemp("contracts")
    packed = {"enabled": True, "seq_length": SEQ_LENGTH}
    for name, count, pack in (
        ("web", 180, packed),
        ("code", 90, packed),
        ("notes", 150, {"enabled": False}),
    ):
        data = write_texts(folder / f"{name}.jsonl", count, name)
        config = config_of(folder / "store", data, tokenizer_dir, name, pack)
        pool: Any = InProcessPool()
        build_dataset(config, pool=pool)
    return str(folder / "store")
