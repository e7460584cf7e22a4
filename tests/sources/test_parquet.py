"""Parquet: positions are rows of the file, nulls and bad UTF-8 are bad records, damage is never read past."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sources.support import Source, faults, one, positions, read, texts
from tokenlake.errors import DamagedFileError
from tokenlake.sources.records import read_range
from tokenlake.sources.splits import split_file

WORDS = [f"document {n} " * (n % 7) for n in range(300)]


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(
        table, path, **{"row_group_size": 64, "write_page_checksum": True, "data_page_size": 512, **options}
    )
    return path


def words(tmp_path: Path, **options: Any) -> Path:
    table = pa.table({"id": range(300), "text": pa.array(WORDS), "x.text": WORDS})
    return write(tmp_path / "in.parquet", table, **options)


@pytest.mark.parametrize("unit_size", [1, 5000, 1 << 30])
def test_row_groups_are_read_in_order_and_every_byte_is_accounted_for(tmp_path: Path, unit_size: int) -> None:
    path = words(tmp_path)
    batches = read(path, unit_size=unit_size)
    assert texts(batches) == WORDS
    assert positions(batches) == list(range(300))
    parts = split_file(one(path), unit_size)
    assert sum(batch.bytes_read for batch in batches) == sum(part.weight for part in parts)
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert len(parts) == {1: 5, 5000: len(parts), 1 << 30: 1}[unit_size]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_all_kinds_of_strings_are_strings(tmp_path: Path, kind: pa.DataType) -> None:
    path = write(tmp_path / "in.parquet", pa.table({"text": pa.array(WORDS).cast(kind)}))
    batches = read(path)
    assert texts(batches) == WORDS
    assert {batch.text.type for batch in batches} == {pa.large_string()}
    assert {batch.text.offset for batch in batches} == {0}


def test_bad_utf8_is_a_bad_record_with_its_bytes(tmp_path: Path) -> None:
    raw = pa.array([b"ok", b"\xff\xfe", None, "é".encode(), b"\xed\xa0\x80"], pa.binary()).view(pa.string())
    batches = read(write(tmp_path / "in.parquet", pa.table({"text": raw})))
    assert texts(batches) == ["ok", "é"]
    assert faults(batches) == [(1, None, "invalid_utf8"), (2, None, "null_text"), (4, None, "invalid_utf8")]
    assert [bad.raw for batch in batches for bad in batch.bad] == [b"\xff\xfe", b"", b"\xed\xa0\x80"]


def test_a_text_over_the_limit_is_a_bad_record(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", pa.table({"text": ["a", "x" * 100, None, "b"]}))
    batches = read(path, max_record_bytes=99)
    assert texts(batches) == ["a", "b"]
    assert faults(batches) == [(1, None, "text_too_long"), (2, None, "null_text")]


def test_a_dictionary_is_unfolded_in_bounded_steps(tmp_path: Path) -> None:
    values = pa.array(["x" * (40 << 20), "y"]).dictionary_encode()
    table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 40), values.dictionary)})
    path = write(tmp_path / "in.parquet", table, dictionary_pagesize_limit=1 << 30)
    file, source = one(path), Source()
    (part,) = split_file(file, 1 << 30)
    rows, largest = 0, 0
    for batch in read_range(part, source):  # type: ignore[arg-type]
        rows, largest = rows + len(batch.text), max(largest, batch.text.nbytes)
    assert rows == 40
    assert largest <= 256 << 20


def test_every_flipped_byte_of_the_texts_pages_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", pa.table({"text": WORDS}), compression="none", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(2).column(0)
    good = path.read_bytes()
    span = range(column.data_page_offset + 60, column.data_page_offset + column.total_compressed_size)
    for at in np.random.default_rng(0).choice(span, 40, replace=False):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x20]) + good[at + 1 :])
        with pytest.raises(DamagedFileError, match="row group 2, column 'text' cannot be read"):
            read(path)


def test_damage_in_a_column_that_is_not_read_is_none_of_our_business(tmp_path: Path) -> None:
    path = words(tmp_path, compression="none", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(2)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + 100] ^= 1
    path.write_bytes(data)
    assert texts(read(path)) == WORDS


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
        tmp_path / "in.parquet", pa.table({"text": values}), row_group_size=10**6, data_page_size=1 << 20
    )
    batches = read(path)
    assert texts(batches) == values
    assert positions(batches) == list(range(len(values)))
    assert max(batch.text.nbytes for batch in batches) < 48 << 20


def test_row_groups_that_were_read_hold_no_memory_until_cycles_are_looked_for(tmp_path: Path) -> None:
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
