"""Datasets of any kind mixed in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from tests.lazily import lazily
from tests.rowwise.mixed_support import known, rows_of
from tests.seeds import promise
from tokenlake.easydel import MixedShardedSource, block_mixture_interleave
from tokenlake.errors import ConfigError
from tokenlake.rowwise import ShardedDataSource

datasets: Any = lazily("datasets")


@pytest.fixture(autouse=True)
def no_progress(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache")
    )
    datasets.disable_progress_bars()


def listed(name: str, size: int) -> list[dict[str, Any]]:
    return rows_of(name, [size])[f"{name}.0"]


def mapped(name: str, size: int) -> Any:
    return datasets.Dataset.from_list(listed(name, size))


def iterable(name: str, size: int) -> Any:
    def generate(parts: list[int]) -> Iterator[dict[str, Any]]:
        for part in parts:
            yield from listed(name, size)[part * size // 2 : (part + 1) * size // 2]

    return datasets.IterableDataset.from_generator(
        generate, gen_kwargs={"parts": [0, 1]}
    )


def source(name: str, size: int) -> ShardedDataSource:
    return known(**{name: size})[name]


KINDS = {
    "list": listed,
    "Dataset": mapped,
    "IterableDataset": iterable,
    "source": source,
}


@promise(211)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", ["restart", "first_exhausted", "all_exhausted"])
def test_datasets_of_every_kind_mix_like_sources(kind, stop):
    weights = {"a": 0.25, "b": 0.75}
    expected = MixedShardedSource(
        known(a=5, b=8), weights, 6, seed=3, stop_strategy=stop
    )
    mixed = block_mixture_interleave(
        {"a": KINDS[kind]("a", 5), "b": KINDS[kind]("b", 8)},
        weights,
        block_size=6,
        seed=3,
        stop=stop,
    )
    every = list(islice(expected, 40))
    assert list(islice(mixed, 40)) == list(islice(mixed, 40)) == every
    assert isinstance(mixed, ShardedDataSource)
    for row in (3, 9, len(every)):
        assert (
            list(islice(mixed.open_shard_at_row("mixed", row), 40 - row)) == every[row:]
        )


def test_a_list_is_named_by_the_weights_in_their_order():
    weights = {"code": 0.9, "text": 0.1}
    mixed = block_mixture_interleave(
        [listed("c", 9), listed("t", 9)], weights=weights, block_size=10
    )
    counts = Counter((row["__source__"], row["id"][0]) for row in islice(mixed, 100))
    assert counts == {("code", "c"): 90, ("text", "t"): 10}


def test_a_list_of_weights_goes_by_the_order_of_a_mapping():
    mixed = block_mixture_interleave(
        {"x": listed("c", 9), "y": listed("t", 9)}, [0.2, 0.8], block_size=10
    )
    assert Counter(row["__source__"] for row in islice(mixed, 100)) == {
        "x": 20,
        "y": 80,
    }


REFUSED = [
    ({"datasets": []}, "a list of at least one"),
    ({"datasets": {}}, "a list of at least one"),
    ({"datasets": "code"}, "datasets: got 'code', must be a mapping"),
    (
        {"datasets": {"a": iter([])}},
        "datasets, 'a': .*got .*must be a Dataset or an IterableDataset",
    ),
    ({"datasets": {"a": ["text"]}}, "datasets, 'a': rows: row 0: got 'text'"),
    (
        {"datasets": [[{}], [{}]], "weights": {"a": 1.0}},
        "got 1 for 2 datasets, must be one each",
    ),
    (
        {"datasets": [[{}], [{}]], "weights": [0.5, 0.25, 0.25]},
        "weights: got a list, must be .*one for each dataset",
    ),
    ({"weights": 0.5}, "weights: got 0.5, must be a mapping"),
    ({"weights": {"a": 0.5, "c": 0.5}}, "no weight for 'b', 'c' is not a source"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_mixed_is_refused_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        block_mixture_interleave(**{"datasets": {"a": [{}], "b": [{}]}} | options)


def test_a_dataset_per_split_is_refused_at_once():
    with pytest.raises(ConfigError, match="datasets, 'a': got a DatasetDict"):
        block_mixture_interleave({"a": datasets.DatasetDict()})
