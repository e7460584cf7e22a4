"""A pipeline makes what a build of the same configuration writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.pipeline_support import texts, write_jsonl, written
from tests.tokenizer_samples import byte_level, sentencepiece


@pytest.fixture(scope="module", params=["llama", "gpt"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    files = sentencepiece() if request.param == "llama" else byte_level()
    return written(files, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [*texts(60), {"text": ""}, {"text": "long " * 400}, *texts(20, "últimas palabras 漢字")]
    return str(write_jsonl(tmp_path_factory.mktemp("data") / "rows.jsonl", rows))


def built(config: dict[str, Any], store: Path) -> dict[str, list[Any]]:
    result = tl.build_dataset(config | {"name": "d", "save": {"output_dir": str(store)}}, workers=1)
    files = sorted(Path(result.path, "data").glob("*.parquet"))
    return {name: column.to_pylist() for name, column in zip(*_columns(files), strict=True)}


def _columns(files: list[Path]) -> tuple[list[str], list[Any]]:
    tables = [pq.read_table(file) for file in files]
    names = tables[0].column_names
    return names, [tables[0][name] if len(tables) == 1 else _joined(tables, name) for name in names]


def _joined(tables: list[Any], name: str) -> Any:
    import pyarrow as pa

    return pa.concat_tables(tables)[name]


def made(config: dict[str, Any], *stages: str) -> dict[str, list[Any]]:
    pipeline = tl.Pipeline.from_config(config).source()
    for stage in stages:
        getattr(pipeline, stage)()
    rows = list(pipeline.build())
    return {name: [np.asarray(row[name]).tolist() for row in rows] for name in rows[0]}


@pytest.mark.parametrize("seq_length", [16, 33, 256])
def test_packed_rows_are_those_of_a_build(data: str, tokenizer: str, tmp_path: Path, seq_length: int):
    config = {
        "datasets": [{"data_files": data, "tokenizer": tokenizer}],
        "pack": {"enabled": True, "seq_length": seq_length, "store_segment_ids": True},
    }
    ours, theirs = made(config, "tokenize", "pack"), built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["segment_ids"] == theirs["segment_ids"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 7},
        {"long_documents": "keep"},
        {"max_length": 12, "long_documents": "drop"},
    ],
)
def test_unpacked_rows_are_those_of_a_build(
    data: str, tokenizer: str, tmp_path: Path, options: dict[str, Any]
):
    config = {"datasets": [{"data_files": data, "tokenizer": tokenizer}], "tokenize": options}
    ours, theirs = made(config, "tokenize"), built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]
