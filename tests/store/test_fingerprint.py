"""Canonical JSON and the ids made of it; the golden values pin the format for ever."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.base import canonical_json, file_id
from tokenlake.errors import ConfigError, SourceError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)


def test_canonical_form_is_pinned() -> None:
    value = {
        "b": [1, 1.0, 1e16, 1e-7, None, True],
        "a": 'é\n"',
        "ä": {"z": 0.1, "A": -0.0},
    }
    expected = (
        '{"a":"é\\n\\"","b":[1,1.0,1e+16,1e-07,null,true],"ä":{"A":-0.0,"z":0.1}}'
    )
    assert canonical_json(value) == expected.encode()


def test_ids_are_pinned() -> None:
    assert file_id("code", "a/b.jsonl") == -3222730900236722331
    assert file_id("prose", "x") == 2541982493079748039
    assert file_id("a", "bc") != file_id("ab", "c")


@given(JSON)
def test_json_values_round_trip(value: Any) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(json.loads(data)) == data


@given(st.dictionaries(TEXT, JSON, max_size=5), st.randoms())
def test_key_order_is_not_part_of_a_value(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)


FOREIGN = [
    math.nan,
    math.inf,
    {1: 2},
    {"a": [{None: 1}]},
    {"a": ({1.5: 1},)},
    object(),
    b"x",
    {"a": {1}},
]


@pytest.mark.parametrize("value", [*FOREIGN, "\ud800"])
def test_values_without_a_canonical_form_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        canonical_json(value)


def test_a_tuple_is_a_list_and_an_int_is_not_a_float() -> None:
    assert canonical_json((1, 2)) == canonical_json([1, 2])
    assert canonical_json(1) != canonical_json(1.0)


@given(TEXT, TEXT)
def test_file_ids_are_signed_64_bit(source: str, path: str) -> None:
    assert -(1 << 63) <= file_id(source, path) < 1 << 63


def test_a_file_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(SourceError, match="not valid UTF-8"):
        file_id("code", "a\udcff.txt")
