"""AsyncDataLoader: rows to batches, prepared ahead, in order, and with nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline_support import Counted, Endless, prefetching_threads, require_no_threads, tokens
from tests.sharded_support import Known, Plain
from tokenlake.errors import BadRecordError, ConfigError, SourceError
from tokenlake.pipeline.loader import AsyncDataLoader
from tokenlake.pipeline.shuffling import shuffled_by_buffer
from tokenlake.prefetching import Prefetched


def numbered(count: int) -> Known:
    return Known({"a": [{"input_ids": [i, i + 1], "id": i} for i in range(count)]})


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@settings(max_examples=40)
@given(
    st.integers(0, 23), st.integers(1, 7), st.booleans(), st.booleans(), st.integers(1, 4), st.integers(1, 5)
)
def test_batches_are_the_rows_in_order_however_they_are_prefetched(
    rows: int, size: int, drop_last: bool, prefetch: bool, workers: int, ahead: int
):
    loader = AsyncDataLoader(numbered(rows), size, prefetch, workers, ahead, drop_last=drop_last)
    expected = [list(range(at, min(at + size, rows))) for at in range(0, rows, size)]
    if drop_last and rows % size:
        del expected[-1]
    assert ids_of(loader) == expected
    assert len(loader) == len(expected)


def test_a_batch_holds_int32_ids_of_one_shape():
    (batch,) = AsyncDataLoader(tokens([3, 3]), 2)
    assert batch["input_ids"].tolist() == [[100, 101, 102], [200, 201, 202]]
    assert batch["input_ids"].dtype == np.int32
    assert set(batch) == {"input_ids"}


def test_arrays_keep_their_type():
    rows = [
        {"input_ids": np.arange(2, dtype=np.int32), "weight": np.float16(1), "x": np.zeros((2, 3), np.int8)}
    ]
    (batch,) = AsyncDataLoader(Plain({"a": rows * 2}), 2)
    assert {name: (value.dtype, value.shape) for name, value in batch.items()} == {
        "input_ids": (np.dtype(np.int32), (2, 2)),
        "weight": (np.dtype(np.float16), (2,)),
        "x": (np.dtype(np.int8), (2, 2, 3)),
    }


def test_texts_and_ragged_fields_stay_lists():
    rows = [{"text": "a", "tags": [1], "n": 1}, {"text": "b", "tags": [1, 2], "n": 2}]
    (batch,) = AsyncDataLoader(Plain({"a": rows}), 2)
    assert batch["text"] == ["a", "b"]
    assert batch["tags"] == [[1], [1, 2]]
    assert batch["n"].tolist() == [1, 2]


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_different_lengths_are_filled_up(side: Any):
    rows = [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "loss_mask": [False, True, True]},
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


def test_a_mask_that_rows_have_is_kept_and_filled_up():
    rows = [{"input_ids": [1, 2], "attention_mask": [0, 1]}, {"input_ids": [3], "attention_mask": [1]}]
    (batch,) = AsyncDataLoader(Plain({"a": rows}), 2, pad_token_id=0)
    assert batch["attention_mask"].tolist() == [[0, 1], [1, 0]]


def test_all_batches_have_the_same_fields():
    loader = AsyncDataLoader(tokens([2, 2, 1, 3]), 2, pad_token_id=0)
    assert [sorted(batch) for batch in loader] == [["attention_mask", "input_ids"]] * 2


def test_rows_of_different_lengths_are_an_error_where_nobody_says_what_fills_them():
    with pytest.raises(ConfigError, match="'input_ids': the rows of a batch have different lengths"):
        list(AsyncDataLoader(tokens([1, 2]), 2))


def test_rows_of_different_fields_are_an_error():
    rows = [{"input_ids": [1], "a": 1}, {"input_ids": [2]}]
    with pytest.raises(BadRecordError, match="'a' is in some of them alone"):
        list(AsyncDataLoader(Plain({"a": rows}), 2))


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


def test_the_shuffled_order_is_pinned():
    assert list(shuffled_by_buffer(range(12), 4, 1)) == [1, 2, 4, 5, 7, 0, 3, 8, 9, 6, 11, 10]


@given(st.integers(0, 50), st.integers(1, 60), st.integers(0, 2**64 - 1))
def test_a_shuffle_loses_nothing_and_holds_no_more_than_its_buffer(count: int, size: int, key: int):
    order = list(shuffled_by_buffer(range(count), size, key))
    assert sorted(order) == list(range(count))
    assert all(item <= place + size for place, item in enumerate(order))


def test_a_slow_source_is_not_the_end_of_an_epoch():
    def rows() -> Iterator[dict[str, Any]]:
        for i in range(6):
            time.sleep(0.03)
            yield {"id": i}

    assert ids_of(AsyncDataLoader(rows(), 2)) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("prefetch", [True, False])
def test_an_error_of_the_source_comes_in_its_place(prefetch: bool):
    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"id": i} for i in range(4))
        raise SourceError("the disk is gone")

    seen = []
    with pytest.raises(SourceError, match="the disk is gone"):
        seen.extend(batch["id"].tolist() for batch in AsyncDataLoader(rows(), 2, prefetch))
    assert seen == [[0, 1], [2, 3]]
    require_no_threads()


def test_after_an_error_there_is_nothing_more():
    def rows() -> Iterator[int]:
        yield 1
        raise SourceError("no")

    batches = Prefetched(rows(), lambda item: item, workers=2, ahead=2)
    assert next(batches) == 1
    with pytest.raises(SourceError):
        next(batches)
    assert list(batches) == []


def test_an_iteration_that_is_left_leaves_no_threads():
    source = Endless(lambda i: {"id": i})
    for batch in AsyncDataLoader(source, 2):
        assert batch["id"].tolist() == [0, 1]
        assert prefetching_threads()
        break
    gc.collect()
    require_no_threads()


def test_closing_ends_the_threads_and_the_source():
    closed = threading.Event()

    def rows() -> Iterator[dict[str, Any]]:
        try:
            yield from ({"id": i} for i in range(1 << 60))
        finally:
            closed.set()

    batches: Any = iter(AsyncDataLoader(rows(), 2))
    next(batches)
    batches.close()
    assert not prefetching_threads()
    assert closed.is_set()
    assert list(batches) == []


def test_no_thread_starts_before_the_first_batch_is_asked_for():
    iter(AsyncDataLoader(numbered(4), 2))
    assert not prefetching_threads()


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_than_the_buffer_is_prepared_ahead(workers: int):
    source = Counted(numbered(1000))
    batches = iter(AsyncDataLoader(source, 10, True, workers, 2))
    next(batches)
    time.sleep(0.1)
    assert source.drawn <= 10 * (1 + 2)


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


def test_batches_can_be_awaited():
    async def collect() -> list[list[int]]:
        return [batch["id"].tolist() async for batch in AsyncDataLoader(numbered(7), 3, drop_last=False)]

    assert asyncio.run(collect()) == [[0, 1, 2], [3, 4, 5], [6]]
    require_no_threads()


def test_the_event_loop_goes_on_while_a_batch_is_awaited():
    ticks = 0

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(4):
            time.sleep(0.05)
            yield {"id": i}

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async def run() -> None:
        task = asyncio.create_task(tick())
        async for _ in AsyncDataLoader(rows(), 2, False):
            pass
        task.cancel()

    asyncio.run(run())
    assert ticks > 5


def test_a_cancelled_wait_leaves_no_threads():
    release = threading.Event()

    def rows() -> Iterator[dict[str, Any]]:
        release.wait(5)
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


def test_a_length_that_is_unknown_is_a_type_error():
    loader = AsyncDataLoader(Plain({"a": []}), 2)
    assert bool(loader)
    with pytest.raises(TypeError):
        len(loader)


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
