"""A mixture of sources: whose turn it is, where it stops, how long it is, and
opening it at any row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rowwise.mixed_support import KINDS, ids, known, rows_of, walk
from tests.rowwise.sharded_support import Known, counted
from tests.seeds import promise
from tokenlake import WeightScheduler
from tokenlake.easydel import LimitedShardedSource, MixedShardedSource
from tokenlake.errors import BadRecordError, ConfigError, SourceError
from tokenlake.rowwise import (
    CompositeShardedSource,
    Numbered,
    Row,
    ShardedDataSource,
    ShardInfo,
)
from tokenlake.runtime.mixing import SourceMixture, constant

SHARDS = st.lists(st.integers(0, 9), min_size=1, max_size=3)
STOPS = ("restart", "first_exhausted", "all_exhausted")
NAMES = ("a", "b", "c")


STEPS = st.lists(st.integers(0, 60), min_size=1, max_size=3, unique=True).map(sorted)


@st.composite
def weights_of(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, float]:
    parts = [draw(st.integers(1, 20)) for _ in names]
    return {name: part / sum(parts) for name, part in zip(names, parts, strict=True)}


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 3))
    stop = draw(st.sampled_from(STOPS))
    shards = {name: draw(SHARDS) for name in NAMES[:count]}
    if stop != "all_exhausted":
        for sizes in shards.values():
            sizes[0] += 1
    points = [
        {"step": step, "weights": draw(weights_of(tuple(shards)))}
        for step in draw(STEPS)
    ]
    scheduler = WeightScheduler(
        points, draw(st.sampled_from(("step", "linear", "cosine")))
    )
    options = {"block_size": draw(st.integers(1, 12)), "seed": draw(st.integers(0, 3))}
    kinds = {name: draw(st.sampled_from(sorted(KINDS))) for name in shards}
    return {
        "shards": shards,
        "scheduler": scheduler,
        "stop": stop,
        "kinds": kinds,
        "options": options,
    }


def mixed(case: dict[str, Any]) -> MixedShardedSource:
    sources = {
        name: KINDS[case["kinds"][name]](**{name: sizes})[name]
        for name, sizes in case["shards"].items()
    }
    scheduler, stop = case["scheduler"], case["stop"]
    return MixedShardedSource(
        sources, weight_scheduler=scheduler, stop_strategy=stop, **case["options"]
    )


def walked(case: dict[str, Any], most: int) -> list[tuple[str, int]]:
    sizes = {name: sum(shards) for name, shards in case["shards"].items()}
    return walk(sizes, case["scheduler"], case["stop"], most=most, **case["options"])


@given(mixtures())
@settings(max_examples=20)
def test_rows_come_as_a_walk_slot_by_slot_gives_them(case):
    expected = walked(case, 80)
    rows = list(islice(mixed(case), 80))
    assert [row["__source__"] for row in rows] == [name for name, _ in expected]
    sizes = {name: sum(shards) for name, shards in case["shards"].items()}
    for row, (name, drawn) in zip(rows, expected, strict=True):
        if drawn < sizes[name]:  # later epochs have their own order of shards
            assert row["id"] == f"{name}{drawn}"
    for name, size in sizes.items():
        own = [row["id"] for row in rows if row["__source__"] == name]
        for epoch in range(len(own) // size if size else 0):
            assert sorted(own[epoch * size : (epoch + 1) * size]) == sorted(
                f"{name}{n}" for n in range(size)
            )


@pytest.mark.parametrize("stop", STOPS)
def test_it_is_the_mixture_of_one_lane_that_a_store_would_write(stop):
    sizes, weights = {"a": 30, "b": 50}, {"a": 0.45, "b": 0.55}
    lane = SourceMixture(
        sizes, constant(weights), batch_size=7, block_size=7, seed=5, stop=stop
    )
    draws = lane.lane(0, 0, min(lane.rows or 200, 200))
    expected = [
        f"{lane.names[source]}{index}"
        for source, index in zip(draws.source, draws.index, strict=True)
    ]
    source = MixedShardedSource(
        known(**sizes), weights, block_size=7, seed=5, stop_strategy=stop
    )
    assert ids(iter(source), 200) == expected


@given(mixtures(), st.data())
@settings(max_examples=20)
def test_opening_at_a_row_gives_what_walking_there_gives(case, data):
    every = list(islice(mixed(case).open_shard_numbered("mixed"), 60))
    assert [number for number, _ in every] == list(range(len(every)))
    row = data.draw(st.integers(0, len(every)))
    source = mixed(case)
    assert (
        list(islice(source.open_shard_numbered("mixed", row), 60 - row)) == every[row:]
    )
    assert list(islice(source.open_shard_at_row("mixed", row), 60 - row)) == [
        value for _, value in every[row:]
    ]


@given(mixtures())
@settings(max_examples=20)
def test_a_row_beyond_the_end_is_an_error_that_says_how_many_there_are(case):
    if case["stop"] == "restart":
        return
    total = sum(1 for _ in mixed(case))
    assert list(mixed(case).open_shard_at_row("mixed", total)) == []
    for row in (total + 1, total + 50):
        with pytest.raises(
            ConfigError, match=rf"row {row} is beyond its end; it has {total} rows"
        ):
            next(mixed(case).open_shard_at_row("mixed", row))


@given(mixtures())
@settings(max_examples=20)
def test_the_length_is_exact_where_every_sources_is_known(case):
    if case["stop"] == "restart":
        with pytest.raises(TypeError, match="never ends"):
            len(mixed(case))
    elif set(case["kinds"].values()) == {"known"}:
        assert (
            len(mixed(case))
            == mixed(case).get_shard_info("mixed").rows
            == sum(1 for _ in mixed(case))
        )
    elif case["stop"] == "all_exhausted":
        with pytest.raises(TypeError, match="is unknown, because the length of"):
            len(mixed(case))


# --- where it stops


@pytest.mark.parametrize("kind", KINDS)
def test_all_exhausted_ends_also_with_a_source_that_hardly_ever_comes_up(kind):
    weights = {"a": 1 - 1e-9, "b": 1e-9}
    source = MixedShardedSource(
        KINDS[kind](a=3, b=4), weights, stop_strategy="all_exhausted"
    )
    assert Counter(row["__source__"] for row in source) == {"a": 3, "b": 4}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", ["restart", "first_exhausted"])
def test_an_empty_source_is_an_error_unless_all_are_to_be_exhausted(kind, stop):
    source = MixedShardedSource(KINDS[kind](a=3, empty=0), stop_strategy=stop)
    with pytest.raises((ConfigError, SourceError), match="empty"):
        list(islice(source, 10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_never_comes_up_cannot_be_exhausted(kind):
    source = MixedShardedSource(
        KINDS[kind](a=3, never=2),
        {"a": 1.0, "never": 0.0},
        stop_strategy="all_exhausted",
    )
    with pytest.raises(ConfigError, match="never"):
        list(source)


# --- weights


@promise(55)
@pytest.mark.parametrize("block_size", [10, 100, 1000])
def test_counts_over_blocks_follow_the_weights(block_size):
    weights = {"a": 0.4, "b": 0.5, "c": 0.1}
    rows = islice(
        MixedShardedSource(
            known(a=7, b=9, c=5), weights, block_size=block_size, seed=3
        ),
        3000,
    )
    names = [row["__source__"] for row in rows]
    for stop in range(block_size, 3001, block_size):
        counts = Counter(names[:stop])
        assert all(
            abs(counts[name] - weight * stop) < 1 for name, weight in weights.items()
        )


@promise(225)
def test_no_source_starves():
    source = MixedShardedSource(
        known(a=50, rare=2), {"a": 0.9999, "rare": 0.0001}, block_size=1000
    )
    counts = Counter(row["__source__"] for row in islice(source, 40_000))
    assert counts["rare"] == 4


# --- order


def test_the_order_is_pinned():
    source = MixedShardedSource(
        known(a=4, b=[3, 3]), {"a": 0.3, "b": 0.7}, block_size=10, seed=42
    )
    assert " ".join(ids(iter(source), 30)) == GOLDEN


GOLDEN = "b0 b1 b2 b3 a0 b4 b5 b3 a1 a2 b4 a3 b5 b0 a0 b1 b2 b0 b1 a1 b2 b3 b4 b5 a2 b0 b1 b2 a3 a0"


# --- what it reads


class Watched(ShardedDataSource):
    """An endless supply of rows that notes what is read of it."""

    def __init__(self, rows: int | None) -> None:
        self._rows, self.opened, self.read = rows, [], 0

    @property
    def shard_names(self) -> tuple[str, ...]:
        return ("s",)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return (row for _, row in self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        self.opened.append(row)
        number = row
        while self._rows is None or number < self._rows:
            self.read += 1
            yield number, {"id": number}
            number += 1

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return ShardInfo(name="s", index=0, rows=self._rows)


@pytest.mark.parametrize("rows", [None, 10**9])
@pytest.mark.parametrize("stop", STOPS)
def test_no_more_is_read_than_rows_that_come_out_and_one_of_each_source(rows, stop):
    sources = {"a": Watched(rows), "b": Watched(rows)}
    opened = iter(MixedShardedSource(sources, block_size=500, stop_strategy=stop))
    for count in range(1, 2000):
        next(opened)
        assert sum(source.read for source in sources.values()) <= count + 2


@pytest.mark.parametrize("rows", [None, 10**9])
@pytest.mark.parametrize("stop", STOPS)
def test_opening_far_away_reads_nothing_of_what_is_before(rows, stop):
    sources = {"a": Watched(rows), "b": Watched(rows)}
    source = MixedShardedSource(sources, {"a": 0.25, "b": 0.75}, stop_strategy=stop)
    found = list(islice(source.open_shard_at_row("mixed", 10_000_000), 1000))
    assert sum(source.read for source in sources.values()) <= 1002
    first = {
        name: next(row["id"] for row in found if row["__source__"] == name)
        for name in sources
    }
    assert first == {"a": 2_500_000, "b": 7_500_000}


@pytest.mark.parametrize("stop", STOPS)
def test_the_first_rows_come_before_anybody_asks_how_long_sources_are(stop):
    class Shy(Watched):
        def get_shard_info(self, shard_name: str) -> ShardInfo:
            raise AssertionError("asked")

    assert (
        len(list(islice(MixedShardedSource([Shy(9), Shy(9)], stop_strategy=stop), 10)))
        == 10
    )


# --- one source, epoch after epoch


def alone(
    source: ShardedDataSource, seed: int = 0, stop: str = "restart"
) -> MixedShardedSource:
    return MixedShardedSource({"a": source}, seed=seed, stop_strategy=stop)


def test_the_order_of_later_epochs_is_pinned():
    source = Known(counted(**{f"s{place}": 1 for place in range(8)}))
    expected = [0, 4, 3, 6, 2, 1, 5, 7, 5, 1, 2, 7, 3, 0, 6, 4]
    assert ids(iter(alone(source, seed=7)), 24)[8:] == expected


def test_a_source_that_gives_nothing_on_a_later_pass_is_an_error():
    stream = iter([{"id": 1}, {"id": 2}])

    class Once(ShardedDataSource):
        shard_names = ("s",)

        def open_shard(self, shard_name: str) -> Iterator[Row]:
            return stream

    rows = iter(alone(Once()))
    assert [next(rows)["id"], next(rows)["id"]] == [1, 2]
    with pytest.raises(
        SourceError, match="has no rows in epoch 1, though it had some before"
    ):
        next(rows)


# --- rows


def test_a_field_that_is_called_like_the_mark_is_an_error():
    inner = MixedShardedSource(known(a=2, b=2), stop_strategy="all_exhausted")
    outer: dict[str, ShardedDataSource] = {
        "inner": inner,
        "c": Known(rows_of("c", [2])),
    }
    with pytest.raises(
        BadRecordError, match="source 'inner': a row has a field '__source__' already"
    ):
        list(MixedShardedSource(outer, stop_strategy="all_exhausted"))
    outer["inner"] = inner.rename_fields({"__source__": "origin"})
    rows = list(MixedShardedSource(outer, stop_strategy="all_exhausted"))
    assert Counter((row["__source__"], row.get("origin")) for row in rows) == {
        ("inner", "a"): 2,
        ("inner", "b"): 2,
        ("c", None): 2,
    }


def test_it_is_a_source_like_any_other():
    endless = MixedShardedSource(known(a=4, b=6), block_size=10)
    assert (endless.num_shards(), endless.shard_names) == (1, ("mixed",))
    assert endless.get_shard_info("mixed").rows is None
    assert len(ids(iter(LimitedShardedSource(endless, 25)))) == 25
    finite = MixedShardedSource(
        known(a=4, b=6), block_size=10, stop_strategy="all_exhausted"
    )
    assert (
        len(finite.map(lambda row: row))
        == len(CompositeShardedSource([finite, *known(c=3).values()])) - 3
        == 10
    )
    only = finite.filter(lambda row: row["__source__"] == "a").drop_fields(
        ["__source__"]
    )
    assert list(only) == [{"id": f"a{n}"} for n in range(4)]
    assert ids(finite.iter_shards(start_row=7)) == ids(iter(finite))[7:]
    with pytest.raises(ConfigError, match="no shard is named 'x'"):
        finite.open_shard("x")


def test_it_says_whether_it_ends():
    endless = MixedShardedSource(known(a=1))
    assert endless.endless
    for stop, both in (("first_exhausted", False), ("all_exhausted", True)):
        assert not MixedShardedSource(known(a=1, b=1), stop_strategy=stop).endless
        inner = endless.drop_fields(["__source__"])
        assert (
            MixedShardedSource(
                [inner, *known(b=1).values()], stop_strategy=stop
            ).endless
            == both
        )
        assert MixedShardedSource([inner], stop_strategy=stop).endless


# --- what is refused


def test_ratios_are_the_shares_that_they_mean():
    def drawn(weights: dict[str, float]) -> list[str]:
        sources = {
            name: Known({name: [{"id": number} for number in range(9)]})
            for name in "ab"
        }
        rows = iter(MixedShardedSource(sources, weights, block_size=8))
        return [next(rows)["__source__"] for _ in range(40)]

    assert (
        drawn({"a": 30, "b": 70})
        == drawn({"a": 0.3, "b": 0.7})
        == drawn({"a": 30.0, "b": 70.0})
    )


REFUSED = [
    ({"sources": {}}, "a list of at least one"),
    ({"sources": []}, "a list of at least one"),
    ({"sources": "ab"}, "got 'ab', must be a mapping"),
    ({"sources": {"a": [{"id": 1}]}}, "'a': got a list, must be a source of rows"),
    ({"sources": {1: None}}, r"at least one name \(text\)"),
    ({"block_size": 0}, "block_size: got 0, must be a whole number from 1 on"),
    ({"block_size": 1.5}, "block_size: got 1.5, must be a whole number"),
    ({"seed": "x"}, "seed: got 'x', must be a whole number"),
    (
        {"stop_strategy": "first_exausted"},
        "stop_strategy is 'first_exausted', .*did you mean 'first_exhausted'",
    ),
    ({"stop_strategy": None}, "stop_strategy is None"),
    ({"weights": {"a": 0.5, "b": 0.4}}, r"Weights must sum to 1.0, got 0.9\b"),
    ({"weights": {"a": 1.5, "b": -0.5}}, "-0.5"),
    ({"weights": {"a": 0.5, "bb": 0.5}}, r"no weight for 'b', 'bb' is not a source"),
    ({"weights": {"a": 1.0}}, "no weight for 'b'"),
    ({"weights": [0.5, 0.5]}, "got a list, must be a mapping of name to weight"),
    ({"weight_scheduler": {"a": 1.0}}, "got a dict, must be a WeightScheduler"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_mixed_is_refused_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        MixedShardedSource(**{"sources": known(a=1, b=1)} | options)


@promise(201)
def test_weights_of_other_names_get_the_nearest_one():
    with pytest.raises(
        ConfigError, match=r"'cod' is not a source; did you mean 'code'\?"
    ):
        MixedShardedSource(known(code=1, text=1), {"cod": 0.5, "text": 0.5})
    scheduler = WeightScheduler([{"step": 0, "weights": {"code": 0.5, "txt": 0.5}}])
    with pytest.raises(
        ConfigError,
        match=r"weight_scheduler: .* no weight for 'text', 'txt' is not a source",
    ):
        MixedShardedSource(known(code=1, text=1), weight_scheduler=scheduler)


def test_weights_and_a_schedule_at_once_are_refused():
    scheduler = WeightScheduler([{"step": 0, "weights": {"a": 1.0}}])
    with pytest.raises(ConfigError, match="must be one of them"):
        MixedShardedSource(known(a=1), {"a": 1.0}, weight_scheduler=scheduler)


def test_an_error_of_a_source_is_not_taken_for_its_end():
    class Broken(ShardedDataSource):
        shard_names = ("s",)

        def open_shard(self, shard_name: str) -> Iterator[Row]:
            raise ConfigError("no such column", rows=3)

    with pytest.raises(ConfigError, match="no such column"):
        next(alone(Broken()).open_shard_at_row("mixed", 5))
