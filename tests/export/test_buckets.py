"""Flat directories in buckets: whole with a manifest, unfinished without, and nobody
else's objects are replaced.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.etl.remote_builds_support import Bucket, bucket
from tests.seeds import promise
from tests.servers.s3 import KEY, SECRET
from tokenlake import Pipeline, export_version, load_config, tokenize_and_save
from tokenlake.cli.app import main
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError, StoreError
from tokenlake.etl import build_dataset
from tokenlake.etl.export import FlatManifest
from tokenlake.etl.sources import list_inputs
from tokenlake.rowwise import ParquetShardedSource, create_writer, save_dataset
from tokenlake.runtime.store import open_store

ROWS = [{"id": i} for i in range(10)]


@pytest.fixture(scope="module", params=["gs"])
def where(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    with pytest.MonkeyPatch.context() as patch, bucket(request.param) as served:
        patch.setenv("TOKENLAKE_SCRATCH", str(tmp_path_factory.mktemp("scratch")))
        patch.setenv("LAKE_KEY", KEY)
        patch.setenv("LAKE_SECRET", SECRET)
        patch.setenv(
            "TOKENLAKE_STORE_OPTIONS", json.dumps(dict(served.address("x").options))
        )
        yield served


def listed(where: Bucket, prefix: str) -> set[str]:
    return {name for name in where.everything(prefix) if not name.startswith("_probe")}


@promise(185)
@pytest.mark.parametrize("where", ["s3", "gs"], indirect=True)
def test_what_is_saved_there_reads_back(where: Bucket):
    url = where.address("saved").url
    stats = save_dataset(ROWS, url, num_shards=2)
    assert stats.output_paths == [
        f"{url}/train-0000{i}-of-00002.parquet" for i in range(2)
    ]
    names = {
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
        "_tokenlake/manifest.json",
    }
    assert listed(where, "saved") == names
    options = where.address("saved").options
    assert (
        list(ParquetShardedSource(stats.output_paths, storage_options=dict(options)))
        == ROWS
    )
    with pytest.raises(
        ConfigError,
        match=r"saved is not empty \(it holds rows that Tokenlake saved, in format",
    ):
        save_dataset(ROWS, url)
    where.put("saved", {"notes.txt": b"mine"})
    save_dataset(iter(ROWS[:3]), url, "jsonl", overwrite=True)
    assert listed(where, "saved") == {
        "notes.txt",
        "train-00000-of-00001.jsonl",
        "_tokenlake/manifest.json",
    }
    manifest = FlatManifest.from_bytes(
        where.everything("saved")["_tokenlake/manifest.json"]
    )
    assert manifest.rows == 3


def test_an_interrupted_one_has_no_manifest_and_is_made_again(
    where: Bucket, monkeypatch: pytest.MonkeyPatch
):
    url = where.address("broken").url
    bucket_store: Any = type(open_store(where.address("broken")))
    publish = bucket_store.publish

    def broken(self: Any, temp: Path, key: str, *rest: Any, **options: Any) -> Any:
        if key == "_tokenlake/manifest.json":
            raise StoreError("the line is cut")
        return publish(self, temp, key, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bucket_store, "publish", broken)
        with pytest.raises(StoreError, match="the line is cut"):
            save_dataset(ROWS, url)
    assert listed(where, "broken") == {
        "train-00000-of-00001.parquet",
        "_tokenlake/unfinished",
    }
    save_dataset(ROWS, url, "jsonl")
    assert listed(where, "broken") == {
        "train-00000-of-00001.jsonl",
        "_tokenlake/manifest.json",
    }


def test_an_error_leaves_nothing(where: Bucket):
    url = where.address("nothing").url
    with pytest.raises(ZeroDivisionError), create_writer(url) as writer:
        writer.add({"id": 1})
        raise ZeroDivisionError
    assert not listed(where, "nothing")


@promise(165, 185)
def test_every_road_goes_there(where: Bucket, tmp_path: Path, tokenizer_dir: Path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "a lake"}\n{"text": "holds water"}\n')
    flat = tokenize_and_save(
        str(data), str(tokenizer_dir), where.address("tokenized").url
    )
    dataset = {
        "name": "texts",
        "data_files": str(data),
        "save_path": where.address("pipeline").url,
    }
    config: dict[str, Any] = {
        "datasets": [dataset],
        "default_tokenizer": str(tokenizer_dir),
    }
    rows = list(Pipeline.from_config(config).source().tokenize().save().build())
    dataset["save_path"] = where.address("built").url
    built = build_dataset(
        config | {"name": "set", "save": {"output_dir": str(tmp_path / "store")}}
    )
    options = dict(where.address("x").options)
    for prefix, paths in {
        "tokenized": flat.output_paths,
        "pipeline": None,
        "built": None,
    }.items():
        files = paths or [f"{where.address(prefix).url}/train-00000-of-00001.parquet"]
        found = list(ParquetShardedSource(files, storage_options=options))
        assert [list(row["input_ids"]) for row in found] == [
            list(row["input_ids"]) for row in rows
        ]
        manifest = FlatManifest.from_bytes(
            where.everything(prefix)["_tokenlake/manifest.json"]
        )
        assert (
            manifest.kind == "tokens"
            and {"config", "tokenizer", "inputs"} <= manifest.made_of.keys()
        )
        assert {
            "_tokenlake/config.yaml",
            "_tokenlake/tokenizer/tokenizer.json",
        } <= listed(where, prefix)
    assert built.exports == (where.address("built").url,)


def test_a_build_in_a_bucket_exports_beside_itself(
    where: Bucket, tmp_path: Path, tokenizer_dir: Path
):
    (tmp_path / "texts.jsonl").write_text('{"text": "a lake"}\n')
    address = where.address("lake")
    config = {
        "name": "set",
        "datasets": [{"name": "texts", "data_files": str(tmp_path / "texts.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "save": {
            "output_dir": address.url,
            "storage_options": dict(address.options),
            "format": "jsonl",
        },
    }
    assert build_dataset(config).exports == (f"{address.url}/_exports/set/v1",)
    before = where.everything("lake/_exports")
    assert "set/v1/train-00000-of-00001.jsonl" in before
    assert (
        build_dataset(config).status == "exists"
        and where.everything("lake/_exports") == before
    )


def test_folders_of_splits_are_written_and_replaced(
    where: Bucket, tmp_path: Path, tokenizer_dir: Path
):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(20))
    )
    config = {
        "name": "set",
        "datasets": [{"name": "a", "data_files": str(tmp_path / "a.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "save": {"output_dir": str(tmp_path / "store")},
    }
    build_dataset(config, workers=0)
    url = where.address("trainers").url
    stats = export_version(tmp_path / "store" / "set", url, "mds", num_shards=2)
    data_files = {"train/shard.00000.mds", "train/shard.00001.mds", "train/index.json"}
    assert {path.removeprefix(f"{url}/") for path in stats.output_paths} == data_files
    assert {
        name for name in listed(where, "trainers") if not name.startswith("_tokenlake/")
    } == data_files
    assert export_version(tmp_path / "store" / "set", url, "mds", num_shards=2) == stats
    # Files of the previous format go, and those of others stay.
    where.put("trainers", {"train/mine.txt": b"mine", "model.bin": b"mine"})
    export_version(tmp_path / "store" / "set", url, "numpy", overwrite=True)
    names = {
        name for name in listed(where, "trainers") if not name.startswith("_tokenlake/")
    }
    assert names == {
        "train.bin",
        "train.csv.gz",
        "metadata.json",
        "train/mine.txt",
        "model.bin",
    }


def test_an_export_in_a_bucket_is_compared_verified_and_imported(
    where: Bucket,
    tmp_path: Path,
    tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(40))
    )
    store = tmp_path / "store"
    config = {
        "name": "set",
        "datasets": [{"name": "a", "data_files": str(tmp_path / "a.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "source": {"splits": {"train": 0.5, "validation": 0.5}},
        "save": {"output_dir": str(store)},
    }
    build_dataset(config, workers=0)
    url = where.address("again").url
    export_version(store / "set", url, "jsonl")
    before = where.everything("again")
    # Sizes are compared by a listing, and hashes on request.
    assert export_version(store / "set", url, "jsonl").compared == "sizes"
    assert tl.verify_export(url).ok
    name = "validation-00000-of-00001.jsonl"
    content = before[name]
    where.put("again", {name: content.replace(b"1", b"2")})
    assert export_version(store / "set", url, "jsonl").compared == "sizes"
    [problem] = tl.verify_export(url).problems
    assert (problem.path, problem.problem) == (name, "sha256")
    assert main(["verify", url]) == 3
    assert export_version(store / "set", url, "jsonl", overwrite=True).compared == ""
    assert where.everything("again") == before
    # All splits are imported; a file of another size is refused.
    arguments = ["import", url, "--tokenizer", str(tokenizer_dir), "--format", "jsonl"]
    capsys.readouterr()
    assert main([*arguments, "--print-config"]) == 0
    datasets = json.loads(capsys.readouterr().out)["datasets"]
    assert [dataset["split"] for dataset in datasets] == ["train", "validation"]
    where.put("again", {name: content[:-1]})
    assert main([*arguments, "--print-config"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert f"{name} has {len(content) - 1} bytes, expected" in message


@pytest.mark.parametrize("files", ["", "/train-*.array_record"])
def test_records_of_array_record_are_imported_from_a_bucket(
    tmp_path: Path, where: Bucket, tokenizer_dir: Path, files: str
):
    """The package reads local files alone: a shard is copied, and its copy goes."""
    pytest.importorskip("array_record.python.array_record_module")
    table = {"input_ids": [[1, 2, 3], [4], [5, 6]]}
    pq.write_table(pa.table(table), tmp_path / "ids.parquet")
    store = tmp_path / "store"
    tl.import_tokens(
        tmp_path / "ids.parquet",
        tokenizer=tokenizer_dir,
        format="parquet",
        name="ids",
        store=store,
        workers=1,
    )
    address = where.address(f"records{len(files)}")
    options = dict(address.options)
    export_version(
        store / "ids", address.url, "array_record", num_shards=2, output_options=options
    )
    copies_before = set(Path(tempfile.gettempdir()).glob("*.array_record"))
    config = {
        "name": "again",
        "datasets": [
            {
                "name": "records",
                "data_files": address.url + files,
                "type": "array_record",
                "tokens": {},
                "storage_options": options,
            }
        ],
        "default_tokenizer": str(tokenizer_dir),
        "save": {"output_dir": str(store)},
    }
    build_dataset(config, workers=0)
    with tl.open(store / "again") as rows:
        assert (
            rows.read(0, len(rows)).column("input_ids").to_pylist()
            == table["input_ids"]
        )
    assert set(Path(tempfile.gettempdir()).glob("*.array_record")) == copies_before


FILES_BESIDE = {
    "megatron": (["train.idx"], "train.bin", "tr*.bin"),
    "numpy": (["metadata.json", "train.csv.gz"], "train.bin", "train*.bin"),
    "npy": (["metadata.json", "train.csv.gz"], "train.npy", "*.npy"),
    "litdata": (["train/index.json"], "train/chunk-0-0.bin", "**/chunk-*.bin"),
    "array_record": (
        ["metadata.json"],
        "train-00000-of-00001.array_record",
        "*.array_record",
    ),
}
"""Format -> files that belong to its files of ids, such a file, and a glob of them."""


@pytest.mark.parametrize("where", ["s3", "gs"], indirect=True)
@pytest.mark.parametrize("format", FILES_BESIDE)
def test_files_beside_the_ids_are_found_for_a_file_and_a_glob(
    tmp_path: Path, where: Bucket, tokenizer_dir: Path, format: str
):
    if format == "array_record":
        pytest.importorskip("array_record.python.array_record_module")
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4]]}), tmp_path / "ids.parquet")
    tl.import_tokens(
        tmp_path / "ids.parquet",
        tokenizer=tokenizer_dir,
        format="parquet",
        name="ids",
        store=tmp_path / "store",
        workers=1,
    )
    export_version(tmp_path / "store" / "ids", tmp_path / "out", format)
    contents: dict[str, bytes] = {}
    for path in (tmp_path / "out").rglob("*"):
        name = path.relative_to(tmp_path / "out").as_posix()
        if path.is_file() and not name.startswith("_"):
            contents[name] = path.read_bytes()
    # Files of another kind beside them are none of theirs.
    contents |= {"notes.txt": b"mine", "other.csv.gz": b"mine", "other.idx": b"mine"}
    address = where.address(f"beside-{format}")
    where.put(f"beside-{format}", contents)
    for name in ("notes.txt", "other.csv.gz", "other.idx"):
        (tmp_path / "out" / name).write_bytes(b"mine")

    beside, file, glob = FILES_BESIDE[format]
    places: dict[str, dict[str, Any]] = {
        f"{address.url}/": {"storage_options": dict(address.options)},
        f"{tmp_path}/out/": {},
    }
    for place, options in places.items():
        for entry in (file, glob):
            dataset = {
                "name": "ids",
                "data_files": place + entry,
                "type": "numpy" if format == "npy" else format,
                "tokens": {},
                **options,
            }
            config = {
                "name": "again",
                "datasets": [dataset],
                "default_tokenizer": str(tokenizer_dir),
                "save": {"output_dir": str(tmp_path / "again")},
            }
            [source] = resolve(load_config(config)).sources
            files = list_inputs(source)
            urls = [listed_file.url.removeprefix(place) for listed_file in files]
            assert urls == sorted([*beside, file]), entry
            [data_file] = [item for item in files if not item.companion]
            companions = [item.url for item in data_file.companions]
            assert sorted(companions) == [place + name for name in beside]
