"""Rows of files at a URL, of datasets on the Hub and of `datasets` objects: the same contract as local files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rowwise.sharded_support import numbered
from tests.servers.http import HttpServer
from tests.servers.hub import HubServer, hub
from tokenlake.errors import ConfigError, InputChangedError, SourceNotFoundError
from tokenlake.rowwise.files import (
    FilesShardedSource,
    HuggingFaceShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    create_source,
    expand_data_files,
)
from tokenlake.store.remote.filesystems import close_filesystems

ROWS = [{"id": place, "text": f"text {place}"} for place in range(9)]


def parquet(rows: list[dict[str, Any]] = ROWS) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=2)
    return sink.getvalue()


def lines(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return b"\n\n".join(json.dumps(row).encode() for row in rows)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer() as server:
        server.files |= {"set/a.parquet": parquet(), "set/b.jsonl": lines()}
        yield server
    close_filesystems()


@pytest.mark.parametrize(
    ("kind", "name"), [(ParquetShardedSource, "a.parquet"), (JsonShardedSource, "b.jsonl")]
)
def test_a_file_at_a_url_opens_at_every_row(server, kind, name):
    source = kind(f"{server.url}/set/{name}")
    assert source.shard_names == (name,)
    info = source.get_shard_info(name)
    assert (info.url, info.bytes) == (f"{server.url}/set/{name}", len(server.files[f"set/{name}"]))
    for row in (0, 1, 5, 8, 9):
        assert numbered(source, name, row) == list(enumerate(ROWS))[row:]
    with pytest.raises(ConfigError, match="it has 9 rows"):
        list(source.open_shard_at_row(name, 10))


def test_a_file_at_a_url_that_changes_is_an_error_not_another_files_rows(server):
    source = JsonShardedSource(f"{server.url}/set/b.jsonl")
    assert list(source.open_shard_at_row("b.jsonl", 8)) == ROWS[8:]
    server.files["set/b.jsonl"] = lines(ROWS[::-1])
    with pytest.raises(InputChangedError):
        list(source.open_shard_at_row("b.jsonl", 8))


def test_urls_expand_to_themselves(server):
    urls = [f"{server.url}/set/{name}" for name in ("a.parquet", "b.jsonl")]
    assert expand_data_files(urls) == urls
    assert FilesShardedSource(urls).num_shards() == 2
    assert type(create_source({"data_files": urls[0]})) is ParquetShardedSource


# --- the Hub


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub on loopback with one dataset of two splits."""
    import huggingface_hub.constants as constants

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        running.repo(
            "org/data", {"data/train-0.parquet": parquet(), "data/test-0.parquet": parquet(ROWS[:3])}
        )
        yield running


def test_a_dataset_of_the_hub_streams_one_split(dataset):
    source = HuggingFaceShardedSource("org/data", split="test", streaming=True)
    assert list(source) == ROWS[:3]
    assert len(HuggingFaceShardedSource("org/data")) == 9
    (name,) = source.shard_names
    assert numbered(source, name, 2) == [(2, ROWS[2])]
    configured = create_source({"data_files": "org/data", "type": "hf", "split": "test", "num_rows": 2})
    assert type(configured) is HuggingFaceShardedSource
    assert list(configured) == ROWS[:2]


def test_a_dataset_of_the_hub_may_be_downloaded_first(dataset, tmp_path):
    source = HuggingFaceShardedSource("org/data", streaming=False, cache_dir=str(tmp_path / "cache"))
    dataset.repos.clear()
    assert list(source.open_shard_at_row(source.shard_names[0], 4)) == ROWS[4:]
    assert any((tmp_path / "cache").rglob("*.parquet"))


def test_a_dataset_that_is_not_there_is_an_error(dataset):
    with pytest.raises(SourceNotFoundError, match="org/dta"):
        HuggingFaceShardedSource("org/dta")
