"""Files as shards: every format resumes exactly at every row; bad records, blank
lines and predicates keep numbers.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rowwise.sharded_support import numbered
from tests.seeds import promise
from tokenlake import create_source
from tokenlake.easydel import (
    CsvShardedSource,
    FilesShardedSource,
    HuggingFaceShardedSource,
    TextShardedSource,
)
from tokenlake.errors import (
    BadRecordError,
    ConfigError,
    DamagedFileError,
    SourceNotFoundError,
)
from tokenlake.rowwise import (
    ArrowShardedSource,
    CompositeShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    ShardedDataSource,
)

Rows = list[dict[str, Any]]
BOM = b"\xef\xbb\xbf"


def json_lines(rows: Rows) -> bytes:
    """Rows with a byte order mark before, and blank lines and other ends of lines
    among them.
    """
    lines = [
        json.dumps(row).encode() + b"\r\n" * (place % 3 == 1)
        for place, row in enumerate(rows)
    ]
    return BOM + b"\n \n\n".join(lines)


def json_array(rows: Rows) -> bytes:
    return json.dumps(rows).encode()


def parquet(rows: Rows) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(rows), sink, row_group_size=3)
    return sink.getvalue()


def arrow_file(rows: Rows) -> bytes:
    return ipc(rows, pa.ipc.new_file)


def arrow_stream(rows: Rows) -> bytes:
    return ipc(rows, pa.ipc.new_stream)


def ipc(rows: Rows, opener: Callable[..., Any]) -> bytes:
    sink = io.BytesIO()
    with opener(sink, table(rows).schema) as writer:
        writer.write_table(table(rows), max_chunksize=3)
    return sink.getvalue()


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(
        rows, pa.schema([("id", pa.string()), ("text", pa.string())])
    )


def comma_separated(rows: Rows, delimiter: str = ",") -> bytes:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, ["id", "text"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def tab_separated(rows: Rows) -> bytes:
    return comma_separated(rows, "\t")


def lines(rows: Rows) -> bytes:
    return BOM + "\n\n".join(row["id"] for row in rows).encode()


FORMATS: dict[str, tuple[Callable[[Rows], bytes], type[ShardedDataSource]]] = {
    ".parquet": (parquet, ParquetShardedSource),
    ".jsonl": (json_lines, JsonShardedSource),
    ".jsonl.gz": (json_lines, JsonShardedSource),
    ".jsonl.zst": (json_lines, JsonShardedSource),
    ".json": (json_array, JsonShardedSource),
    ".json.gz": (json_array, JsonShardedSource),
    ".arrow": (arrow_file, ArrowShardedSource),
    ".arrows": (arrow_stream, ArrowShardedSource),
    ".csv": (comma_separated, CsvShardedSource),
    ".csv.gz": (comma_separated, CsvShardedSource),
    ".tsv": (tab_separated, CsvShardedSource),
    ".txt": (lines, TextShardedSource),
    ".txt.zst": (lines, TextShardedSource),
}
formats = pytest.mark.parametrize("extension", FORMATS)


def put(path: Path, data: bytes) -> Path:
    if path.suffix == ".gz":
        half = len(data) // 2
        data = gzip.compress(data[:half]) + gzip.compress(data[half:])
    if path.suffix == ".zst":
        data = pa.compress(data, "zstd", asbytes=True)
    path.write_bytes(data)
    return path


def opened(
    folder: str | Path, extension: str, rows: Rows, **options: Any
) -> ShardedDataSource:
    write, kind = FORMATS[extension]
    path = put(Path(folder, f"a{extension}"), write(rows))
    if extension.startswith(".json") and "jsonl" not in extension:
        options["jsonl"] = False
    return kind(path, **options)


def expected(extension: str, rows: Rows) -> Rows:
    return (
        [{"text": row["id"]} for row in rows] if extension.startswith(".txt") else rows
    )


ROWS: Rows = [
    {"id": f"{place}", "text": f"text {place} é\U0001f600" * (place % 4)}
    for place in range(11)
]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


# --- the law of resuming


@promise(149)
@formats
def test_every_shard_opens_at_every_row(tmp_path, extension):
    source = opened(tmp_path, extension, ROWS)
    (name,) = source.shard_names
    assert name == f"a{extension}"
    every = list(source.open_shard(name))
    assert every == expected(extension, ROWS) == list(source)
    for row in range(len(ROWS) + 1):
        assert list(source.open_shard_at_row(name, row)) == every[row:]
        assert numbered(source, name, row) == list(enumerate(every))[row:]
    for row in (len(ROWS) + 1, len(ROWS) + 50):
        with pytest.raises(
            ConfigError, match=f"row {row} is beyond its end; it has 11 rows"
        ):
            list(source.open_shard_at_row(name, row))


@given(
    extension=st.sampled_from(sorted(FORMATS)),
    texts=st.lists(TEXT, max_size=9),
    row=st.integers(0, 9),
)
@settings(max_examples=50)
def test_a_resumed_shard_goes_on_like_one_that_was_not_interrupted(
    extension, texts, row
):
    rows = [{"id": f"{place}", "text": text} for place, text in enumerate(texts)]
    row = min(row, len(rows))
    with tempfile.TemporaryDirectory() as folder:
        source = opened(folder, extension, rows)
        (name,) = source.shard_names
        assert (
            list(source.open_shard_at_row(name, row))
            == list(source.open_shard(name))[row:]
        )
        assert list(source) == expected(extension, rows)


@pytest.mark.parametrize("extension", [".parquet", ".jsonl.gz"])
@promise(248)
def test_a_shard_opens_by_the_whole_path_of_its_file(tmp_path, extension, monkeypatch):
    source = opened(tmp_path, extension, ROWS)
    (name,) = source.shard_names
    rows = list(source.open_shard_at_row(name, 3))
    monkeypatch.chdir(tmp_path.parent)
    for path in (tmp_path / name, Path(tmp_path.name, name)):
        assert list(source.open_shard_at_row(str(path), 3)) == rows
        assert source.get_shard_info(str(path)) == source.get_shard_info(name)
    with pytest.raises(ConfigError, match="no shard is named"):
        source.open_shard_at_row(str(tmp_path / "other" / name), 3)


@formats
@promise(249)
def test_what_is_known_without_reading_is_exact(tmp_path, extension):
    source = opened(tmp_path, extension, ROWS)
    (name,) = source.shard_names
    info = source.get_shard_info(name)
    path = tmp_path / name
    assert (info.name, info.index, info.url, info.bytes) == (
        name,
        0,
        str(path),
        path.stat().st_size,
    )
    assert info.compression == {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    assert info.rows == (11 if extension in (".parquet", ".arrow") else None)
    if info.rows is None:
        with pytest.raises(TypeError, match="unknown"):
            len(source)
        # It read the file, so that the number is known from now on.
        assert source.count_rows(name) == 11
    assert (
        source.get_shard_info(name).rows == len(source) == source.count_rows(name) == 11
    )


@formats
def test_a_predicate_leaves_rows_out_and_numbers_as_they_are(tmp_path, extension):
    field = "text" if extension.startswith(".txt") else "id"
    source = opened(
        tmp_path, extension, ROWS, where=f"try_cast({field} as integer) % 3 = 1"
    )
    (name,) = source.shard_names
    every = [(place, expected(extension, ROWS)[place]) for place in (1, 4, 7, 10)]
    for row in range(12):
        assert numbered(source, name, row) == [pair for pair in every if pair[0] >= row]
    with pytest.raises(ConfigError, match="beyond its end; it has 11 rows"):
        list(source.open_shard_at_row(name, 12))
    with pytest.raises(TypeError, match="left out"):
        len(source)


@formats
def test_num_rows_counts_records_in_the_order_of_the_files(tmp_path, extension):
    write = FORMATS[extension][0]
    for name, rows in (("a", ROWS[:4]), ("b", ROWS[4:6]), ("c", ROWS[6:])):
        put(tmp_path / f"{name}{extension}", write(rows))
    for limit in (0, 3, 4, 5, 6, 7, 11, 12):
        options = {"jsonl": False} if extension in (".json", ".json.gz") else {}
        source = FORMATS[extension][1](
            f"{tmp_path}/*{extension}", num_rows=limit, **options
        )
        assert list(source) == expected(extension, ROWS[:limit])
        last = source.shard_names[-1]
        left = expected(extension, ROWS[6:limit])
        assert list(source.open_shard_at_row(last, 1)) == left[1:] if left else True


@pytest.mark.parametrize("extension", [".parquet", ".jsonl"])
def test_sources_travel_to_other_processes(tmp_path, extension):
    source = opened(tmp_path, extension, ROWS)
    list(source.open_shard_at_row(source.shard_names[0], 5))
    assert list(pickle.loads(pickle.dumps(source))) == expected(extension, ROWS)


# --- bad records

BAD_LINES = [
    b'{"id":"0"}',
    b'{"id":',
    b'{"id":"2"}',
    b"[]",
    b'{"id":"\xff"}',
    b'{"id":"5"}',
]


@pytest.fixture(params=[".jsonl", ".jsonl.gz"])
def damaged_lines(request, tmp_path) -> Path:
    return put(tmp_path / f"a{request.param}", BOM + b"\n\n".join(BAD_LINES) + b"\n")


def test_the_first_bad_record_is_an_error_after_the_rows_before_it(damaged_lines):
    source = JsonShardedSource(damaged_lines)
    (name,) = source.shard_names
    rows = source.open_shard(name)
    assert next(rows) == {"id": "0"}
    with pytest.raises(
        BadRecordError, match=r"shard 'a.jsonl.*', row 1: .*a.jsonl.*:3: invalid_json"
    ) as caught:
        next(rows)
    assert {key: caught.value.details[key] for key in ("row", "line", "reason")} == {
        "row": 1,
        "line": 3,
        "reason": "invalid_json",
    }


@pytest.mark.parametrize(
    ("row", "good", "bad"),
    [(0, 1, 1), (1, 0, 1), (2, 1, 3), (3, 0, 3), (4, 0, 4), (5, 1, None)],
)
def test_bad_records_before_the_row_are_no_matter(damaged_lines, row, good, bad):
    source = JsonShardedSource(damaged_lines)
    rows = source.open_shard_numbered(source.shard_names[0], row)
    assert [next(rows)[0] for _ in range(good)] == [row] * good
    if bad is None:
        assert list(rows) == []
    else:
        with pytest.raises(BadRecordError, match=f"row {bad}:"):
            next(rows)


@pytest.mark.parametrize(
    ("kind", "name", "data", "reason"),
    [
        (
            JsonShardedSource,
            "a.json",
            b'[{"id":"0"},3,{"id":"2"},null]',
            "not_an_object",
        ),
        (CsvShardedSource, "a.csv", b"id,text\n0,a\n1\n2,c\n3,\xff\n", ""),
        (CsvShardedSource, "a.tsv", b"id\ttext\n0\ta\n1\n2\tc\n3\t\xff\n", ""),
        (TextShardedSource, "a.txt", b"0\n\n1\xff\n2\n\xff\n", "invalid_utf8"),
    ],
)
def test_bad_records_of_every_format_keep_their_numbers(
    tmp_path, kind, name, data, reason
):
    options: dict[str, Any] = {"jsonl": False} if kind is JsonShardedSource else {}
    path = put(tmp_path / name, data)
    source = kind(path, on_bad_record="quarantine", **options)
    for row in range(5):
        assert [number for number, _ in numbered(source, name, row)] == [
            n for n in (0, 2) if n >= row
        ]
    assert source.count_rows(name) == 4
    strict = kind(path, **options)
    assert next(strict.open_shard_at_row(name, 2)) == numbered(source, name, 2)[0][1]
    for row, bad in ((0, 1), (2, 3)):
        with pytest.raises(BadRecordError, match=f"row {bad}: .*{reason}"):
            list(strict.open_shard_at_row(name, row))


def test_a_bad_record_far_into_a_file_still_has_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tokenlake.etl.sources.records.COUNTED_BYTES", 100)
    path = put(tmp_path / "a.jsonl", b'{"id":"0"}\n\n' * 20_000 + b"[]\n")
    with pytest.raises(
        BadRecordError,
        match=r"row 20000: .*:40001: not_an_object at byte offset 240000",
    ):
        list(JsonShardedSource(path).open_shard_at_row("a.jsonl", 19_999))


def test_a_predicate_and_bad_records_together_keep_the_numbers(damaged_lines):
    source = JsonShardedSource(
        damaged_lines, on_bad_record="quarantine", where="id <> '2'"
    )
    assert numbered(source, source.shard_names[0]) == [
        (0, {"id": "0"}),
        (5, {"id": "5"}),
    ]
    assert numbered(source, source.shard_names[0], 1) == [(5, {"id": "5"})]


# --- names and formats of files


def test_files_of_the_same_name_have_names_of_their_own(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        put(tmp_path / folder / "a.jsonl", json_lines([{"id": folder}]))
    source = JsonShardedSource(tmp_path)
    assert source.shard_names == ("x/a.jsonl", "y/a.jsonl")
    assert [list(source.open_shard(name)) for name in source.shard_names] == [
        [{"id": "x"}],
        [{"id": "y"}],
    ]
    apart = [JsonShardedSource(tmp_path / folder) for folder in ("x", "y")]
    both = CompositeShardedSource(apart)
    assert both.shard_names == ("0/a.jsonl", "1/a.jsonl")
    assert list(both) == [{"id": "x"}, {"id": "y"}]


def test_lines_and_arrays_in_one_listing_are_each_read_as_what_they_are(tmp_path):
    put(tmp_path / "a.json", json_array([{"id": "0"}, {"id": "1"}]))
    put(tmp_path / "b.jsonl", json_lines([{"id": "2"}]))
    source = JsonShardedSource(f"{tmp_path}/*", jsonl=False)
    assert [row["id"] for row in source] == ["0", "1", "2"]
    mixed = FilesShardedSource(tmp_path)
    assert [mixed.get_shard_info(name).format for name in mixed.shard_names] == [
        "json",
        "jsonl",
    ]
    assert [row["id"] for row in mixed] == ["0", "1", "2"]


def test_json_lines_in_a_json_file_are_the_default_of_the_json_source(tmp_path):
    put(tmp_path / "a.json", json_lines([{"id": "0"}, {"id": "1"}]))
    assert [row["id"] for row in JsonShardedSource(tmp_path / "a.json")] == ["0", "1"]


@promise(247)
def test_parquet_columns_are_read_in_the_order_asked_for(tmp_path):
    path = put(tmp_path / "a.parquet", parquet(ROWS))
    source = ParquetShardedSource(path, columns=["text", "id"])
    assert list(next(source.open_shard("a.parquet"))) == ["text", "id"]
    chosen = ParquetShardedSource(path, columns=["text"], where="id = '4'")
    assert numbered(chosen, "a.parquet") == [(4, {"text": ROWS[4]["text"]})]
    with pytest.raises(DamagedFileError, match="no column 'x'"):
        list(ParquetShardedSource(path, columns=["x"]))


@pytest.mark.parametrize(
    "kept", [range(2), range(4, 5), range(7, 9), range(3, 8), range(0)]
)
def test_row_groups_that_a_predicate_excludes_keep_the_numbers_of_the_others(
    tmp_path, kept
):
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "a.parquet", row_group_size=2)
    where = f"id >= {kept.start} and id < {kept.stop}"
    source = ParquetShardedSource(tmp_path, where=where)
    for row in range(10):
        assert numbered(source, "a.parquet", row) == [
            (place, {"id": place}) for place in kept if place >= row
        ]
    with pytest.raises(ConfigError, match="it has 9 rows"):
        list(source.open_shard_at_row("a.parquet", 10))


@promise(176)
def test_only_the_row_group_that_holds_the_row_is_decoded(tmp_path):
    path = put(tmp_path / "a.parquet", parquet(ROWS))
    meta = pq.read_metadata(path)
    data = bytearray(path.read_bytes())
    for group in (0, 1):  # what is before the row may be broken: it is not looked at
        column = meta.row_group(group).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        data[start : start + column.total_compressed_size] = bytes(
            column.total_compressed_size
        )
    path.write_bytes(bytes(data))
    source = ParquetShardedSource(path)
    assert list(source.open_shard_at_row("a.parquet", 7)) == ROWS[7:]
    with pytest.raises(DamagedFileError):
        list(source.open_shard_at_row("a.parquet", 5))


@promise(250)
def test_a_comma_separated_file_may_have_another_delimiter(tmp_path):
    path = put(tmp_path / "a.csv", comma_separated(ROWS, ";"))
    assert list(CsvShardedSource(path, delimiter=";")) == ROWS


@promise(251)
def test_lines_of_text_go_into_the_field_asked_for(tmp_path):
    path = put(tmp_path / "a.txt", b"one\r\n\n  \ntwo")
    source = TextShardedSource(path, text_field="line", where="length(line) = 3")
    assert numbered(source, "a.txt") == [(0, {"line": "one"}), (2, {"line": "two"})]
    whole = TextShardedSource(path, text_mode="document")
    assert numbered(whole, "a.txt") == [(0, {"text": "one\r\n\n  \ntwo"})]
    assert len(whole) == 1
    chosen = TextShardedSource(
        path, text_field="body", text_mode="document", where="body like 'one%'"
    )
    assert numbered(chosen, "a.txt", 0) == [(0, {"body": "one\r\n\n  \ntwo"})]
    assert numbered(chosen, "a.txt", 1) == []


# --- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"on_bad_record": "fial"},
            "got 'fial', must be 'fail' or 'quarantine'; did you mean 'fail'",
        ),
        ({"max_record_bytes": "many"}, "a size must be"),
        ({"num_rows": -1}, "num_rows: got -1"),
        ({"num_rows": True}, "num_rows: got True"),
        ({"storage_options": "anon"}, "storage_options: must be a mapping"),
        ({"where": "id ="}, "where"),
    ],
)
def test_arguments_that_are_not_allowed_are_refused_at_once(tmp_path, options, message):
    put(tmp_path / "a.jsonl", json_lines(ROWS))
    with pytest.raises(ConfigError, match=message):
        JsonShardedSource(tmp_path, **options)


@pytest.mark.parametrize("columns", ["text", []])
def test_columns_are_a_list_of_names(tmp_path, columns):
    with pytest.raises(ConfigError, match="columns: got"):
        ParquetShardedSource(tmp_path, columns=columns)


def test_a_mistyped_path_names_the_near_match_and_is_no_dataset_id(tmp_path):
    put(tmp_path / "train.jsonl", json_lines(ROWS))
    with pytest.raises(SourceNotFoundError, match=r"Did you mean .*train\.jsonl"):
        JsonShardedSource(tmp_path / "trian.jsonl")
    with pytest.raises(SourceNotFoundError):
        create_source({"data_files": str(tmp_path / "trian.jsonl")})


def test_a_cache_that_would_not_be_used_is_an_error():
    with pytest.raises(
        ConfigError, match="cache_dir: got '/tmp/x', must be None with streaming=True"
    ):
        HuggingFaceShardedSource("org/data", cache_dir="/tmp/x")


def test_a_long_record_is_a_bad_one(tmp_path):
    path = put(
        tmp_path / "a.jsonl", b'{"id":"0"}\n{"id":"' + b"1" * 50 + b'"}\n{"id":"2"}\n'
    )
    source = JsonShardedSource(path, on_bad_record="quarantine", max_record_bytes=40)
    assert numbered(source, "a.jsonl") == [(0, {"id": "0"}), (2, {"id": "2"})]
    with pytest.raises(BadRecordError, match=r"row 1: .*line_too_long"):
        list(JsonShardedSource(path, max_record_bytes="40B"))


def test_a_damaged_file_is_an_error_whatever_the_policy(tmp_path):
    whole = gzip.compress(json_lines(ROWS))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[:-6])
    with pytest.raises(DamagedFileError):
        list(JsonShardedSource(path, on_bad_record="quarantine"))
