"""Parquet: texts, columns and pruning by statistics; remote files, damage and
bounded memory.
"""

from __future__ import annotations

import datetime
import gc
import io
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.http import HttpServer
from tests.sources.parquet_by_hand import dictionary_bomb
from tests.sources.remote_support import bytes_asked_for
from tests.sources.support import (
    Source,
    dicts,
    faults,
    one,
    parsed,
    positions,
    read,
    rows,
    texts,
)
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import ColumnRange, Want, read_range, split_file
from tokenlake.etl.sources.parquet import PageSteps
from tokenlake.rowwise import ParquetShardedSource
from tokenlake.runtime.parquet import PageHeader, read_struct, walk_pages
from tokenlake.runtime.store import close_filesystems


def _view_type() -> pa.DataType:
    """Return the type of string views, or of strings where this pyarrow writes no
    views to Parquet.
    """
    empty = pa.table({"view": pa.array([], pa.string_view())})
    try:
        pq.write_table(empty, io.BytesIO())
    except pa.ArrowNotImplementedError:
        return pa.string()
    return pa.string_view()


VIEW = _view_type()
ROWS = 500
TABLE = pa.table({
    "id": range(ROWS),
    "text": [f"text {n} " * (n % 9) for n in range(ROWS)],
    "lang": pa.array(["py", "en"] * (ROWS // 2)).dictionary_encode(),
    "meta": [{"title": f"title {n}", "deep": {"body": f"body {n}" if n % 50 else None}} for n in range(ROWS)],
    "tags": [[f"tag {n % 3}"] * (n % 4) for n in range(ROWS)],
    "messages": [[{"role": "user", "content": f"hi {n}"}] for n in range(ROWS)],
    "pairs": pa.array([[("k", "v")]] * ROWS, pa.map_(pa.string(), pa.string())),
    "view": pa.array([f"seen {n}" for n in range(ROWS)], VIEW),
    "json": pa.array(["{}"] * ROWS, pa.json_()),
    "nothing": pa.nulls(ROWS),
})  # fmt: skip


def write(path: Path, table: pa.Table = TABLE, **options: Any) -> Path:
    settings = {
        "row_group_size": 200,
        "write_page_checksum": True,
        "data_page_size": 700,
        **options,
    }
    pq.write_table(table, path, **settings)
    return path


WORDS = [f"document {n} " * (n % 7) for n in range(300)]


def words(tmp_path: Path, **options: Any) -> Path:
    table = pa.table({"id": range(300), "text": pa.array(WORDS), "x.text": WORDS})
    return write(
        tmp_path / "in.parquet",
        table,
        **{"row_group_size": 64, "data_page_size": 512, **options},
    )


@pytest.mark.parametrize("unit_size", [1, 5000, 1 << 30])
def test_row_groups_are_read_in_order_and_every_byte_is_accounted_for(
    tmp_path: Path, unit_size: int
) -> None:
    path = words(tmp_path)
    batches = read(path, unit_size=unit_size)
    assert texts(batches) == WORDS
    assert positions(batches) == list(range(300))
    parts = split_file(one(path), unit_size)
    assert sum(batch.bytes_read for batch in batches) == sum(
        part.weight for part in parts
    )
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert len(parts) == {1: 5, 5000: len(parts), 1 << 30: 1}[unit_size]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), VIEW, pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_all_kinds_of_strings_are_strings(tmp_path: Path, kind: pa.DataType) -> None:
    path = write(
        tmp_path / "in.parquet", pa.table({"text": pa.array(WORDS).cast(kind)})
    )
    batches = read(path)
    assert texts(batches) == WORDS
    assert {batch.text.type for batch in batches} == {pa.large_string()}
    assert {batch.text.offset for batch in batches} == {0}


def test_bad_utf8_is_a_bad_record_with_its_bytes(tmp_path: Path) -> None:
    raw = pa.array(
        [b"ok", b"\xff\xfe", None, "é".encode(), b"\xed\xa0\x80"], pa.binary()
    ).view(pa.string())
    batches = read(write(tmp_path / "in.parquet", pa.table({"text": raw})))
    assert texts(batches) == ["ok", "é"]
    assert faults(batches) == [
        (1, None, "invalid_utf8"),
        (2, None, "null_text"),
        (4, None, "invalid_utf8"),
    ]
    assert [bad.raw for batch in batches for bad in batch.bad] == [
        b"\xff\xfe",
        b"",
        b"\xed\xa0\x80",
    ]


def test_a_text_over_the_limit_is_a_bad_record(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.parquet", pa.table({"text": ["a", "x" * 100, None, "b"]})
    )
    batches = read(path, max_record_bytes=99)
    assert texts(batches) == ["a", "b"]
    assert faults(batches) == [(1, None, "text_too_long"), (2, None, "null_text")]


def test_a_dictionary_is_unfolded_in_bounded_steps(tmp_path: Path) -> None:
    values = pa.array(["x" * (40 << 20), "y"]).dictionary_encode()
    table = pa.table(
        {"text": pa.DictionaryArray.from_arrays(pa.array([0] * 40), values.dictionary)}
    )
    path = write(tmp_path / "in.parquet", table, dictionary_pagesize_limit=1 << 30)
    file, source = one(path), Source()
    (part,) = split_file(file, 1 << 30)
    rows, largest = 0, 0
    for batch in read_range(part, source):  # type: ignore[arg-type]
        rows, largest = rows + len(batch.text), max(largest, batch.text.nbytes)
    assert rows == 40
    assert largest <= 256 << 20


def test_a_footer_that_counts_other_rows_is_damage(tmp_path: Path) -> None:
    path = words(tmp_path)
    good = path.read_bytes()
    count = b"\xd8\x04"  # 300 as a zigzag varint: the file's number of rows
    at = good.index(count, good.rindex(b"x.text"[:6], 0, good.rindex(count)))
    path.write_bytes(good[:at] + b"\xda\x04" + good[at + 2 :])
    with pytest.raises(DamagedFileError):
        read(path)


def test_many_rows_and_large_texts_come_in_blocks(tmp_path: Path) -> None:
    values = ["x" * 9] * 200_000 + ["y" * 3_000_000] * 12
    path = write(
        tmp_path / "in.parquet",
        pa.table({"text": values}),
        row_group_size=10**6,
        data_page_size=1 << 20,
    )
    batches = read(path)
    assert texts(batches) == values
    assert positions(batches) == list(range(len(values)))
    assert max(batch.text.nbytes for batch in batches) < 48 << 20


def test_row_groups_that_were_read_hold_no_memory_until_cycles_are_looked_for(
    tmp_path: Path,
) -> None:
    values = [str(number) * 500_000 for number in range(10)] * 4
    path = write(tmp_path / "in.parquet", pa.table({"text": values}), row_group_size=10)
    before, most = pa.total_allocated_bytes(), 0
    gc.disable()
    try:
        source: Any = Source()
        for part in split_file(one(path), 1 << 40):
            for batch in read_range(part, source):
                most = max(most, pa.total_allocated_bytes() - before)
                del batch
    finally:
        gc.enable()
    assert most < 16 << 20  # a row group has 5 MB of text


# ---- columns
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {},
    {"data_page_version": "2.0", "compression": "zstd"},
    {"use_dictionary": False},
    {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    {"dictionary_pagesize_limit": 500},
], ids=["dictionaries", "pages of version 2", "plain", "delta", "dictionaries given up"])  # fmt: skip
@pytest.mark.parametrize("unit_size", [1, 1 << 30])
def test_all_columns_come_as_they_were_written(
    tmp_path: Path, options: dict[str, Any], unit_size: int
) -> None:
    batches = rows(write(tmp_path / "in.parquet", **options), unit_size=unit_size)
    assert dicts(batches) == TABLE.to_pylist()
    assert positions(batches) == list(range(ROWS))
    kinds = {name: batches[0].rows.schema.field(name).type for name in ("lang", "json")}
    # Unfolded; the extension's storage.
    assert kinds == {"lang": pa.string(), "json": pa.string()}


@pytest.mark.parametrize(("field", "column"), [
    ("meta.title", [row["title"] for row in TABLE["meta"].to_pylist()]),
    ("meta.deep.body", [row["deep"]["body"] for row in TABLE["meta"].to_pylist()]),
    ("lang", TABLE["lang"].to_pylist()),
    ("view", TABLE["view"].to_pylist()),
])  # fmt: skip
def test_a_text_is_found_by_its_dotted_path(
    tmp_path: Path, field: str, column: list[str | None]
) -> None:
    batches = read(write(tmp_path / "in.parquet"), content_field=field)
    assert texts(batches) == [text for text in column if text is not None]
    assert faults(batches) == [
        (n, None, "null_text") for n, text in enumerate(column) if text is None
    ]


def test_a_column_that_bears_the_whole_path_comes_first(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": "inside", "b.c": "half"}], "a.b": ["whole"]})
    path = write(tmp_path / "in.parquet", table)
    assert texts(read(path, content_field="a.b")) == ["whole"]
    assert texts(read(path, content_field="a.b.c")) == ["half"]
    with pytest.raises(
        DamagedFileError,
        match=r"no column 'a\.c' \(content_field\); its columns are a, a\.b",
    ):
        read(path, content_field="a.c")


def test_only_what_is_wanted_is_decoded(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", compression="none", use_dictionary=False)
    group = pq.ParquetFile(path).metadata.row_group(0)
    data = bytearray(path.read_bytes())
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema not in ("id", "meta.title"):
            data[column.data_page_offset + column.total_compressed_size // 2] ^= 0x55
    path.write_bytes(data)
    assert len(texts(read(path, content_field="meta.title"))) == ROWS
    batches = rows(path, ("id",))
    assert [
        value for batch in batches for value in batch.rows.column(0).to_pylist()
    ] == list(range(ROWS))
    assert batches[0].rows.schema.names == ["id"]
    with pytest.raises(DamagedFileError, match=r"row group 0, columns? "):
        rows(path, ("text", "id"))


def test_columns_come_in_the_order_they_were_asked_for(tmp_path: Path) -> None:
    batches = rows(write(tmp_path / "in.parquet"), ("tags", "id"))
    assert batches[0].rows.schema.names == ["tags", "id"]
    with pytest.raises(
        DamagedFileError,
        match="it has no column 'nope'; its columns are id, text, lang",
    ):
        rows(tmp_path / "in.parquet", ("id", "nope"))


def test_rows_can_be_counted_without_columns(tmp_path: Path) -> None:
    assert len(positions(rows(write(tmp_path / "in.parquet"), ()))) == ROWS


def test_a_text_beside_columns_is_doubtful_before_it_is_bad(tmp_path: Path) -> None:
    table = pa.table({"id": range(4), "text": ["a", None, "x" * 99, "b"]})
    want = Want(text="text", columns=("id",), max_record_bytes=50)
    (block,) = parsed(write(tmp_path / "in.parquet", table), want)
    assert block.text is not None
    assert block.text.to_pylist() == ["a", None, None, "b"]
    assert [(bad.position, bad.fault.reason) for bad in block.doubtful] == [
        (1, "null_text"),
        (2, "text_too_long"),
    ]
    assert block.rows is not None
    assert block.rows.columns.to_pylist() == [{"id": n} for n in range(4)]
    assert block.bad == ()


def test_a_row_whose_strings_are_not_utf8_is_no_record(tmp_path: Path) -> None:
    strings = pa.array([b"ok", b"\xff", None, b"\xed\xa0\x80"], pa.binary()).view(
        pa.string()
    )
    table = pa.table(
        {"id": range(4), "inner": pa.StructArray.from_arrays([strings], ["s"])}
    )
    batches = rows(write(tmp_path / "in.parquet", table))
    assert [row["id"] for row in dicts(batches)] == [0, 2]
    assert faults(batches) == [(1, None, "invalid_utf8"), (3, None, "invalid_utf8")]


class Below:
    """A predicate: `column` is below a limit."""

    def __init__(self, column: str, limit: Any) -> None:
        self.columns = (column,)
        self.limit, self.seen = limit, list[ColumnRange]()

    def excludes(self, ranges: Mapping[str, ColumnRange]) -> bool:
        found = ranges[self.columns[0]]
        self.seen.append(found)
        return found.low is not None and found.low >= self.limit


def test_row_groups_in_which_the_predicate_holds_nowhere_are_skipped(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "in.parquet")
    predicate = Below("id", 200)
    blocks = parsed(path, Want(text="text", columns=("id",)), predicate)
    assert sum(len(block) for block in blocks) == 200
    assert [block.skipped for block in blocks if block.skipped] == [
        {"pruned": 200},
        {"pruned": 100},
    ]
    (part,) = split_file(one(path), 1 << 30)
    assert sum(block.bytes_read for block in blocks) == part.weight
    assert predicate.seen[1] == ColumnRange(low=200, high=399, nulls=0, rows=200)


@pytest.mark.parametrize(("values", "low", "high"), [
    (pa.array([3, None, 1]), 1, 3),
    (pa.array([2**63 + 1, 5], pa.uint64()), 5, 2**63 + 1),
    (pa.array(["b", "a", "é"]), "a", "é"),
    (pa.array([datetime.date(2020, 1, 1)]), datetime.date(2020, 1, 1), datetime.date(2020, 1, 1)),
    (pa.array([True, False]), False, True),
    (pa.array([2.0, float("nan"), 1.0]), 1.0, None),
    (pa.array([float("nan")]), None, None),
    (pa.array([1, 2], pa.timestamp("ns")), None, None),
    (pa.array([1, 2]).cast(pa.decimal128(30, 2)), None, None),
    (pa.array([b"a"]), None, None),
    (pa.array([None], pa.int64()), None, None),
    (pa.array(["x" * 9000]), None, None),
], ids=str)  # fmt: skip
def test_statistics_are_used_where_they_order_values_as_duckdb_does(
    tmp_path: Path, values: pa.Array, low: Any, high: Any
) -> None:
    path = write(
        tmp_path / "in.parquet", pa.table({"c": values, "text": ["t"] * len(values)})
    )
    predicate = Below("c", None)
    predicate.excludes = lambda ranges: predicate.seen.append(ranges["c"]) or False  # type: ignore[method-assign]
    parsed(path, Want(text="text", columns=("c",)), predicate)
    assert predicate.seen == [
        ColumnRange(low=low, high=high, nulls=values.null_count, rows=len(values))
    ]


def test_without_statistics_nothing_is_known_and_nothing_pruned(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", write_statistics=False)
    predicate = Below("id", 200)
    blocks = parsed(path, Want(text="text", columns=("id",)), predicate)
    assert sum(map(len, blocks)) == ROWS
    assert {(found.low, found.high, found.nulls) for found in predicate.seen} == {
        (None, None, None)
    }


def test_a_remote_file_is_read_in_few_and_large_reads(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    noise = (
        np.random.default_rng(0)
        .integers(33, 126, 10_000_000, np.uint8)
        .tobytes()
        .decode()
    )
    table = pa.table(
        {
            "text": [noise[n : n + 10_000] for n in range(0, 10_000_000, 10_000)],
            "id": range(1000),
        }
    )
    path = write(
        tmp_path / "in.parquet",
        table,
        row_group_size=250,
        data_page_size=1 << 16,
        compression="none",
    )
    with HttpServer({"in.parquet": path.read_bytes()}) as server:
        for columns, most in (((), 14), (("id",), 32)):
            blocks = parsed(
                f"{server.url}/in.parquet", Want(text="text", columns=columns)
            )
            sizes = bytes_asked_for(server)
            assert [
                text for block in blocks for text in block.text.to_pylist()
            ] == table["text"].to_pylist()
            assert len(sizes) <= most
            assert sum(sizes) < 1.1 * path.stat().st_size
    close_filesystems()


@pytest.mark.parametrize("write_page_checksum", [True, False])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_no_flip_of_a_bit_anywhere_in_the_text_gives_another_text(
    tmp_path: Path, write_page_checksum: bool, use_dictionary: bool
) -> None:
    words = [f"word {n % 7}" for n in range(60)]
    path = write(
        tmp_path / "in.parquet",
        pa.table({"text": words}),
        compression="zstd",
        use_dictionary=use_dictionary,
        write_page_checksum=write_page_checksum,
    )
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    good = path.read_bytes()
    found = 0
    for at in range(start, start + column.total_compressed_size):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        try:
            # Statistics in a page's header are nobody's business.
            same = texts(read(path)) == words
        except DamagedFileError:
            same, found = True, found + 1
        assert same or not write_page_checksum
    assert found > column.total_compressed_size // 3


def test_rows_of_a_dictionary_bomb_come_in_bounded_pieces(tmp_path: Path) -> None:
    path = dictionary_bomb(tmp_path / "in.parquet", 400, 400_000)
    count = 0
    for batch in rows(path):
        count += len(batch.positions)
        assert batch.rows.nbytes <= 128 << 20
    assert count == 400


def test_lists_over_a_large_dictionary_entry_are_unfolded_in_pieces(
    tmp_path: Path,
) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 400), ["x" * 400_000])
    lists = pa.ListArray.from_arrays(pa.array(range(0, 401, 4), pa.int32()), values)
    path = write(
        tmp_path / "in.parquet",
        pa.table({"l": lists}),
        dictionary_pagesize_limit=1 << 30,
    )
    batches = rows(path)
    assert sum(batch.rows.num_rows for batch in batches) == 100
    assert max(batch.rows.nbytes for batch in batches) <= 128 << 20


def test_seeking_a_row_group_takes_no_time(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.parquet",
        pa.table({"text": [f"text {n}" for n in range(200_000)]}),
        row_group_size=2000,
    )
    source = ParquetShardedSource(str(path))
    (name,) = source.shard_names
    began = time.process_time()
    row = next(source.open_shard_at_row(name, 150_123))
    # Some milliseconds; a whole read takes as many times more.
    assert time.process_time() - began < 0.5
    assert row == {"text": "text 150123"}


@given(
    pages=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 20 << 20),
            st.sampled_from([0, 2, 6, 7, 8]),
        ),
        max_size=8,
    ),
    entry=st.integers(0, 1 << 20),
)
def test_steps_cover_all_rows_and_stay_within_their_bound(
    pages: list[tuple[int, int, int]], entry: int
) -> None:
    total = sum(values for values, _, _ in pages)
    first = PageHeader(dictionary=True, size=entry, values=1, encoding=0)
    chunk = PageSteps(
        iter([first, *(PageHeader(False, size, n, kind) for n, size, kind in pages)]),
        lambda size: size,
        1 << 30,
    )
    done = 0
    while done < total:
        rows = chunk.fitting()
        assert rows >= 1
        indexed = any(kind in (2, 8) for _, _, kind in pages)
        if indexed and all(kind in (2, 8) for _, _, kind in pages):
            assert rows == 1 or rows * entry <= 128 << 20
        chunk.advance(min(rows, total - done))
        done += rows


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reader_of_headers_do_anything_but_refuse(
    data: bytes,
) -> None:
    try:
        found, end = read_struct(data)
    except (IndexError, ValueError):
        return
    assert end <= len(data)
    assert all(isinstance(key, int) for key in found)


def test_pages_are_walked_as_they_were_written(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.parquet",
        pa.table({"text": [f"text {n}" for n in range(300)]}),
        row_group_size=300,
    )
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = path.read_bytes()
    pages = list(walk_pages(lambda size, at: data[at : at + size], column))
    assert [page.dictionary for page in pages][:2] == [True, False]
    assert sum(page.values for page in pages if not page.dictionary) == 300
    assert pages[0].values == 300
