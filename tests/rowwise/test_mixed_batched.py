"""Rows by the batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rowwise.sharded_support import Known, Plain, counted
from tokenlake.errors import ConfigError
from tokenlake.rowwise.combine import BatchedShardedSource

SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=3)


@given(SIZES, st.integers(1, 5))
@settings(max_examples=50)
def test_batches_are_the_rows_of_a_shard_some_at_a_time_from_any_batch_on(sizes, size):
    shards = counted(**{f"s{place}": rows for place, rows in enumerate(sizes)})
    for source in (Known(shards), Plain(shards), Known(shards).filter(lambda row: True)):
        batched = BatchedShardedSource(source, size)
        for name, rows in shards.items():
            values = [row["id"] for row in rows]
            expected = [{"id": values[start : start + size]} for start in range(0, len(values), size)]
            for number in range(len(expected) + 1):
                assert list(batched.open_shard_at_row(name, number)) == expected[number:]
            with pytest.raises(ConfigError, match=f"it has {len(expected)} rows"):
                list(batched.open_shard_at_row(name, len(expected) + 1))
    assert len(BatchedShardedSource(Known(shards), size)) == sum(-(-rows // size) for rows in sizes)


def test_a_field_that_a_row_lacks_is_none_there():
    batched = BatchedShardedSource(Plain({"s": [{"a": 1}, {"a": 2, "b": 3}]}), 2)
    assert list(batched) == [{"a": [1, 2], "b": [None, 3]}]
    with pytest.raises(TypeError, match="unknown"):
        len(batched)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_batch_is_of_at_least_one_row(size):
    with pytest.raises(ConfigError, match="batch_size: got"):
        BatchedShardedSource(Plain({"s": []}), size)
