"""Batches of any iterable, and arrays of batches on devices."""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.rowwise.pipeline_support import require_no_threads, tokens
from tests.rowwise.sharded_support import Plain
from tests.seeds import promise
from tokenlake.errors import BadRecordError, ConfigError

ROWS = [{"id": n} for n in range(7)]


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@promise(260, 278)
def test_rows_are_collated_as_a_loader_does_it():
    rows = [
        {"chosen_input_ids": [1, 2], "label": True},
        {"chosen_input_ids": [3], "label": False},
    ]
    batch = tl.collate_batch(rows, pad_token_id=9, padding_side="left")
    (loaded,) = tl.AsyncDataLoader(rows, 2, pad_token_id=9, padding_side="left")
    assert batch["chosen_input_ids"].tolist() == [[1, 2], [9, 3]]
    assert all(np.array_equal(batch[name], loaded[name]) for name in batch)
    with pytest.raises(ConfigError, match="different lengths"):
        tl.collate_batch(rows)
    with pytest.raises(BadRecordError, match="differ"):
        tl.collate_batch([{"id": 1}, {}])
    with pytest.raises(ConfigError, match="examples: got none"):
        tl.collate_batch([])


@promise(260)
def test_batches_of_any_iterable_come_in_order():
    assert ids(tl.batch_iterator(iter(ROWS), 3)) == [[0, 1, 2], [3, 4, 5]]
    assert ids(tl.batch_iterator(iter(ROWS), 3, drop_last=False)) == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
    ]
    (batch,) = tl.batch_iterator(
        [{"input_ids": [1]}, {"input_ids": [2, 3]}], 2, pad_token_id=0
    )
    assert batch["input_ids"].tolist() == [[1, 0], [2, 3]]
    with pytest.raises(ConfigError, match="batch_size: got 0"):
        tl.batch_iterator(ROWS, 0)


@promise(260)
def test_threads_run_ahead_and_order_stays():
    drawn: list[int] = []
    items = tl.PrefetchIterator(
        (drawn.append(n) or n for n in count()), buffer_size=3, num_workers=1
    )
    assert next(items) == 0
    for _ in range(12_000):
        if len(drawn) >= 4:
            break
        time.sleep(0.01)
    assert 4 <= len(drawn) <= 5
    items.close()
    require_no_threads()
    both = threading.Barrier(2, timeout=120)
    made = tl.PrefetchIterator(
        range(4),
        buffer_size=4,
        num_workers=2,
        make=lambda n: (both.wait() and n * n) or n * n,
    )
    # Two are made at a time, or the barrier would break.
    assert list(made) == [0, 1, 4, 9]
    with pytest.raises(ConfigError, match="num_workers: got 0"):
        tl.PrefetchIterator([], num_workers=0)


@promise(260)
def test_one_epoch_of_batches():
    plain = tl.create_data_iterator(Plain({"a": ROWS}), 3, shuffle=False)
    assert ids(plain) == [[0, 1, 2], [3, 4, 5], [6]]
    mixed = ids(
        tl.create_data_iterator(ROWS, 3, drop_last=True, seed=1, shuffle_buffer=4)
    )
    assert mixed == ids(tl.AsyncDataLoader(ROWS, 3, shuffle_buffer_size=4, seed=1))
    whole = [
        id
        for batch in ids(tl.create_data_iterator(ROWS, 3, prefetch=False))
        for id in batch
    ]
    assert whole != sorted(whole) == list(range(7))
    with pytest.raises(ConfigError, match="shuffle_buffer: set, but shuffle is False"):
        tl.create_data_iterator(ROWS, 3, shuffle=False, shuffle_buffer=4)


@promise(259, 260)
def test_fields_go_to_their_places_on_a_mesh():
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    devices = np.array(jax.devices())
    mesh, spec = jax.sharding.Mesh(devices, ("data",)), PartitionSpec("data")
    size = 2 * len(devices)
    (batch,) = tl.AsyncDataLoader(tokens([3] * size), size)
    placed = tl.ShardingSpec(mesh, {"input_ids": spec}).apply(
        {**batch, "name": ["x"] * size}
    )
    assert isinstance(placed["input_ids"], jax.Array) and placed["name"] == ["x"] * size
    assert np.array_equal(placed["input_ids"], batch["input_ids"])
    sharding = NamedSharding(mesh, spec)
    assert placed["input_ids"].sharding.is_equivalent_to(sharding, 2)
    assert tl.preshard_batch(batch, None) == batch == tl.ShardingSpec().apply(batch)
    assert (
        tl.AsyncDataLoader(
            tokens([3] * size), size, sharding=sharding
        ).get_output_sharding()
        is sharding
    )
    with pytest.raises(ConfigError, match="no field 'labels'; it has input_ids"):
        tl.preshard_batch(batch, {"labels": sharding})
    with pytest.raises(ConfigError, match="mesh: got None"):
        tl.ShardingSpec(partition_specs={"input_ids": spec})
