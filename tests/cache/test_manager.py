"""Memory before disk: what either layer has is found, computed once, and made anew
when it does not hold any more.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tokenlake as tl
from tests.seeds import promise
from tokenlake.errors import ConfigError

ARROW: Any = pa


@promise(229, 156)
def test_put_get_contains_invalidate(tmp_path: Path):
    cache = tl.TreeCacheManager(
        cache_dir=tmp_path, memory_size=2, disk_expiry=86400, compression="zstd"
    )
    for number in range(5):
        cache.put(f"k{number}", {"input_ids": [number]})
    assert cache.stats["memory"]["size"] == 2
    assert cache.stats["disk"]["size"] == 5
    found = cache.get("k0")  # from the disk, and taken up
    assert found is not None
    assert found[0] == {"input_ids": [0]}
    assert cache.get("k0") is not None
    assert cache.stats["memory"]["hits"] == 1
    assert tl.TreeCacheManager(tmp_path).contains("k4")
    cache.invalidate("k0")
    assert (cache.get("k0"), cache.contains("k0"), cache.contains("k1")) == (
        None,
        False,
        True,
    )
    cache.invalidate()
    assert not cache.contains("k1")
    assert not list(tmp_path.iterdir())


def test_what_is_taken_up_into_memory_does_not_live_longer(tmp_path: Path):
    now = [1e9]
    tl.TreeCacheManager(tmp_path, disk_expiry=100, clock=lambda: now[0]).put("key", 1)
    now[0] += 99
    cache = tl.TreeCacheManager(tmp_path, disk_expiry=100, clock=lambda: now[0])
    assert cache.get("key") is not None
    now[0] += 1
    assert cache.get("key") is None


@pytest.mark.parametrize(
    ("kind", "layers", "kept"),
    [("memory", ["memory"], 0), ("disk", ["memory", "disk"], 1)],
)
def test_one_layer_alone(tmp_path: Path, kind: Any, layers: list[str], kept: int):
    cache = tl.TreeCacheManager(tmp_path / "own", cache_type=kind)
    cache.put("key", 1)
    assert cache.get("key") == (1, None)
    assert list(cache.stats) == layers
    assert cache.stats["memory"]["size"] == 1 - kept
    assert (tmp_path / "own").exists() == bool(kept)


@promise(230)
def test_get_or_compute_computes_what_is_missing_or_does_not_hold(tmp_path: Path):
    cache, made = tl.TreeCacheManager(tmp_path), list[int]()

    def compute() -> int:
        made.append(1)
        return len(made)

    def holds(metadata: tl.CacheMetadata) -> bool:
        return metadata.is_valid_for("c2")

    old, new = tl.CacheMetadata(config_hash="c1"), tl.CacheMetadata(config_hash="c2")
    assert cache.get_or_compute("key", compute, metadata=old) == 1
    assert cache.get_or_compute("key", compute) == 1
    assert tl.TreeCacheManager(tmp_path).get_or_compute("key", compute) == 1
    assert cache.get_or_compute("key", compute, metadata=new, validate_fn=holds) == 2
    assert cache.get_or_compute("key", compute, metadata=new, validate_fn=holds) == 2
    assert cache.stats["disk"]["cache_dir"] == str(tmp_path)
    with pytest.raises(ConfigError, match="is a object"):
        cache.get_or_compute("other", object)
    assert not cache.contains("other")


def test_threads_compute_once(tmp_path: Path):
    cache, made, together = (
        tl.TreeCacheManager(tmp_path),
        list[int](),
        threading.Barrier(6, timeout=120),
    )

    def ask() -> None:
        together.wait()
        cache.get_or_compute("key", lambda: made.append(1) or 5)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


@promise(230)
def test_keys_name_their_configuration_and_content():
    key = tl.TreeCacheManager.compute_key
    config = {"tokenizer": "llama", "max_length": 2048}
    assert (
        key(config)
        == key(dict(reversed(config.items())))
        != key(config | {"max_length": 2049})
    )
    assert key(config, prefix="tokenized") == f"tokenized_{key(config)}"
    one = key(config, "example", include_content_hash=True, content="Hello world")
    assert one.startswith(f"example_{key(config)}_")
    assert one != key(config, "example", include_content_hash=True, content="Hello")
    with pytest.raises(ConfigError, match="needs `content`"):
        key(config, include_content_hash=True)
    with pytest.raises(ConfigError, match="canonical JSON"):
        key({"a": object()})


@promise(231)
def test_metadata_say_whether_an_entry_holds(tmp_path: Path):
    metadata = tl.CacheMetadata(
        version="1.0",
        source_hash="abc",
        tokenizer_hash="llama2",
        transform_hash="v2",
        num_examples=100,
        config_hash="xyz",
        extra={"custom": "data"},
    )
    assert metadata.is_valid_for(config_hash="xyz", source_hash="abc")
    assert metadata.is_valid_for("xyz")
    assert not metadata.is_valid_for("xyz", "other")
    assert not metadata.is_valid_for("other", "abc")
    assert tl.CacheMetadata.from_dict(metadata.to_dict()) == metadata
    tl.TreeCacheManager(tmp_path).put("key", b"data", metadata)
    assert tl.TreeCacheManager(tmp_path).get("key") == (b"data", metadata)
    with pytest.raises(ConfigError, match="got colour; expected version"):
        tl.CacheMetadata.from_dict({"colour": 1})


@promise(234)
def test_a_dataset_is_kept_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenlake.base.cache.dataset_cache._CHUNK_BYTES", 100)
    cache = tl.DatasetCache(tmp_path)
    table = ARROW.table(
        {"id": list(range(50)), "text": ["x" * (number % 7) for number in range(50)]}
    )
    for dataset in (table, table.to_pylist(), table.slice(0, 0)):
        cache.put("key", dataset, tl.CacheMetadata(num_examples=50))
        found = cache.get("key")
        assert type(found) is type(dataset)
        assert found == dataset
        assert cache.contains("key")
    cache.put("key", table)
    tl.DiskCache(tmp_path).invalidate("key/#3")
    assert not cache.contains("key")
    assert cache.get("key") is None
    assert not list(tmp_path.iterdir())  # the rest is of no use
    with pytest.raises(ConfigError, match="got a ndarray; expected an Arrow table"):
        cache.put("key", np.zeros(3))


@promise(234)
def test_datasets_of_hugging_face_come_back(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    whole = datasets.Dataset.from_dict(
        {"text": ["hello", "world"], "label": [0, 1]}, features=features
    )
    cache = tl.DatasetCache(tmp_path)
    for dataset in (whole, whole.select([1]), whole.select([])):
        cache.put("key", dataset)
        found = cache.get("key")
        assert found.features == features
        assert found[:] == dataset[:]
    cache.put("both", datasets.DatasetDict({"train": whole, "test": whole.select([0])}))
    found = cache.get("both")
    assert {name: split["text"][:] for name, split in found.items()} == {
        "train": ["hello", "world"],
        "test": ["hello"],
    }
    assert cache.contains("both")
    cache.invalidate("both")
    assert not cache.contains("both/train")
