"""What a build makes beside its version: flat directories, once, whole, of the
committed rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from tests.builds import Config
from tests.rowwise.sharded_support import check_flat
from tests.seeds import promise
from tokenlake import Catalog, export_version, verify
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl import build_dataset, finished_build
from tokenlake.etl.export import FlatManifest
from tokenlake.rowwise import (
    ArrowShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
)
from tokenlake.runtime.loader import open as open_dataset
from tokenlake.runtime.store import collect, open_store

READERS = {
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "jsonl": JsonShardedSource,
}


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> Config:
    """Two sources of thirty documents each."""
    for name in ("code", "web"):
        lines = [
            json.dumps({"text": f"{name} {i}: " + "a lake holds water. " * (i % 5)})
            for i in range(30)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "name": "set",
        "datasets": [
            {"name": name, "data_files": str(tmp_path / f"{name}.jsonl")}
            for name in ("code", "web")
        ],
        "default_tokenizer": str(tokenizer_dir),
        "save": {"output_dir": str(tmp_path / "store")},
    }


def stored(tmp_path: Path, name: str = "set") -> list[list[int]]:
    with open_dataset(tmp_path / "store" / name) as rows:
        return rows.read(0, len(rows)).column("input_ids").to_pylist()


def flat(folder: Path | str) -> list[list[int]]:
    """The ids of a flat directory, read by our own sources."""
    check_flat(Path(folder))
    manifest = FlatManifest.of(folder)
    files = [f"{folder}/{file.path}" for file in manifest.files]
    return [list(row["input_ids"]) for row in READERS[manifest.format](files)]


def listing(folder: Path) -> dict[str, int]:
    return {
        str(path): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


@promise(72, 73, 74, 77, 78)
def test_another_format_is_an_export_beside_the_version(tmp_path: Path, config: Config):
    plain, whole = build_dataset(config), stored(tmp_path)
    others = {
        "arrow": (None, "lz4"),
        "jsonl": (None, "gzip", "lz4"),
        "parquet": ("none", "gzip"),
    }
    for format, compression in [
        (name, each) for name, some in others.items() for each in some
    ]:
        config["save"] |= {"format": format, "compression": compression}
        built = build_dataset(config)
        assert (built.status, built.manifest.fingerprint) == (
            "exists",
            plain.manifest.fingerprint,
        )
        assert built.exports == (str(tmp_path / "store" / "_exports" / "set" / "v1"),)
        [folder] = built.exports
        assert flat(folder) == whole
        manifest = FlatManifest.of(folder)
        assert (manifest.format, manifest.compression) == (
            format,
            compression or "none",
        )
    store = open_store(tmp_path / "store")  # a store with exports is a store
    assert Catalog(store).datasets() == ["set"] and verify(store, "set", 1).ok
    assert not collect(store, grace=0).removed


@promise(76, 78)
def test_codecs_of_parquet_are_what_was_asked_for(tmp_path: Path, config: Config):
    for compression, codec in {
        "none": "UNCOMPRESSED",
        "gzip": "GZIP",
        "lz4": "LZ4",
        "zstd": "ZSTD",
    }.items():
        config["datasets"][0]["save_path"] = str(tmp_path / compression)
        config["save"]["compression"] = compression
        build_dataset(config)
        [file] = (tmp_path / compression).glob("*.parquet")
        group = pq.read_metadata(file).row_group(0)
        assert {group.column(i).compression for i in range(group.num_columns)} == {
            codec
        }


def test_a_store_may_be_named_by_a_url(tmp_path: Path, config: Config):
    config["save"] = {"output_dir": (tmp_path / "store").as_uri(), "format": "jsonl"}
    assert flat(build_dataset(config).exports[0]) == stored(tmp_path)


@promise(36, 37, 43, 164, 166)
def test_each_source_goes_alone_to_its_save_path(tmp_path: Path, config: Config):
    config["datasets"][0] |= {
        "save_path": str(tmp_path / "out" / "code"),
        "num_shards": 5,
    }
    config["datasets"][1] |= {
        "save_path": str(tmp_path / "out" / "web"),
        "save_format": "arrow",
    }
    built = build_dataset(config)
    assert built.exports == (
        str(tmp_path / "out" / "code"),
        str(tmp_path / "out" / "web"),
    )
    code, web = map(flat, built.exports)
    assert code + web == stored(tmp_path) and len(code) == len(web) == 30
    assert len(list((tmp_path / "out" / "code").glob("*.parquet"))) == 5
    assert [
        path.suffix for path in (tmp_path / "out" / "web").iterdir() if path.is_file()
    ] == [".arrow"]


@promise(36)
def test_where_sources_are_mixed_their_tokens_before_that_are_exported(
    tmp_path: Path, config: Config
):
    config["mix"] = {
        "weights": {"code": 0.5, "web": 0.5},
        "stop_strategy": "all_exhausted",
    }
    config["pack"] = {"enabled": True, "seq_length": 32}
    config["save"]["format"] = "arrow"
    config["datasets"][1]["save_path"] = str(tmp_path / "web")
    built = build_dataset(config)
    assert flat(tmp_path / "web") == stored(tmp_path, "set.web.tokens")
    assert flat(tmp_path / "store" / "_exports" / "set" / "v1") == stored(tmp_path)
    assert (
        len(built.exports) == 2
        and not (tmp_path / "store" / "_exports" / "set.web.tokens").exists()
    )


def test_a_second_run_leaves_exports_as_they_are_and_makes_those_that_are_missing(
    tmp_path: Path, config: Config
):
    config["datasets"][0]["save_path"] = str(tmp_path / "code")
    config["save"]["format"] = "jsonl"
    build_dataset(config)
    before = listing(tmp_path / "code") | listing(tmp_path / "store" / "_exports")
    assert finished_build(config) is None
    build_dataset(config)
    assert (
        listing(tmp_path / "code") | listing(tmp_path / "store" / "_exports") == before
    )
    whole = flat(tmp_path / "code")
    next((tmp_path / "code").glob("*.jsonl")).unlink()
    build_dataset(config)
    assert flat(tmp_path / "code") == whole


@promise(80, 81)
def test_what_is_not_ours_is_refused_before_anything_is_built(
    tmp_path: Path, config: Config
):
    out = tmp_path / "code"
    out.mkdir()
    (out / "theirs.parquet").write_bytes(b"theirs")
    config["datasets"][0]["save_path"] = str(out)
    with pytest.raises(
        ConfigError,
        match=r"datasets.code.save_path: .* is not empty \(it holds 'theirs",
    ):
        build_dataset(config)
    assert not (tmp_path / "store").exists()
    config["save"]["overwrite"] = True
    build_dataset(config)
    assert not (out / "theirs.parquet").exists() and len(flat(out)) == 30


def test_an_export_follows_its_dataset_to_the_next_version(
    tmp_path: Path, config: Config
):
    out = tmp_path / "code"
    config["datasets"][0]["save_path"] = str(out)
    build_dataset(config)
    with (tmp_path / "code.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    assert build_dataset(config).version == 2
    assert len(flat(out)) == 31
    assert FlatManifest.of(out).made_of["export"]["version"] == 2


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("out", "out"), "lies in"),
        (("out", "out/web"), "datasets.web.save_path: .* lies in"),
        ((".", None), "holds the store"),
    ],
)
def test_targets_lie_apart(
    tmp_path: Path, config: Config, paths: tuple[str | None, ...], message: str
):
    for dataset, path in zip(config["datasets"], paths, strict=True):
        dataset["save_path"] = path and str(tmp_path / path)
    with pytest.raises(ConfigError, match=message):
        build_dataset(config)


def test_an_option_of_an_export_that_there_is_not_is_refused(config: Config):
    config["datasets"][0]["save_format"] = "arrow"
    with pytest.raises(
        ConfigError, match="save_format: 'arrow', but there is no save_path"
    ):
        build_dataset(config)
    config["save"] |= {"format": "arrow", "compression": "gzip"}
    with pytest.raises(
        ConfigError, match="compression of format 'arrow' is 'gzip', expected one of"
    ):
        build_dataset(config)


@promise(193, 194)
def test_an_export_says_what_it_is_made_of(tmp_path: Path, config: Config):
    config["datasets"][0]["save_path"] = str(tmp_path / "code")
    built = build_dataset(config)
    manifest = FlatManifest.of(tmp_path / "code")
    made_of = manifest.made_of
    assert manifest.kind == "tokens" and manifest.rows == 30
    assert made_of["fingerprint"] == built.manifest.fingerprint
    assert (
        made_of["config"] == built.manifest.config
        and made_of["tokenizer"] == built.manifest.tokenizer
    )
    assert [entry["path"] for entry in made_of["inputs"]] == [
        one.path for one in built.manifest.inputs
    ]
    assert made_of["export"]["manifest"] == built.manifest.sha256
    assert (tmp_path / "code" / "_tokenlake" / "config.yaml").is_file()
    assert (tmp_path / "code" / "_tokenlake" / "tokenizer" / "tokenizer.json").is_file()


@promise(79, 195)
@pytest.mark.parametrize("format", READERS)
def test_small_files_are_small(tmp_path: Path, config: Config, format: str):
    config["pack"] = {"enabled": True, "seq_length": 16}
    config["datasets"][0]["save_path"] = str(tmp_path / "code")
    size = 3 << 10
    config["save"] |= {"format": format, "max_shard_size": size}
    build_dataset(config)
    sizes = [file.bytes for file in FlatManifest.of(tmp_path / "code").files]
    assert len(sizes) > 1 and max(sizes) <= size


@promise(191)
def test_packed_rows_get_the_mask_of_their_padding(tmp_path: Path, config: Config):
    config["pack"] = {"enabled": True, "seq_length": 16}
    config["save"]["format"] = "arrow"
    [folder] = build_dataset(config).exports
    [file] = Path(folder).glob("*.arrow")
    rows: Any = ipc.open_file(file).read_all()
    assert [str(field.type.value_type) for field in rows.schema] == ["int32", "int32"]
    manifest = Catalog(open_store(tmp_path / "store")).manifest("set", 1)
    assert sum(map(sum, rows["attention_mask"].to_pylist())) == manifest.totals.tokens


class TestExportVersion:
    def test_one_split_as_lines(self, tmp_path: Path, config: Config):
        config["source"] = {"splits": {"train": 0.5, "test": 0.5}}
        build_dataset(config)
        both = export_version(
            tmp_path / "store" / "set@v1", tmp_path / "both", "jsonl", num_shards=2
        )
        one = export_version(
            tmp_path / "store" / "set", tmp_path / "one", split="test", provenance=True
        )
        assert both.num_examples == 60 and both.num_shards == 4
        assert 0 < one.num_examples < 60
        assert {"file", "position"} <= set(pq.read_schema(one.output_paths[0]).names)
        with pytest.raises(
            ConfigError,
            match=r"split: set@v1 has no 'dev'; expected one of test, train",
        ):
            export_version(tmp_path / "store" / "set", tmp_path / "none", split="dev")

    def test_again_is_nothing_and_otherwise_is_refused(
        self, tmp_path: Path, config: Config
    ):
        build_dataset(config)
        args = (tmp_path / "store" / "set", tmp_path / "out")
        first = export_version(*args, "jsonl")
        before = listing(tmp_path / "out")
        assert (
            export_version(*args, "jsonl") == first
            and listing(tmp_path / "out") == before
        )
        with pytest.raises(ConfigError, match="is not empty"):
            export_version(*args, "arrow")
        export_version(*args, "arrow", overwrite=True)
        assert FlatManifest.of(tmp_path / "out").format == "arrow"

    def test_damage_leaves_no_export(self, tmp_path: Path, config: Config):
        build_dataset(config)
        [shard, *_] = sorted((tmp_path / "store" / "set" / "v1" / "data").iterdir())
        data = bytearray(shard.read_bytes())
        data[60] ^= 1
        shard.chmod(0o600)
        shard.write_bytes(data)
        with pytest.raises(IntegrityError):
            export_version(tmp_path / "store" / "set", tmp_path / "out")
        assert not (tmp_path / "out").exists()


@promise(42)
def test_each_value_of_a_column_has_files_of_its_own(tmp_path: Path, config: Config):
    values = ["en", "zh-CN", None, "a/b", "~null"]
    lines = [
        json.dumps({"text": f"document {i}", "lang": values[i % 5], "n": [i]})
        for i in range(40)
    ]
    (tmp_path / "code.jsonl").write_text("\n".join(lines) + "\n")
    dataset = config["datasets"][0] | {
        "additional_fields": ["lang", "n"],
        "save_path": str(tmp_path / "out"),
        "shard_column": "lang",
        "splits": {"train": 0.5, "test": 0.5},
    }
    config |= {"datasets": [dataset]}
    built = build_dataset(config)
    check_flat(tmp_path / "out")
    found: dict[Any, list[Any]] = {}
    names: dict[Any, set[str]] = {}
    for file in FlatManifest.of(tmp_path / "out").files:
        rows = pq.read_table(tmp_path / "out" / file.path).to_pylist()
        [value] = {row["lang"] for row in rows}
        found.setdefault((file.split, value), []).extend(
            (row["input_ids"], row["n"]) for row in rows
        )
        names.setdefault(value, set()).add(
            file.path.removeprefix(f"{file.split}-").rpartition("-0")[0]
        )
    expected: dict[Any, list[Any]] = {}
    for split in built.manifest.splits:
        with open_dataset(tmp_path / "store" / "set", split=split) as rows:
            table = rows.read(0, len(rows))
        for row in table.to_pylist():
            expected.setdefault((split, row["lang"]), []).append(
                (row["input_ids"], row["n"])
            )
    assert found == expected  # each row once, where its value says, and in order
    assert {value: name for value, [name] in names.items()} == {
        "en": "lang=en-00000-of",
        "zh-CN": "lang=zh-CN-00000-of",
        None: "lang=~null-00000-of",
        "a/b": "lang=a%2Fb-00000-of",
        "~null": "lang=%7Enull-00000-of",
    }
    before = listing(tmp_path / "out")
    build_dataset(config)
    assert listing(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"save_path": None}, "but there is no save_path"),
        ({"additional_fields": ["n"]}, "not one of additional_fields"),
        ({"num_shards": 3}, "together with num_shards"),
    ],
)
def test_files_by_value_need_a_folder_and_their_column(
    tmp_path: Path, config: Config, more: dict[str, Any], message: str
):
    dataset = {
        "save_path": str(tmp_path / "out"),
        "shard_column": "lang",
        "additional_fields": ["lang"],
    }
    config["datasets"][0] |= dataset | more
    with pytest.raises(
        ConfigError, match=rf"datasets\.code\.shard_column: .*{message}"
    ):
        build_dataset(config)
    assert not (tmp_path / "store").exists()


def test_files_by_value_are_few_and_of_values_that_are_names(
    tmp_path: Path, config: Config
):
    lines = [json.dumps({"text": "text", "id": i, "n": [i]}) for i in range(257)]
    (tmp_path / "code.jsonl").write_text("\n".join(lines) + "\n")
    config["datasets"] = [config["datasets"][0] | {"additional_fields": ["id", "n"]}]
    build_dataset(config)
    store = tmp_path / "store" / "set"
    for more, message in (
        ({"shard_column": "id"}, "more than 256 values"),
        ({"shard_column": "n"}, "a column of list"),
        ({"shard_column": "lang"}, "must be one of input_ids"),
        ({"shard_column": "id", "num_shards": 3}, "set beside num_shards 3"),
        ({"shard_column": "id", "naming": "{index}"}, "naming: "),
    ):
        with pytest.raises(ConfigError, match=message):
            export_version(store, tmp_path / "out", **more)
        assert not (tmp_path / "out").exists()
