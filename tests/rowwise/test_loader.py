"""AsyncDataLoader: rows to batches, prepared ahead, in order, and with nothing left
behind.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.reading.support import lake_of
from tests.rowwise.pipeline_support import (
    Endless,
    gpt,
    prefetching_threads,
    require_no_threads,
    tokens,
    written,
)
from tests.rowwise.sharded_support import Known, Plain, counted
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import byte_level
from tokenlake.base import threads
from tokenlake.easydel import AsyncDataLoader
from tokenlake.errors import ConfigError, SourceError
from tokenlake.rowwise import ShardedDataSource


def numbered(count: int) -> Known:
    return Known({"a": [{"input_ids": [i, i + 1], "id": i} for i in range(count)]})


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@promise(85)
@settings(max_examples=25)
@given(
    st.integers(0, 23),
    st.integers(1, 7),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_batches_are_the_rows_in_order_however_they_are_prefetched(
    rows: int, size: int, drop_last: bool, prefetch: bool, workers: int, ahead: int
):
    loader = AsyncDataLoader(
        numbered(rows), size, prefetch, workers, ahead, drop_last=drop_last
    )
    expected = [list(range(at, min(at + size, rows))) for at in range(0, rows, size)]
    if drop_last and rows % size:
        del expected[-1]
    assert ids_of(loader) == expected
    assert len(loader) == len(expected)


def test_arrays_keep_their_type_and_texts_and_ragged_fields_stay_lists():
    ids, small, wide = (
        np.arange(2, dtype=np.int32),
        np.float16(1),
        np.zeros((2, 3), np.int8),
    )
    arrays = {"input_ids": ids, "weight": small, "x": wide}
    rows = [
        {**arrays, "text": "a", "tags": [1], "n": 1},
        {**arrays, "text": "b", "tags": [1, 2], "n": 2},
    ]
    (batch,) = AsyncDataLoader(Plain({"a": rows}), 2)
    assert {name: (str(batch[name].dtype), batch[name].shape) for name in arrays} == {
        "input_ids": ("int32", (2, 2)),
        "weight": ("float16", (2,)),
        "x": ("int8", (2, 2, 3)),
    }
    assert (batch["text"], batch["tags"], batch["n"].tolist()) == (
        ["a", "b"],
        [[1], [1, 2]],
        [1, 2],
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_different_lengths_are_filled_up(side: Any):
    rows = [
        {
            "input_ids": [1, 2, 3],
            "labels": [-100, 2, 3],
            "loss_mask": [False, True, True],
        },
        {"input_ids": [4], "labels": [4], "loss_mask": [True]},
    ]
    (batch,) = AsyncDataLoader(Plain({"a": rows}), 2, pad_token_id=9, padding_side=side)
    filled = {
        "input_ids": [4, 9, 9],
        "labels": [4, -100, -100],
        "loss_mask": [1, 0, 0],
        "attention_mask": [1, 0, 0],
    }
    for name, values in filled.items():
        expected = values[1:] + values[:1] if side == "left" else values
        assert batch[name][1].tolist() == expected, name
    assert batch["attention_mask"][0].tolist() == [1, 1, 1]
    assert batch["loss_mask"].dtype == np.bool_
    assert batch["labels"].dtype == batch["attention_mask"].dtype == np.int32


@promise(258)
def test_a_shuffle_is_a_function_of_seed_and_epoch():
    def epochs(seed: int | None) -> list[list[list[int]]]:
        loader = AsyncDataLoader(numbered(60), 4, shuffle_buffer_size=16, seed=seed)
        return [ids_of(loader) for _ in range(3)]

    first = epochs(7)
    assert first == epochs(7)
    assert first[0] != first[1] != first[2]
    assert epochs(8) != first
    assert epochs(None) == epochs(0)
    for epoch in first:
        assert sorted(chain.from_iterable(epoch)) == list(range(60))


def shuffled_ids(count: int, buffer_size: int, seed: int) -> list[int]:
    """Return the ids of rows in the order in which a loader delivers them."""
    loader = AsyncDataLoader(
        numbered(count), 1, False, shuffle_buffer_size=buffer_size, seed=seed
    )
    return list(chain.from_iterable(ids_of(loader)))


def test_the_shuffled_order_is_pinned():
    assert shuffled_ids(12, 4, 1) == [3, 4, 5, 0, 6, 8, 1, 10, 2, 11, 9, 7]


@given(st.integers(0, 50), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_a_shuffle_loses_nothing_and_holds_no_more_than_its_buffer(
    count: int, size: int, seed: int
):
    order = shuffled_ids(count, size, seed)
    assert sorted(order) == list(range(count))
    assert all(item <= place + size for place, item in enumerate(order))


@pytest.mark.parametrize("prefetch", [True, False])
def test_an_error_of_the_source_comes_in_its_place(prefetch: bool):
    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"id": i} for i in range(4))
        raise SourceError("the disk is gone")

    seen = []
    with pytest.raises(SourceError, match="the disk is gone"):
        seen.extend(
            batch["id"].tolist() for batch in AsyncDataLoader(rows(), 2, prefetch)
        )
    assert seen == [[0, 1], [2, 3]]
    require_no_threads()


def test_an_iteration_that_is_left_leaves_no_threads():
    source = Endless(lambda i: {"id": i})
    for batch in AsyncDataLoader(source, 2):
        assert batch["id"].tolist() == [0, 1]
        assert prefetching_threads()
        break
    gc.collect()
    require_no_threads()


def test_memory_is_bounded_however_long_the_source_is():
    alive, most = 0, 0
    lock = threading.Lock()

    class Payload(np.ndarray):
        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    def make(number: int) -> dict[str, Any]:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        return {"x": np.zeros(4, np.int32).view(Payload)}

    loader = AsyncDataLoader(Endless(make), 10, True, 2, 3, shuffle_buffer_size=50)
    for batch in islice(loader, 500):
        del batch
    assert most <= 50 + 10 * (3 + 2 + 2)


@promise(261)
def test_batches_can_be_awaited():
    async def collect() -> list[list[int]]:
        return [
            batch["id"].tolist()
            async for batch in AsyncDataLoader(numbered(7), 3, drop_last=False)
        ]

    assert asyncio.run(collect()) == [[0, 1, 2], [3, 4, 5], [6]]
    require_no_threads()


@promise(259)
def test_batches_are_awaited_by_their_numbers():
    loader = AsyncDataLoader(numbered(7), 3)
    assert not loader.is_exhausted and loader.get_output_sharding() is None

    async def run() -> None:
        first = await loader.aget(0)
        assert first["id"].tolist() == [0, 1, 2] and not loader.is_exhausted
        with pytest.raises(
            ConfigError, match="aget: got 2, must be 1, the next one, or 0"
        ):
            await loader.aget(2)
        assert (await loader.aget(1))["id"].tolist() == [3, 4, 5]
        with pytest.raises(IndexError, match="the epoch has 2 batches"):
            await loader.aget(2)
        assert loader.is_exhausted
        with pytest.raises(ConfigError, match="must be 0, which begins an epoch"):
            await loader.aget(3)
        assert ids_of(await loader.abatch(range(2))) == [[0, 1, 2], [3, 4, 5]]

    asyncio.run(run())
    assert loader.get(0)["id"].tolist() == [0, 1, 2] and loader.get(1)[
        "id"
    ].tolist() == [3, 4, 5]
    assert len(list(loader)) == 2 and loader.is_exhausted
    assert isinstance(loader, tl.AsyncDataset)


@promise(259)
def test_data_of_ones_own_is_awaited_or_iterated():
    class Squares(tl.AsyncDataset[int]):
        async def aget(self, index: int) -> int:
            if index > 2:
                raise IndexError(index)
            return index * index

    assert list(Squares()) == [0, 1, 4]
    assert asyncio.run(Squares().abatch([2, 1])) == [4, 1]
    assert (Squares().get_output_sharding(), Squares().is_exhausted) == (None, False)


def test_the_event_loop_goes_on_while_a_batch_is_awaited():
    ticked = threading.Event()

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(4):
            assert ticked.wait(120)
            yield {"id": i}

    async def tick() -> None:
        for _ in range(6):
            await asyncio.sleep(0.005)
        ticked.set()

    async def run() -> None:
        task = asyncio.create_task(tick())
        assert len([batch async for batch in AsyncDataLoader(rows(), 2, False)]) == 2
        await task

    asyncio.run(run())


def test_a_cancelled_wait_leaves_no_threads():
    release = threading.Event()

    def rows() -> Iterator[dict[str, Any]]:
        release.wait(120)
        yield {"id": 0}

    async def wait() -> None:
        async for _ in AsyncDataLoader(rows(), 1):
            pytest.fail("nothing was released")

    async def run() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0.05)
        task.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    require_no_threads()


def test_items_are_closed_once_no_thread_draws(monkeypatch: pytest.MonkeyPatch):
    # An iterator is closed while another thread still starts its first threads: one of
    # them draws already, and none is known to the iterator.
    is_drawing = threading.Event()
    is_closing = threading.Event()
    is_closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            is_drawing.set()
            is_closing.wait(120)
            # Long enough that a close that did not wait would meet the drawing thread.
            time.sleep(0.2)
            yield 0
        finally:
            is_closed.set()

    start_at_once = threads.start_thread

    def start_slowly(*args: Any, **options: Any) -> threading.Thread:
        thread = start_at_once(*args, **options)
        is_closed.wait(10)
        return thread

    monkeypatch.setattr(threads, "start_thread", start_slowly)
    prefetched = threads.Prefetched(items(), lambda item: item, ahead=1)
    reader = threading.Thread(target=lambda: list(prefetched))
    reader.start()
    assert is_drawing.wait(120)
    is_closing.set()
    prefetched.close()
    assert is_closed.is_set()
    reader.join(120)
    require_no_threads()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"prefetch_workers": True},
        {"prefetch_buffer_size": 0},
        {"shuffle_buffer_size": 0},
        {"padding_side": "middle"},
        {"source": 3},
        {"sharding": object()},
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any]):
    given: dict[str, Any] = {"source": numbered(1), **options}
    with pytest.raises(ConfigError, match=next(iter(options))):
        AsyncDataLoader(**given)


class Twice(tl.ExpandTransform):
    """Two rows of most, none of some."""

    def __call__(self, example: Any) -> Iterator[dict[str, Any]]:
        if example["id"] % 5 != 3:
            yield from (dict(example), {"id": -example["id"]})


SOURCES: dict[str, Any] = {
    "shards": lambda: Plain(counted(a=9, b=0, c=14)),
    "gaps": lambda: Known(
        {
            "a": [{"id": 0}, {}, {}, {"id": 1}],
            "b": [{}, *({"id": i} for i in range(2, 17))],
        }
    ),
    "filtered": lambda: Plain(counted(a=9, b=14)).filter(lambda row: row["id"] % 3),
    "several rows for one": lambda: Plain(counted(a=7, b=6)).transform(Twice()),
    "mixture": lambda: tl.MixedShardedSource(
        {"x": Plain(counted(a=9)), "y": Plain(counted(b=8))},
        {"x": 0.5, "y": 0.5},
        4,
        1,
        "all_exhausted",
    ),
    "rows in memory": lambda: [{"id": i} for i in range(19)],
}


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(SOURCES)),
    st.integers(1, 6),
    st.none() | st.integers(1, 30),
    st.integers(0, 45),
    st.booleans(),
    st.booleans(),
)
def test_a_state_goes_on_exactly(
    name: str, size: int, buffer: int | None, cut: int, prefetch: bool, drop_last: bool
):
    def loader() -> AsyncDataLoader:
        return AsyncDataLoader(
            SOURCES[name](),
            size,
            prefetch,
            shuffle_buffer_size=buffer,
            drop_last=drop_last,
            seed=5,
        )

    whole = loader()
    epochs = [ids_of(whole) for _ in range(3)]
    cut, epoch = min(cut % (len(epochs[0]) + 1), len(epochs[0])), cut % 2
    first = loader()
    for _ in range(epoch):
        ids_of(first)
    begun = iter(first)
    head = ids_of(islice(begun, cut))
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    assert head + ids_of(second) == epochs[epoch]
    assert second.state_dict()["epoch"] == epoch + 1
    assert ids_of(second) == epochs[epoch + 1]
    begun.close()  # pyright: ignore[reportAttributeAccessIssue]


class Seeking(ShardedDataSource):
    """Numbered rows that can be opened anywhere, and a count of those that were
    drawn.
    """

    def __init__(self, rows: int) -> None:
        self.rows, self.drawn = rows, 0

    @property
    def shard_names(self) -> Any:
        return ("a",)

    def open_shard(self, shard_name: str) -> Iterator[dict[str, Any]]:
        return (row for _, row in self.open_shard_numbered(shard_name))

    def open_shard_numbered(
        self, shard_name: str, row: int = 0
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for number in range(row, self.rows):
            self.drawn += 1
            yield number, {"id": number}


@pytest.mark.parametrize(("buffer", "most"), [(None, 1), (20, 400)])
def test_a_source_that_seeks_is_read_from_the_oldest_row_that_is_still_to_come(
    buffer: int | None, most: int
):
    source = Seeking(5000)
    loader = AsyncDataLoader(source, 10, False, shuffle_buffer_size=buffer)
    begun = iter(loader)
    ids_of(islice(begun, 400))
    state, wanted = loader.state_dict(), ids_of(begun)
    again = AsyncDataLoader(source, 10, False, shuffle_buffer_size=buffer)
    again.load_state_dict(state)
    source.drawn = 0
    assert ids_of(again) == wanted
    assert source.drawn <= 1000 + most


def test_a_state_counts_what_was_delivered_and_not_what_was_prepared():
    loader = AsyncDataLoader(numbered(40), 2, True, 2, 8)
    batches = iter(loader)
    next(batches)
    time.sleep(0.05)
    assert loader.state_dict()["rows"] == 2
    # A second iteration is the next epoch, and takes the place of the first.
    other = iter(loader)
    with pytest.raises(
        ConfigError, match=r"replaced after row 2 of epoch 0: .* one iterator at a time"
    ):
        next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["rows"]) == (1, 0)
    next(other)
    assert loader.state_dict()["rows"] == 2
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ConfigError, match=r"load_state_dict\(\) took its place"):
        next(other)


@pytest.mark.parametrize("prefetch", [False, True])
def test_two_loops_over_one_loader_are_an_error(prefetch: bool):
    loader = AsyncDataLoader(numbered(40), 2, prefetch)
    with pytest.raises(ConfigError, match="one iterator at a time"):
        list(zip(loader, loader, strict=True))
    ended = iter(loader)
    assert len(list(ended)) == 20
    iter(loader)
    assert next(ended, None) is None
    loader.close()


_CHANGES: dict[str, Any] = {
    "rows that do not fit": {"rows": 3},
    "a row read too early": {"place": [5, 0, 3, 1]},
    "a shard that is not there": {"place": [4, 9, 3, 1]},
    "a boolean": {"epoch": True},
    "a float": {"rows": 4.0},
    "text": {"rows": "4"},
    "a huge number": {"epoch": 10**40},
    "a negative number": {"epoch": -1},
    "a short place": {"place": [4, 0]},
    "a place that is none": {"place": "0000"},
    "another key": {"step": 4},
    "seed of another type": {"seed": False},
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_a_state_that_does_not_fit_itself_is_refused(change: dict[str, Any]):
    loader = AsyncDataLoader(Known(counted(a=20, b=20)), 2)
    next(batches := iter(loader))
    next(batches)
    state = loader.state_dict()
    fresh = AsyncDataLoader(Known(counted(a=20, b=20)), 2)
    fresh.load_state_dict(
        {**state, "rows": np.int64(4), "place": tuple(map(np.int64, state["place"]))}
    )
    assert json.dumps(fresh.state_dict()) == json.dumps(state)
    with pytest.raises(ConfigError, match="state"):
        fresh.load_state_dict({**state, **change})
    for key in state:
        with pytest.raises(ConfigError, match="state"):
            fresh.load_state_dict(
                {name: value for name, value in state.items() if name != key}
            )
    assert json.dumps(fresh.state_dict()) == json.dumps(state)
    loader.close()


def test_a_state_of_another_run_is_refused():
    state = AsyncDataLoader(numbered(4), 2, seed=1).state_dict()
    with pytest.raises(
        ConfigError,
        match=r"seed is 1 there and 2 here; shuffle_buffer_size is None there",
    ):
        AsyncDataLoader(numbered(4), 2, seed=2, shuffle_buffer_size=3).load_state_dict(
            state
        )
    with pytest.raises(ConfigError, match="shards is 1 there and 2 here"):
        AsyncDataLoader(Known(counted(a=1, b=1)), 2, seed=1).load_state_dict(state)
    with pytest.raises(ConfigError, match="not a state of a loader of rows"):
        AsyncDataLoader(numbered(4), 2).load_state_dict({"step": 1})


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tl.Dataset:
    return tl.open(lake_of(tmp_path_factory).url, "learned")


def _ids(batches: Any) -> list[Any]:
    return [np.asarray(batch["input_ids"]).tolist() for batch in batches]


def test_of_a_stored_dataset_it_is_the_loader(learned: tl.Dataset):
    wanted = [_ids(tl.DataLoader(learned, 6, shuffle=False, drop_last=True))]
    both = tl.DataLoader(learned, 6, seed=2, drop_last=True)
    wanted += [_ids(both), _ids(both)]
    assert _ids(AsyncDataLoader(learned, 6)) == wanted[0]
    loader = AsyncDataLoader(learned, 6, shuffle_buffer_size=1, seed=2)
    assert len(loader) == len(wanted[1])
    head = _ids(islice(loader, 3))
    state = loader.state_dict()
    assert not loader.is_exhausted
    assert head + _ids(loader) == wanted[1]  # goes on where it was left

    assert loader.is_exhausted

    async def collect() -> list[Any]:
        return _ids([batch async for batch in loader])

    assert asyncio.run(collect()) == wanted[2]
    again = tl.DataLoader(learned, 6, seed=2, drop_last=True)
    again.load_state_dict(state)
    assert head + _ids(again) == wanted[1]
    with pytest.raises(ConfigError, match="pad_token_id"):
        AsyncDataLoader(learned, 6, pad_token_id=0)
    require_no_threads()


@promise(88)
@pytest.mark.parametrize("prefetch", [True, False])
def test_batches_on_devices(learned: tl.Dataset, prefetch: bool):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    source = tokens([2, 3, 1, 2, 3])
    wanted = list(AsyncDataLoader(source, 2, pad_token_id=9))
    for options in ({"sharding": sharding}, {"prefetch_to_device": True}):
        loader = AsyncDataLoader(source, 2, prefetch, pad_token_id=9, **options)
        batches = list(loader)
        for batch, right in zip(batches, wanted, strict=True):
            assert batch.keys() == right.keys()
            for name, values in batch.items():
                assert isinstance(values, jax.Array)
                assert values.dtype == right[name].dtype == np.int32
                assert np.array_equal(values, right[name])
        assert loader.state_dict()["epoch"] == 1
        left: Any = iter(loader)
        next(left)
        left.close()
        assert list(left) == []
        assert loader.state_dict()["rows"] == 2
        stored = AsyncDataLoader(learned, 8, prefetch, **options)
        assert _ids(stored) == _ids(tl.DataLoader(learned, 8, shuffle=False))
        assert isinstance(next(iter(stored))["input_ids"], jax.Array)
    assert batches[0]["input_ids"].sharding.device_set == {jax.local_devices()[0]}
    require_no_threads()


def test_what_no_device_holds_is_refused_by_name():
    for rows in ([{"text": "a"}], [{"id": 1}]):
        with pytest.raises(
            ConfigError, match=rf"the field '{next(iter(rows[0]))}' is .*drop_fields"
        ):
            list(AsyncDataLoader(Plain({"a": rows}), 1, prefetch_to_device=True))
    with pytest.raises(ConfigError, match="drop_last"):
        AsyncDataLoader(numbered(3), 2, drop_last=False, prefetch_to_device=True)


@promise(189)
def test_rows_of_a_flat_directory_are_filled_up_with_its_tokenizers_padding(
    tmp_path: Path,
):
    files = written(byte_level(), tmp_path / "tokenizer")
    (tmp_path / "a.txt").write_text("one two three")
    (tmp_path / "b.txt").write_text("four")
    tl.tokenize_and_save(
        str(tmp_path / "*.txt"), files, tmp_path / "tokenized", workers=1
    )
    source = tl.ParquetShardedSource(tmp_path / "tokenized" / "*.parquet")
    assert source.pad_token_id == gpt().pad_id
    rows = [row["input_ids"] for row in source]
    (batch,) = AsyncDataLoader(source, batch_size=2)
    width = max(map(len, rows))
    assert batch["input_ids"].tolist() == [
        ids + [gpt().pad_id] * (width - len(ids)) for ids in rows
    ]
    assert batch["attention_mask"].sum() == sum(map(len, rows))
