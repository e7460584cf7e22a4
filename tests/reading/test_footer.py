"""Footers read without Arrow say what Arrow says, or are refused."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reading.shards import another, ours, packed_rows
from tests.sources.parquet_by_hand import thrift, varint
from tokenlake.runtime import tokens_schema
from tokenlake.runtime.parquet import read_struct
from tokenlake.runtime.reading import Footer


@dataclass
class _Bytes:
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def _footer(data: bytes) -> bytes:
    """The Thrift of a file's footer."""
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def _file(footer: bytes, body: int = 0) -> _Bytes:
    return _Bytes(
        b"PAR1" + bytes(body) + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    )


def _check(data: bytes) -> Footer:
    """Compare with what Arrow reads."""
    found, metadata = Footer.read(_Bytes(data)), pq.read_metadata(io.BytesIO(data))
    groups: list[Any] = [
        metadata.row_group(index) for index in range(metadata.num_row_groups)
    ]
    columns = [
        [group.column(leaf) for leaf in range(group.num_columns)] for group in groups
    ]
    assert found.rows.tolist() == [group.num_rows for group in groups]
    assert found.sizes.tolist() == [
        sum(c.total_compressed_size for c in each) for each in columns
    ]
    for index, each in enumerate(columns):
        for column in each:
            name = column.path_in_schema.partition(".")[0]
            if name in found.lists:
                chunk, begin = (
                    found.chunk(index, name),
                    column.dictionary_page_offset or column.data_page_offset,
                )
                assert chunk[:3] == (
                    begin,
                    column.total_compressed_size,
                    column.num_values,
                )
    return found


def test_footers_of_other_columns_are_read() -> None:
    schema = tokens_schema(
        loss_mask=True,
        attention_mask=True,
        kept=[("text", pa.string()), ("x", pa.float64())],
    )
    rows = {"input_ids": [1, 2], "attention_mask": [1, 1], "loss_mask": [True, False]}
    table = pa.Table.from_pylist(
        [{**rows, "file": 1, "position": i, "text": "a" * i} for i in range(30)], schema
    )
    found = _check(ours(table, 7))
    assert found.rows.tolist() == [7, 7, 7, 7, 2]
    assert sorted(found.lists) == ["attention_mask", "input_ids", "loss_mask"]
    assert (
        _check(another(table, 7, write_statistics=True)).chunk(4, "loss_mask").kind == 0
    )
    assert (
        _check(
            another(table, 7, write_page_index=True, use_dictionary=True)
        ).rows.tolist()
        == found.rows.tolist()
    )
    nested = pa.table(
        {"a": [[{"b": [1], "c": {"d": 2}}]] * 9, "e": [{"f": "g"}] * 9, "h": [[1]] * 9}
    )
    assert sorted(_check(another(nested, 4)).lists) == ["h"]


def test_what_a_list_holds_is_known_where_it_is_written_as_ours() -> None:
    table = packed_rows(12, 8, loss_mask=True)
    found = _check(ours(table, 5))
    kinds = {
        name: found.chunk(2, name).kind
        for name in ("input_ids", "segment_lengths", "loss_mask")
    }
    assert kinds == {"input_ids": 1, "segment_lengths": 1, "loss_mask": 0}
    assert "documents" not in found.lists
    assert (
        _check(another(table, 5, compression="snappy")).chunk(0, "input_ids").kind == -1
    )
    nullable = pa.table({"input_ids": pa.array([[1], None], pa.list_(pa.int32()))})
    assert _check(another(nullable, 5)).chunk(0, "input_ids").kind == -1


def test_a_large_footer_is_read_whole() -> None:
    data = ours(packed_rows(400, 2), 1)
    assert len(_footer(data)) > 1 << 16
    assert len(_check(data).rows) == 400


def test_any_footer_is_known_again() -> None:
    data, other = ours(packed_rows(9, 4), 3), ours(packed_rows(9, 4, seed=1), 3)
    found = Footer.read(_Bytes(data))
    assert found.is_of(_Bytes(data))
    assert not found.is_of(_Bytes(other))


# Structs


def test_a_struct_is_read_as_it_is() -> None:
    # {1: true, 2: -3, 5: "ab", 6: [1, 2], 7: {1: 300}, 8: [true, false], 40: 1.0}
    data = bytes.fromhex(
        "11 15 05 38 02 6162 19 25 02 04 1c 16 d804 00 19 21 01 02 07 50 000000000000f03f 00"
    )
    found = {
        1: True,
        2: -3,
        5: b"ab",
        6: [1, 2],
        7: {1: 300},
        8: [1, 2],
        40: bytes.fromhex("000000000000f03f"),
    }
    assert read_struct(b"before" + data + b"after", 6) == (found, 6 + len(data))
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"after the last byte|are there"):
            read_struct(data[:size])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x15" + b"\x80" * 20, "more than 64 bits"),
        (b"\x18\x7fabc\0", "a value of 127 bytes; 4 are there"),
        (b"\x19\xf5" + varint(10**12), "a list of 1000000000000 values; 0 bytes"),
        (b"\x1c" * 1000, "nested more than 16 deep"),
        (b"\x1b\x00\x00", "unknown type 11"),
        (b"\x1d\x00\x00", "unknown type 13"),
    ],
)
def test_a_struct_that_cannot_be_is_refused(data: bytes, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read_struct(data)


# What a footer may not say


def _column(begin: int, size: int) -> dict[int, Any]:
    return {
        2: 0,
        3: {
            1: 1,
            2: [0],
            3: [b"a", b"list", b"b"],
            4: 6,
            5: 1,
            6: size,
            7: size,
            9: begin,
        },
    }


_SCHEMA = [
    {4: b"schema", 5: 1},
    {3: 0, 4: b"a", 5: 1},
    {3: 2, 4: b"list", 5: 1},
    {1: 1, 3: 0, 4: b"b"},
]


def _said(*places: tuple[int, int], schema: list[dict[int, Any]] = _SCHEMA) -> bytes:
    groups = [{1: [_column(*place)], 2: 1, 3: 1} for place in places]
    return thrift({1: 2, 2: schema, 3: len(places), 4: groups})


def test_a_footer_by_hand_is_read() -> None:
    found = Footer.read(_file(_said((4, 10), (14, 6)), body=20))
    assert found.chunk(1, "a") == (14, 6, 1, 1)
    assert (found.rows.tolist(), found.sizes.tolist()) == ([1, 1], [10, 6])
    for group, name in ((2, "a"), (0, "b")):
        with pytest.raises(ValueError, match="there is no column"):
            found.chunk(group, name)


@pytest.mark.parametrize(
    ("file", "match"),
    [
        (_Bytes(b""), "no Parquet magic"),
        (_Bytes(b"PAR1"), "no Parquet magic"),
        (
            _Bytes(b"PAR1" + b"\xff\xff\xff\xff" + b"PAR1"),
            "a footer of 4294967303 bytes; the file has 12",
        ),
        (_Bytes(b"PAR1\0" + bytes(4) + b"PARE"), "no Parquet magic"),
        (
            _file(_said((4, 10), (15, 6)), 20),
            "a column chunk at byte 15; expected byte 14",
        ),
        (_file(_said((4, 10), (13, 6)), 20), "a column chunk at byte 13"),
        (_file(_said((5, 10)), 20), "a column chunk at byte 5; expected byte 4"),
        (_file(_said((4, -1)), 20), "a column chunk of -1 to -1 bytes"),
        (
            _file(_said((4, 25)), 20),
            "a column chunk of 25 to 25 bytes; expected 0 to 24",
        ),
        (
            _file(_said((4, 15), (19, 10)), 20),
            "column chunks up to byte 29; the footer begins at 24",
        ),
        (_file(thrift({1: 2})), "the footer is incomplete"),
        (
            _file(
                _said((4, 10), schema=[{4: b"schema", 5: 9}, {3: 0, 4: b"a", 5: 2000}]),
                20,
            ),
            "the footer is incomplete",
        ),
        (
            _file(_said((4, 10), schema=[{4: b"s"}, *_SCHEMA[1:], *_SCHEMA[1:]]), 20),
            "the footer is incomplete",
        ),
        (_file(thrift({2: 5, 4: [{1: 7, 3: 1}]})), "the footer is incomplete"),
        (_file(_said((4, 1 << 63)), 20), "the footer is incomplete"),
    ],
)
def test_footers_that_cannot_be_are_refused(file: _Bytes, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Footer.read(file)
