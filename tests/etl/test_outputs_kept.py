"""Fields kept beside the tokens: one type for the whole dataset, exact values, their
document's in every row.
"""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.etl.outputs_support import build_here, notes, settings, write_jsonl
from tokenlake import load_config
from tokenlake.cli.app import main
from tokenlake.config.resolve import resolve
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl import make_plan
from tokenlake.etl.plan import type_of
from tokenlake.etl.sources import Rows
from tokenlake.etl.unit import Keeper
from tokenlake.runtime import (
    LogicalHasher,
    arrow_type,
    column_type,
    fits,
    joined,
    settled,
)

# Types

JSON = "json"
NULL = "null"

ARROW: dict[str, Any] = {
    "bool": pa.bool_(),
    "uint8": pa.uint8(),
    "halffloat": pa.float16(),
    "date32[day]": pa.date32(),
    "time64[ns]": pa.time64("ns"),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[ms, tz=Europe/Zurich]": pa.timestamp("ms", "Europe/Zurich"),
    "duration[s]": pa.duration("s"),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "large_binary": pa.large_binary(),
}


@pytest.mark.parametrize("name", ARROW)
def test_a_type_is_its_name_and_back(name):
    assert column_type(ARROW[name]) == name
    assert arrow_type(name) == ARROW[name]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.string(), "large_string"),
        (pa.string_view(), "large_string"),
        (pa.dictionary(pa.int8(), pa.string()), "large_string"),
        (pa.binary(4), "large_binary"),
        (pa.list_(pa.int8(), 3), {"list": "int8"}),
        (pa.timestamp("s", "UTC"), "timestamp[ms, tz=UTC]"),
        (pa.timestamp("s"), "timestamp[ms]"),
        (
            pa.struct([("a", pa.list_(pa.string()))]),
            {"struct": [["a", {"list": "large_string"}]]},
        ),
        (pa.map_(pa.string(), pa.int64()), JSON),
        (pa.struct([]), JSON),
        (pa.list_(pa.map_(pa.string(), pa.int64())), JSON),
        (pa.month_day_nano_interval(), JSON),
        (pa.null(), NULL),
    ],
)
def test_arrow_types_that_hold_the_same_are_one(kind, expected):
    assert column_type(kind) == expected


LEAVES = st.sampled_from(
    [
        "bool",
        "int8",
        "int64",
        "uint64",
        "float",
        "double",
        "large_string",
        "date32[day]",
        NULL,
        JSON,
    ]
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda kind: {"list": kind}),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(
            lambda fields: {"struct": [[name, kind] for name, kind in fields.items()]}
        ),
    ),
    max_leaves=4,
)


@given(TYPES, TYPES)
def test_joining_is_idempotent_and_order_matters_only_for_the_order_of_fields(a, b):
    both = joined(a, b)
    assert joined(both, a) == both
    assert joined(both, b) == both
    assert str(sorted(str(both))) == str(sorted(str(joined(b, a))))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, min_size=1, max_size=6), st.lists(VALUES, max_size=6))
def test_a_value_comes_back_exactly_or_is_a_fault(first, later):
    """Types are made of some values, as the plan does it, and applied to others."""
    kind = settled(type_of(first))
    keeper = Keeper([("x", kind)])
    values = first + later
    batch, faults = keeper.take(Rows(objects=[{"x": value} for value in values]))
    assert all(index >= len(first) for index in faults)
    for index, (value, got) in enumerate(
        zip(values, batch["x"].to_pylist(), strict=True)
    ):
        if index in faults:
            assert got is None
            assert not fits(value, kind)
        elif kind == JSON:
            assert got is None if value is None else json.loads(got) == value
        else:
            assert _without_nulls(got) == _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    """A missing key of an object is null in its column, which is all that may
    differ.
    """
    if isinstance(value, dict):
        return {
            key: _without_nulls(inner)
            for key, inner in value.items()
            if inner is not None
        }
    return (
        [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
    )


@pytest.mark.parametrize(
    ("column", "kind", "expected", "bad"),
    [
        (pa.array([1, 2], pa.int32()), "int64", [1, 2], []),
        (pa.array([1, 300], pa.int32()), "uint8", [1, None], [1]),
        (pa.array([1, 2**60 + 1], pa.int64()), "double", [1.0, None], [1]),
        (pa.array([0.5, 0.1], pa.float64()), "float", [0.5, None], [1]),
        (pa.array(["5", None]), "int64", [None, None], [0]),
        (pa.array([5, None]), "large_string", [None, None], [0]),
        (pa.array([5, None]), JSON, ["5", None], []),
        (pa.array([{"a": 1, "b": 2}]), {"struct": [["a", "int64"]]}, [None], [0]),
        (
            pa.array([{"a": 1}]),
            {"struct": [["a", "int64"], ["b", "bool"]]},
            [{"a": 1, "b": None}],
            [],
        ),
        (
            pa.array([[1], None], pa.list_(pa.int8(), 1)),
            {"list": "int64"},
            [[1], None],
            [],
        ),
        (pa.array(["x"]).dictionary_encode(), "large_string", ["x"], []),
        (pa.nulls(2), "int64", [None, None], []),
        (pa.array([decimal.Decimal("1.5")]), JSON, ['"1.5"'], []),
    ],
    ids=str,
)
def test_columns_of_another_type_are_converted_where_no_value_changes(
    column, kind, expected, bad
):
    batch, faults = Keeper([("x", kind)]).take(Rows(pa.record_batch({"x": column})))
    assert batch["x"].to_pylist() == expected
    assert batch["x"].type == arrow_type(kind)
    assert sorted(faults) == bad


# Hashing


def digest(*columns: Any) -> str:
    hasher = LogicalHasher()
    for column in columns:
        hasher.update(pa.table({"x": column}))
    return hasher.digest()["x"]


def test_columns_without_nulls_hash_as_they_always_did():
    """Golden: digests of released shards."""
    table = pa.table(
        {
            "a": pa.array([1, -2, 3], pa.int64()),
            "b": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
            "c": pa.array(
                [[{"f": 1, "s": 2}], [], []],
                pa.list_(pa.struct([("f", pa.int64()), ("s", pa.int32())])),
            ),
            "d": pa.array([[True], [False], [True]], pa.list_(pa.bool_(), 1)),
        }
    )
    hasher = LogicalHasher()
    hasher.update(table)
    assert hasher.digest() == GOLDEN


GOLDEN = {
    "a": "6d979d2326c345aa9513c6e67f3449e1",
    "b": "b8f8cf106f98a64d1beeb60b692dc12ea76f94d1118f3bcfe6d1006dda205ce7",
    "c": "002f05f6fc6a36e7dc559c2ccce86d4bbdc94bce2eda264dbc08dc21994df8a20c3864a6c15091ba5c17dcab9fc3967b",
    "d": "b1a57916ac63a6bcaed946681f85b77a",
}

NESTED = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
COLUMNS: list[tuple[Any, Any]] = [
    (pa.int64(), [1, None, 0]),
    (pa.bool_(), [True, None, False]),
    (pa.string(), ["a", None, "", "été"]),
    (pa.binary(), [b"a", None, b""]),
    (pa.list_(pa.int64()), [[1], None, [], [None]]),
    (pa.list_(pa.int64(), 2), [[1, 2], None, [None, 3]]),
    (NESTED, [[{"a": 1, "b": None}], None, [None], [], [{"a": None, "b": None}]]),
    (pa.timestamp("us"), [datetime.datetime(2024, 1, 1), None]),
    (pa.date32(), [datetime.date(2024, 1, 1), None]),
    (pa.decimal128(5, 2), [decimal.Decimal("1.50"), None, decimal.Decimal(0)]),
    (pa.float64(), [0.0, None, -0.0]),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=str)
def test_a_null_hashes_unlike_any_value_and_like_itself_in_any_pieces(kind, values):
    whole = digest(pa.array(values, kind))
    assert digest(*(pa.array([value], kind) for value in values)) == whole
    assert digest(pa.array([values[0], *values], kind).slice(1)) == whole
    several = [
        values,
        list(reversed(values)),
        values[:-1],
        *([value] for value in values),
    ]
    assert len({digest(pa.array(some, kind)) for some in several}) == len(
        set(map(repr, several))
    )


@given(
    st.lists(
        st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3), max_size=6
    ),
    st.data(),
)
def test_equal_digests_are_equal_rows(values, data):
    other = data.draw(st.permutations(values))
    kind = pa.list_(pa.string())
    same = digest(pa.array(values, kind)) == digest(
        pa.array(other, pa.large_list(pa.large_string()))
    )
    assert same == (values == other)


# Building


def test_kept_fields_of_json_are_columns_of_one_type(tmp_path, tokenizer_dir):
    records = [
        row
        | {
            "meta": {"source": "web", "tags": ["a"] * (i % 3)},
            "mixed": i if i % 2 else "x",
            "none": None,
        }
        | ({"score": i / 2} if i % 4 else {})
        for i, row in enumerate(notes(30))
    ]
    fields = ["id", "meta", "mixed", "none", "score"]
    config = settings(
        tmp_path,
        tokenizer_dir,
        write_jsonl(tmp_path / "a.jsonl", records),
        additional_fields=fields,
    )
    plan = make_plan(resolve(load_config(config)))
    assert [note for note in plan.notes if "JSON text" in note] == [
        f"the kept field {name!r} is stored as JSON text, because the first records have values of several types"
        for name in ("mixed", "none")
    ]
    built = build_here(config)
    schema = built.table().schema
    assert schema.names == ["input_ids", "file", "position", *fields]
    assert [str(schema.field(name).type) for name in ("id", "none", "score")] == [
        "int64",
        "large_string",
        "double",
    ]
    for row, record in zip(built.rows(), records, strict=True):
        assert row["id"] == record["id"]
        assert row["meta"] == record["meta"]
        assert json.loads(row["mixed"]) == record["mixed"]
        assert row["none"] is None
        assert row["score"] == record.get("score")
    readme = (built.folder / "README.md").read_text()
    assert "`id`, `meta`, `mixed`, `none`, `score`: kept from the input" in readme


def test_kept_fields_of_parquet_keep_their_types(tmp_path, tokenizer_dir):
    table = pa.table(
        {
            "text": [f"text {i}" for i in range(10)],
            "n": pa.array(range(10), pa.int16()),
            "when": pa.array(
                [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)] * 10,
                pa.timestamp("us", "UTC"),
            ),
            "price": pa.array([decimal.Decimal("1.25")] * 9 + [None]),
            "raw": pa.array([b"\xff"] * 10),
            "tags": pa.array([["a", None]] * 10),
            "map": pa.array([[("k", 1)]] * 10, pa.map_(pa.string(), pa.int64())),
            "other": ["not asked for"] * 10,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    fields = ["when", "n", "price", "raw", "tags", "map", "text"]
    config = settings(
        tmp_path, tokenizer_dir, tmp_path / "a.parquet", additional_fields=fields
    )
    built = build_here(config)
    found = built.table()
    assert found.schema.names == ["input_ids", "file", "position", *fields]
    assert [str(found.schema.field(name).type) for name in fields[:4]] == [
        "timestamp[us, tz=UTC]",
        "int16",
        "decimal128(3, 2)",
        "large_binary",
    ]
    for name in (*fields[:5], "text"):
        assert found[name].to_pylist() == table[name].to_pylist()
    assert found["map"].to_pylist() == ['[["k",1]]'] * 10
    config["datasets"][0]["where"] = "n >= 5"
    assert build_here(config).table()["n"].to_pylist() == [5, 6, 7, 8, 9]


def test_cells_of_csv_are_kept_as_text(tmp_path, tokenizer_dir):
    (tmp_path / "a.csv").write_text("id,text\n007,one\nNA,two\n")
    config = settings(
        tmp_path, tokenizer_dir, tmp_path / "a.csv", additional_fields=["id"]
    )
    assert build_here(config).table()["id"].to_pylist() == ["007", "NA"]


@pytest.mark.parametrize("with_steps", [False, True])
def test_a_later_value_that_does_not_fit_is_a_bad_record(
    tmp_path, tokenizer_dir, with_steps
):
    records = [
        *notes(1000),
        {"text": "late", "id": "x"},
        {"text": "none"},
        {"text": "last", "id": 5},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    options: dict[str, Any] = (
        {"format_fields": {"text": "words"}, "content_field": "words"}
        if with_steps
        else {}
    )
    config = settings(
        tmp_path, tokenizer_dir, path, additional_fields=["id"], **options
    )
    with pytest.raises(
        BadRecordError,
        match=r"a\.jsonl:1001: field_type at byte offset \d+: the kept field 'id' holds 'x'",
    ):
        build_here(config)
    config["source"] = {"on_bad_record": "quarantine", "max_bad_fraction": 0.01}
    built = build_here(config)
    assert built.manifest.account.quarantined == {"field_type": 1}
    assert built.table()["id"].to_pylist() == [*range(1000), None, 5]
    (bad,) = pq.read_table(built.folder / "quarantine").to_pylist()
    assert bad["reason"] == "field_type"


@pytest.mark.parametrize("first", [1, [1], "mixed"])
def test_a_value_too_deep_to_be_kept_is_a_bad_record(tmp_path, tokenizer_dir, first):
    """Of a field of numbers, of one of lists, and of one of several types, which is
    kept as JSON text.
    """
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"text": "a", "x": first}, {"text": "b", "x": 5}] * 500
    )
    with path.open("a") as file:
        file.write('{"text": "late", "x": ' + "[" * 1000 + "]" * 1000 + "}\n")
    config = settings(tmp_path, tokenizer_dir, path, additional_fields=["x"])
    with pytest.raises(
        BadRecordError,
        match=r"a\.jsonl:1001: field_type at byte offset \d+: the kept field 'x' holds",
    ):
        build_here(config)
    config["source"] = {"on_bad_record": "quarantine", "max_bad_fraction": 0.01}
    assert build_here(config).manifest.account.quarantined == {"field_type": 1}


def test_kept_fields_follow_their_documents(tmp_path, tokenizer_dir):
    """Splits, documents left out, empty ones, several files: a row's id is that of
    its text.
    """
    records = [
        {**row, "text": "" if row["id"] % 11 == 5 else row["text"]}
        for row in notes(200)
    ]
    for part in range(4):
        write_jsonl(
            tmp_path / "in" / f"{part}.jsonl", records[part * 50 : part * 50 + 50]
        )
    config = settings(
        tmp_path, tokenizer_dir, tmp_path / "in", additional_fields=["text", "id"]
    )
    config["source"] = {"splits": {"train": 0.7, "test": 0.3}, "unit_size": 3000}
    built = build_here(config)
    rows = built.rows() + built.rows("test")
    assert sorted(row["id"] for row in rows) == [
        row["id"] for row in records if row["text"]
    ]
    ids = {row["text"]: row["input_ids"] for row in rows}
    fresh = build_here(
        settings(
            tmp_path / "b", tokenizer_dir, tmp_path / "in", additional_fields=["text"]
        )
    )
    assert ids == {row["text"]: row["input_ids"] for row in fresh.rows()}
    assert {row["text"] for row in rows} == {row["text"] for row in records} - {""}
    assert all(row["text"] == records[row["id"]]["text"] for row in rows)


def _spread(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"length": len(row["text"]), "id": str(row["id"])}


def test_steps_come_before_fields_are_kept(tmp_path, tokenizer_dir):
    config = settings(
        tmp_path,
        tokenizer_dir,
        write_jsonl(tmp_path / "a.jsonl", notes(20)),
        format_callback=f"{__name__}:_spread",
        format_fields={"id": "key"},
        additional_fields=["key", "length"],
    )
    table = build_here(config).table()
    assert table["key"].to_pylist() == [str(i) for i in range(20)]
    assert table["length"].to_pylist() == [len(row["text"]) for row in notes(20)]


def test_sources_share_the_types_and_lack_what_they_do_not_keep(
    tmp_path, tokenizer_dir
):
    write_jsonl(tmp_path / "a.jsonl", [{"text": "one", "n": 1, "only": "a"}])
    write_jsonl(tmp_path / "b.jsonl", [{"text": "two", "n": 0.5}])
    config = settings(
        tmp_path, tokenizer_dir, tmp_path / "a.jsonl", additional_fields=["n", "only"]
    )
    config["datasets"].append(
        {
            "name": "t",
            "data_files": str(tmp_path / "b.jsonl"),
            "additional_fields": ["n"],
        }
    )
    config["datasets"].append({"name": "u", "data_files": str(tmp_path / "b.jsonl")})
    table = build_here(config).table()
    assert table["n"].to_pylist() == [1.0, 0.5, None]
    assert table["only"].to_pylist() == ["a", None, None]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"additional_fields": ["position"]},
            r"additional_fields: 'position' is a column .*format_fields",
        ),
        (
            {"additional_fields": ["Input_IDs"]},
            "'Input_IDs' is a column that every row has",
        ),
        ({"additional_fields": ["id", "ID"]}, "upper and lower case"),
        (
            {"additional_fields": ["idd"]},
            "none of the first records has a field 'idd'; they have text, id",
        ),
    ],
)
def test_fields_that_cannot_be_kept_are_errors(tmp_path, tokenizer_dir, change, match):
    config = settings(
        tmp_path, tokenizer_dir, write_jsonl(tmp_path / "a.jsonl", notes(3)), **change
    )
    with pytest.raises(ConfigError, match=match):
        make_plan(resolve(load_config(config)))


def test_neither_packed_rows_nor_removed_columns_can_be_kept(tmp_path, tokenizer_dir):
    config = settings(tmp_path, tokenizer_dir, "a.jsonl", additional_fields=["id"])
    config["tokenize"] = {"remove_columns": ["id"]}
    with pytest.raises(
        ConfigError,
        match=r"'id' is one of additional_fields, but tokenize\.remove_columns drops it",
    ):
        resolve(load_config(config))
    config["pack"] = {"enabled": True}
    with pytest.raises(ConfigError, match="cannot be kept beside packed rows"):
        resolve(load_config(config))


def test_a_large_field_beside_short_texts_ends_row_groups(
    tmp_path, tokenizer_dir, monkeypatch
):
    monkeypatch.setattr("tokenlake.etl.unit.rows_file._KEPT_BYTES", 1000)
    monkeypatch.setattr("tokenlake.etl.unit.text._ENCODE_BYTES", 1000)
    records = [{"text": "x", "blob": "b" * 600} for _ in range(20)]
    for part in range(5):
        write_jsonl(tmp_path / "in" / f"{part}.jsonl", records[part * 4 : part * 4 + 4])
    built = build_here(
        settings(tmp_path, tokenizer_dir, tmp_path / "in", additional_fields=["blob"])
    )
    assert pq.ParquetFile(built.files()[0]).num_row_groups == 5


def test_cli_and_sql_show_kept_fields(tmp_path, tokenizer_dir, capsys):
    records = [row | {"meta": {"a": [row["id"]]}} for row in notes(12)]
    for part in range(3):
        write_jsonl(tmp_path / "in" / f"{part}.jsonl", records[part * 4 : part * 4 + 4])
    config = settings(
        tmp_path, tokenizer_dir, tmp_path / "in", additional_fields=["id", "meta"]
    )
    config["source"] = {"unit_size": 100}
    build_here(config)
    store = config["save"]["output_dir"]
    assert main(["verify", "set", "--deep", "--store", store]) == 0
    capsys.readouterr()
    assert (
        main(["peek", "set", "-n", "1", "--row", "3", "--json", "--store", store]) == 0
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert row["kept"] == {"id": 3, "meta": {"a": [3]}}
    assert row["segments"][0]["text"] == records[3]["text"]
    assert main(["peek", "set", "-n", "1", "--row", "3", "--store", store]) == 0
    assert 'meta: {"a":[3]}' in capsys.readouterr().out
    assert (
        main(
            [
                "sql",
                "select id, meta.a[1] as a from 'set' where id > 9 order by id",
                "--json",
                "--store",
                store,
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == [
        {"id": 10, "a": 10},
        {"id": 11, "a": 11},
    ]
