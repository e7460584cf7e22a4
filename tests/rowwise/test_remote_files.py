"""Rows of files at a URL, of datasets on the Hub and of `datasets` objects: the same
contract as local files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.rowwise.sharded_support import numbered
from tests.seeds import promise
from tests.servers.http import HttpServer
from tests.servers.hub import HubServer, hub
from tokenlake import create_source
from tokenlake.easydel import HuggingFaceShardedSource
from tokenlake.errors import (
    ConfigError,
    InputChangedError,
    MissingExtraError,
    NotAvailableError,
    SourceNotFoundError,
)
from tokenlake.rowwise import JsonShardedSource, ParquetShardedSource, expand_data_files
from tokenlake.runtime.store import close_filesystems

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
    ("kind", "name"),
    [(ParquetShardedSource, "a.parquet"), (JsonShardedSource, "b.jsonl")],
)
def test_a_file_at_a_url_opens_at_every_row(server, kind, name):
    source = kind(f"{server.url}/set/{name}")
    assert source.shard_names == (name,)
    info = source.get_shard_info(name)
    assert (info.url, info.bytes) == (
        f"{server.url}/set/{name}",
        len(server.files[f"set/{name}"]),
    )
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


# --- the Hub


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub on loopback with one dataset of two splits."""
    import huggingface_hub.constants as constants

    for name in (
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        running.repo(
            "org/data",
            {
                "data/train-0.parquet": parquet(),
                "data/test-0.parquet": parquet(ROWS[:3]),
            },
        )
        yield running


@promise(27, 137, 148, 238)
def test_a_dataset_of_the_hub_streams_one_split(dataset):
    source = HuggingFaceShardedSource("org/data", split="test", streaming=True)
    assert list(source) == ROWS[:3]
    assert len(HuggingFaceShardedSource("org/data")) == 9
    (name,) = source.shard_names
    assert numbered(source, name, 2) == [(2, ROWS[2])]
    configured = create_source(
        {"data_files": "org/data", "type": "hf", "split": "test", "num_rows": 2}
    )
    assert type(configured) is HuggingFaceShardedSource
    assert list(configured) == ROWS[:2]


@promise(238)
def test_a_dataset_of_the_hub_may_be_downloaded_first(dataset, tmp_path):
    source = HuggingFaceShardedSource(
        "org/data", streaming=False, cache_dir=str(tmp_path / "cache")
    )
    dataset.repos.clear()
    assert list(source.open_shard_at_row(source.shard_names[0], 4)) == ROWS[4:]
    assert any((tmp_path / "cache").rglob("*.parquet"))


@promise(243)
def test_a_range_names_the_files_of_a_web_server(server):
    server.files |= {
        f"part-{number}.jsonl": lines([{"id": number}]) for number in range(4)
    }
    pattern = f"{server.url}/part-{{0..3}}.jsonl"
    assert expand_data_files(pattern) == [
        f"{server.url}/part-{number}.jsonl" for number in range(4)
    ]
    assert [row["id"] for row in JsonShardedSource(pattern)] == [0, 1, 2, 3]
    with pytest.raises(SourceNotFoundError, match="part-4"):
        JsonShardedSource(f"{server.url}/part-{{3..4}}.jsonl")


@promise(248)
def test_a_shard_opens_by_its_url(server):
    source = ParquetShardedSource(f"{server.url}/set/a.parquet")
    assert list(source.open_shard_at_row(f"{server.url}/set/a.parquet", 7)) == ROWS[7:]


@promise(253)
def test_an_id_of_the_hub_needs_no_type(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = create_source({"data_files": "org/data", "split": "test"})
    assert type(found) is HuggingFaceShardedSource
    assert list(found) == ROWS[:3]
    rows = (
        tl.create_pipeline([{"data_files": "org/data", "split": "test"}])
        .source()
        .build()
    )
    assert list(rows) == ROWS[:3]
    (tmp_path / "org" / "data").mkdir(parents=True)
    (tmp_path / "org" / "data" / "a.jsonl").write_text('{"id":1}\n')
    assert list(create_source({"data_files": "org/data"})) == [{"id": 1}]


@promise(253)
def test_a_mistyped_path_is_an_error_with_near_matches(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts" / "english").mkdir(parents=True)
    dataset.repos["texts/a"] = dataset.repos["org/data"]
    for wrong in ("texts/a.jsonl", "texts/a/b", "./texts/a"):
        # What cannot be an id is not asked for.
        with pytest.raises(SourceNotFoundError) as caught:
            create_source({"data_files": wrong})
        assert "It is not a readable dataset" not in str(caught.value)
    with pytest.raises(
        SourceNotFoundError,
        match=r"(?s)english.*It is not a readable dataset of the Hub either.*texts/englsh",
    ):
        create_source({"data_files": "texts/englsh"})


@promise(246)
def test_section_source_says_whether_to_stream_and_refuses_what_does_not_act(dataset):
    config = {
        "datasets": [{"data_files": "org/data", "split": "test"}],
        "source": {"streaming": False},
    }
    source = tl.Pipeline.from_config(config).source().get_data()["dataset_0"]
    dataset.repos.clear()
    assert list(source) == ROWS[:3]
    for name, value in {
        "cloud_max_retries": 3,
        "cloud_retry_delay": 1.0,
        "dask_storage_options": {"a": 1},
    }.items():
        with pytest.raises(NotAvailableError, match=rf"source\.{name}: .*; instead: "):
            tl.Pipeline.from_config(config | {"source": {name: value}}).source()


@promise(241)
def test_azure_says_what_to_install():
    pytest.importorskip("fsspec")
    with pytest.raises(MissingExtraError, match=r"pip install 'tokenlake\[azure\]'"):
        ParquetShardedSource("az://bucket/a.parquet")


def test_a_dataset_that_is_not_there_is_an_error(dataset):
    with pytest.raises(SourceNotFoundError, match="org/dta"):
        HuggingFaceShardedSource("org/dta")
