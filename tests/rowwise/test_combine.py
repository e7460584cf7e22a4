"""Several sources as one, and the first rows of one: names, numbers, limits,
lengths.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rowwise.sharded_support import Known, Plain, counted, ids, numbered
from tokenlake.easydel import LimitedShardedSource
from tokenlake.errors import ConfigError
from tokenlake.rowwise import CompositeShardedSource, ShardedDataSource
from tokenlake.rowwise.combine import BatchedShardedSource


def test_a_composite_has_all_shards_under_their_names():
    source = CompositeShardedSource([Plain(counted(a=2, b=1)), Known(counted(c=3))])
    assert source.shard_names == ("a", "b", "c")
    assert [ids(source.open_shard(name)) for name in source.shard_names] == [
        [0, 1],
        [2],
        [0, 1, 2],
    ]
    assert ids(source.open_shard_at_row("c", 1)) == [1, 2]
    info = source.get_shard_info("c")
    assert (info.name, info.index, info.rows) == ("c", 2, 3)


def test_shards_of_the_same_name_get_names_of_their_own():
    first, second = (
        Plain({"a": [{"id": 1}]}),
        Plain({"a": [{"id": 2}], "0/a": [{"id": 3}]}),
    )
    source = CompositeShardedSource([first, second])
    assert source.shard_names == ("0/a", "1/a", "1/0/a")
    assert [ids(source.open_shard(name)) for name in source.shard_names] == [
        [1],
        [2],
        [3],
    ]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "at least one"),
        ([{"a": []}], "got a dict"),
        (Plain(counted(a=1)), "got a Plain, must be a list"),
        (None, "got None, must be a list"),
    ],
)
def test_a_composite_of_no_sources_is_refused(sources, message):
    with pytest.raises(ConfigError, match=message):
        CompositeShardedSource(sources)


# --- limited

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def sources(sizes: list[int], kept: set[int]) -> list[ShardedDataSource]:
    """The same rows, with and without known sizes, with and without gaps."""
    shards = counted(**{f"s{place}": size for place, size in enumerate(sizes)})
    gaps = {
        name: [row if row["id"] in kept else {} for row in rows]
        for name, rows in shards.items()
    }
    return [
        Plain(shards),
        Known(shards),
        Plain(shards).filter(lambda row: row["id"] in kept),
        Known(gaps),
    ]


@given(SIZES, st.integers(0, 20), st.sets(st.integers(0, 16)), st.randoms())
@settings(max_examples=25)
def test_a_limit_is_the_first_rows_whatever_is_opened_first(sizes, limit, kept, random):
    for source in sources(sizes, kept):
        every = [
            (name, *pair)
            for name in source.shard_names
            for pair in numbered(source, name)
        ]
        limited = LimitedShardedSource(source, limit)
        places = [
            (name, row)
            for place, name in enumerate(source.shard_names)
            for row in range(sizes[place] + 1)
        ]
        random.shuffle(places)
        for name, row in places:
            expected = [
                (number, value)
                for shard, number, value in every[:limit]
                if shard == name and number >= row
            ]
            assert numbered(limited, name, row) == expected
        assert list(limited) == [row for _, _, row in every[:limit]]


@given(SIZES, st.integers(0, 20))
@settings(max_examples=20)
def test_the_length_of_a_limited_source_is_exact(sizes, limit):
    source = Known(counted(**{f"s{place}": size for place, size in enumerate(sizes)}))
    limited = LimitedShardedSource(source, limit)
    assert len(limited) == len(list(limited)) == min(limit, sum(sizes))
    rows = [limited.get_shard_info(name).rows for name in limited.shard_names]
    assert rows == [len(numbered(limited, name)) for name in limited.shard_names]
    assert len(LimitedShardedSource(limited, 3)) == min(3, len(limited))


def test_a_limited_source_reads_no_further_than_its_limit():
    def refuse(row):
        assert row["id"] < 3
        return row

    limited = LimitedShardedSource(Plain(counted(a=2, b=5, c=9)).map(refuse), 3)
    assert ids(iter(limited)) == [0, 1, 2]


# --- batched


@given(SIZES, st.integers(1, 5))
@settings(max_examples=25)
def test_batches_are_the_rows_of_a_shard_some_at_a_time_from_any_batch_on(sizes, size):
    shards = counted(**{f"s{place}": rows for place, rows in enumerate(sizes)})
    for source in (
        Known(shards),
        Plain(shards),
        Known(shards).filter(lambda row: True),
    ):
        batched = BatchedShardedSource(source, size)
        for name, rows in shards.items():
            values = [row["id"] for row in rows]
            expected = [
                {"id": values[start : start + size]}
                for start in range(0, len(values), size)
            ]
            for number in range(len(expected) + 1):
                assert (
                    list(batched.open_shard_at_row(name, number)) == expected[number:]
                )
            with pytest.raises(ConfigError, match=f"it has {len(expected)} rows"):
                list(batched.open_shard_at_row(name, len(expected) + 1))
    assert len(BatchedShardedSource(Known(shards), size)) == sum(
        -(-rows // size) for rows in sizes
    )


def test_a_field_that_a_row_lacks_is_none_there():
    batched = BatchedShardedSource(Plain({"s": [{"a": 1}, {"a": 2, "b": 3}]}), 2)
    assert list(batched) == [{"a": [1, 2], "b": [None, 3]}]
    with pytest.raises(TypeError, match="unknown"):
        len(batched)


@pytest.mark.parametrize("limit", [-1, 1.5, "3", None, True])
def test_a_limit_is_a_whole_number_from_0_on(limit):
    with pytest.raises(ConfigError, match="max_rows: got"):
        LimitedShardedSource(Plain(counted(a=3)), limit)
