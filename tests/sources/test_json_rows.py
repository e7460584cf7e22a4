"""JSON as rows: objects as they stand, columns by rules, nothing altered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.support import Source, one
from tokenlake.sources.batch import Parsed, RowBatch, Want
from tokenlake.sources.json import parse_lines
from tokenlake.sources.lines import LineBlock, index_lines
from tokenlake.sources.records import read_rows
from tokenlake.sources.rows import column_of
from tokenlake.sources.splits import split_file

COLUMNS: dict[str, tuple[list[Any], str, list[Any]]] = {
    "nothing": ([None, None], "null", [None, None]),
    "booleans": ([True, None], "bool", [True, None]),
    "integers": ([1, -(2**63), 2**63 - 1], "int64", [1, -(2**63), 2**63 - 1]),
    "large integers": ([1, 2**63], "large_string", ["1", "9223372036854775808"]),
    "numbers": ([1, 2.5, None], "double", [1.0, 2.5, None]),
    "numbers that a double cannot hold": ([2**53 + 1, 0.5], "large_string", ["9007199254740993", "0.5"]),
    "strings": (["a", "2020-01-01", "007", "NA"], "large_string", ["a", "2020-01-01", "007", "NA"]),
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
    "objects of mixed": ([{"a": 1}, {"a": "x"}], "large_string", ['{"a":1}', '{"a":"x"}']),
    "objects without keys": ([{}, {}], "large_string", ["{}", "{}"]),
    "deep": ([json.loads("[" * 40 + "]" * 40)], "large_string", ["[" * 40 + "]" * 40]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_the_type_of_its_values(name: str) -> None:
    values, kind, expected = COLUMNS[name]
    column = column_of(values)
    assert str(column.type) == kind
    assert column.to_pylist() == expected


def test_objects_without_a_key_in_common_do_not_make_an_enormous_struct() -> None:
    column = column_of([{str(n): n} for n in range(5000)])
    assert column.type == pa.large_string()
    assert column.nbytes < 1 << 20


def _rows(path: Path, columns: tuple[str, ...] | None, **options: Any) -> list[RowBatch]:
    source = cast("Any", Source(**options))
    return [b for part in split_file(one(path), 64) for b in read_rows(part, source, columns)]


def test_named_columns_come_alone_and_a_missing_one_is_null(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":1,"b":"x","c":[1]}\n{"b":"y","z":1,"z":2}\n')
    batches = [batch for batch in _rows(path, ("b", "a", "none")) if len(batch.positions)]
    assert [row for batch in batches for row in batch.rows.to_pylist()] == [
        {"b": "x", "a": 1, "none": None},
        {"b": "y", "a": None, "none": None},
    ]
    assert [batch.objects for batch in batches] == [None] * len(batches)
    assert sum(batch.bytes_read for batch in batches) == path.stat().st_size


def test_a_key_repeated_in_a_wanted_field_is_a_bad_record_and_elsewhere_passes(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":{"b":1,"b":2},"c":"\\"b\\":"}\n{"a":[{"b":1},{"b":1}],"c" : 1}\n')
    whole = _rows(path, None)
    assert [(bad.line, bad.reason) for batch in whole for bad in batch.bad] == [(1, "duplicate_key")]
    assert [record for batch in whole for record in batch.to_dicts()] == [{"a": [{"b": 1}, {"b": 1}], "c": 1}]
    some = _rows(path, ("c",))
    assert [row["c"] for batch in some for row in batch.rows.to_pylist()] == ['"\\"b\\":"', "1"]


def _parsed(data: bytes, want: Want) -> list[Parsed]:
    block = LineBlock(data=data, size=len(data), offset=0, bytes_read=len(data))
    return list(parse_lines(iter([block]), want))


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
def test_a_text_lies_at_a_dotted_path(line: bytes, field: str, text: str) -> None:
    (parsed,) = _parsed(line + b"\n", Want(text=field))
    found = [bad.fault.reason for bad in parsed.bad] or cast("Any", parsed.text).to_pylist()
    assert found == [text]


def test_a_record_without_a_text_is_in_doubt_only_where_columns_are_wanted() -> None:
    data = b'{"n":1}\n{"n":2,"text":"a"}\nx\n{"n":3,"text":4}\n'
    (parsed,) = _parsed(data, Want(text="text", columns=("n",)))
    assert [(bad.line, bad.fault.reason) for bad in parsed.doubtful] == [
        (0, "missing_field"),
        (3, "not_a_string"),
    ]
    assert [(bad.line, bad.fault.reason) for bad in parsed.bad] == [(2, "invalid_json")]
    assert cast("Any", parsed.text).to_pylist() == [None, "a", None]
    assert cast("Any", parsed.rows).columns.to_pylist() == [{"n": 1}, {"n": 2}, {"n": 3}]


records = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b", "text", "é"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
        ),
        max_size=4,
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(records, st.booleans(), st.integers(1, 60))
def test_objects_are_what_was_written_and_pieces_account_for_every_line(
    written: list[dict[str, Any]], ascii_only: bool, piece: int
) -> None:
    data = b"".join(json.dumps(record, ensure_ascii=ascii_only).encode() + b"\n\n" for record in written)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenlake.sources.json.PIECE_BYTES", piece)
        parsed = _parsed(data, Want(text=None, columns=None))
    assert [record for some in parsed for record in cast("Any", some.rows).objects] == written
    assert sum(some.lines for some in parsed) == data.count(b"\n")
    assert sum(some.bytes_read for some in parsed) == len(data)
    assert sum(some.normalized["blank_line"] for some in parsed if some.normalized) == len(written)
    starts = index_lines(LineBlock(data=data, size=len(data), offset=0, bytes_read=0)).starts.tolist()
    assert [at for some in parsed for at in some.positions.tolist()] == starts
    for some in parsed:
        cast("Any", some.rows).columns.validate(full=True)
        assert cast("Any", some.rows).columns.num_rows == len(some)


def test_line_numbers_of_faults_hold_over_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tokenlake.sources.json.PIECE_BYTES", 30)
    path = tmp_path / "in.jsonl"
    lines = [b'{"text":"%d"}' % n for n in range(60)]
    lines[40], lines[57], lines[7] = b"{", b'{"text":1,"text":2}', b""
    path.write_bytes(b"\n".join(lines))
    found = [(bad.line, bad.reason) for batch in _rows(path, None) for bad in batch.bad]
    assert found == [(41, "invalid_json"), (58, "duplicate_key")]
