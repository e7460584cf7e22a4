"""Saved rows and committed versions on a Hub of loopback, pushed by the options of
`save`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub_support import writable_hub
from tests.seeds import promise
from tests.servers.hub import TOKEN, HubServer
from tokenlake import Pipeline
from tokenlake.cli.app import main
from tokenlake.errors import ConfigError, VersionConflictError
from tokenlake.etl import build_dataset
from tokenlake.etl.export import FlatManifest, push_directories
from tokenlake.rowwise import save_dataset

# huggingface_hub's own call of its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "our-org/rows"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    yield from writable_hub(monkeypatch, tmp_path)


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> dict[str, Any]:
    (tmp_path / "texts.jsonl").write_text(
        '{"text": "a lake"}\n{"text": "holds water"}\n'
    )
    return {
        "datasets": [{"name": "texts", "data_files": str(tmp_path / "texts.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "save": {
            "output_dir": str(tmp_path / "out"),
            "push_to_hub": True,
            "hub_repo_id": REPO,
        },
    }


def tree(server: HubServer, repo: str = REPO) -> dict[str, bytes]:
    found = server.repos[repo]
    files = dict(found.commits[found.refs["main"]])
    files.pop(".gitattributes", None)
    return files


@promise(82, 83)
@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_a_pipeline_pushes_what_it_saved_once(
    tmp_path: Path, config: dict[str, Any], server: HubServer, format: str
):
    config["save"]["format"] = format
    rows = list(Pipeline.from_config(config).source().tokenize().save().build())
    assert len(rows) == 2 and server.repos[REPO].private
    out = tmp_path / "out"
    files = {
        path.relative_to(out).as_posix(): path
        for path in out.rglob("*")
        if path.is_file()
    }
    found = tree(server)
    card, told = (
        found.pop("README.md").decode(),
        json.loads(found.pop("croissant.json")),
    )
    hashes = {
        name: hashlib.sha256(data).hexdigest()
        for name, data in found.items()
        if "/" not in name
    }
    objects = [
        each for each in told["distribution"] if each["@type"] == "cr:FileObject"
    ]
    assert {each["contentUrl"]: each["sha256"] for each in objects} == hashes and told[
        "url"
    ].endswith(REPO)
    assert f'load_dataset("{REPO}", "default", split="train")' in card
    assert ("read_parquet" in card and "scan_parquet" in card) == (format == "parquet")
    assert found == {name: path.read_bytes() for name, path in files.items()}
    assert (
        f'path: ["train-00000-of-00001.{format}"]' in card
        and 'config_name: "default"' in card
    )
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
    assert {
        "more/train-00000-of-00001.parquet",
        "texts/_tokenlake/manifest.json",
    } < found.keys()
    assert '- config_name: "texts"' in found["README.md"].decode()


@promise(82, 83)
def test_a_build_pushes_its_version_once(
    tmp_path: Path,
    config: dict[str, Any],
    server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
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
    (out / "_tokenlake" / "config.yaml").write_text(
        "password: hf_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zZ12"
    )
    with pytest.raises(ConfigError, match="looks like a secret"):
        push_directories({"x": out}, REPO)
    assert REPO not in server.repos
    (out / "_tokenlake" / "config.yaml").unlink()
    push_directories({"x": out}, "our-org/other", public=True)
    with pytest.raises(ConfigError, match="our-org/other is public"):
        push_directories({"x": out}, "our-org/other")
    server.repos["our-org/other"].commit({"theirs.txt": json.dumps("mine")})
    with pytest.raises(
        VersionConflictError,
        match=r"holds theirs.txt, which were not pushed with a flat directory",
    ):
        push_directories({"x": out}, "our-org/other", public=True)


def test_what_lies_in_a_bucket_is_not_pushed(config: dict[str, Any]):
    config["save"]["output_dir"] = "ftp://host/out"
    with pytest.raises(Exception, match=r"ftp:// is not available"):
        Pipeline.from_config(config).source().save()


YAML = """
name: whole
seed: 42
streaming: true
default_tokenizer: TOKENIZER
datasets:
- {name: code, data_files: FOLDER/code.jsonl, type: json, save_path: FOLDER/out/code, save_format: jsonl}
- {name: text, data_files: FOLDER/text.jsonl, content_field: text, save_path: FOLDER/out/text, num_shards: 3}
tokenize: {max_length: 2048, remove_columns: [text]}
mix:
  weights: {code: 0.3, text: 0.7}
  block_size: 1000
  stop_strategy: restart
  total_rows: 50
  seed: 42
pack: {enabled: true, seq_length: 64, strategy: first_fit, num_packers: 4, include_segment_ids: true}
load: {batch_size: 8, prefetch_enabled: true, drop_last: true}
save:
  enabled: true
  output_dir: FOLDER/lake
  format: arrow
  num_shards: 4
  compression: lz4
  max_shard_size: 500MB
  overwrite: false
  push_to_hub: true
  hub_repo_id: our-org/whole
  hub_private: true
  hub_token: {env: HF_TOKEN}
"""


@promise(104)
def test_the_sections_of_the_seed_are_one_file(
    tmp_path: Path,
    tokenizer_dir: Path,
    server: HubServer,
    capsys: pytest.CaptureFixture[str],
):
    for name in ("code", "text"):
        lines = [json.dumps({"text": f"{name} {i} " * 9}) + "\n" for i in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    text = YAML.replace("TOKENIZER", str(tokenizer_dir)).replace(
        "FOLDER", str(tmp_path)
    )
    (tmp_path / "whole.yaml").write_text(text)
    command = ["run", str(tmp_path / "whole.yaml"), "--no-prefect", "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    lake = tmp_path / "lake" / "_exports" / "whole" / "v1"
    places = [tmp_path / "out" / "code", tmp_path / "out" / "text", lake]
    assert told["exports"] == [
        *map(str, places),
        f"{server.endpoint}/datasets/our-org/whole",
    ]
    rows = [FlatManifest.of(place) for place in places]
    assert [
        (one.format, one.compression, one.rows, len(one.files)) for one in rows[:2]
    ] == [
        ("jsonl", "none", 40, 4),
        ("arrow", "lz4", 40, 3),
    ]
    assert (rows[2].format, rows[2].compression, len(rows[2].files)) == (
        "arrow",
        "lz4",
        4,
    )
    assert rows[2].rows == told["totals"]["rows"] > 0
    assert server.repos["our-org/whole"].private
    assert (
        main(command) == 0 and json.loads(capsys.readouterr().out)["status"] == "exists"
    )


@promise(78, 79, 80)
def test_the_command_that_exports(
    tmp_path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    build_dataset(
        config | {"name": "set", "save": {"output_dir": str(tmp_path / "lake")}}
    )
    command = [
        "export",
        "set@v1",
        str(tmp_path / "out"),
        "--store",
        str(tmp_path / "lake"),
    ]
    assert (
        main(
            [
                *command,
                "--format",
                "jsonl",
                "--compression",
                "gzip",
                "--num-shards",
                "2",
            ]
        )
        == 0
    )
    assert "2 rows in" in capsys.readouterr().out
    assert len(list((tmp_path / "out").glob("*.jsonl.gz"))) == 2
    assert main([*command, "--split", "test"]) == 2
    assert main([*command, "--max-shard-size", "1MB"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([*command, "--max-shard-size", "1MB", "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_examples"] == 2
