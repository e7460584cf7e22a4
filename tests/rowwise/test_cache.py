"""Tokens that are kept on disk: made once, the same rows either way, and never those
of something else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partialmethod
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.rowwise.pipeline_support import texts, write_jsonl, written
from tests.rowwise.sharded_support import Plain, numbered
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake.base.cache import DatasetCache, DiskCache, TreeCacheManager
from tokenlake.errors import ConfigError, SourceError
from tokenlake.etl.tokenizers import Encoder
from tokenlake.rowwise import Numbered, Row, ShardedDataSource
from tokenlake.rowwise.cached_tokens import CachedShardedSource


class Gaps(ShardedDataSource):
    """Rows of tokens in two shards, with gaps in their numbers; counts what is
    drawn, and may break.
    """

    def __init__(self, rows: int = 50, breaks: int | None = None) -> None:
        self.rows, self.breaks, self.drawn = rows, breaks, 0

    @property
    def shard_names(self) -> tuple[str, ...]:
        return ("a", "b")

    @property
    def every_row(self) -> bool:
        return False

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return (row for _, row in self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        if row > 3 * self.rows:
            raise ConfigError("beyond its end")
        for number in range(0, 3 * self.rows, 3):
            if number < row:
                continue
            if number == self.breaks:
                raise SourceError("broken")
            self.drawn += 1
            ids = np.arange(number, number + 1 + number % 5, dtype=np.int32)
            yield (
                number,
                {
                    "input_ids": ids,
                    "loss_mask": ids % 2 == 0,
                    "tags": {"n": [number]},
                    "s": shard_name,
                },
            )


def kept_in(folder: Path, source: ShardedDataSource) -> CachedShardedSource:
    return CachedShardedSource(source, DatasetCache(folder), str)


def plain(rows: Any) -> list[Any]:
    return [
        (n, {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()})
        for n, row in rows
    ]


def test_rows_are_read_once_and_are_the_same_afterwards(tmp_path: Path):
    inner = Gaps()
    source = kept_in(tmp_path / "kept", inner)
    first = {name: list(source.open_shard_numbered(name)) for name in "ab"}
    assert inner.drawn == 100
    again = {name: list(source.open_shard_numbered(name)) for name in "ab"}
    assert inner.drawn == 100
    for name in "ab":
        assert (
            plain(first[name])
            == plain(again[name])
            == plain(Gaps().open_shard_numbered(name))
        )
    kinds = {
        key: getattr(value, "dtype", None) for key, value in again["a"][4][1].items()
    }
    assert kinds == {
        "input_ids": np.int32,
        "loss_mask": np.bool_,
        "tags": None,
        "s": None,
    }


def test_any_row_can_be_opened_before_and_after(tmp_path: Path):
    source = kept_in(tmp_path / "kept", Gaps(20))
    for _ in range(2):
        for row in (1, 3, 30, 57, 58, 60):
            assert plain(source.open_shard_numbered("a", row)) == plain(
                Gaps(20).open_shard_numbered("a", row)
            )
        with pytest.raises(ConfigError, match="beyond its end"):
            numbered(source, "a", 61)
        list(source)


def test_a_reading_that_stops_early_keeps_nothing(tmp_path: Path):
    inner = Gaps()
    source = kept_in(tmp_path / "kept", inner)
    rows = source.open_shard("a")
    assert len(list(islice(rows, 10))) == 10
    del rows
    assert list(tmp_path.rglob("*.entry")) == []
    with pytest.raises(SourceError, match="broken"):
        list(kept_in(tmp_path / "kept", Gaps(breaks=60)))
    assert list(tmp_path.rglob("*.entry")) == []
    assert len(list(source)) == 100


def test_where_nothing_can_be_written_rows_come_all_the_same(tmp_path: Path):
    (tmp_path / "file").write_text("")
    source = kept_in(tmp_path / "file" / "kept", Gaps())
    assert len(list(source)) == 100


def test_what_json_does_not_have_is_an_error(tmp_path: Path):
    source = kept_in(
        tmp_path / "kept", Plain({"a": [{"input_ids": [1], "x": object()}]})
    )
    with pytest.raises(
        ConfigError, match="a kept field contains a value that JSON does not support"
    ):
        list(source)
    assert list(tmp_path.rglob("*.entry")) == []


def test_numbers_come_back_as_they_are(tmp_path: Path):
    numbers = [2**70, -(2**64), 2**63, 1.5, float("inf"), [{"n": 10**40}], "1e999"]
    rows = [{"input_ids": [1], "x": number} for number in numbers]
    source = kept_in(tmp_path / "kept", Plain({"a": rows}))
    assert [row["x"] for row in source] == numbers  # as they come
    assert [row["x"] for row in source] == numbers  # from the cache


# In a pipeline


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How many texts were tokenized, call by call."""
    calls: list[int] = []
    encode = Encoder.encode

    def counting(self: Encoder, text: Any) -> Any:
        calls.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Encoder, "encode", counting)
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))
    return calls


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(sentencepiece(), tmp_path_factory.mktemp("llama"))


@pytest.fixture
def config(tmp_path: Path, tokenizer: str) -> dict[str, Any]:
    path = write_jsonl(tmp_path / "data" / "rows.jsonl", texts(40))
    return {
        "datasets": [{"name": "a", "data_files": str(path)}],
        "default_tokenizer": tokenizer,
        "tokenize": {"cache_tokenized": True, "max_length": 12},
    }


def ids(config: dict[str, Any], *stages: str, **more: Any) -> list[list[int]]:
    pipeline = tl.Pipeline.from_config(config | more).source().tokenize()
    for stage in stages:
        getattr(pipeline, stage)()
    return [row["input_ids"].tolist() for row in pipeline.build()]


@promise(49)
def test_a_second_run_does_not_tokenize_again(
    config: dict[str, Any], encoded: list[int], tmp_path: Path
):
    first = ids(config)
    assert sum(encoded) == 40
    assert ids(config) == first
    assert sum(encoded) == 40
    assert list((tmp_path / "cache" / "tokens").rglob("*.entry"))


@pytest.mark.filterwarnings("ignore:.*more than were kept:RuntimeWarning")
@pytest.mark.parametrize(
    "change",
    [
        {"tokenize": {"cache_tokenized": True, "max_length": 5}},
        {
            "tokenize": {
                "cache_tokenized": True,
                "max_length": 12,
                "remove_columns": ["text"],
            }
        },
        {"pack": {"enabled": True, "seq_length": 32}},
    ],
)
def test_other_settings_are_other_tokens(
    config: dict[str, Any], encoded: list[int], change: dict[str, Any]
):
    expected = ids(
        config | change,
        tokenize=(config | change)["tokenize"] | {"cache_tokenized": False},
    )
    ids(config)
    before = sum(encoded)
    assert ids(config | change) == expected
    assert sum(encoded) == before + 40


def test_a_changed_file_is_tokenized_again(config: dict[str, Any], encoded: list[int]):
    ids(config)
    path = Path(config["datasets"][0]["data_files"])
    path.write_text(path.read_text().replace("word", "turn"))
    os.utime(path, ns=(1, 1))
    changed = ids(config)
    assert sum(encoded) == 80
    assert changed == ids(config, tokenize={"max_length": 12})


@promise(32, 34)
def test_a_cache_path_is_where_a_dataset_is_kept(
    config: dict[str, Any], encoded: list[int], tmp_path: Path
):
    dataset = config["datasets"][0] | {"cache_path": str(tmp_path / "own")}
    for _ in range(2):
        ids(config, datasets=[dataset], tokenize={})
    assert sum(encoded) == 40
    assert list((tmp_path / "own").rglob("*.entry"))
    ids(config, datasets=[dataset | {"cache_enabled": False}], tokenize={})
    ids(config, datasets=[dataset], tokenize={"cache_tokenized": False})
    assert sum(encoded) == 120


def test_what_a_lambda_makes_is_not_kept(
    config: dict[str, Any], encoded: list[int], tmp_path: Path
):
    dataset = config["datasets"][0] | {
        "format_callback": lambda row: row,
        "cache_path": str(tmp_path / "own"),
    }
    with pytest.raises(ConfigError, match="the rows of 'a' cannot be cached"):
        ids(config, datasets=[dataset])
    ids(config, datasets=[dataset], tokenize={})
    assert not (tmp_path / "own").exists()


# The section `cache`


@promise(235, 236, 156, 34)
@pytest.mark.parametrize("kind", ["memory", "disk", "hierarchical"])
def test_the_section_says_where_tokens_are_kept(
    config: dict[str, Any], encoded: list[int], tmp_path: Path, kind: str
):
    config |= {
        "tokenize": {"max_length": 12},
        "cache": {"cache_type": kind, "cache_dir": str(tmp_path / "own")},
    }
    pipeline = tl.Pipeline.from_config(config).source().tokenize()
    rows = pipeline.get_data()["a"]
    first, again = plain(enumerate(rows)), plain(enumerate(rows))
    assert first == again
    assert sum(encoded) == 40  # the second epoch hits
    ids(config)
    # A second run hits what is on disk.
    assert sum(encoded) == (80 if kind == "memory" else 40)
    assert (tmp_path / "own").exists() == (kind != "memory")
    assert pipeline.get_context().cache_manager.stats["memory"]["hits"] == (
        0 if kind == "disk" else 2
    )
    assert ids(
        config,
        cache={"enabled": False},
        tokenize={"cache_tokenized": True, "max_length": 12},
    )
    assert sum(encoded) == (120 if kind == "memory" else 80)


@promise(158, 236)
def test_kept_tokens_expire_and_have_a_size_limit(
    config: dict[str, Any],
    encoded: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    kept = tmp_path / "own"
    first = ids(config, cache={"disk_cache_expiry": 3600, "cache_dir": str(kept)})
    assert (
        ids(config, cache={"disk_cache_expiry": 3600, "cache_dir": str(kept)}) == first
    )
    assert sum(encoded) == 40
    monkeypatch.setattr(
        TreeCacheManager,
        "__init__",
        partialmethod(TreeCacheManager.__init__, clock=lambda: 5e9),
    )
    assert (
        ids(config, cache={"disk_cache_expiry": 3600, "cache_dir": str(kept)}) == first
    )
    assert sum(encoded) == 80
    assert (
        ids(config, cache={"disk_cache_expiry": None, "cache_dir": str(tmp_path / "b")})
        == first
    )
    encoded.clear()
    assert (
        ids(config, cache={"disk_cache_bytes": 100, "cache_dir": str(tmp_path / "c")})
        == first
    )
    assert (
        ids(config, cache={"disk_cache_bytes": 100, "cache_dir": str(tmp_path / "c")})
        == first
    )
    assert sum(encoded) == 80
    assert not (tmp_path / "c").exists()  # no entry is that small


@promise(157)
@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd"])
def test_kept_tokens_are_compressed(
    config: dict[str, Any], encoded: list[int], tmp_path: Path, compression: str
):
    sizes: list[int] = []
    for codec in ("none", compression):
        section = {"compression": codec, "cache_dir": str(tmp_path / codec)}
        assert ids(config, cache=section) == ids(config, cache=section)
        sizes.append(
            sum(entry.stat().st_size for entry in (tmp_path / codec).iterdir())
        )
    assert sum(encoded) == 80
    assert sizes[1] < sizes[0]


@promise(236)
def test_hash_fn_says_what_makes_an_input_the_same(
    config: dict[str, Any], encoded: list[int], tmp_path: Path
):
    path = Path(config["datasets"][0]["data_files"])
    moved = path.parent / "moved.jsonl"
    hits: dict[str, list[bool]] = {}
    for kind in ("content", "path", "combined"):
        section = {"hash_fn": kind}
        ids(config, cache=section)
        for change in (
            lambda: path.rename(moved),
            lambda: moved.write_text(moved.read_text().replace("word", "turn")),
        ):
            change()
            encoded.clear()
            ids(
                config,
                cache=section,
                datasets=[{"name": "a", "data_files": str(moved)}],
            )
            hits.setdefault(kind, []).append(not encoded)
        moved.rename(path)
        path.write_text(path.read_text().replace("turn", "word"))
    assert hits == {
        "content": [True, False],
        "path": [False, False],
        "combined": [False, False],
    }


@promise(237)
def test_a_cache_that_is_off_keeps_nothing(
    config: dict[str, Any], encoded: list[int], tmp_path: Path
):
    section = tl.CacheStageConfig(enabled=False, cache_dir=str(tmp_path / "own"))
    for _ in range(2):
        ids(config, cache=section)
    assert sum(encoded) == 80
    assert not (tmp_path / "own").exists()
    pipeline = tl.Pipeline.from_config(config | {"cache": section}).source()
    pipeline.get_context().cache_manager.put("key", 1)
    assert pipeline.get_context().cache_manager.get("key") is None


def test_a_file_that_is_added_leaves_the_others_tokens(
    config: dict[str, Any], encoded: list[int], tmp_path: Path
):
    folder = Path(config["datasets"][0]["data_files"]).parent
    datasets = [{"name": "a", "data_files": str(folder / "*.jsonl")}]
    ids(config, datasets=datasets)
    write_jsonl(folder / "more.jsonl", texts(3))
    assert len(ids(config, datasets=datasets)) == 43
    assert sum(encoded) == 43


def test_what_is_damaged_is_made_anew(tmp_path: Path):
    inner = Gaps()
    source = kept_in(tmp_path / "kept", inner)
    expected = plain(source.open_shard_numbered("a"))
    for entry in (tmp_path / "kept").iterdir():
        entry.write_bytes(entry.read_bytes()[:-2])
        assert plain(source.open_shard_numbered("a")) == expected  # the source's rows
        list(source.open_shard_numbered("a"))
        inner.drawn = 0
        assert plain(source.open_shard_numbered("a")) == expected
        assert inner.drawn == 0


def test_what_a_stage_of_ones_own_makes_is_not_kept(config: dict[str, Any]):
    class Shout(tl.BaseStage):
        @property
        def name(self) -> str:
            return "shout"

        def process(self, data: Any, context: Any) -> Any:
            return {
                key: source.map(lambda row: {"text": row["text"].upper()})
                for key, source in data.items()
            }

    with pytest.raises(ConfigError, match="a custom stage produces them"):
        tl.Pipeline.from_config(config).source().stage(Shout()).tokenize()


def test_a_lost_chunk_is_the_sources_and_the_next_reading_keeps_all_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokenlake.rowwise.cached_tokens._CHUNK_ROWS", 7)
    inner, kept = Gaps(), DatasetCache(tmp_path)
    source = CachedShardedSource(inner, kept, str)
    expected = plain(source.open_shard_numbered("a"))
    assert len(list(tmp_path.iterdir())) == 8 + 1
    inner.drawn = 0
    for row in (0, 1, 20, 21, 22, 147):
        assert plain(source.open_shard_numbered("a", row)) == [
            each for each in expected if each[0] >= row
        ]
    assert inner.drawn == 0
    DiskCache(tmp_path).invalidate("0/#3")
    assert plain(source.open_shard_numbered("a")) == expected
    assert inner.drawn == 50 - 3 * 7
    assert plain(source.open_shard_numbered("a")) == expected
    inner.drawn = 0
    assert plain(source.open_shard_numbered("a")) == expected
    assert inner.drawn == 0
