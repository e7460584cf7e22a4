"""Files of JSON that are one object around the list of their records."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.support import (
    Source,
    dicts,
    faults,
    one,
    positions,
    read,
    rows,
    texts,
    written,
)
from tokenlake import create_source, inspect
from tokenlake.errors import BadRecordError, DamagedFileError, UnsuitableFileError
from tokenlake.etl.sources import read_rows, split_file

RECORDS = [{"text": "one"}, {"text": "two, [3] {4}", "tags": [{"a": 1}]}]
LAYOUTS: dict[str, Any] = {"one line": {}, "several lines": {"indent": 2}}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", ["data", "rows", 'é " key', ""])
@pytest.mark.parametrize(
    "beside",
    [{}, {"version": "1.1", "info": {"n": [1, 2]}, "names": ["a"], "none": []}],
)
def test_the_only_list_of_objects_is_read(
    tmp_path: Path, layout: str, key: str, beside: dict[str, Any]
):
    for value in ({**beside, key: RECORDS}, {key: RECORDS, **beside}):
        data = json.dumps(value, **LAYOUTS[layout]).encode()
        path = written(tmp_path, data, "in.json")
        assert one(path).format == "json"
        assert dicts(rows(path)) == RECORDS
        assert texts(read(path)) == ["one", "two, [3] {4}"]
        assert positions(read(path)) == [0, 1]
        assert sum(batch.bytes_read for batch in read(path)) == len(data)
        packed = written(tmp_path, gzip.compress(data, mtime=0), "in.json.gz")
        assert dicts(rows(packed)) == RECORDS
        assert inspect(str(path)).groups[0].sample == tuple(RECORDS)
        source = create_source({"name": "a", "data_files": str(path)})
        assert [
            row for name in source.shard_names for row in source.open_shard(name)
        ] == RECORDS


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
OTHERS = VALUES.filter(
    lambda value: not (isinstance(value, list) and value and isinstance(value[0], dict))
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["v", "w", "x \\"]), OTHERS, max_size=3),
    st.lists(OBJECTS, min_size=1, max_size=5),
    st.sampled_from([None, 1]),
    st.integers(1, 40),
    st.integers(0, 3),
)
def test_records_are_those_of_the_list_alone(
    tmp_path_factory: pytest.TempPathFactory,
    others: dict[str, Any],
    records: list[dict[str, Any]],
    indent: int | None,
    block: int,
    place: int,
):
    members = list(others.items())
    members.insert(place, ("data", records))
    path = written(
        tmp_path_factory.mktemp("json"),
        json.dumps(dict(members), indent=indent).encode(),
        "in.json",
    )
    (part,) = split_file(one(path), 1)
    batches = list(read_rows(part, Source(), None, block_bytes=block))
    assert dicts(batches) == records


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_lists_are_refused_by_name(tmp_path: Path, layout: str):
    data = json.dumps({"train": RECORDS, "test": RECORDS}, **LAYOUTS[layout]).encode()
    path = written(tmp_path, data, "in.json")
    for reader in (read, rows):
        with pytest.raises(
            UnsuitableFileError, match=r"several lists of objects \('train', 'test'\)"
        ):
            reader(path)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "x"}]},
        {"text": "x", "tags": [{"a": 1}]},
        {"question": "x", "answers": [{"text": "y"}]},
        {"a": 1, "b": [1, 2]},
        {"a": []},
    ],
)
def test_an_object_on_one_line_may_be_a_record(tmp_path: Path, record: dict[str, Any]):
    path = written(tmp_path, json.dumps(record).encode() + b"\n", "in.json")
    assert one(path).format == "jsonl"
    assert dicts(rows(path)) == [record]


def test_lines_of_wrappers_are_records(tmp_path: Path):
    line = json.dumps({"data": RECORDS}).encode() + b"\n"
    path = written(tmp_path, line * 2, "in.json")
    assert dicts(rows(path)) == [{"data": RECORDS}] * 2
    # More than is looked at first.
    long = json.dumps({"data": RECORDS * 500}).encode() + b"\n"
    assert len(dicts(rows(written(tmp_path, long * 2, "in.json")))) == 2
    assert len(dicts(rows(written(tmp_path, long, "in.json")))) == 1000
    assert len(dicts(rows(written(tmp_path, line, "in.jsonl")))) == 1


def test_an_object_around_no_list_is_refused(tmp_path: Path):
    path = written(
        tmp_path, json.dumps({"a": {"b": RECORDS}}, indent=1).encode(), "in.json"
    )
    with pytest.raises(
        UnsuitableFileError, match="of several lines that contains no list of objects"
    ):
        read(path)


def test_a_bad_element_is_a_bad_record_and_a_cut_file_is_refused(tmp_path: Path):
    data = b'{\n"v": 1, "data": [{"text": "a"}, {"text": 5}, {"text": "b"}]}'
    path = written(tmp_path, data, "in.json")
    assert texts(read(path)) == ["a", "b"]
    assert faults(read(path)) == [(1, None, "not_a_string")]
    with pytest.raises(BadRecordError, match="not_a_string at row 1"):
        read(path, on_bad_record="fail")
    for cut in range(2, len(data)):
        with pytest.raises(DamagedFileError):
            read(written(tmp_path, data[:cut], "in.json"))
    with pytest.raises(DamagedFileError):
        read(written(tmp_path, data + b" x", "in.json"))
