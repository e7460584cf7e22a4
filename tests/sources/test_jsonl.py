"""JSON Lines: what is taken, what is mended, what is refused and where, and that
speed changes nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sources.json_reference import texts_of_lines
from tests.sources.support import (
    dicts,
    faults,
    normalized,
    parsed,
    positions,
    read,
    rows,
    texts,
    written,
)
from tests.sources.test_damage_json import LINES, RECORDS
from tokenlake.etl.sources import Row, RowBatch, Rows, Want

GOOD: dict[str, tuple[bytes, str]] = {
    "plain": (b'{"text":"a"}', "a"),
    "spaces": (b' { "text" : "a" } ', "a"),
    "empty text": (b'{"text":""}', ""),
    "escapes": (rb'{"text":"\u00e9\n\t\"\\\/\u0000"}', 'é\n\t"\\/\0'),
    "surrogate pair": (rb'{"text":"\ud83d\ude00"}', "\U0001f600"),
    "escaped key": (rb'{"te\u0078t":"a"}', "a"),
    "date": (b'{"text":"2020-01-01T00:00:00"}', "2020-01-01T00:00:00"),
    "numbers": (
        b'{"text":"a","x":[1e999,-0,1E+5,123456789012345678901234567890,'
        + b"9" * 400
        + b"]}",
        "a",
    ),
    "other fields repeat": (b'{"x":1,"x":2,"text":"a"}', "a"),
    "nested namesake": (b'{"x":{"text":"b","text":"c"},"text":"a"}', "a"),
    "NaN in a text": (b'{"text":"[NaN, -Infinity]","x":"NaN,"}', "[NaN, -Infinity]"),
    "brackets in a text": (
        b'{"text":"' + b"[{" * 3000 + b'","x":"' + b"[" * 3000 + b'"}',
        "[{" * 3000,
    ),
    "levels": (b'{"text":"a","x":' + b"[" * 1000 + b"]" * 1000 + b"}", "a"),
    "noncharacter": ('{"text":"\uffff\x7f\u2028"}'.encode(), "\uffff\x7f\u2028"),
    "byte order mark inside": ('{"text":"\ufeff"}'.encode(), "\ufeff"),
}


def write(tmp_path: Path, data: bytes) -> Path:
    return written(tmp_path, data, "in.jsonl")


@pytest.mark.parametrize("name", GOOD)
def test_what_is_valid_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    line, text = GOOD[name]
    batches = read(write(tmp_path, b'{"text":"before"}\n' + line + b"\n"))
    assert texts(batches) == ["before", text]
    assert positions(batches) == [0, 18]
    assert faults(batches) == []


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n", b"\r\n\n"])
def test_a_file_without_records_is_valid(tmp_path: Path, data: bytes) -> None:
    batches = read(write(tmp_path, data))
    assert texts(batches) == []
    assert normalized(batches).get("blank_line", 0) == data.count(b"\n")
    assert sum(batch.bytes_read for batch in batches) == len(data)


def test_line_numbers_are_those_of_the_file_in_later_ranges(tmp_path: Path) -> None:
    lines = [b'{"text":"%d"}' % n for n in range(100)]
    lines[70] = b'{"text":7}'
    lines[90] = b"{"
    batches = read(write(tmp_path, b"\n".join(lines)), unit_size=200)
    assert [(line, reason) for _, line, reason in faults(batches)] == [
        (71, "not_a_string"),
        (91, "invalid_json"),
    ]


def test_another_field_can_hold_the_text(tmp_path: Path) -> None:
    batches = read(
        write(tmp_path, '{"text":1,"répon se":"a"}\n'.encode()),
        content_field="répon se",
    )
    assert texts(batches) == ["a"]


# ---- the reader agrees with an independent one
# ----------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=8)
    | st.sampled_from(["NaN", "text", "\ud800", "\udc00x", '"', "\\", "[{", "\x00"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def dumped(draw: st.DrawFn) -> bytes:
    """Objects as json.dumps writes them: NaN, lone surrogates, repeated and escaped
    keys included.
    """
    keys = draw(
        st.lists(
            st.sampled_from(["text", "text", "x", "te\\u0078t", "a b"]),
            min_size=1,
            max_size=3,
        )
    )
    ascii_only = draw(st.booleans())
    parts = []
    for key in keys:
        value = draw(
            st.text(max_size=12)
            if key == "text" and draw(st.integers(0, 9))
            else values
        )
        parts.append(f'"{key}": {json.dumps(value, ensure_ascii=ascii_only)}')
    return ("{" + ",".join(parts) + "}").encode(errors="surrogatepass")


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A valid line with bytes replaced, cut out or put in."""
    line = draw(dumped())
    at = draw(st.integers(0, len(line)))
    put = draw(
        st.sampled_from(
            [
                b"",
                b" ",
                b"}",
                b"{",
                b"\xff",
                b'"',
                b"\\",
                b"\r",
                b"NaN",
                b"1",
                b",",
                b"\0",
            ]
        )
    )
    return line[:at] + put + line[at + draw(st.integers(0, 2)) :]


known = [
    *(line for line, _ in GOOD.values()),
    *(case.record for case in (RECORDS | LINES).values()),
]
nasty = (
    dumped() | mangled() | st.sampled_from([line for line in known if len(line) < 5000])
)
files = st.lists(
    nasty | st.sampled_from([b"", b"\r", b'{"text":"ok"}']), max_size=6
).map(b"\n".join)
endings = st.sampled_from([b"", b"\n", b"\r\n"])


TEXTS = Want(text="text", max_record_bytes=1 << 20)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "in.jsonl"


class Found(NamedTuple):
    """Records of a file: (position, text), (position, reason) of bad ones, and what
    was mended.
    """

    texts: list[tuple[int, str]]
    bad: list[tuple[int, str]]
    normalized: dict[str, int]


def _found(path: Path, want: Want = TEXTS, cuts: list[int] | None = None) -> Found:
    found = Found([], [], {})
    for block in parsed(path, want, cuts=cuts or []):
        block.text.validate(full=True)
        found.texts.extend(
            zip(block.positions.tolist(), block.text.to_pylist(), strict=True)
        )
        found.bad.extend((bad.position, bad.fault.reason) for bad in block.bad)
        for name, count in block.normalized.items():
            if count:
                found.normalized[name] = found.normalized.get(name, 0) + count
    return found


@settings(max_examples=120, deadline=None)
@given(files, endings)
@example(b'{"text":"a"} {"text":"b"}\n{"text":\n"c"}', b"\n")
@example(b'{"x":[{}\n,{}],"text":"a"}', b"\n")
@example(b'{"x":{\n},"text":"a"}\n{"text":"b"} {"text":"c"}', b"\n")
def test_lines_are_read_as_the_reference_reads_them(
    scratch: Path, data: bytes, ending: bytes
) -> None:
    # A mark, and what is too deep for Python.
    if data.startswith(b"\xef\xbb\xbf") or data.count(b"[") > 500:
        return
    data += ending
    scratch.write_bytes(data)
    found = _found(scratch)
    texts, bad = texts_of_lines(data)
    assert found.texts == texts
    assert [position for position, _ in found.bad] == bad


@settings(max_examples=120, deadline=None)
@given(nasty)
@example(rb'{"text":"' + b"\\\\" * 40 + rb'\ud83d\ude00\"","x":"\\"}')
def test_a_line_read_in_pieces_is_read_as_a_short_one(
    scratch: Path, line: bytes
) -> None:
    scratch.write_bytes(line.replace(b"\n", b" ") + b"\n")
    short = _found(scratch)
    with pytest.MonkeyPatch.context() as patch:
        # Longer than the keys.
        patch.setattr("tokenlake.etl.sources.json_long_line._LONG_STRING", 12)
        patch.setattr("tokenlake.etl.sources.json_long_line._PIECE", 13)
        long = _found(
            scratch, Want(text="text", max_record_bytes=1 << 20, block_bytes=1)
        )
    assert long.texts == short.texts
    assert [position for position, _ in long.bad] == [
        position for position, _ in short.bad
    ]


# ---- ranges
# -----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(files, endings, st.lists(st.integers(0, 400), max_size=6), st.integers(1, 90))
def test_any_partition_and_any_block_size_give_the_same_records(
    scratch: Path, data: bytes, ending: bytes, cuts: list[int], block_bytes: int
) -> None:
    scratch.write_bytes(data + ending)
    whole = _found(scratch)
    parts = _found(
        scratch,
        Want(text="text", max_record_bytes=1 << 20, block_bytes=block_bytes),
        cuts,
    )
    assert parts.texts == whole.texts
    assert [position for position, _ in parts.bad] == [
        position for position, _ in whole.bad
    ]
    assert parts.normalized == whole.normalized


@pytest.mark.parametrize("unit_size", [1, 7, 64, 1000])
def test_ranges_account_for_every_byte_once(tmp_path: Path, unit_size: int) -> None:
    data = b"".join(b'{"text":"%s"}\n' % (b"x" * n) for n in range(40))
    batches = read(write(tmp_path, data), unit_size=unit_size)
    assert texts(batches) == ["x" * n for n in range(40)]
    assert sum(batch.bytes_read for batch in batches) == len(data)
    assert min(batch.bytes_read for batch in batches) >= 0


@pytest.mark.parametrize(
    "number",
    ["1e+32", "-1e300", "1e-300", "5e-324", "1.7976931348623157e308", "1" * 300],
)
def test_a_number_of_any_length_is_no_text(tmp_path: Path, number: str) -> None:
    path = write(tmp_path, f'{{"text": "fine"}}\n{{"text": {number}}}\n'.encode())
    assert [reason for _, _, reason in faults(read(path))] == ["not_a_string"]


# ---- rows: objects as they stand, columns by rules, nothing altered
# -----------------------------------

COLUMNS: dict[str, tuple[list[Any], str, list[Any]]] = {
    "nothing": ([None, None], "null", [None, None]),
    "booleans": ([True, None], "bool", [True, None]),
    "integers": ([1, -(2**63), 2**63 - 1], "int64", [1, -(2**63), 2**63 - 1]),
    "integers without sign": ([1, 2**64 - 1], "uint64", [1, 2**64 - 1]),
    "integers of 38 digits": (
        [-1, 10**38 - 1, None],
        "decimal128(38, 0)",
        [-1, 10**38 - 1, None],
    ),
    "integers of both signs": ([-1, 2**63], "decimal128(38, 0)", [-1, 2**63]),
    "integers of more digits": ([1, 10**38], "large_string", ["1", str(10**38)]),
    "large integers inside": ([[1, 2**63]], "large_list<item: uint64>", [[1, 2**63]]),
    "huge integers inside": (
        [{"a": 2**70}],
        "struct<a: decimal128(38, 0)>",
        [{"a": 2**70}],
    ),
    "infinity": ([1.5, float("inf")], "double", [1.5, float("inf")]),
    "infinity in several kinds": (
        [float("inf"), "a", None],
        "large_string",
        ["1e999", '"a"', None],
    ),
    "numbers": ([1, 2.5, None], "double", [1.0, 2.5, None]),
    "numbers that a double cannot hold": (
        [2**53 + 1, 0.5],
        "large_string",
        ["9007199254740993", "0.5"],
    ),
    "strings": (
        ["a", "2020-01-01", "007", "NA"],
        "large_string",
        ["a", "2020-01-01", "007", "NA"],
    ),
    "mixed": (["a", 1, None, [2]], "large_string", ['"a"', "1", None, "[2]"]),
    "boolean and number": ([True, 1], "large_string", ["true", "1"]),
    "arrays": ([[1], [], None], "large_list<item: int64>", [[1], [], None]),
    "arrays of mixed": ([[1], ["a"]], "large_string", ["[1]", '["a"]']),
    "arrays of booleans and numbers": ([[1, True]], "large_string", ["[1,true]"]),
    "objects": (
        [{"a": 1}, {"b": "x"}],
        "struct<a: int64, b: large_string>",
        [{"a": 1, "b": None}, {"a": None, "b": "x"}],
    ),
    "objects of mixed": (
        [{"a": 1}, {"a": "x"}],
        "large_string",
        ['{"a":1}', '{"a":"x"}'],
    ),
    "objects without keys": ([{}, {}], "large_string", ["{}", "{}"]),
    "deep": ([json.loads("[" * 40 + "]" * 40)], "large_string", ["[" * 40 + "]" * 40]),
}


def _column(values: list[Any]) -> pa.Array:
    """Return the column that objects with these values in one field become."""
    objects: list[Row] = [{"x": value} for value in values]
    return Rows(objects=objects).columns.column("x")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_the_type_of_its_values(name: str) -> None:
    values, kind, expected = COLUMNS[name]
    column = _column(values)
    assert str(column.type) == kind
    assert column.to_pylist() == expected


def test_objects_without_a_key_in_common_do_not_make_an_enormous_struct() -> None:
    column = _column([{str(n): n} for n in range(5000)])
    assert column.type == pa.large_string()
    assert column.nbytes < 1 << 20


def lines(
    folder: Path, data: bytes, columns: tuple[str, ...] | None = None
) -> list[RowBatch]:
    return rows(written(folder, data, "in.jsonl"), columns, unit_size=64)


def test_named_columns_come_alone_and_a_missing_one_is_null(tmp_path: Path) -> None:
    data = b'{"a":1,"b":"x","c":[1]}\n{"b":"y","z":1,"z":2}\n'
    batches = [
        batch
        for batch in lines(tmp_path, data, ("b", "a", "none"))
        if len(batch.positions)
    ]
    assert [row for batch in batches for row in batch.rows.to_pylist()] == [
        {"b": "x", "a": 1, "none": None},
        {"b": "y", "a": None, "none": None},
    ]
    assert [batch.objects for batch in batches] == [None] * len(batches)
    assert sum(batch.bytes_read for batch in batches) == len(data)


def test_a_key_repeated_in_a_wanted_field_is_a_bad_record_and_elsewhere_passes(
    tmp_path: Path,
) -> None:
    data = b'{"a":{"b":1,"b":2},"c":"\\"b\\":"}\n{"a":[{"b":1},{"b":1}],"c" : 1}\n'
    whole = lines(tmp_path, data)
    assert faults(whole) == [(0, 1, "duplicate_key")]
    assert dicts(whole) == [{"a": [{"b": 1}, {"b": 1}], "c": 1}]
    some = lines(tmp_path, data, ("c",))
    assert [row["c"] for batch in some for row in batch.rows.to_pylist()] == [
        '"\\"b\\":"',
        "1",
    ]


@pytest.mark.parametrize(
    ("line", "field", "text"),
    [
        (b'{"a.b":"x","a":{"b":"y"}}', "a.b", "x"),
        (b'{"a":{"b":"y"}}', "a.b", "y"),
        (b'{"a":{"b":{"c":"z"}}}', "a.b.c", "z"),
        (b'{"a":{"b":"y"}}', "a.c", "missing_field"),
        (b'{"a":"b"}', "a.b", "missing_field"),
        (b'{"a":[{"b":"y"}]}', "a.b", "missing_field"),
        (b'{"a":{"b":1}}', "a.b", "not_a_string"),
        (b'{"a":{"b":null}}', "a.b", "null_text"),
        (b'{"a":{"b":"x","b":"y"}}', "a.b", "duplicate_key"),
        (b'{"a":{"b":"x"},"a":{"b":"y"}}', "a.b", "duplicate_key"),
        (b'{"a":{"b":"x"},"a":{}}', "a.b", "duplicate_key"),
        (b'{"a":{"b":"x","c":1,"c":2},"b":1}', "a.b", "x"),
    ],
)
def test_a_text_lies_at_a_dotted_path(
    tmp_path: Path, line: bytes, field: str, text: str
) -> None:
    (block,) = parsed(write(tmp_path, line + b"\n"), Want(text=field))
    found = [bad.fault.reason for bad in block.bad] or block.text.to_pylist()
    assert found == [text]


def test_a_record_without_a_text_is_in_doubt_only_where_columns_are_wanted(
    tmp_path: Path,
) -> None:
    data = b'{"n":1}\n{"n":2,"text":"a"}\nx\n{"n":3,"text":4}\n'
    (block,) = parsed(write(tmp_path, data), Want(text="text", columns=("n",)))
    assert [(bad.line_index, bad.fault.reason) for bad in block.doubtful] == [
        (0, "missing_field"),
        (3, "not_a_string"),
    ]
    assert [(bad.line_index, bad.fault.reason) for bad in block.bad] == [
        (2, "invalid_json")
    ]
    assert block.text.to_pylist() == [None, "a", None]
    assert block.rows.columns.to_pylist() == [{"n": 1}, {"n": 2}, {"n": 3}]


records = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b", "text", "é"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**64 - 1)
            | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
        ),
        max_size=4,
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(records, st.booleans(), st.integers(1, 60))
def test_objects_are_what_was_written_and_pieces_account_for_every_line(
    scratch: Path, records: list[dict[str, Any]], ascii_only: bool, piece: int
) -> None:
    lines = [
        json.dumps(record, ensure_ascii=ascii_only).encode() + b"\n\n"
        for record in records
    ]
    scratch.write_bytes(b"".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenlake.etl.sources.json.PIECE_BYTES", piece)
        blocks = parsed(scratch, Want(text=None, columns=None))
    assert [record for block in blocks for record in block.rows.objects] == records
    assert sum(block.lines for block in blocks) == 2 * len(records)
    assert sum(block.bytes_read for block in blocks) == sum(map(len, lines))
    assert sum(
        block.normalized["blank_line"] for block in blocks if block.normalized
    ) == len(records)
    starts = list(accumulate(map(len, lines), initial=0))[:-1]
    assert [
        position for block in blocks for position in block.positions.tolist()
    ] == starts
    for block in blocks:
        block.rows.columns.validate(full=True)
        assert block.rows.columns.num_rows == len(block)


NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(-(10**60), 10**60).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False).map(
        lambda value: f"{value:e}".replace("e+", "E+")
    ),
    st.sampled_from(
        [
            *("-0", "-0.0", "1e400", "-1E+999", "1e-400", "true", '"1e400"'),
            *(
                "9223372036854775808",
                "18446744073709551616",
                "123456789012345678901234567890.5",
            ),
            *("1" * 400, "1" * 400 + ".5", "1" * 4300),
        ]
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=4), st.booleans())
def test_numbers_are_what_the_json_module_reads(
    scratch: Path, numbers: list[str], nested: bool
) -> None:
    value = (
        f'[{{"n": [{", ".join(numbers)}], "é": "\\u00e9"}}]' if nested else numbers[0]
    )
    line = f'{{"beside": 5, "x": {value}, "last": 1.5}}'
    scratch.write_text(line + "\n", encoding="utf-8")
    for columns in (None, ("x", "beside")):
        (block,) = parsed(scratch, Want(text=None, columns=columns))
        assert not block.bad
        (record,) = block.rows.objects
        assert repr(record) == repr(json.loads(line))
        (row,) = block.rows.columns.to_pylist()
        expected = json.loads(line)["x"]
        # Numbers that no column of Arrow holds are kept as JSON text.
        is_json_text = isinstance(row["x"], str) and not isinstance(expected, str)
        stored = json.loads(row["x"]) if is_json_text else row["x"]
        assert stored == expected


def test_a_number_that_nobody_wants_alters_none_of_those_that_are_wanted(
    tmp_path: Path,
) -> None:
    data = b'{"n": 5, "junk": 1e400}\n{"n": 6, "junk": ' + b"9" * 5000 + b"}\n"
    (block,) = parsed(write(tmp_path, data), Want(text=None, columns=("n",)))
    assert block.rows.columns.to_pylist() == [{"n": 5}, {"n": 6}]


def test_line_numbers_of_faults_hold_over_pieces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tokenlake.etl.sources.json.PIECE_BYTES", 30)
    records = [b'{"text":"%d"}' % n for n in range(60)]
    records[40], records[57], records[7] = b"{", b'{"text":1,"text":2}', b""
    found = [
        (line, reason)
        for _, line, reason in faults(lines(tmp_path, b"\n".join(records)))
    ]
    assert found == [(41, "invalid_json"), (58, "duplicate_key")]
