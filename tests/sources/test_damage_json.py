"""The catalogue of damage to JSON Lines and JSON: what each gets, and where it is
said to be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.sources.damage_support import beginning_of
from tests.sources.support import dicts, faults, normalized, read, rows, texts, written
from tokenlake.errors import BadRecordError, DamagedFileError
from tokenlake.etl.sources import RowBatch

DEEP: Final = 1_000_000
CAP: Final = 4096


class Case(NamedTuple):
    """A damaged record. `text` and `rows`: the reason for which each way of reading
    refuses it, None for none.
    """

    record: bytes
    text: str | None
    rows: str | None


def both(record: bytes, reason: str) -> Case:
    return Case(record, reason, reason)


# Damage inside a record. The way of reading for the text alone does not look at what
# numbers, and keys of other fields, mean; whole rows do. A type change and a missing
# key are no fault of a row.
RECORDS: Final[dict[str, Case]] = {
    "bad UTF-8": both(b'{"text":"\xff"}', "invalid_utf8"),
    "bad UTF-8 elsewhere": both(b'{"text":"a","x":"\xc3"}', "invalid_utf8"),
    "lone high surrogate": both(rb'{"text":"\ud800"}', "lone_surrogate"),
    "lone low surrogate": both(rb'{"text":"a\udc00"}', "lone_surrogate"),
    "lone surrogate elsewhere": both(rb'{"text":"a","x":"\ud83d"}', "lone_surrogate"),
    "duplicate key": both(b'{"text":"a","text":"b"}', "duplicate_key"),
    "duplicate key, escaped": both(rb'{"text":"a","\u0074ext":"b"}', "duplicate_key"),
    "duplicate key elsewhere": Case(b'{"text":"a","x":1,"x":2}', None, "duplicate_key"),
    "NaN": both(b'{"text":"a","x":NaN}', "invalid_json"),
    "Infinity": both(b'{"text":"a","x":Infinity}', "invalid_json"),
    "minus Infinity": both(b'{"text":"a","x":-Infinity}', "invalid_json"),
    "depth 1,000,000": both(
        b'{"text":"a","x":' + b"[" * DEEP + b"]" * DEEP + b"}", "too_deep"
    ),
    "depth 1,000,000 of objects": both(
        b'{"text":"a","x":' + b'{"x":' * DEEP + b"1" + b"}" * DEEP + b"}", "too_deep"
    ),
    "integer of too many digits": Case(
        b'{"text":"a","x":' + b"9" * 4301 + b"}", None, "number_too_large"
    ),
    "too many digits inside": Case(
        b'{"text":"a","x":[{"y":-1' + b"0" * 4300 + b"}]}", None, "number_too_large"
    ),
    "two objects": both(b'{"text":"a"}{"text":"b"}', "invalid_json"),
    "two objects apart": both(b'{"text":"a"} {"text":"b"}', "invalid_json"),
    "raw control character": both(b'{"text":"a\x01b"}', "invalid_json"),
    "raw tab": both(b'{"text":"a\tb"}', "invalid_json"),
    "cut": both(b'{"text":"a","x":}', "invalid_json"),
    "trailing comma": both(b'{"text":"a",}', "invalid_json"),
    "comment": both(b'{"text":"a"/* b */}', "invalid_json"),
    "leading zero": both(b'{"text":"a","x":007}', "invalid_json"),
    "mixed kinds: array": both(b'["a"]', "not_an_object"),
    "mixed kinds: number": both(b"1", "not_an_object"),
    "mixed kinds: null": both(b"null", "not_an_object"),
    "type change": Case(b'{"text":1}', "not_a_string", None),
    "type change to an object": Case(b'{"text":{"a":"b"}}', "not_a_string", None),
    "null": Case(b'{"text":null}', "null_text", None),
    "missing key": Case(b'{"txt":"a"}', "missing_field", None),
    "no fields": Case(b"{}", "missing_field", None),
    "boolean": Case(b'{"text":true}', "not_a_string", None),
    "array": Case(b'{"text":["a"]}', "not_a_string", None),
    "string record": both(b'"a"', "not_an_object"),
    "overlong UTF-8": both(b'{"text":"\xc0\x80"}', "invalid_utf8"),
    "UTF-8 of a surrogate": both(b'{"text":"\xed\xa0\x80"}', "invalid_utf8"),
    "wrong pair": both(rb'{"text":"\ud800\u0041"}', "lone_surrogate"),
    "duplicate key, null first": both(b'{"text":null,"text":"b"}', "duplicate_key"),
    "NaN in a list": both(b'{"text":"a","x":[1, NaN ]}', "invalid_json"),
    "Inf": both(b'{"x":Inf,"text":"a"}', "invalid_json"),
    "minus NaN": both(b'{"x":-NaN,"text":"a"}', "invalid_json"),
    "NaN after much space": both(
        b'{"x":' + b" " * 200 + b'NaN,"text":"a"}', "invalid_json"
    ),
    "too deep beside escaped brackets": both(
        b'{"text":"' + rb"\u005b" * 3000 + b'","x":' + b"[" * 1100 + b"]" * 1100 + b"}",
        "too_deep",
    ),
    "single quotes": both(b"{'text':'a'}", "invalid_json"),
    "raw NUL": both(b'{"text":"a\0b"}', "invalid_json"),
    "NUL after": both(b'{"text":"a"}\0', "invalid_json"),
    "bad escape": both(rb'{"text":"\x41"}', "invalid_json"),
    "cut exponent": both(b'{"text":"a","x":1e}', "invalid_json"),
    "tamed number goes on": both(b'{"text":"a","x":1e999.5}', "invalid_json"),
    "not JSON": both(b"hello", "invalid_json"),
    "byte order mark within the file": both(
        b'\xef\xbb\xbf{"text":"a"}', "invalid_json"
    ),
}
# In an array they would change what the next element is.
LINES: Final[dict[str, Case]] = {
    "cut in a text": both(b'{"text":"a', "invalid_json"),
    "depth bomb": both(b'{"text":"a","x":' + b"[" * 100_000 + b"}", "too_deep"),
    "object and comma": both(b'{"text":"a"},', "invalid_json"),
}
BEFORE, AFTER = b'{"text":"before"}', b'{"text":"after"}'


def row_texts(batches: list[RowBatch]) -> list[Any]:
    return [record.get("text") for record in dicts(batches)]


def among(
    folder: Path, suffix: str, record: bytes
) -> tuple[Path, tuple[int, int | None]]:
    """Write a record between two good ones; return the file and the record's
    position and line.
    """
    records = [BEFORE, record, AFTER]
    if suffix == "jsonl":
        return written(folder, b"\n".join([*records, b""]), "in.jsonl"), (
            len(BEFORE) + 1,
            2,
        )
    return written(folder, b"[" + b",\n ".join(records) + b"]\n", "in.json"), (1, None)


@pytest.mark.parametrize(
    ("suffix", "name"),
    [(suffix, name) for suffix in ("jsonl", "json") for name in RECORDS]
    + [("jsonl", name) for name in LINES],
)
def test_a_bad_record_is_set_aside_or_refused_where_it_stands(
    tmp_path: Path, suffix: str, name: str
) -> None:
    case = (RECORDS | LINES)[name]
    path, (position, line) = among(tmp_path, suffix, case.record)
    taken, whole = read(path), rows(path)
    for reason, found, kept, reader in (
        (case.text, faults(taken), texts(taken), read),
        (case.rows, faults(whole), row_texts(whole), rows),
    ):
        if reason is None:
            assert (found, len(kept)) == ([], 3)
            continue
        assert found == [(position, line, reason)]
        assert kept == ["before", "after"]
        where = rf"in\.jsonl:2: {reason} at byte offset {position}: "
        if suffix == "json":
            where = rf"in\.json: {reason} at row 1: "
        with pytest.raises(BadRecordError, match=where) as caught:
            reader(path, on_bad_record="fail")
        given = {"position": position, "line": line, "reason": reason}
        assert given.items() <= caught.value.details.items()
    assert {bad.raw for batch in (*taken, *whole) for bad in batch.bad} == {
        case.record[: 64 << 10]
    }


@pytest.mark.parametrize(
    ("suffix", "reason"), [("jsonl", "line_too_long"), ("json", "record_too_long")]
)
def test_a_record_over_the_cap_is_set_aside(
    tmp_path: Path, suffix: str, reason: str
) -> None:
    path, place = among(tmp_path, suffix, b'{"text":"%s"}' % (b"x" * CAP))
    whole = rows(path, max_record_bytes=CAP)
    assert (
        faults(read(path, max_record_bytes=CAP)) == faults(whole) == [(*place, reason)]
    )
    assert row_texts(whole) == ["before", "after"]
    with pytest.raises(BadRecordError, match=reason):
        rows(path, max_record_bytes=CAP, on_bad_record="fail")


@pytest.mark.parametrize(
    "cut", [b'{"text":"b', b'{"text":"b"', b"{", '{"text":"é'.encode()[:-1]]
)
def test_a_cut_last_line_is_set_aside(tmp_path: Path, cut: bytes) -> None:
    path = written(tmp_path, BEFORE + b"\n" + cut, "in.jsonl")
    assert faults(read(path)) == faults(rows(path)) == [(18, 2, "truncated_line")]
    assert texts(read(path)) == row_texts(rows(path)) == ["before"]
    for reader in (read, rows):
        with pytest.raises(
            BadRecordError, match=r"in\.jsonl:2: truncated_line at byte offset 18"
        ):
            reader(path, on_bad_record="fail")


MENDED: Final[dict[str, tuple[str, bytes, dict[str, int]]]] = {
    "byte order mark": (
        "jsonl",
        b"\xef\xbb\xbf" + BEFORE + b"\n" + AFTER + b"\n",
        {"bom": 1},
    ),
    "blank lines": (
        "jsonl",
        b"\n" + BEFORE + b"\n\n  \t\n" + AFTER + b"\n",
        {"blank_line": 3},
    ),
    "CRLF": ("jsonl", BEFORE + b"\r\n" + AFTER + b"\r\n", {"crlf": 2}),
    "mark before an array": (
        "json",
        b"\xef\xbb\xbf [" + BEFORE + b"," + AFTER + b"]\r\n",
        {"bom": 1},
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_is_harmless_is_mended_and_counted(tmp_path: Path, name: str) -> None:
    suffix, data, counts = MENDED[name]
    path = written(tmp_path, data, f"in.{suffix}")
    for policy in ("quarantine", "fail"):
        taken, whole = (
            read(path, on_bad_record=policy),
            rows(path, on_bad_record=policy),
        )
        assert texts(taken) == row_texts(whole) == ["before", "after"]
        assert normalized(taken) == normalized(whole) == counts


@pytest.mark.parametrize("name", ["in.jsonl", "in.json"])
def test_dates_stay_text(tmp_path: Path, name: str) -> None:
    record = b'{"text":"2020-01-01","at":"2020-01-01T00:00:00Z"}'
    path = written(
        tmp_path, record if name == "in.jsonl" else b"[" + record + b"]", name
    )
    assert texts(read(path)) == ["2020-01-01"]
    (batch,) = [batch for batch in rows(path) if len(batch.positions)]
    assert [str(field.type) for field in batch.rows.schema] == [
        "large_string",
        "large_string",
    ]
    assert batch.rows.to_pylist() == [
        {"text": "2020-01-01", "at": "2020-01-01T00:00:00Z"}
    ]


WHOLE: Final[dict[str, tuple[bytes, str]]] = {
    "empty": (b"", "it is empty"),
    "an object on several lines": (
        b'{\n"text":"a"}',
        "begins with a JSON object of several lines",
    ),
    "a number": (b"12", "expected a JSON array"),
    "UTF-16": ("[]".encode("utf-16"), "is encoded in UTF-16, expected UTF-8"),
    "cut in an element": (b"[" + BEFORE + b',{"text":"b', "ends at byte 29"),
    "cut after an element": (b"[" + BEFORE, "ends at byte 18"),
    "cut after a comma": (b"[" + BEFORE + b",", "ends at byte 19"),
    "trailing bytes": (b"[" + BEFORE + b"] x", "continues at byte 20"),
    "a second array": (b"[" + BEFORE + b"]\n[]", "continues at byte 20"),
    "bad UTF-8 after it": (b"[" + BEFORE + b"]\xff", "continues at byte 19"),
    "bad UTF-8 before it": (b"\xff[" + BEFORE + b"]", "expected a JSON array"),
    "unmatched brace": (b"[" + BEFORE + b"}]", "byte 18 is `}`"),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("policy", ["quarantine", "fail"])
def test_a_broken_array_is_a_damaged_file_whatever_the_policy(
    tmp_path: Path, name: str, policy: str
) -> None:
    data, message = WHOLE[name]
    path = written(tmp_path, data, "in.json")
    for reader in (read, rows):
        with pytest.raises(DamagedFileError) as caught:
            reader(path, on_bad_record=policy)
        assert str(caught.value).startswith(beginning_of(path, caught.value))
        assert message in str(caught.value)


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
# Among others, and alone because it is long.
@pytest.mark.parametrize("size", [1, 17 << 20])
def test_what_is_too_deep_for_a_predicate_is_a_bad_record(
    tmp_path: Path, suffix: str, size: int
) -> None:
    deep = b'{"text":"%s","x":%s}' % (b"a" * size, b"[" * 300 + b"]" * 300)
    path, place = among(tmp_path, suffix, deep)
    batches = read(path, where="x is null")
    assert texts(batches) == ["before", "after"]
    assert faults(batches) == [(*place, "where_failed")]
    assert batches[-1].left_out.size == 0
    with pytest.raises(
        BadRecordError, match=r"in\.json(l:2)?: where_failed at .*nested too deeply"
    ):
        read(path, where="x is null", on_bad_record="fail")


@pytest.mark.parametrize(
    "rest", [b", ," + AFTER, b",\n"], ids=["empty element", "trailing comma"]
)
def test_an_element_of_nothing_is_a_bad_record(tmp_path: Path, rest: bytes) -> None:
    path = written(tmp_path, b"[" + BEFORE + rest + b"]", "in.json")
    assert faults(read(path)) == faults(rows(path)) == [(1, None, "invalid_json")]
