"""The rows of one source, epoch after epoch: any draw can be gone to, and later epochs read other orders of shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rowwise.sharded_support import Known, Plain, counted
from tokenlake.errors import ConfigError, SourceError
from tokenlake.rowwise.memory import RowsShardedSource
from tokenlake.rowwise.mixed import _SourceFeed as Feed
from tokenlake.rowwise.source import Numbered, Row, ShardedDataSource, ShardInfo

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def feed(source: ShardedDataSource, again: bool = False, seed: int = 0, place: int = 0) -> Feed:
    return Feed("a", source, again=again, seed=seed, place=place)


def taken(feed: Feed, most: int | None = None) -> list[Any]:
    return [row["id"] for row in islice(iter(feed.take, None), most)]


def kinds(sizes: list[int]) -> dict[str, ShardedDataSource]:
    """The same rows, with known and unknown sizes, and with numbers that have gaps."""
    shards = counted(**{f"s{place}": size for place, size in enumerate(sizes)})
    return {"known": Known(shards), "unknown": Plain(shards), "gaps": Plain(shards).filter(lambda row: True)}


@given(SIZES, st.integers(0, 40), st.booleans(), st.integers(0, 3))
@settings(max_examples=80)
def test_going_to_a_draw_gives_what_drawing_up_to_it_gives(sizes, draws, again, seed):
    if again and not sum(sizes):
        return
    walked = taken(feed(Plain(kinds(sizes)["known"]._shards), again, seed), 60 if again else None)
    for source in kinds(sizes).values():
        sought = feed(source, again, seed)
        reached = sought.seek(draws)
        assert reached == sought.drawn == (draws if again else min(draws, len(walked)))
        assert taken(sought, max(0, 60 - draws) if again else None) == walked[draws:]


def test_the_first_epoch_has_the_sources_order_and_each_later_one_its_own():
    source = Known(counted(**{f"s{place:02}": 2 for place in range(12)}))
    rows = taken(feed(source, again=True), 24 * 4)
    epochs = [rows[start : start + 24] for start in range(0, 96, 24)]
    assert epochs[0] == list(range(24))
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert all(epoch[n + 1] == epoch[n] + 1 for epoch in epochs for n in range(0, 24, 2))
    assert epochs[1] != taken(feed(source, again=True, seed=1), 48)[24:]
    assert epochs[1] != taken(feed(source, again=True, place=1), 48)[24:]


def test_the_order_of_later_epochs_is_pinned():
    source = Known(counted(**{f"s{place}": 1 for place in range(8)}))
    assert taken(feed(source, again=True, seed=7), 24)[8:] == GOLDEN


GOLDEN = [0, 4, 3, 6, 2, 1, 5, 7, 5, 1, 2, 7, 3, 0, 6, 4]


def test_a_source_without_rows_cannot_be_started_again():
    with pytest.raises(SourceError, match="source 'a' gives no rows: it cannot be started again"):
        feed(Plain({"s": []}), again=True).take()
    with pytest.raises(SourceError, match="gives no rows"):
        feed(Plain({"s": []}), again=True).seek(3)
    assert feed(Plain({"s": []})).take() is None


def test_a_source_that_gives_nothing_on_a_later_pass_is_an_error():
    stream = iter([{"id": 1}, {"id": 2}])

    class Once(ShardedDataSource):
        shard_names = ("s",)

        def open_shard(self, shard_name: str) -> Iterator[Row]:
            return stream

    again = feed(Once(), again=True)
    assert taken(again, 2) == [1, 2]
    with pytest.raises(SourceError, match="gives no rows in epoch 1, though it had some before"):
        again.take()


def test_only_the_shard_that_is_drawn_from_is_opened():
    opened = []

    class Watched(ShardedDataSource):
        shard_names = ("s0", "s1", "s2")

        def open_shard(self, shard_name: str) -> Iterator[Row]:
            raise AssertionError("opened from the start")

        def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
            opened.append((shard_name, row))
            return iter([(number, {"id": number}) for number in range(row, 10)])

        def get_shard_info(self, shard_name: str) -> ShardInfo:
            return ShardInfo(name=shard_name, index=0, rows=10)

    sought = feed(Watched())
    assert opened == []
    sought.seek(17)
    assert taken(sought, 2) == [7, 8]
    assert opened == [("s1", 7)]


def test_an_error_of_the_source_is_not_taken_for_its_end():
    class Broken(ShardedDataSource):
        shard_names = ("s",)

        def open_shard(self, shard_name: str) -> Iterator[Row]:
            raise ConfigError("no such column", rows=3)

    with pytest.raises(ConfigError, match="no such column"):
        feed(Broken()).seek(5)


# --- rows in a list


def test_rows_in_a_list_are_a_source():
    rows = [{"id": n} for n in range(5)]
    source = RowsShardedSource(rows, "mine")
    assert (list(source), len(source), source.shard_names) == (rows, 5, ("mine",))
    assert list(source.open_shard_at_row("mine", 3)) == rows[3:]
    assert list(source.open_shard_at_row("mine", 5)) == []
    next(iter(source))["id"] = 9
    assert rows[0] == {"id": 0}


def test_rows_beyond_the_end_of_a_list_and_what_is_no_row_are_errors():
    with pytest.raises(ConfigError, match="beyond its end; it has 1 rows"):
        list(RowsShardedSource([{}]).open_shard_at_row("rows", 2))
    with pytest.raises(ConfigError, match="row 1 is a str, must be a mapping"):
        RowsShardedSource([{}, "a"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="got a generator, must be a list"):
        RowsShardedSource(row for row in [{}])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no shard is named"):
        RowsShardedSource([{}]).open_shard("x")
