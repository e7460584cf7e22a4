"""Blocks of remote inputs are kept where it is asked for; those of another version
are never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import promise
from tests.servers.http import HttpServer
from tests.sources.remote_support import documents, jsonl, parquet
from tokenlake import Pipeline, create_source
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset
from tokenlake.runtime.store import close_filesystems

VARIABLE = "TOKENLAKE_REMOTE_CACHE"
TEXTS = documents(3_000)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server
    close_filesystems()


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept blocks."""
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "1GB")
    return tmp_path / "remote"


def texts(server: HttpServer, name: str) -> list[str]:
    """Read a file anew, as another process would."""
    return [
        row["text"] for row in create_source({"data_files": f"{server.url}/set/{name}"})
    ]


@pytest.mark.parametrize(
    ("name", "data"), [("a.jsonl", jsonl(TEXTS)), ("a.parquet", parquet(TEXTS))]
)
def test_a_second_reading_asks_for_no_bytes(
    server: HttpServer, kept: Path, name: str, data: bytes
) -> None:
    server.files[f"set/{name}"] = data
    assert texts(server, name) == TEXTS
    assert server.requests("GET")
    server.log.clear()
    assert texts(server, name) == TEXTS
    assert server.requests("HEAD")
    assert not server.requests("GET")


def test_another_version_has_other_blocks(server: HttpServer) -> None:
    for texts_now in (TEXTS, TEXTS[::-1]):
        server.files["set/a.jsonl"] = jsonl(texts_now)
        assert texts(server, "a.jsonl") == texts_now


def test_a_damaged_block_is_fetched_again(server: HttpServer, kept: Path) -> None:
    server.files["set/a.jsonl"] = jsonl(TEXTS)
    texts(server, "a.jsonl")
    for path in kept.iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    server.log.clear()
    assert texts(server, "a.jsonl") == TEXTS
    assert server.requests("GET")


def test_nothing_is_kept_unasked_and_a_wrong_size_is_an_error(
    server: HttpServer, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["set/a.jsonl"] = jsonl(TEXTS)
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(ConfigError, match=f"{VARIABLE}: "):
        texts(server, "a.jsonl")
    monkeypatch.delenv(VARIABLE)
    assert texts(server, "a.jsonl") == TEXTS
    assert not kept.exists()


@promise(156)
def test_a_configuration_keeps_them_for_builds_and_pipelines_and_their_workers(
    server: HttpServer,
    kept: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE)
    server.files["set/a.jsonl"] = jsonl(TEXTS)
    config: dict[str, Any] = {
        "name": "set",
        "datasets": [{"name": "a", "data_files": f"{server.url}/set/a.jsonl"}],
        "default_tokenizer": str(tokenizer_dir),
        "cache": {"remote_cache_bytes": "1GB"},
        "save": {"output_dir": str(tmp_path / "store")},
    }
    first = build_dataset(config, workers=1)
    assert server.requests("GET") and kept.exists()
    server.log.clear()
    packed = {"pack": {"enabled": True, "seq_length": 64}}
    assert build_dataset(config | packed, workers=1).units_built == 1
    assert len(list(Pipeline.from_config(config).source().build())) == len(TEXTS)
    assert not server.requests("GET")
    again = build_dataset(
        {name: config[name] for name in config if name != "cache"}, workers=1
    )
    assert (again.status, again.version) == ("exists", first.version)
