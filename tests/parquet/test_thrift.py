"""What is written in Thrift's compact protocol is read as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokenlake.runtime.parquet import read_struct, write_thrift

_INT32, _INT64, _BINARY = 5, 6, 8
_FIELDS = st.integers(1, 15)
_PLAIN = st.one_of(
    st.integers(-(1 << 31), (1 << 31) - 1).map(lambda value: (_INT32, value)),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: (_INT64, value)),
    st.binary(max_size=300).map(lambda value: (_BINARY, value)),
)
Written = Any  # the type of a value, see write_thrift
Typed = tuple[Written, Any]


def _listed(values: list[Typed]) -> Typed:
    kind = values[0][0]
    return [kind], [value for each, value in values if each == kind]


def _struct(fields: dict[int, Typed]) -> Typed:
    ascending = dict(sorted(fields.items()))
    kinds: dict[int, Written] = {
        number: kind for number, (kind, _) in ascending.items()
    }
    return kinds, {number: value for number, (_, value) in ascending.items()}


_VALUES = st.recursive(
    _PLAIN,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=20).map(_listed)
        | st.dictionaries(_FIELDS, inner).map(_struct)
    ),
    max_leaves=20,
)


@given(st.dictionaries(_FIELDS, _VALUES).map(_struct))
def test_a_struct_is_read_as_it_was_written(written: Typed) -> None:
    kind, fields = written
    data = write_thrift(kind, fields)
    assert read_struct(b"before" + data + b"after", 6) == (fields, 6 + len(data))


def test_what_was_written_before_is_put_in_its_place() -> None:
    inner: Written = {1: _INT32, 2: [_BINARY]}
    value = {1: 7, 2: [b"a", b"bc"]}
    whole = {1: value, 2: [value, value]}
    written = write_thrift(inner, value)
    parts = {
        1: written,
        2: [
            written,
            write_thrift(inner, {**value, 2: write_thrift([_BINARY], value[2])}),
        ],
    }
    assert write_thrift({1: inner, 2: [inner]}, parts) == write_thrift(
        {1: inner, 2: [inner]}, whole
    )
