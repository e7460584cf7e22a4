"""Every transform by rows and by columns: the same rows, the same ones left out, the
same ones bad.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake import (
    AddField,
    ChainedTransform,
    CombineFields,
    DropFields,
    ExpandTransform,
    ExtractField,
    FilterByField,
    FilterNonEmpty,
    FilterTransform,
    MapField,
    RenameFields,
    SelectFields,
    Transform,
    Where,
)
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources import Row, Rows

NAMES = ("a", "b", "a.b", "meta", "text")
NESTED = pa.struct(
    [("b", pa.list_(pa.struct([("c", pa.int64())]))), ("d", pa.string())]
)
TEXTS = st.text("aé\U0001f600 ", max_size=3)
CELLS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.large_binary(): st.binary(max_size=2),
    pa.timestamp("us"): st.datetimes(
        datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1)
    ),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(0, 5), max_size=3),
    pa.large_list(pa.string()): st.lists(st.none() | TEXTS, max_size=2),
    pa.list_(pa.bool_(), 2): st.lists(st.booleans(), min_size=2, max_size=2),
    NESTED: st.fixed_dictionaries(
        {
            "b": st.none()
            | st.lists(
                st.none() | st.fixed_dictionaries({"c": st.none() | st.integers(0, 9)})
            ),
            "d": st.none() | TEXTS,
        }
    ),
}
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | TEXTS
VALUES |= st.just([]) | st.just({"x": None})
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("bcd"), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Columns of random types with nulls, from a slice of larger ones."""
    size = draw(st.integers(1, 5))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    arrays = []
    for _ in names:
        kind = draw(st.sampled_from(list(CELLS)))
        arrays.append(
            pa.array(
                draw(st.lists(st.none() | CELLS[kind], min_size=size, max_size=size)),
                kind,
            )
        )
    first = draw(st.integers(0, size - 1))
    return pa.RecordBatch.from_arrays(arrays, names=names).slice(first)


def shout(value: Any) -> Any:
    if isinstance(value, list):
        raise BadRecordError("a list cannot shout", reason="no_voice")
    return value.upper() if isinstance(value, str) else value


def mixed(value: Any) -> Any:
    return len(value) if isinstance(value, str) else repr(value)


def long(value: Any) -> bool:
    if isinstance(value, dict):
        raise BadRecordError("an object has no length", reason="no_length")
    return isinstance(value, str) and len(value) > 1


def _apart(names: dict[str, str]) -> bool:
    return len(set(names.values())) == len(names)


FIELDS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
FIELD = st.sampled_from((*NAMES, "new"))
SEPARATORS = st.sampled_from([" ", "", "é"])
PATHS = st.sampled_from(
    [
        "a",
        "a.b",
        "meta.d",
        "meta.b",
        "meta.b[0]",
        "meta.b[-1].c",
        "meta.b[1].c",
        "a[0]",
        "a[-2]",
        "b.x",
    ]
)
TRANSFORMS = st.one_of(
    st.builds(SelectFields, FIELDS),
    st.builds(DropFields, FIELDS),
    st.builds(
        RenameFields,
        st.dictionaries(st.sampled_from(NAMES), FIELD, min_size=1, max_size=2).filter(
            _apart
        ),
    ),
    st.builds(AddField, FIELD, VALUES),
    st.builds(AddField, FIELD, st.just(len)),
    st.builds(
        MapField,
        st.sampled_from(NAMES),
        st.sampled_from([shout, mixed]),
        st.none() | FIELD,
    ),
    st.builds(ExtractField, PATHS, FIELD, VALUES),
    st.builds(
        CombineFields,
        FIELDS,
        FIELD,
        st.none() | st.just(repr),
        SEPARATORS,
        st.booleans(),
    ),
    st.builds(FilterNonEmpty, FIELDS),
    st.builds(FilterByField, st.sampled_from(NAMES), st.sampled_from([bool, long])),
    st.builds(
        FilterTransform,
        st.sampled_from([lambda row: len(row) > 1, lambda row: row.get("a")]),
    ),
)


def by_rows(transform: Transform, objects: list[Row]) -> Any:
    """What the function of one row says of each."""
    made, origin, bad, left_out = [], [], [], 0
    for index, row in enumerate(objects):
        before = repr(row)
        try:
            result = transform(row)
        except BadRecordError as error:
            bad.append((index, error.details["reason"], str(error)))
            continue
        assert repr(row) == before  # rows given in are never changed
        if result is None:
            left_out += 1
        else:
            made.append(result)
            origin.append(index)
    return made, origin, left_out, bad


def by_batch(transform: Transform, rows: Rows) -> Any:
    outcome = transform.on_rows(rows)
    bad = [(index, fault.reason, fault.detail) for index, fault in outcome.bad]
    seen = [*outcome.origin.tolist(), *(index for index, _ in outcome.bad)]
    assert len(seen) == len(set(seen))
    assert len(outcome.rows) == len(outcome.origin)
    assert set(outcome.filtered) <= {transform.reason}
    return (
        list(outcome.rows.objects),
        outcome.origin.tolist(),
        sum(outcome.filtered.values()),
        bad,
    )


@settings(max_examples=50)
@given(batches(), TRANSFORMS)
def test_columns_and_rows_give_the_same(
    batch: pa.RecordBatch, transform: Transform
) -> None:
    expected = by_rows(transform, batch.to_pylist())
    assert repr(by_batch(transform, Rows(batch))) == repr(expected)
    assert repr(by_batch(transform, Rows(objects=batch.to_pylist()))) == repr(expected)


PREDICATES = st.sampled_from(
    [
        "a = 'a'",
        "a > 1",
        "a is null or b = 1",
        "length(text) > 1",
        "meta.d > 'a'",
        "a::varchar like '%1%'",
    ]
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4),
        min_size=1,
        max_size=5,
    ),
    TRANSFORMS | st.builds(Where, PREDICATES),
)
def test_json_objects_keep_what_they_are(
    objects: list[Row], transform: Transform
) -> None:
    expected = by_rows(transform, objects)
    assert repr(by_batch(transform, Rows(objects=objects))) == repr(expected)
    rows = Rows(objects=objects)
    _ = rows.columns  # made by somebody before: they say less than the objects
    assert repr(by_batch(transform, rows)) == repr(expected)


@settings(max_examples=50)
@given(
    batches(),
    st.lists(TRANSFORMS, min_size=2, max_size=4),
    st.sets(st.sampled_from(NAMES)),
)
def test_a_chain_needs_no_more_than_it_says(
    batch: pa.RecordBatch, transforms: list[Transform], wanted: set[str]
) -> None:
    chain = ChainedTransform(transforms)
    needs = chain.needs(tuple(sorted(wanted)))
    if needs is None:
        return
    narrow = batch.select([name for name in batch.schema.names if name in needs])
    rows = (
        Rows(narrow)
        if narrow.num_columns
        else Rows(objects=[{} for _ in range(len(batch))])
    )
    few, all_ = chain.on_rows(rows), chain.on_rows(Rows(batch))
    assert few.origin.tolist() == all_.origin.tolist()
    assert [(i, fault.reason) for i, fault in few.bad] == [
        (i, fault.reason) for i, fault in all_.bad
    ]
    assert few.filtered == all_.filtered
    of_few, of_all = few.rows.objects, all_.rows.objects
    for name in wanted:
        assert repr([row.get(name, "-") for row in of_few]) == repr(
            [row.get(name, "-") for row in of_all]
        )


@settings(max_examples=50)
@given(batches(), st.lists(TRANSFORMS, min_size=1, max_size=4))
def test_a_chain_is_its_steps_one_after_the_other(
    batch: pa.RecordBatch, transforms: list[Transform]
) -> None:
    outcome = ChainedTransform(transforms).on_rows(Rows(batch))
    expected, origin, gone = [], [], 0
    for index, row in enumerate(batch.to_pylist()):
        try:
            result = ChainedTransform(transforms)(row)
        except BadRecordError:
            assert index in dict(outcome.bad)
            continue
        gone += result is None
        if result is not None:
            expected.append(result)
            origin.append(index)
    assert repr(outcome.rows.objects) == repr(expected)
    assert outcome.origin.tolist() == origin
    assert sum(outcome.filtered.values()) == gone


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 5), st.none() | st.sampled_from(["en", "de"])
        ),
        min_size=1,
    )
)
def test_a_predicate_gives_the_same_by_rows_and_by_columns(
    cells: list[tuple[Any, Any]],
) -> None:
    transform = Where("n > 1 and lang = 'en'")
    objects = [{"n": n, "lang": lang} for n, lang in cells]
    batch = pa.RecordBatch.from_pylist(
        objects, schema=pa.schema([("n", pa.int64()), ("lang", pa.string())])
    )
    kept = [
        index
        for index, (n, lang) in enumerate(cells)
        if n is not None and n > 1 and lang == "en"
    ]
    for rows in (Rows(batch), Rows(objects=objects)):
        outcome = transform.on_rows(rows)
        assert outcome.origin.tolist() == kept
        assert outcome.filtered == (
            {"where": len(cells) - len(kept)} if len(kept) < len(cells) else {}
        )
    assert [index for index, row in enumerate(objects) if transform(row)] == kept


def test_a_predicate_takes_a_missing_key_for_null_and_a_missing_column_for_a_mistake() -> (
    None
):
    assert Where("lang is null")({"text": "x"}) == {"text": "x"}
    with pytest.raises(ConfigError, match=r"which is no column. Did you mean lang"):
        Where("lagn = 'en'").on_rows(Rows(pa.RecordBatch.from_pydict({"lang": ["en"]})))
    with pytest.raises(ConfigError, match=r"where: .* cannot be used"):
        Where("a = 1; drop table x")


# --- each one


@pytest.mark.parametrize(
    ("transform", "row", "reason", "message"),
    [
        (
            RenameFields({"a": "b"}),
            {"a": 1, "b": 2},
            "field_collision",
            "'a' cannot become 'b', because the row",
        ),
        (
            RenameFields({"a": "b"}),
            {"c": 1},
            "missing_field",
            "no field 'a'; it has 'c'",
        ),
        (
            SelectFields(["a", "b"]),
            {},
            "missing_field",
            "no fields 'a', 'b'; it has no fields",
        ),
        (
            MapField("a", str),
            {"b": 1},
            "missing_field",
            "MapField: the row has no field 'a'",
        ),
        (
            CombineFields(["a", "b"], "c"),
            {"a": "x"},
            "missing_field",
            "CombineFields: the row has no field 'b'",
        ),
        (
            CombineFields(["a"], "c"),
            {"a": ["x"]},
            "not_text",
            "the field 'a' holds list, which is not text",
        ),
    ],
)
def test_a_row_that_cannot_be_used_says_why(
    transform: Transform, row: Row, reason: str, message: str
) -> None:
    with pytest.raises(BadRecordError, match=message) as caught:
        transform(row)
    assert caught.value.details["reason"] == reason
    columns = (
        pa.RecordBatch.from_pylist([row])
        if row
        else pa.RecordBatch.from_pylist([{"other": 1}]).select([])
    )
    if columns.num_columns:
        ((index, fault),) = transform.on_rows(Rows(columns)).bad
        assert (index, fault.reason) == (0, reason)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SelectFields("text"),
            r"SelectFields: got 'text', must be a list of names",
        ),
        (lambda: SelectFields([]), r"SelectFields: got \[\]"),
        (lambda: DropFields(["a", "a"]), "contains a name twice"),
        (lambda: DropFields([3]), "DropFields: got 3, names of fields must be text"),
        (
            lambda: RenameFields({"a": "c", "b": "c"}),
            "'a' and 'b' would both become 'c'",
        ),
        (lambda: RenameFields({}), "must be a mapping"),
        (lambda: AddField("", 1), "names of fields must be text"),
        (lambda: AddField("a", int), "got the class int"),
        (lambda: MapField("a", 3), "MapField: got 3, must be a function"),
        (
            lambda: FilterTransform("x"),
            "FilterTransform: got 'x', must be a function of a row",
        ),
        (
            lambda: FilterByField("a", None),
            "FilterByField: got None, must be a function of a value",
        ),
        (
            lambda: ExtractField("a..b", "c"),
            r"got the path 'a..b'.*such as 'a.b\[0\].c'",
        ),
        (lambda: ExtractField("[0]", "c"), "got the path"),
        (lambda: CombineFields(["a"]), "got neither 'target_field' and 'output_field'"),
        (
            lambda: CombineFields(["a"], "b", fields=["c"]),
            "got both 'source_fields' and 'fields'",
        ),
        (lambda: CombineFields(["a"], "b", separator=3), "separator: got 3"),
        (lambda: CombineFields(["a"], "b", combiner="x"), "combiner: got 'x'"),
        (lambda: Where(3), "Where: got 3"),
        (
            lambda: ChainedTransform(["lower"]),
            "must be a Transform or a function of a row",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_values_are_extracted_from_any_depth() -> None:
    row = {"a": {"b": [{"c": 5}, {"c": None}]}, "a.b": "whole"}
    assert ExtractField("a.b[0].c", "x")(row)["x"] == 5
    assert ExtractField("a.b[-1].c", "x", default="none")(row)["x"] == "none"
    assert ExtractField("a.b[7].c", "x", default=0)(row)["x"] == 0
    assert ExtractField("a.b", "x")(row)["x"] == "whole"
    # A text is no list.
    assert ExtractField("text[0]", "x")({"text": "abc"})["x"] is None


def test_fields_are_combined_under_both_spellings() -> None:
    row = {"first": "Ada", "last": "Lovelace", "age": 36, "none": None}
    for transform in (
        CombineFields(["first", "last"], "name"),
        CombineFields(source_fields=["first", "last"], target_field="name"),
        CombineFields(fields=["first", "last"], output_field="name"),
    ):
        assert transform(row)["name"] == "Ada Lovelace"
    assert (
        CombineFields(["first", "none", "age"], "name", separator="-")(row)["name"]
        == "Ada-36"
    )
    assert CombineFields(["none"], "name")(row)["name"] is None
    assert (
        CombineFields(["first", "age"], "n", combiner=lambda values: values[0] * 2)(
            row
        )["n"]
        == "AdaAda"
    )
    whole = CombineFields(["first", "last"], "first", drop_sources=True)(row)
    assert whole == {"first": "Ada Lovelace", "age": 36, "none": None}


def test_columns_stay_columns_where_the_step_knows_them() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"old": ["x", "", None], "n": [1, 2, 3], "meta": [{"d": "u"}] * 3}
    )
    chain = (
        RenameFields({"old": "text"})
        >> FilterNonEmpty(["text"])
        >> MapField("text", str.upper)
        >> FilterByField("n", lambda n: n < 3)
        >> FilterTransform(lambda row: row["n"])
        >> ExtractField("meta.d", "d")
        >> AddField("lang", "en")
        >> CombineFields(["text", "d", "n"], "all", separator="/")
        >> Where("lang = 'en'")
        >> SelectFields(["all"])
    )
    outcome = chain.on_rows(Rows(batch))
    assert not outcome.rows.has_objects
    assert outcome.rows.columns.to_pydict() == {"all": ["X/u/1"]}
    assert outcome.filtered == {"filter_non_empty": 2}


def test_values_that_no_column_holds_are_not_bent_into_one() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    outcome = MapField("n", lambda n: [n, "text", 2**70][n - 1]).on_rows(Rows(batch))
    assert outcome.rows.objects == [{"n": 1}, {"n": "text"}, {"n": 2**70}]
    assert AddField("x", {}).on_rows(Rows(batch)).rows.objects[0] == {"n": 1, "x": {}}


# --- chains


class Double(ExpandTransform):
    def expand(self, example: Row) -> list[Row]:
        return [example] * example["times"]


class Doubled(ExpandTransform):
    """As the seeds write it: a generator."""

    def __call__(self, example: Row) -> Any:
        for number in range(example["times"]):
            yield {**example, "copy": number}


def test_chains_are_flat_and_take_functions_on_either_side() -> None:
    chain = (
        (lambda row: {**row, "a": 1})
        >> RenameFields({"a": "b"})
        >> (lambda row: row if row["b"] else None)
    )
    assert len(chain.steps) == 3
    assert chain({}) == {"b": 1}
    assert len((chain >> chain).steps) == 6
    assert ChainedTransform([]).on_rows(Rows(objects=[{"x": 1}])).rows.objects == [
        {"x": 1}
    ]


@pytest.mark.parametrize("expand", [Double(), Doubled()])
def test_one_row_becomes_several_or_none(expand: ExpandTransform) -> None:
    chain = expand >> FilterByField("times", lambda times: times != 3)
    outcome = chain.on_rows(Rows(objects=[{"times": times} for times in (2, 0, 1, 3)]))
    assert outcome.origin.tolist() == [0, 0, 2]
    assert outcome.filtered == {"transform": 1, "filter_by_field": 1}
    assert [row["times"] for row in chain.expand({"times": 2})] == [2, 2]
    assert len(list(expand({"times": 2}))) == 2
    with pytest.raises(ConfigError, match="returns several rows for one"):
        chain({"times": 1})


def test_a_function_before_an_expansion_makes_a_chain() -> None:
    chain = (lambda row: {"times": 2}) >> Double()
    assert chain.expand({}) == [{"times": 2}] * 2
    assert len((RenameFields({"n": "times"}) >> Double()).expand({"n": 3})) == 3


def test_an_expansion_that_does_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="Empty defines neither expand nor __call__"):

        class Empty(ExpandTransform):
            pass


def test_an_expanded_row_is_bad_only_if_nothing_of_it_is_left() -> None:
    def picky(row: Row) -> Row:
        if row["copy"] == 1:
            raise BadRecordError("the second", reason="second")
        return row

    outcome = (
        Doubled() >> FilterByField("copy", lambda copy: copy > 0) >> picky
    ).on_rows(Rows(objects=[{"times": 3}, {"times": 2}]))
    assert [row["copy"] for row in outcome.rows.objects] == [2]
    assert [(index, fault.reason) for index, fault in outcome.bad] == [(1, "second")]
    assert outcome.filtered == {}


def test_a_transform_that_returns_something_else_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="a transform returned int, must be a dict, or None"
    ):
        ChainedTransform([lambda row: 3]).on_rows(Rows(objects=[{}]))


def test_two_columns_of_one_name_are_done_by_rows() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert DropFields(["b"]).on_rows(Rows(batch)).rows.objects == batch.to_pylist()
