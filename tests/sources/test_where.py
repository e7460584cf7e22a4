"""`where`: what is a predicate, what it keeps, and what statistics can rule out."""

from __future__ import annotations

import datetime
import functools
import re
import subprocess
import sys
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.etl.sources import ColumnRange, Predicate, Row, Rows
from tokenlake.etl.sources import rows as rows_module

ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, None, 4]),
        "lang": pa.array(["py", "go", None, "py"], pa.large_string()),
        "score": pa.array([0.5, float("nan"), 2.0, None]),
        "ok": pa.array([True, False, None, True]),
        "meta": pa.array(
            [
                {"lang": "py", "deep": {"x": 1}},
                {"lang": "go", "deep": None},
                None,
                {"lang": None},
            ]
        ),
        "tags": pa.array([["a", "b"], [], None, ["c"]]),
        "my col": pa.array([1, 2, 3, 4]),
        "a.b": pa.array([1, 2, 3, 4]),
        "nothing": pa.nulls(4),
        "current_date": pa.array([1, 2, 3, 4]),
    }
)


def kept(sql: str, rows: pa.RecordBatch = ROWS) -> list[int]:
    return met(sql, Rows(rows))


def met(sql: str, rows: Rows) -> list[int]:
    verdicts = Predicate(sql).judge(rows)
    assert not verdicts.faults
    assert verdicts.mask.dtype == np.bool_
    assert verdicts.mask.shape == (len(rows),)
    return np.flatnonzero(verdicts.mask).tolist()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("lang = 'py'", [0, 3]),
        ("lang = 'py' and length(lang) > 1 and id < 3", [0]),
        ("not lang = 'py'", [1]),
        ("lang is null or id = 4", [2, 3]),
        ("id between 2 and 4", [1, 3]),
        ("lang in ('go', 'rust')", [1]),
        ("lang not in ('go', 'rust')", [0, 3]),
        ("ok", [0, 3]),
        ("not ok", [1]),
        ("case when id = 1 then true else id = 4 end", [0, 3]),
        ("lang like 'p%' or lang ilike 'G_'", [0, 1, 3]),
        ("score > 1", [1, 2]),  # NaN is the greatest number
        ("try_cast(lang as int) is null", [0, 1, 2, 3]),
        ("meta.lang = 'py'", [0]),
        ("meta.deep.x = 1", [0]),
        ("meta['lang'] = 'go'", [1]),
        ('"my col" > 2', [2, 3]),
        ('"a.b" = 1', [0]),
        (
            "list_contains(tags, 'a') or len(list_filter(tags, lambda t: t = 'c')) = 1",
            [0, 3],
        ),
        ("len([t for t in tags if t > 'a']) = 1", [0, 3]),
        ("regexp_matches(lang, '^g')", [1]),
        ("nothing = 'py'", []),
        ("nothing > 3 or length(nothing) > 2 or nothing.x = 1", []),
        ("coalesce(nothing, lang) = 'py'", [0, 3]),
        ("nothing", []),
        ('"current_date" = 2', [1]),
        ("id = 1 -- a comment", [0]),
        ("/* a comment */ id = 1", [0]),
        ("coalesce(id = 1, false)", [0]),
        ("if(id = 1, true, null)", [0]),
        ("lower(upper(lang)) = 'go' and list_sum([id, 1]) = 3", [1]),
    ],
)
def test_what_a_predicate_keeps(sql: str, expected: list[int]) -> None:
    assert kept(sql) == expected


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("b = 1 and a = 2", ("a", "b")),
        ("meta.lang = 'py' and meta.size > 3", ("meta",)),
        ("meta['lang']['x'].y = 'py'", ("meta",)),
        ('"a.b" = 1', ("a.b",)),
        ('"a.b".c = 1', ("a.b",)),
        ("len(list_filter(l, lambda x: x.a > y)) > 0", ("l", "y")),
        (
            "len(list_filter(l, lambda x: len(list_filter(m, lambda y: y > x)) > y)) > 0",
            ("l", "m", "y"),
        ),
        ("case when a then b else c end in (d, 1)", ("a", "b", "c", "d")),
        ("Lang = 'py'", ("Lang",)),
        ('"quoted ""name""" = 1', ('quoted "name"',)),
    ],
)
def test_the_columns_of_a_predicate_are_top_level_fields(
    sql: str, columns: tuple[str, ...]
) -> None:
    assert Predicate(sql).columns == columns


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "syntax error"),
        ("id >", "syntax error"),
        ("id = 1; drop table x", "syntax error"),
        ("id = 1;", "syntax error"),
        ("true) UNION (SELECT 1", "syntax error"),
        ("id = 1) OR (id = 2", "syntax error"),
        ("id = 1) GROUP BY (id", "syntax error"),
        ("id = 1 ORDER BY id", "syntax error"),
        ("id = 1 LIMIT 3", "syntax error"),
        ("id = 1 /* open", "unterminated"),
        ("(id = 1", "syntax error"),
        ("id = 1, 2", "syntax error"),
        ("id in (select 1)", "a subquery"),
        ("exists (from x)", "a subquery"),
        ("id = any(tags)", "a subquery"),
        ("row_number() over () > 1", "a window function"),
        ("sum(id) > 1", "an aggregate"),
        ("count(*) > 1", "an aggregate"),
        ("sum(id) filter (where id > 1) = 1", "an aggregate"),
        ("* = 1", r"\* is not allowed"),
        ("x.* = 1", r"\* is not allowed"),
        ("columns('x') = 1", r"\* is not allowed"),
        ("id = $1", "a parameter"),
        ("#1 = 1", "by its position"),
        ("grouping(id) = 1", "is not allowed"),
        ("unnest(tags) = 'a'", "unnest"),
        ("random() < 0.5 and id = 1", "random.*not depend on the record alone"),
        ("id < epoch(now())", "now"),
        ("today() > id", "today"),
        ("id > current_date", "current_date is the current time"),
        ("id = getvariable('x')", "getvariable"),
        ("lang = uuid()::varchar", "uuid"),
        ("nextval('s') = id", "nextval"),
        ("version() = lang", "version"),
        ("current_setting('threads') = lang", "current_setting"),
        ("ago(interval 1 day) > lang", "ago"),
        ("getenv('HOME') = lang", "getenv"),
        ("lang = read_text('/etc/passwd')", "read_text"),
        ("lang.lower() = 'py'", r"write lower\(\.\.\.\)"),
        ("meta -> 'lang' = 'py'", "json_extract"),
        ("1 = 1", "uses no field"),
        ("id = 1 and ID = 2", "cannot distinguish the fields 'ID' and 'id'"),
        ("id = '\ud800'", "cannot be used"),
        ("id = 1\x00", "cannot be used"),
        ("not " * 5000 + "ok", "cannot be used"),
    ],
)
def test_what_is_no_predicate_is_refused_before_any_work(sql: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Predicate(sql)
    assert str(caught.value).startswith("where: ")
    assert "one SQL expression over the fields of one record" in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "land = 'py'",
            r"'land', which is no column\. Did you mean lang\? The columns are id, lang",
        ),
        ("LANG = 'py'", "Did you mean lang"),
        ("rowid = 1", "'rowid', which is no column"),
        (
            "id = 'abc'",
            r"Could not convert string 'abc' to INT64 \(at `'abc'`\).*TRY_CAST",
        ),
        ("lang > 3", "Cannot compare.*TRY_CAST"),
        ("meta.size > 3", "Could not find key"),
        ("length(lang)", "is of type int64, expected a condition"),
        ("lang", "is of type string, expected a condition"),
        ("lang::mood = 'x'", "mood"),
    ],
)
def test_what_does_not_fit_the_columns_is_said_in_full(sql: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kept(sql)
    assert kept("id = 1") == [0]  # the engine is as good as before


def test_a_value_that_cannot_be_judged_is_a_fault_of_its_row_alone() -> None:
    rows = pa.record_batch({"n": ["1", "x", None, "7", "y"], "m": [{"l": 1}] * 5})
    verdicts = Predicate("n::int > 3 and m.l = 1").judge(Rows(rows))
    assert verdicts.mask.tolist() == [False, False, False, True, False]
    assert [(index, fault.reason) for index, fault in verdicts.faults.items()] == [
        (1, "where_failed"),
        (4, "where_failed"),
    ]
    assert re.search(
        "Could not convert string 'x'.*n string.*TRY_CAST", verdicts.faults[1].detail
    )


@pytest.mark.parametrize(
    "sql", ["lang = 'en'", "lang in ('en', 'de')", "lang like 'e%'", "length(lang) = 2"]
)
def test_one_odd_value_changes_the_verdict_on_itself_alone(sql: str) -> None:
    objects: list[Row] = [{"lang": "en"}] * 1000
    objects[500] = {"lang": 5}
    verdicts = Predicate(sql).judge(Rows(objects=objects))
    assert np.flatnonzero(~verdicts.mask).tolist() == [500] == list(verdicts.faults)
    assert "lang int64" in verdicts.faults[500].detail
    assert Predicate("lang::varchar = 'en'").judge(Rows(objects=objects)).faults == {}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i > 5", [1, 2, 3, 4, 6]),
        ("i < 0", [5, 7]),
        ("i = 18446744073709551615", [2]),
        ("i = 1180591620717411303424", [3]),
        ("i >= 1e39", [4, 6]),
        ("i % 2 = 1 and i < 1e30", [0, 2]),
        ("i between 9223372036854775808 and 18446744073709551616", [1, 2]),
        ("i in (1, 18446744073709551615)", [0, 2]),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_integers_of_json_are_numbers_whatever_their_size(
    sql: str, expected: list[int], nested: bool
):
    values = [1, 2**63, 2**64 - 1, 2**70, 10**40, -(2**70), 10**400, -(10**400)]
    objects: list[Row] = [{"i": value} for value in values]
    if nested:
        objects = [{"i": {"n": value}} for value in values[:4]]
        sql, expected = (
            re.sub(r"\bi\b", "i.n", sql),
            [index for index in expected if index < 4],
        )
    assert met(sql, Rows(objects=objects)) == expected


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, 2**70, -(2**63) - 1, 10**40]),
    st.sampled_from([0.0, 1.0, 1.5, 1e300]),
    st.sampled_from(["", "a", "en", "1", "\ud800", "[1]"]),
    st.sampled_from([datetime.date(2020, 1, 1), Decimal("1.5"), b"a"]),
)
_MIXED = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("lLxy"), inner, max_size=3)
    ),
    max_leaves=5,
) | st.just(functools.reduce(lambda inner, _: [inner], range(400), 1))
_ON_MIXED = st.sampled_from(
    [
        "a = 'en'",
        "a in ('en', 'x')",
        "a like 'e%'",
        "length(a) = 2",
        "a > 1",
        "a + 1 > 2",
        "a is null",
        "a",
        "a = b",
        "typeof(a) = 'BIGINT'",
        "a::varchar like '%1%'",
        "a // 2 = 0",
        "coalesce(a, b) = 1",
        "list_contains(a, 1)",
        "len(a) > 1",
        "a.l = 'en'",
        "a.l is null",
        "a.l.x > 1 or b = 1",
        "a['x'] = a.y",
        "a::int > 0",
        "a.l::varchar = '1'",
        "try_cast(a as int) > 0 or try_cast(b as varchar) = 'en'",
        "a[1] = 1",
        "to_json(a)::varchar like '%l%'",
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    _ON_MIXED,
    st.lists(st.dictionaries(st.sampled_from("ab"), _MIXED), min_size=1, max_size=6),
)
@example("typeof(a) = 'BIGINT'", [{"a": 1}, {"a": 2**63}])
def test_the_verdict_on_an_object_is_that_on_it_alone(
    sql: str, objects: list[Row]
) -> None:
    together = Predicate(sql).judge(Rows(objects=objects))
    alone = [Predicate(sql).judge(Rows(objects=[each])) for each in objects]
    assert together.mask.tolist() == [bool(each.mask[0]) for each in alone]
    assert together.faults == {
        index: each.faults[0] for index, each in enumerate(alone) if each.faults
    }


@settings(max_examples=50, deadline=None)
@given(
    _ON_MIXED,
    st.lists(
        st.none() | st.sampled_from(["en", "1", "x", "", "[1]"]), min_size=1, max_size=6
    ),
    st.booleans(),
)
def test_the_verdict_on_a_row_of_columns_is_that_on_it_alone(
    sql: str, cells: list[str | None], nested: bool
) -> None:
    column = pa.array([{"l": cell, "x": 1} for cell in cells] if nested else cells)
    rows = pa.record_batch({"a": column, "b": pa.array(range(len(cells)))})
    judge = Predicate(sql).judge
    try:
        together = judge(Rows(rows))
    except ConfigError:
        for index in range(len(rows)):
            with pytest.raises(ConfigError):
                judge(Rows(rows[index : index + 1]))
        return
    alone = [judge(Rows(rows[index : index + 1])) for index in range(len(rows))]
    assert together.mask.tolist() == [bool(each.mask[0]) for each in alone]
    assert together.faults == {
        index: each.faults[0] for index, each in enumerate(alone) if each.faults
    }


def test_many_fields_in_an_object_do_not_change_what_others_beside_it_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More are no column: a 200th, to save the time.
    monkeypatch.setattr(rows_module, "MAX_CELLS", 20_000)
    objects: list[Row] = [
        {"m": {str(key): key for key in range(600)}} for _ in range(50)
    ]
    assert met("m['7'] = 7 and m::varchar like '{%'", Rows(objects=objects)) == list(
        range(50)
    )


def test_of_two_columns_that_differ_in_case_the_one_that_is_spelled_so_counts() -> None:
    rows = pa.record_batch({"lang": ["a", "b"], "Lang": ["b", "a"]})
    assert kept("lang = 'a'", rows) == [0]
    assert kept("Lang = 'a'", rows) == [1]
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(ConfigError, match="several columns 'x'"):
        kept("x = 1", twice)


def test_what_an_object_lacks_is_null() -> None:
    objects: list[Row] = [
        {"meta": {"a": {"b": 1}}, "flat": 1},
        {"meta": {"a": None}, "flat": 2},
        {"flat": 3},
    ]
    rows = Rows(objects=objects)
    assert met("land is null", rows) == [0, 1, 2]
    assert met("meta.size > 3 or meta.a.b = 1", rows) == [0]
    # Fields of fields in any case, as in DuckDB.
    assert met("meta.A.b = 1", rows) == [0]
    assert met("meta.a.c is null and meta.size is null", Rows(objects=objects[1:])) == [
        0,
        1,
    ]
    assert met("land.x = 1 or meta['new']['x'] = 1 or flat = 2", rows) == [1]
    assert met("flat = 2", Rows(objects=[])) == []


def test_rows_that_are_slices_or_empty() -> None:
    assert kept("meta.lang = 'go' or id = 4", ROWS[1:]) == [0, 2]
    assert kept("id = 1", ROWS[:0]) == []
    assert kept("nothing = 1", ROWS[:0]) == []
    many = pa.record_batch({"x": np.arange(300_000)})
    # In the order of the rows.
    assert kept("x % 100000 = 99999", many) == [99_999, 199_999, 299_999]


@pytest.mark.parametrize(
    "kind",
    [
        "string",
        "large_string",
        "string_view",
        "dictionary",
        "binary",
        "uint64",
        "decimal",
        "timestamp",
    ],
)
def test_types_that_files_have(kind: str) -> None:
    arrays = {
        "string": pa.array(["a", "b", None]),
        "large_string": pa.array(["a", "b", None], pa.large_string()),
        "string_view": pa.array(["a", "b", None], pa.string_view()),
        "dictionary": pa.array(["a", "b", None]).dictionary_encode(),
        "binary": pa.array([b"a", b"b", None]),
        "uint64": pa.array([2**63, 0, None], pa.uint64()),
        "decimal": pa.array([3, 1, None]).cast(pa.decimal128(38, 2)),
        "timestamp": pa.array([86_400 * 10**6, 0, None], pa.timestamp("us")),
    }
    conditions = {
        "uint64": "> 1",
        "decimal": "> 1.5",
        "timestamp": "> '1970-01-01 12:00'",
    }
    condition = conditions.get(kind, "= 'a'")
    assert kept(f"x {condition}", pa.record_batch({"x": arrays[kind]})) == [0]


def test_a_type_that_duckdb_does_not_know_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="x halffloat"):
        kept("x > 1", pa.record_batch({"x": pa.array([1.0], pa.float16())}))


def test_threads_share_the_engine() -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        rows = pa.record_batch({"x": np.arange(1000) + number})
        found = [kept(f"x = {number + 500}", rows) for _ in range(20)]
        wrong.extend(each for each in found if each != [500])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_worker_without_where_does_not_import_duckdb() -> None:
    code = "import sys; import tokenlake.etl.sources.records, tokenlake.etl.worker; sys.exit('duckdb' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}
        ).returncode
        == 0
    )


# ---- statistics
# -------------------------------------------------------------------------------------


def _range(low: Any, high: Any, nulls: int | None = 0, rows: int = 10) -> ColumnRange:
    return ColumnRange(low=low, high=high, nulls=nulls, rows=rows)


@pytest.mark.parametrize(
    ("sql", "excluded"),
    [
        ("x = 3", True),
        ("x = 15", False),
        ("3 = x", True),
        ("x < 10", True),
        ("x <= 10", False),
        ("x > 20", True),
        ("x >= 20", False),
        ("20 < x", True),
        ("20 <= x", False),
        ("x in (1, 2, 30)", True),
        ("x in (1, 12)", False),
        ("x between 21 and 30", True),
        ("x between 1 and 10", False),
        ("x is null", True),
        ("x is not null", False),
        ("x > 20 and y = 1", True),
        ("x > 20 or y = 1", False),
        ("x > 20 or x < 10", True),
        ("s = 'a'", True),
        ("s >= 'ü'", True),
        ("s < 'c'", False),
        ("f < 1", True),
        ("f > 9", False),  # there may be a NaN
        ("f = 0.1", False),  # 0.1 is another number in 32 bits
        ("f = 0.125", True),
        ("f between 10 and 20", True),
        ("b = true", True),
        ("n = 3 or n > 3 or n in (1)", True),
        ("n is not null", True),
        ("not x = 15", False),
        ("x <> 15", False),
        ("x = '3'", False),
        ("x > 20.5", False),
        ("x + 1 > 30", False),
        ("m.x > 30", False),
        ("unknown = 1", False),
        ("open > 30", True),
        ("open < 0", False),
        ("open = 6 or open between 6 and 9", True),
        ("half < 1 or half = 0.5 or half <= 0.5 or half between 0 and 0.5", True),
        ("half > 9", False),
        ("x = 99999999999999999999", False),
        ("x is distinct from 3", False),
        ("s like 'a%'", False),
        ("x = null", False),
    ],
)
def test_what_statistics_rule_out(sql: str, excluded: bool) -> None:
    ranges = {
        "x": _range(10, 20),
        "s": _range("b", "d"),
        "f": _range(1.0, 2.0),
        "b": _range(False, False),
        "n": _range(None, None, nulls=10),
        "open": _range(None, 5),
        "half": _range(1.0, None),
        "m": _range(None, None),
    }
    assert Predicate(sql).excludes(ranges) is excluded


_INTS = st.one_of(st.none(), st.integers(-4, 4))
_FLOATS = st.one_of(
    st.none(),
    st.sampled_from([-1.5, -0.0, 0.0, 0.1, 1.0, 2.5, float("inf"), float("nan")]),
)
_TEXTS = st.one_of(
    st.none(), st.sampled_from(["", "a", "ab", "b", "z", "ü", "\uffff", "\U0001f600"])
)
_BOOLS = st.one_of(st.none(), st.booleans())
_CONSTANTS = {
    "i": st.integers(-5, 5).map(str),
    "f": st.sampled_from(["-1.5", "0", "0.0", "0.1", "1", "2.5", "3"]),
    "g": st.sampled_from(["-1.5", "0", "0.0", "0.1", "1", "2.5", "3"]),
    "t": st.sampled_from(["", "a", "aa", "b", "ü", "\uffff", "\U0001f600"]).map(
        lambda text: f"'{text}'"
    ),
    "b": st.sampled_from(["true", "false"]),
}


@st.composite
def _conditions(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from(sorted(_CONSTANTS)))
    value = _CONSTANTS[column]
    form = draw(
        st.sampled_from(["compare", "turned", "in", "between", "null", "not null"])
    )
    sign = draw(st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]))
    return {
        "compare": f"{column} {sign} {draw(value)}",
        "turned": f"{draw(value)} {sign} {column}",
        "in": f"{column} in ({draw(value)}, {draw(value)})",
        "between": f"{column} between {draw(value)} and {draw(value)}",
        "null": f"{column} is null",
        "not null": f"{column} is not null",
    }[form]


_PREDICATES = st.recursive(
    _conditions(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda each: f"({' '.join(each)})"
        ),
        inner.map(lambda each: f"(not {each})"),
    ),
    max_leaves=4,
)


def _true_range(array: pa.Array) -> ColumnRange:
    """Statistics as a writer of Parquet makes them: without nulls and NaN."""
    values = [
        value for value in array.to_pylist() if value is not None and value == value
    ]
    low, high = (min(values), max(values)) if values else (None, None)
    return ColumnRange(low=low, high=high, nulls=array.null_count, rows=len(array))


@settings(max_examples=60, deadline=None)
@given(
    _PREDICATES,
    st.lists(st.tuples(_INTS, _FLOATS, _TEXTS, _BOOLS), min_size=1, max_size=4),
)
def test_where_statistics_rule_a_predicate_out_no_record_meets_it(
    sql: str, rows: list[Any]
) -> None:
    ints, floats, texts, bools = (list(column) for column in zip(*rows, strict=True))
    batch = pa.record_batch(
        {
            "i": pa.array(ints, pa.int32()),
            "f": pa.array(floats, pa.float64()),
            "g": pa.array(floats, pa.float32()),
            "t": pa.array(texts, pa.string()),
            "b": pa.array(bools, pa.bool_()),
        }
    )
    ranges = {name: _true_range(batch.column(name)) for name in batch.schema.names}
    if Predicate(sql).excludes(ranges):
        assert not kept(sql, batch)


def test_a_process_that_used_a_predicate_ends_without_a_word() -> None:
    code = (
        "from tokenlake.etl.sources import Predicate, Rows; "
        "print(Predicate('a > 1').judge(Rows(objects=[{'a': 1}, {'a': 2}])).mask)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert (done.stdout, done.stderr) == ("[False  True]\n", "")
