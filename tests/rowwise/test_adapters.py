"""A source of rows as a dataset of PyTorch and of Hugging Face, and its rows cut,
passed over and shuffled.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.lazily import lazily
from tests.rowwise.sharded_support import Known, Plain, counted, numbered
from tests.seeds import promise
from tokenlake.errors import ConfigError
from tokenlake.rowwise import ShardedDataSource

torch: Any = lazily("torch")
datasets: Any = lazily("datasets")
dealing: Any = lazily("datasets.distributed")
stateful: Any = lazily("torchdata.stateful_dataloader")


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


def source() -> ShardedDataSource:
    return Plain(counted(a=7, b=0, c=5, d=9))


def ids(rows: Any) -> list[int]:
    return [int(row["id"]) for row in rows]


def mixed() -> ShardedDataSource:
    two = {"x": Plain(counted(a=9)), "y": Plain(counted(b=6))}
    return tl.MixedShardedSource(two, block_size=4, stop_strategy="all_exhausted")


@promise(125, 142)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_pytorch_takes_a_source(workers: int):
    rows = [{"input_ids": [n, n + 1], "text": str(n), "weight": 0.5} for n in range(6)]
    loader = torch.utils.data.DataLoader(
        Plain({"a": rows[:4], "b": rows[4:]}).to_torch(),
        batch_size=2,
        num_workers=workers,
    )
    batches = list(loader)
    assert all(batch["input_ids"].dtype == torch.int64 for batch in batches)
    assert sorted(
        chain.from_iterable(batch["input_ids"].tolist() for batch in batches)
    ) == [row["input_ids"] for row in rows]
    assert sorted(chain.from_iterable(batch["text"] for batch in batches)) == list(
        "012345"
    )


@given(sizes=st.lists(st.integers(0, 6), max_size=5), ranks=st.integers(1, 3))
@settings(max_examples=15)
@promise(125)
def test_every_row_is_read_once_over_all_processes(sizes: list[int], ranks: int):
    rows = Plain(counted(**{f"s{place}": size for place, size in enumerate(sizes)}))
    read = [ids(rows.to_torch(host=(rank, ranks))) for rank in range(ranks)]
    assert sorted(chain.from_iterable(read)) == list(range(sum(sizes)))


@promise(125)
@pytest.mark.parametrize("make", [source, mixed])
@pytest.mark.parametrize("host", [(0, 1), (1, 2), (3, 5)])
def test_a_loop_of_pytorch_resumes_exactly(make: Any, host: tuple[int, int]):
    whole = list(make().to_torch(host=host))
    for stop in range(len(whole)):
        stream = make().to_torch(host=host)
        rows = iter(stream)
        begun = [next(rows) for _ in range(stop)]
        again = make().to_torch(host=host)
        again.load_state_dict(stream.state_dict())
        assert begun + list(again) == whole
        assert list(again) == whole  # the loop after it is a whole one
    with pytest.raises(
        ConfigError, match="resume with the same number of processes and workers"
    ):
        iter(make().to_torch(host=(0, 9))).load_state_dict(
            iter(make().to_torch(host=host)).state_dict()
        )


@promise(125)
def test_a_stateful_loader_resumes_its_workers():
    def loader() -> Any:
        return stateful.StatefulDataLoader(
            source().to_torch(), batch_size=2, num_workers=2
        )

    whole, first, second = (
        [batch["id"].tolist() for batch in loader()],
        loader(),
        loader(),
    )
    batches = iter(first)
    begun = [next(batches)["id"].tolist() for _ in range(4)]
    second.load_state_dict(first.state_dict())
    del batches, first
    assert begun + [batch["id"].tolist() for batch in second] == whole


@promise(205)
def test_a_source_is_a_dataset_of_hugging_face():
    rows = source().to_hf()
    assert isinstance(rows, datasets.IterableDataset)
    assert ids(rows) == list(range(21))
    assert rows.num_shards == 4
    assert rows.take(2).column_names in (None, ["id"])
    assert sorted(ids(rows.shuffle(seed=1, buffer_size=4))) == list(range(21))
    assert sorted(
        chain(*(ids(dealing.split_dataset_by_node(rows, rank, 2)) for rank in range(2)))
    ) == list(range(21))
    finer = mixed().to_hf(num_shards=3)
    assert sorted(ids(finer)) == sorted(ids(mixed()))
    assert sorted(
        chain(
            *(ids(dealing.split_dataset_by_node(finer, rank, 3)) for rank in range(3))
        )
    ) == sorted(ids(mixed()))


@promise(205)
def test_a_dataset_of_hugging_face_resumes_exactly():
    rows, again = source().to_hf(), source().to_hf()
    found = iter(rows)
    begun = [next(found)["id"] for _ in range(9)]
    again.load_state_dict(rows.state_dict())
    assert begun + ids(again) == list(range(21))


@promise(205)
def test_what_a_mixture_returns_has_the_methods_of_a_dataset():
    rows = tl.block_mixture_interleave(
        {"a": [{"id": n} for n in range(9)], "b": [{"id": 9}]}, block_size=2
    )
    assert rows.column_names == ["id", "__source__"]
    drawn = [row["id"] for row in rows.take(12)]
    assert [row["id"] for row in rows.skip(4).take(8)] == drawn[4:]
    assert sorted(
        row["id"] for row in rows.take(12).shuffle(seed=3, buffer_size=5)
    ) == sorted(drawn)
    assert len(list(rows.take(4).to_hf())) == 4


@given(st.integers(0, 25), st.integers(0, 25))
@settings(max_examples=20)
def test_rows_are_taken_and_passed_over(skipped: int, taken: int):
    whole = [row for name in source().shard_names for row in numbered(source(), name)]
    for rows in (
        source(),
        Known(counted(a=7, b=0, c=5, d=9)),
        source().filter(lambda _: True),
    ):
        made = rows.skip(skipped).take(taken)
        found = [row for name in made.shard_names for row in numbered(made, name)]
        assert found == whole[skipped : skipped + taken]
        assert ids(made.open_shard_at_row("c", 2)) == [
            row["id"] for row in (one for _, one in found) if row["id"] in (9, 10, 11)
        ]
    assert len(Known(counted(a=7, b=5)).skip(skipped)) == max(0, 12 - skipped)


def test_a_shuffle_is_a_permutation_that_the_seed_decides():
    rows = source().shuffle(seed=5, buffer_size=3)
    order = ids(rows)
    assert sorted(order) == list(range(21))
    assert order != list(range(21))
    assert (
        order
        == ids(source().shuffle(seed=5, buffer_size=3))
        != ids(source().shuffle(seed=6, buffer_size=3))
    )
    for name in rows.shard_names:
        assert numbered(rows, name, 0)[2:] == numbered(
            rows, name, min(2, len(numbered(rows, name)))
        )
    with pytest.raises(ConfigError, match="buffer_size: got 0"):
        source().shuffle(buffer_size=0)
