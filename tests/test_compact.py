"""Values that are kept packed are the values that were put in, in a fraction of
their memory.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.base import CompactTuple
from tokenlake.etl.sources import FileRange, InputFile


@dataclass(frozen=True, slots=True)
class _Pair:
    name: str
    number: tuple[int, ...] = ()


PAIRS = st.lists(
    st.builds(
        _Pair,
        st.text(st.characters(), max_size=5),
        st.lists(st.integers(-(1 << 63), 1 << 64)).map(tuple),
    ),
    max_size=5,
)


@given(PAIRS, st.integers(0, 600), st.slices(600))
def test_it_is_the_tuple_that_was_put_in(
    pairs: list[_Pair], repeated: int, part: slice
) -> None:
    values = (pairs * (1 + repeated // max(1, len(pairs))))[: repeated + len(pairs)]
    packed = CompactTuple(_Pair, iter(values))
    assert packed == tuple(values) == tuple(packed)
    assert len(packed) == len(values)
    assert packed[part] == tuple(values)[part]
    for index in {0, len(values) // 2, len(values) - 1, -1} if values else ():
        assert packed[index] == values[index]
    with pytest.raises(IndexError):
        _ = packed[len(values)]


def test_names_of_files_that_are_no_utf_8_are_kept() -> None:
    name = b"\xff\xfe.jsonl".decode(errors="surrogateescape")
    assert CompactTuple(_Pair, [_Pair(name)])[0].name == name


def _ranges(count: int) -> Iterator[FileRange]:
    for number in range(count):
        options: Any = {"format": "jsonl", "compression": None, "file_id": hash(number)}
        path = f"{number // 1000:03d}/{number:07d}.jsonl"
        token = f"sha256:{sha256(path.encode()).hexdigest()}"
        stat = (
            10_000_000 + number,
            1_700_000_000_123_456_789 + number * 10**6,
            1_700_000_000_223_456_789,
        )
        file = InputFile(
            source="s",
            path=path,
            url=f"/data/raw/{path}",
            size=300,
            token=token,
            stat=stat,
            **options,
        )
        yield FileRange(file=file, start=0, stop=300, weight=300)


def test_a_range_of_a_file_takes_less_than_a_hundred_bytes() -> None:
    tracemalloc.start()
    try:
        packed = CompactTuple(FileRange, _ranges(5_000))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert packed[2_345] == list(_ranges(2_346))[-1]
    assert held < 100 * 5_000
    assert peak < held + (2 << 20)  # the others were never there together
