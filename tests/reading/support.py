"""A small real store of every kind of dataset, with several shards, splits and row
groups; built in this process.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.etl.outputs_support import build_here, notes, settings, write_jsonl
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake import Catalog
from tokenlake.etl.unit import token_files
from tokenlake.runtime.reading import StoredRows
from tokenlake.runtime.store import Store, open_store

LENGTH = 32
BOS = "<s>"
SPLITS = {"train": 0.8, "validation": 0.2}
PROMPT = {
    "template": "Ask: {question}\nSay: {answer}",
    "input_columns": ["question"],
    "label_column": "answer",
}
Row = dict[str, Any]


@contextmanager
def small_row_groups() -> Generator[None]:
    """Build row groups of 200 ids, so that small datasets have many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "ROW_GROUP_TOKENS", 200)
        patch.setattr(token_files, "_LEAST_TOKENS", 1)
        yield


def lake_of(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store that all tests of a process read; who damages it takes a copy."""
    return build_lake(tmp_path_factory.getbasetemp() / "lake")


@functools.cache
def build_lake(root: Path) -> Store:
    """Build ``plain`` and ``learned`` (packed), ``texts``, ``answers``, ``left``,
    ``right`` (tokens) and ``judged``.

    ``learned`` and ``answers`` have a loss mask, ``left`` and ``right`` padding. Row
    groups are of 200 ids.
    """
    tokenizer = root / "tokenizer"
    tokenizer.mkdir(parents=True)
    for name, data in sentencepiece().files.items():
        (tokenizer / name).write_bytes(data)
    documents = write_jsonl(root / "notes.jsonl", notes(150))
    asked = [
        {
            "question": "what is " * (i % 4) + str(i),
            "answer": f"it is {i} " * (i % 3 + 1),
        }
        for i in range(90)
    ]
    answers = write_jsonl(root / "asked.jsonl", asked)
    judged = [
        {"prompt": f"say {i}", "chosen": f"yes {i}" * (i % 3 + 1), "rejected": "no"}
        for i in range(40)
    ]
    pairs = write_jsonl(root / "judged.jsonl", judged)
    pack = {"enabled": True, "seq_length": LENGTH}
    with small_row_groups():
        _build(root, "plain", documents, pack=pack)
        _build(root, "learned", answers, pack=pack, prompt=PROMPT)
        _build(root, "texts", documents, additional_fields=["id", "text"])
        _build(root, "answers", answers, prompt=PROMPT)
        for side in ("left", "right"):
            _build(
                root,
                side,
                documents,
                options={"padding": "longest", "padding_side": side},
            )
        _build(root, "judged", pairs, preference={"method": "dpo", "trainer": "trl"})
    return open_store(root / "store")


def _build(
    root: Path, name: str, data: Path, *, pack: Row | None = None, **dataset: Any
) -> None:
    named = {"name_or_path": str(root / "tokenizer"), **dataset.pop("options", {})}
    config = settings(root, root / "tokenizer", data, **dataset)
    config["datasets"][0]["tokenizer"] = named
    config |= {
        "name": name,
        "pack": pack or {"enabled": False},
        "source": {"splits": SPLITS},
    }
    config["save"]["num_shards"] = 3
    build_here(config)


def rows_of(store: Store, name: str, split: str = "train") -> StoredRows:
    """Open a split of version 1."""
    return StoredRows(store, Catalog(store).manifest(name, 1), split)


def table_of(store: Store, rows: StoredRows) -> pa.Table:
    """All rows, read without us."""
    prefix = f"{rows.manifest.dataset}/v{rows.manifest.version}"
    paths = [shard.path for shard in rows.manifest.files if shard.split == rows.split]
    return pa.concat_tables(
        pq.read_table(store.local_path(f"{prefix}/{path}")) for path in paths
    )


def chosen_rows(
    sources: Sequence[StoredRows], number: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """`number` rows of the sources, any of them and some several times: (source, row
    of the split), int64 both.
    """
    dice = np.random.default_rng(seed)
    source = dice.integers(0, len(sources), number)
    return source, dice.integers(0, np.array([rows.rows for rows in sources])[source])


def placed(
    sources: Sequence[StoredRows], source: np.ndarray, row: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, row group and row in it of rows counted over the splits."""
    group, inside = np.empty_like(row), np.empty_like(row)
    for index, rows in enumerate(sources):
        there = source == index
        group[there], inside[there] = rows.group_of(row[there])
    return source, group, inside
