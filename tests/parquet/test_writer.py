"""Shards of packed rows: whoever reads them reads the rows that were written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reading.shards import (
    assert_same,
    earlier,
    groups_of,
    indexed,
    ours,
    packed_rows,
    stored,
)
from tests.seeds import promise
from tokenlake.runtime import described, packed_schema
from tokenlake.runtime.parquet import open_shard, writer


def _arrow(data: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(data), page_checksum_verification=True)


def _encodings(data: bytes) -> set[str]:
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = range(metadata.num_row_groups)
    return {
        name
        for index in groups
        for name in metadata.row_group(index).column(0).encodings
    }


@promise(319)
@given(
    rows=st.integers(1, 40),
    length=st.integers(1, 200),
    group_rows=st.integers(1, 45),
    page_values=st.sampled_from([8, 64, 264, 1 << 18]),
    loss_mask=st.booleans(),
    seed=st.integers(0, 9),
)
def test_arrow_and_the_loader_read_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    length: int,
    group_rows: int,
    page_values: int,
    loss_mask: bool,
    seed: int,
) -> None:
    table = packed_rows(rows, length, seed=seed, loss_mask=loss_mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "PAGE_VALUES", page_values)
        shards = [ours(table, group_rows), indexed(table, group_rows)]
    assert [_encodings(data) >= {"RLE_DICTIONARY"} for data in shards] == [False, True]
    expected = groups_of(table, group_rows)
    store = stored(tmp_path_factory.mktemp("lake"), shards, length)
    for number, data in enumerate(shards):
        assert _arrow(data).equals(table)
        for group, batch in enumerate(expected):
            found = store.packed(number * len(expected) + group, loss_mask=loss_mask)
            assert_same(found, batch, loss_mask=loss_mask)
    # Nothing was left to Arrow.
    assert not store.through_arrow


@promise(320, 339)
def test_duckdb_and_polars_read_the_rows_that_arrow_wrote(tmp_path: Path) -> None:
    table = packed_rows(300, 1000, loss_mask=True)
    for name, data in {"arrow": earlier(table, 128), "ours": ours(table, 128)}.items():
        (tmp_path / f"{name}.parquet").write_bytes(data)
    assert _encodings(ours(table, 128)) == {"PLAIN", "RLE", "RLE_DICTIONARY"}
    by_name = {name: f"'{tmp_path}/{name}.parquet'" for name in ("arrow", "ours")}
    unlike = f"(from {by_name['arrow']} except from {by_name['ours']})"
    assert duckdb.sql(f"select count(*) from {by_name['ours']}").fetchall() == [(300,)]
    assert duckdb.sql(f"select count(*) from {unlike}").fetchall() == [(0,)]
    frames = [
        pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("arrow", "ours")
    ]
    assert frames[0].equals(frames[1])
    assert (
        pl.scan_parquet(tmp_path / "ours.parquet")
        .select("segment_lengths")
        .collect()
        .height
        == 300
    )


def test_the_schema_in_the_file_is_the_one_that_arrow_writes() -> None:
    table = packed_rows(5, 8, loss_mask=True)
    own, arrow = (
        pq.ParquetFile(io.BytesIO(data)) for data in (ours(table, 5), earlier(table, 5))
    )
    assert own.schema.equals(arrow.schema)
    assert own.schema_arrow.equals(arrow.schema_arrow, check_metadata=True)


def test_a_file_says_in_its_key_values_what_it_is() -> None:
    table = packed_rows(5, 8)
    own, arrow = (
        pq.ParquetFile(io.BytesIO(write(table.cast(described(table.schema, "ab")), 5)))
        for write in (ours, earlier)
    )
    said = {
        "format_version": "1",
        "kind": "packed",
        "seq_length": "8",
        "tokenizer": "ab",
    }
    assert own.schema_arrow.metadata == {
        f"tokenlake.{name}".encode(): said[name].encode() for name in said
    }
    assert own.schema_arrow.equals(arrow.schema_arrow, check_metadata=True)


def test_segment_ids_are_indices_too() -> None:
    ids = np.arange(1 << 17, dtype=np.int32) % 60_000
    table = packed_rows(2, 1 << 16)
    columns = {
        "input_ids": list(ids.reshape(2, -1)),
        "segment_ids": list((ids // 7000 + 1).reshape(2, -1)),
        "segment_lengths": table["segment_lengths"],
        "documents": table["documents"],
    }
    whole = pa.Table.from_pydict(
        columns, schema=packed_schema(1 << 16, store_segment_ids=True)
    )
    data = ours(whole, 2)
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(1)
    assert chunk.has_dictionary_page
    assert chunk.total_compressed_size < 2000
    assert _arrow(data).equals(whole)


@pytest.mark.parametrize("wrong", [1 << 16, 1 << 30])
def test_ids_that_16_bits_do_not_hold_are_plain(wrong: int, tmp_path: Path) -> None:
    ids = np.zeros((2, 1 << 16), np.int32)
    table = packed_rows(2, 1 << 16)
    least = table.set_column(0, table.schema.field(0), _column([*ids]))
    ids[1, 9] = wrong
    most = table.set_column(0, table.schema.field(0), _column([*ids]))
    assert "RLE_DICTIONARY" in _encodings(ours(least, 2))
    data = ours(most, 2)
    assert _encodings(data) == {"PLAIN", "RLE"}
    assert _arrow(data).equals(most)
    found = stored(tmp_path, [data], 1 << 16).packed(0, loss_mask=False)
    assert (found.ids.dtype, int(found.ids[1, 9])) == (np.int32, wrong)


def _column(rows: list[Any]) -> Any:
    return pa.array(rows, packed_schema(1 << 16).field(0).type)


def test_a_slice_of_rows_is_written_as_itself() -> None:
    table = packed_rows(30, 9, loss_mask=True)
    sink = io.BytesIO()
    shard = open_shard(sink, table.schema)
    shard.write_batch(table.combine_chunks().to_batches()[0].slice(3, 20), 6)
    shard.close()
    assert sink.getvalue() == ours(table[3:23], 6)
    assert _arrow(sink.getvalue()).equals(table[3:23])


def test_a_row_without_segments_is_refused() -> None:
    table = packed_rows(3, 4)
    segments = pa.array([[4], [], [4]], table.schema.field(1).type)
    with pytest.raises(
        ValueError,
        match="segment_lengths: row 1 has no values; expected at least one in every row",
    ):
        ours(table.set_column(1, table.schema.field(1), segments), 3)


def test_no_rows_are_a_file_too() -> None:
    empty = packed_rows(1, 4)[:0]
    assert _arrow(ours(empty, 1)).equals(empty)


def test_bytes_depend_on_row_groups_and_not_on_how_rows_come() -> None:
    table = packed_rows(300, 1000, loss_mask=True)
    sink = io.BytesIO()
    shard = open_shard(sink, table.schema)
    for batch in groups_of(table, 128):
        shard.write_batch(batch, 1 << 20)
    shard.close()
    assert sink.getvalue() == ours(table, 128)
