"""JSON arrays: the same elements whatever the blocks, compression and spaces, in
bounded memory.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sources.support import PACK, faults, parsed, positions, read, texts, written
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import Want

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(st.sampled_from('ab"\\,[]{}\né'), max_size=6)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)
elements = st.one_of(
    values,
    st.fixed_dictionaries(
        {"text": scalars | st.text(max_size=12)}, optional={"x": values}
    ),
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "in.json"


def _read(path: Path, want: Want) -> dict[str, Any]:
    out: dict[str, Any] = {"texts": [], "bad": [], "objects": []}
    for block in parsed(path, want, type="json"):
        if block.text is not None:
            out["texts"] += zip(
                block.positions.tolist(), block.text.to_pylist(), strict=True
            )
        if block.rows is not None:
            out["objects"] += zip(
                block.positions.tolist(), block.rows.objects, strict=True
            )
        out["bad"] += [(bad.position, bad.line_index) for bad in block.bad]
    return out


@settings(max_examples=80, deadline=None)
@given(
    st.lists(elements, max_size=6),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.integers(1, 90),
)
@example([{"text": "\\" * 50 + '"'}, {"text": "]"}], None, True, 7)
def test_any_block_size_gives_the_elements_that_json_gives(
    scratch: Path,
    array: list[Any],
    indent: int | None,
    ascii_only: bool,
    block_bytes: int,
) -> None:
    scratch.write_text(json.dumps(array, indent=indent, ensure_ascii=ascii_only))
    good = [
        (index, element["text"])
        for index, element in enumerate(array)
        if isinstance(element, dict) and isinstance(element.get("text"), str)
    ]
    bad = [(index, None) for index in range(len(array)) if index not in dict(good)]
    for size in (block_bytes, 1 << 20):
        found = _read(scratch, Want(text="text", block_bytes=size))
        assert found["texts"] == good
        assert found["bad"] == bad
        rows = _read(scratch, Want(text=None, columns=None, block_bytes=size))
        assert rows["objects"] == [
            (at, element)
            for at, element in enumerate(array)
            if isinstance(element, dict)
        ]


def test_a_block_may_end_at_any_byte(scratch: Path) -> None:
    array = [{"text": "\\" * 4 + '"'}, {"text": '[{"}]'}, {"text": ""}]
    data = json.dumps(array).encode()
    scratch.write_bytes(data)
    for block_bytes in range(1, len(data) + 1):
        found = _read(scratch, Want(text="text", block_bytes=block_bytes))
        assert found["texts"] == [
            (index, element["text"]) for index, element in enumerate(array)
        ]
        assert found["bad"] == []


@pytest.mark.parametrize("end", PACK)
def test_plain_and_compressed_files_are_read_alike(tmp_path: Path, end: str) -> None:
    data = json.dumps(
        [{"text": f"{n}é"} for n in range(1000)], indent=1, ensure_ascii=False
    ).encode()
    path = written(tmp_path, PACK[end](data), f"in.json{end}")
    batches = read(path)
    assert texts(batches) == [f"{n}é" for n in range(1000)]
    assert positions(batches) == list(range(1000))
    assert sum(batch.bytes_read for batch in batches) == path.stat().st_size


def test_a_cut_compressed_array_is_damaged(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps([{"text": str(n)} for n in range(5000)]).encode())
    with pytest.raises(DamagedFileError, match="gzip stream is cut or corrupt"):
        read(written(tmp_path, data[:-20], "in.json.gz"))


def test_an_element_over_the_limit_is_not_held(tmp_path: Path) -> None:
    data = b'[{"text":"a"},\n{"text":"' + b"x" * (40 << 20) + b'"},{"text":"b"}]'
    batches = read(written(tmp_path, data, "in.json"), max_record_bytes=1 << 20)
    assert texts(batches) == ["a", "b"]
    assert positions(batches) == [0, 2]
    assert faults(batches) == [(1, None, "record_too_long")]
    (bad,) = [bad for batch in batches for bad in batch.bad]
    assert bad.raw.startswith(b'{"text":"xx')
    assert len(bad.raw) <= 64 << 10


def test_an_element_of_more_than_a_block_is_read_whole(tmp_path: Path) -> None:
    long = "é\n" * (9 << 20)
    data = orjson.dumps([{"text": "a"}, {"x": [1], "text": long}, {"text": "b"}])
    batches = read(written(tmp_path, data, "in.json"))
    assert [len(text) for text in texts(batches)] == [1, len(long), 1]
    assert positions(batches) == [0, 1, 2]


def test_a_raw_newline_in_a_string_is_a_bad_record(tmp_path: Path) -> None:
    batches = read(
        written(
            tmp_path, b'[{"text":\n"a"},\n{"text":"b\nc"},\n{"text":"d"}\n]', "in.json"
        )
    )
    assert texts(batches) == ["a", "d"]
    assert faults(batches) == [(1, None, "invalid_json")]
