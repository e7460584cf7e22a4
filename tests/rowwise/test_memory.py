"""Datasets in memory: their own rows in their own order, from any row on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.lazily import lazily
from tests.seeds import promise
from tokenlake.easydel import HFDatasetShardedSource, wrap_hf_dataset
from tokenlake.errors import ConfigError

datasets: Any = lazily("datasets")


@pytest.fixture(autouse=True)
def no_progress(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache")
    )
    datasets.disable_progress_bars()


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "text": f"text {n}", "meta": {"tags": [str(n), "x"]}}
        for n in range(count)
    ]


def made(count: int = 100) -> Any:
    return datasets.Dataset.from_list(rows(count))


def recipe(count: int = 100, shards: int = 4) -> Any:
    def generate(parts: list[int]) -> Iterator[dict[str, Any]]:
        for part in parts:
            yield from rows(count)[
                part * count // shards : (part + 1) * count // shards
            ]

    return datasets.IterableDataset.from_generator(
        generate, gen_kwargs={"parts": list(range(shards))}
    )


VIEWS = {
    "as it is": lambda data: data,
    "selected": lambda data: data.select([7, 3, 3, 99, 0]),
    "shuffled": lambda data: data.shuffle(seed=3),
    "filtered": lambda data: data.filter(lambda row: row["id"] % 3 == 1),
    "mapped": lambda data: data.map(lambda row: {"text": row["text"].upper()}),
    "sliced twice": lambda data: data.select(range(50, 90)).select(range(10, 20)),
    "fewer columns": lambda data: data.with_format(None, columns=["text"]),
    "transformed": lambda data: data.with_transform(
        lambda batch: {"both": [f"{t}!" for t in batch["text"]]}
    ),
    "arrow": lambda data: data.with_format("arrow"),
    "empty": lambda data: data.select([]),
}


@promise(211, 252)
@pytest.mark.parametrize("view", VIEWS)
def test_rows_are_those_of_the_dataset_in_its_order(view: str) -> None:
    data = VIEWS[view](made())
    expected = list(data.with_format(None) if view == "arrow" else data)
    source = HFDatasetShardedSource(data)
    assert list(source) == list(source.open_shard("dataset")) == expected
    assert len(source) == source.get_shard_info("dataset").rows == len(expected)
    for row in {0, len(expected) // 2, len(expected)}:
        assert list(source.open_shard_at_row("dataset", row)) == expected[row:]
        assert (
            list(source.open_shard_numbered("dataset", row))
            == list(enumerate(expected))[row:]
        )


@pytest.mark.parametrize(
    ("count", "shards"), [(0, 1), (0, 3), (1, 1), (1, 8), (7, 3), (1500, 1), (1500, 8)]
)
def test_shards_are_contiguous_and_hold_every_row_once(count: int, shards: int) -> None:
    source = wrap_hf_dataset(
        made(count) if count else made(1).select([]), "web", num_shards=shards
    )
    assert (
        source.num_shards()
        == len(source.shard_names)
        == len(set(source.shard_names))
        == shards
    )
    per_shard = [list(source.open_shard(name)) for name in source.shard_names]
    assert (
        [row for part in per_shard for row in part]
        == rows(count)
        == list(source.iter_shards())
    )
    assert [len(part) for part in per_shard] == [
        source.get_shard_info(name).rows for name in source.shard_names
    ]
    assert max(map(len, per_shard)) - min(map(len, per_shard)) <= 1
    assert len(source) == count


def test_a_seek_converts_only_what_is_near() -> None:
    texts = ["x" * 200] * 200_000
    source = wrap_hf_dataset(
        datasets.Dataset.from_dict({"text": texts}).select(np.arange(199_999, -1, -1))
    )
    next(source.open_shard_at_row("dataset", 5))
    begin = time.process_time()
    for row in range(0, 200_000, 4000):
        next(source.open_shard_at_row("dataset", row))
    assert (time.process_time() - begin) / 50 < 0.05


def test_an_iterable_is_read_in_its_order_and_has_no_length() -> None:
    source = wrap_hf_dataset(recipe(), "stream")
    assert list(source) == rows(100)
    assert list(source) == rows(100)  # and again
    assert source.get_shard_info("stream").rows is None
    with pytest.raises(TypeError, match=r"length of .* is unknown"):
        len(source)
    assert source
    two = [source.open_shard("stream"), source.open_shard_at_row("stream", 50)]
    assert [
        [row["id"] for row in pair] for pair in islice(zip(*two, strict=False), 3)
    ] == [
        [0, 50],
        [1, 51],
        [2, 52],
    ]


ITERABLE_VIEWS = {
    "as it is": lambda data: data,
    "shuffled": lambda data: data.shuffle(seed=1, buffer_size=20),
    "filtered": lambda data: data.filter(lambda row: row["id"] % 3 == 1),
    "mapped": lambda data: data.map(lambda row: {"text": row["text"].upper()}),
    "taken": lambda data: data.skip(5).take(20),
    "of a table": lambda _: made().to_iterable_dataset(num_shards=3),
    "arrow": lambda _: made().to_iterable_dataset().with_format("arrow"),
}


@pytest.mark.parametrize("view", ITERABLE_VIEWS)
def test_a_seek_in_an_iterable_is_exact(view: str) -> None:
    data = ITERABLE_VIEWS[view](recipe())
    source = wrap_hf_dataset(data, "dataset")
    whole = rows(100) if view == "arrow" else list(data)
    for row in (0, 1, 2, 19, len(whole) - 1, len(whole)):
        assert list(source.open_shard_at_row("dataset", row)) == whole[row:]
    with pytest.raises(
        ConfigError,
        match=rf"row {len(whole) + 1} is beyond its end; it has {len(whole)} rows",
    ):
        list(source.open_shard_at_row("dataset", len(whole) + 1))


def test_an_iterable_can_be_read_by_its_own_shards() -> None:
    source = wrap_hf_dataset(recipe(), num_shards=2)
    assert source.num_shards() == 2
    assert [len(list(source.open_shard(name))) for name in source.shard_names] == [
        50,
        50,
    ]
    assert list(source) == rows(100)
    with pytest.raises(
        ConfigError, match=r"num_shards: got 5, but this IterableDataset has 4"
    ):
        wrap_hf_dataset(recipe(), num_shards=5)


def test_a_dict_of_splits_is_an_error_that_names_them() -> None:
    data = datasets.DatasetDict({"train": made(2), "test": made(1)})
    with pytest.raises(
        ConfigError,
        match=r"DatasetDict, .* per split \(train, test\); .*datasets\['train'\]",
    ) as got:
        wrap_hf_dataset(data)
    assert got.value.details["splits"] == ["train", "test"]
    with pytest.raises(ConfigError, match="IterableDatasetDict"):
        wrap_hf_dataset(datasets.IterableDatasetDict({"train": recipe()}))


@pytest.mark.parametrize(
    "other",
    [
        lambda: rows(3),
        lambda: iter(rows(3)),
        lambda: "org/name",
        lambda: None,
        lambda: 7,
        lambda: datasets.Dataset,
    ],
    ids=["list", "iterator", "text", "none", "number", "class"],
)
def test_anything_else_is_an_error(other: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="must be a Dataset or an IterableDataset"):
        wrap_hf_dataset(other())
