"""The libraries of the trainers read exports as they stand.

A test whose library is missing is skipped, except in the environment that ``make
test-peers`` makes for them.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lazily import lazily
from tokenlake import export_version
from tokenlake import open as open_version
from tokenlake.etl import build_dataset

grain: Any = lazily("grain")

WIDTH = 64


def peer(module: str) -> Any:
    """Import the library of a trainer; without it the test is skipped."""
    if "TOKENLAKE_TEST_PEERS" in os.environ:
        return importlib.import_module(module)
    return pytest.importorskip(module)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    lines = [
        json.dumps({"text": f"document {i}: " + "a lake holds water. " * (i % 60)})
        for i in range(50)
    ]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    for name, pack in {
        "documents": {},
        "packed": {"enabled": True, "seq_length": WIDTH},
    }.items():
        config = {
            "name": name,
            "datasets": [{"name": "d", "data_files": str(folder / "documents.jsonl")}],
            "default_tokenizer": str(tokenizer_dir),
            "pack": pack,
            "save": {"output_dir": str(folder / "store")},
        }
        build_dataset(config, workers=0)
    return folder / "store"


def stored(store: Path, name: str) -> dict[str, list[Any]]:
    with open_version(store / name) as rows:
        return rows.read(0, len(rows)).to_pydict()


def segment_ids(columns: dict[str, list[Any]], row: int) -> list[int]:
    lengths = columns["segment_lengths"][row]
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths).tolist()
    return ids + [0] * (WIDTH - len(ids))


def test_grain_reads_array_record(tmp_path: Path, store: Path):
    export_version(store / "packed", tmp_path / "out", "array_record", num_shards=2)
    paths = sorted(map(str, (tmp_path / "out").glob("*.array_record")))
    source = grain.sources.ArrayRecordDataSource(paths)
    columns = stored(store, "packed")
    assert len(source) == len(columns["input_ids"])
    for index in range(len(source)):
        row = np.frombuffer(source[index], "<i4").reshape(2, -1)
        assert row[0].tolist() == columns["input_ids"][index]
        assert row[1].tolist() == segment_ids(columns, index)


@pytest.mark.parametrize("name", ["documents", "packed"])
def test_mosaicml_streaming_reads_mds(tmp_path: Path, store: Path, name: str):
    streaming: Any = peer("streaming")
    export_version(store / name, tmp_path / "out", "mds", max_shard_size=20_000)
    rows = streaming.StreamingDataset(
        local=str(tmp_path / "out"), split="train", shuffle=False, batch_size=1
    )
    columns = stored(store, name)
    assert len(rows) == len(columns["input_ids"])
    assert len(rows.shards) > 1
    for index in range(len(rows)):
        assert rows[index]["tokens"].tolist() == columns["input_ids"][index]
        if name == "packed":
            assert rows[index]["segment_ids"].tolist() == segment_ids(columns, index)


def test_our_shards_are_those_of_mosaicml_streaming(tmp_path: Path, store: Path):
    streaming: Any = peer("streaming")
    export_version(store / "documents", tmp_path / "ours", "mds")
    with streaming.MDSWriter(
        columns={"tokens": "ndarray:int32"}, out=str(tmp_path / "theirs")
    ) as writer:
        for ids in stored(store, "documents")["input_ids"]:
            writer.write({"tokens": np.array(ids, np.int32)})
    for name in ("shard.00000.mds", "index.json"):
        assert (tmp_path / "ours" / "train" / name).read_bytes() == (
            tmp_path / "theirs" / name
        ).read_bytes()


def test_litdata_reads_a_stream_of_tokens(tmp_path: Path, store: Path):
    litdata: Any = peer("litdata")
    export_version(store / "documents", tmp_path / "out", "litdata")
    loader = litdata.TokensLoader(block_size=100)
    blocks = litdata.StreamingDataset(
        str(tmp_path / "out" / "train"), item_loader=loader
    )
    ids = np.concatenate([block.numpy() for block in blocks])
    expected = np.concatenate(stored(store, "documents")["input_ids"])
    assert ids.tolist() == expected[: len(expected) // 100 * 100].tolist()


# litdata leaves the files of decompressed chunks to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_litdata_reads_compressed_chunks(tmp_path: Path, store: Path):
    litdata: Any = peer("litdata")
    columns = stored(store, "packed")
    export_version(
        store / "packed", tmp_path / "packed", "litdata", "zstd", num_shards=3
    )
    rows = litdata.StreamingDataset(str(tmp_path / "packed" / "train"))
    for index in range(len(rows)):
        assert rows[index]["input_ids"].tolist() == columns["input_ids"][index]
    export_version(store / "documents", tmp_path / "documents", "litdata", "zstd")
    blocks = litdata.StreamingDataset(
        str(tmp_path / "documents" / "train"),
        item_loader=litdata.TokensLoader(block_size=100),
    )
    ids = np.concatenate([block.numpy() for block in blocks])
    expected = np.concatenate(stored(store, "documents")["input_ids"])
    assert ids.tolist() == expected[: len(expected) // 100 * 100].tolist()


def test_litdata_reads_packed_rows(tmp_path: Path, store: Path):
    litdata: Any = peer("litdata")
    export_version(store / "packed", tmp_path / "out", "litdata", num_shards=3)
    columns = stored(store, "packed")
    rows = litdata.StreamingDataset(str(tmp_path / "out" / "train"))
    assert len(rows) == len(columns["input_ids"])
    for index in range(len(rows)):
        assert rows[index]["input_ids"].tolist() == columns["input_ids"][index]
        assert rows[index]["segment_ids"].tolist() == segment_ids(columns, index)
