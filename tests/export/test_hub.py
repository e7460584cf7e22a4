"""Saved rows and committed versions on a Hub of loopback, pushed by the options of `save`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub_support import writable_hub
from tests.seeds import promise
from tests.servers.hub import TOKEN, HubServer
from tokenlake.errors import ConfigError, VersionConflictError
from tokenlake.etl.runner import build_dataset
from tokenlake.export.push import push_directories
from tokenlake.rowwise.pipeline import Pipeline
from tokenlake.rowwise.save import save_dataset

# huggingface_hub's own call of its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "our-org/rows"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    yield from writable_hub(monkeypatch, tmp_path)


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> dict[str, Any]:
    (tmp_path / "texts.jsonl").write_text('{"text": "a lake"}\n{"text": "holds water"}\n')
    return {
        "datasets": [{"name": "texts", "data_files": str(tmp_path / "texts.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "save": {"output_dir": str(tmp_path / "out"), "push_to_hub": True, "hub_repo_id": REPO},
    }


def tree(server: HubServer, repo: str = REPO) -> dict[str, bytes]:
    found = server.repos[repo]
    files = dict(found.commits[found.refs["main"]])
    files.pop(".gitattributes", None)
    return files


@promise(82, 83)
@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_a_pipeline_pushes_what_it_saved_once(
    tmp_path: Path, config: dict[str, Any], server: HubServer, format: str
):
    config["save"]["format"] = format
    rows = list(Pipeline.from_config(config).source().tokenize().save().build())
    assert len(rows) == 2 and server.repos[REPO].private
    out = tmp_path / "out"
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    found = tree(server)
    card = found.pop("README.md").decode()
    assert found == {name: path.read_bytes() for name, path in files.items()}
    assert f'path: ["train-00000-of-00001.{format}"]' in card and 'config_name: "default"' in card
    commits = len(server.repos[REPO].commits)
    assert push_directories({"x": out}, REPO).endswith(REPO)
    assert len(server.repos[REPO].commits) == commits
    save_dataset([{"id": 1}], tmp_path / "other")
    push_directories({"x": tmp_path / "other"}, REPO)
    assert "_tokenlake/tokenizer/tokenizer.json" not in tree(server)


@promise(82)
def test_several_datasets_are_configurations_of_one_repository(
    tmp_path: Path, config: dict[str, Any], server: HubServer
):
    config["datasets"].append({**config["datasets"][0], "name": "more"})
    list(Pipeline.from_config(config).source().tokenize().save().build())
    found = tree(server)
    assert {"more/train-00000-of-00001.parquet", "texts/_tokenlake/manifest.json"} < found.keys()
    assert '- config_name: "texts"' in found["README.md"].decode()


@promise(82, 83)
def test_a_build_pushes_its_version_once(
    tmp_path: Path, config: dict[str, Any], server: HubServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    config |= {"name": "set"}
    with pytest.raises(ConfigError, match="needs a token with write access"):
        build_dataset(config)
    assert not (tmp_path / "out").exists()
    config["save"] |= {"hub_token": {"env": "MY_TOKEN"}, "hub_private": False}
    built = build_dataset(config)
    assert built.exports == (f"{server.endpoint}/datasets/{REPO}",)
    assert {"manifest.json", "data/train-00000-00.parquet"} < tree(server).keys()
    repo = server.repos[REPO]
    assert not repo.private and repo.refs["v1"] == repo.refs["main"]
    assert TOKEN.encode() not in b"".join(tree(server).values())
    commits = len(repo.commits)
    assert build_dataset(config).status == "exists" and len(repo.commits) == commits


def test_a_secret_and_a_stranger_stop_a_push(tmp_path: Path, server: HubServer):
    out = tmp_path / "out"
    save_dataset([{"id": 1}], out)
    (out / "_tokenlake" / "config.yaml").write_text("password: hf_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zZ12")
    with pytest.raises(ConfigError, match="looks like a secret"):
        push_directories({"x": out}, REPO)
    assert REPO not in server.repos
    (out / "_tokenlake" / "config.yaml").unlink()
    push_directories({"x": out}, "our-org/other", public=True)
    with pytest.raises(ConfigError, match="our-org/other is public"):
        push_directories({"x": out}, "our-org/other")
    server.repos["our-org/other"].commit({"theirs.txt": json.dumps("mine")})
    with pytest.raises(VersionConflictError, match=r"holds theirs.txt, which no flat directory"):
        push_directories({"x": out}, "our-org/other", public=True)


def test_what_lies_in_a_bucket_is_not_pushed(config: dict[str, Any]):
    config["save"]["output_dir"] = "ftp://host/out"
    with pytest.raises(Exception, match=r"ftp:// is not available"):
        Pipeline.from_config(config).source().save()
