"""What is written in Thrift's compact protocol is read as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokenlake.parquet.thrift import Encoded, int32, int64, listed, read_struct, struct, text

_FIELDS = st.integers(1, 15)
_NUMBERS = st.one_of(
    st.integers(-(1 << 31), (1 << 31) - 1).map(lambda value: (int32(value), value)),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: (int64(value), value)),
    st.binary(max_size=300).map(lambda value: (text(value), value)),
)


def _listed(values: list[tuple[Encoded, Any]]) -> tuple[Encoded, Any]:
    alike = [each for each in values if each[0][0] == values[0][0][0]]
    return listed([data for data, _ in alike]), [value for _, value in alike]


def _struct(values: dict[int, tuple[Encoded, Any]]) -> tuple[Encoded, Any]:
    ascending = dict(sorted(values.items()))
    return struct({number: data for number, (data, _) in ascending.items()}), {
        number: value for number, (_, value) in ascending.items()
    }


_VALUES = st.recursive(
    _NUMBERS,
    lambda inner: st.lists(inner, max_size=20).map(_listed) | st.dictionaries(_FIELDS, inner).map(_struct),
    max_leaves=20,
)


@given(st.dictionaries(_FIELDS, _VALUES).map(_struct))
def test_a_struct_is_read_as_it_was_written(written: tuple[Encoded, Any]) -> None:
    (_, data), fields = written
    assert read_struct(b"before" + data + b"after", 6) == (fields, 6 + len(data))
