"""The contract of sources of rows, on the least that a source of one's own defines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.rowwise.pipeline_support import require_no_threads
from tests.rowwise.sharded_support import Known, Plain, counted, ids, numbered
from tests.seeds import promise
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.rowwise import Row, ShardedDataSource, ShardInfo


@pytest.fixture
def source() -> Plain:
    return Plain(counted(a=3, b=0, c=2))


def test_a_source_of_ones_own_needs_names_and_rows_alone(source):
    assert source.shard_names == ("a", "b", "c")
    assert source.num_shards() == 3
    assert ids(source.open_shard("a")) == [0, 1, 2]
    assert ids(iter(source)) == [0, 1, 2, 3, 4]
    assert numbered(source, "c") == [(0, {"id": 3}), (1, {"id": 4})]
    assert source.get_shard_info("c") == ShardInfo(name="c", index=2)


def test_a_row_beyond_the_end_is_an_error_that_says_how_many_there_are(source):
    with pytest.raises(
        ConfigError, match="shard 'a': row 4 is beyond its end; it has 3 rows"
    ):
        list(source.open_shard_at_row("a", 4))
    with pytest.raises(ConfigError, match="row 1 is beyond its end; it has 0 rows"):
        list(source.open_shard_at_row("b", 1))


@pytest.mark.parametrize("row", [-1, 1.0, "1", None, True])
def test_a_row_that_is_no_number_from_0_on_is_refused_at_once(source, row):
    with pytest.raises(ConfigError, match="row: got"):
        source.open_shard_at_row("a", row)


def test_an_unknown_shard_is_an_error_with_the_near_match():
    source = Plain(counted(**{"part-0": 1, "part-1": 1, "x": 1, "y": 1, "z": 1}))
    with pytest.raises(
        ConfigError,
        match=r"no shard is named 'prt-0'; did you mean 'part-0'\?.* There are 5",
    ):
        source.get_shard_info("prt-0")


@promise(150, 256)
def test_shards_are_iterated_in_the_order_asked_for_and_from_the_place_asked_for(
    source,
):
    assert ids(source.iter_shards([2, 0])) == [3, 4, 0, 1, 2]
    assert ids(source.iter_shards([2, 0], start_shard=1, start_row=2)) == [2]
    assert ids(source.iter_shards(start_shard=2, start_row=1)) == [4]
    assert ids(source.iter_shards(start_shard=3)) == []
    assert ids(source.iter_shards([])) == []
    assert ids(source.iter_shards(start_row=3)) == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"shard_indices": [3]},
            r"shard_indices: got 3, must be a whole number from 0 to 2",
        ),
        ({"shard_indices": [-1]}, r"shard_indices: got -1"),
        ({"shard_indices": [True]}, r"shard_indices: got True"),
        ({"start_shard": 4}, r"start_shard: got 4, must be a whole number from 0 to 3"),
        ({"start_shard": -1}, r"start_shard: got -1"),
        ({"start_row": -1}, r"row: got -1"),
    ],
)
def test_places_that_do_not_exist_are_refused_at_once(source, arguments, message):
    with pytest.raises(ConfigError, match=message):
        source.iter_shards(**arguments)


def test_an_unknown_length_is_a_type_error_that_says_why(source):
    with pytest.raises(
        TypeError, match="length of this Plain is unknown: shard 'a' does not report"
    ):
        len(source)
    assert list(source) and source  # neither asks for a length in earnest
    with pytest.raises(TypeError, match="may be left out"):
        len(Known({"a": [{"id": 0}, {}]}))
    assert len(Known(counted(a=3, b=2))) == 5


# --- transformed


@promise(257)
def test_map_and_filter_keep_the_numbers_of_the_rows():
    source = (
        Plain(counted(a=6))
        .filter(lambda row: row["id"] % 2)
        .map(lambda row: {"id": row["id"] * 10})
    )
    assert numbered(source, "a") == [(1, {"id": 10}), (3, {"id": 30}), (5, {"id": 50})]
    for row in range(7):
        assert numbered(source, "a", row) == [
            pair for pair in numbered(source, "a") if pair[0] >= row
        ]
        assert ids(source.open_shard_at_row("a", row)) == [
            number * 10 for number in (1, 3, 5) if number >= row
        ]
    with pytest.raises(ConfigError, match="beyond its end; it has 6 rows"):
        list(source.open_shard_at_row("a", 7))


def test_lengths_go_through_what_leaves_nothing_out():
    source = Known(counted(a=3, b=2))
    assert (
        len(
            source.map(dict)
            .drop_fields(["x"])
            .rename_fields({"id": "i"})
            .select_fields(["i"])
        )
        == 5
    )
    for shorter in (
        source.filter(bool),
        source.transform(dict),
        source.filter(bool).map(dict),
    ):
        with pytest.raises(TypeError, match="may be left out"):
            len(shorter)


def test_a_transform_that_returns_something_else_is_an_error_with_the_place():
    with pytest.raises(
        ConfigError,
        match=r"shard 'a', row 0: a transform returned int, must be a dict or None",
    ):
        list(Plain(counted(a=1)).transform(lambda row: 3))
    with pytest.raises(
        ConfigError,
        match=r"row 0: .* returned NoneType, must be a dict; `filter` leaves rows out",
    ):
        list(Plain(counted(a=1)).map(lambda row: None))


def test_an_exception_in_a_function_stays_what_it_is_and_names_the_row():
    with pytest.raises(ZeroDivisionError) as caught:
        list(Plain(counted(a=3)).map(lambda row: {"x": 1 // (row["id"] - 2)}))
    assert caught.value.__notes__ == ["raised by a transform of shard 'a', row 2"]


FIELDS = Plain({"a": [{"x": 1, "y": 2, "z": 3}, {"x": 4, "z": 6}]})


@promise(154, 257)
def test_fields_are_renamed_selected_and_dropped_in_order():
    first = {"a": [{"x": 1, "y": 2, "z": 3}]}
    assert [list(row.items()) for row in Plain(first).rename_fields({"x": "w"})] == [
        [("w", 1), ("y", 2), ("z", 3)]
    ]
    assert [
        list(row.items()) for row in Plain(first).rename_fields({"x": "y", "y": "x"})
    ] == [[("y", 1), ("x", 2), ("z", 3)]]
    assert [list(row.items()) for row in Plain(first).select_fields(["z", "x"])] == [
        [("z", 3), ("x", 1)]
    ]
    assert list(Plain(first).drop_fields(["x", "unknown"])) == [{"y": 2, "z": 3}]


@pytest.mark.parametrize(
    "source",
    [FIELDS.select_fields(["x", "y", "w"]), FIELDS.rename_fields({"y": "v", "w": "u"})],
)
def test_a_missing_field_names_the_row_and_the_fields(source):
    with pytest.raises(
        BadRecordError, match=r"shard 'a', row 0: .* no field 'w'; it has 'x', 'y', 'z'"
    ) as caught:
        list(source)
    assert caught.value.details == {"reason": "missing_field", "shard": "a", "row": 0}
    with pytest.raises(BadRecordError, match=r"row 1: .* no fields 'y', 'w'"):
        list(source.open_shard_at_row("a", 1))


def test_a_collision_of_names_names_both():
    with pytest.raises(ConfigError, match="'x' and 'y' would both become 'w'"):
        FIELDS.rename_fields({"x": "w", "y": "w"})
    with pytest.raises(
        BadRecordError,
        match=r"row 0: .*'x' cannot become 'z', because the row has a field 'z'",
    ):
        list(FIELDS.rename_fields({"x": "z"}))


def test_rows_given_to_transforms_are_not_changed():
    rows = [{"x": 1, "y": 2}]
    source = Plain({"a": rows})
    for made in (
        source.rename_fields({"x": "z"}),
        source.drop_fields(["x"]),
        source.select_fields(["x"]),
    ):
        assert len(list(made)) == 1
    assert rows == [{"x": 1, "y": 2}]


@promise(151)
@pytest.mark.parametrize("workers", [2, 5])
def test_shards_are_opened_ahead_and_rows_stay_in_order(workers: int):
    shards = counted(a=3, b=0, c=1500, d=2, e=4)
    met = threading.Barrier(2, timeout=120)

    class Slow(ShardedDataSource):
        """Gives a first row only while two shards are open."""

        shard_names = tuple(shards)  # pyright: ignore[reportAssignmentType]

        def open_shard(self, shard_name: str) -> Iterator[Row]:
            if shard_name in "ab":
                met.wait()
            return iter(shards[shard_name])

    rows = Slow().iter_shards(workers=workers)
    assert ids(rows) == list(range(1509))
    assert ids(Plain(shards).iter_shards([2, 0], start_row=1499, workers=workers)) == [
        1502,
        0,
        1,
        2,
    ]
    require_no_threads()


@promise(151)
def test_an_error_of_a_shard_that_was_opened_ahead_comes_in_its_place():
    def bad(row: Row) -> Row:
        if row["id"] == 4:
            raise ValueError("four")
        return row

    rows = Plain(counted(a=3, b=4)).map(bad).iter_shards(workers=2)
    assert ids(islice(rows, 4)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="four"):
        next(rows)
    with pytest.raises(ConfigError, match="workers: got 0"):
        Plain(counted(a=3)).iter_shards(workers=0)


def test_a_resume_at_any_place_gives_what_was_left():
    source = Plain(counted(a=3, b=0, c=2, d=1))
    places = [
        (shard, row)
        for shard, name in enumerate(source.shard_names)
        for row, _ in numbered(source, name)
    ]
    for position, (shard, row) in enumerate(places):
        left = ids(source.iter_shards(start_shard=shard, start_row=row))
        assert left == list(range(position, 6))
