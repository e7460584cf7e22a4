"""Damaged shards: whichever bit is flipped and wherever a file ends, an error or the
right rows, never others.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reading.shards import (
    another,
    assert_same,
    groups_of,
    indexed,
    ours,
    packed_rows,
    shard_path,
    stored,
)
from tokenlake.errors import IntegrityError
from tokenlake.runtime import tokens_schema
from tokenlake.runtime.reading import Footer, StoredRows
from tokenlake.runtime.store import Store, open_store

_LENGTH, _GROUP = 7, 12
_TABLE = packed_rows(23, _LENGTH, seed=5, loss_mask=True)
_EXPECTED = groups_of(_TABLE, _GROUP)

_OURS: dict[str, Callable[[], bytes]] = {
    "whole": lambda: ours(_TABLE, _GROUP),
    "indices": lambda: indexed(_TABLE, _GROUP),
    "many pages": lambda: another(
        _TABLE, _GROUP, data_page_size=64, write_batch_size=16
    ),
}
_OTHERS: dict[str, Callable[[], bytes]] = {
    "uncompressed": lambda: another(_TABLE, _GROUP, compression="none"),
    "snappy": lambda: another(_TABLE, _GROUP, compression="snappy"),
    "version 2": lambda: another(_TABLE, _GROUP, data_page_version="2.0"),
    "dictionary": lambda: another(_TABLE, _GROUP, use_dictionary=True),
}


def _outcomes(root: Path, data: bytes, damaged: Iterable[bytes]) -> Counter[str]:
    """Read each damaged form of a shard as its manifest describes the whole one;
    fail at any other row.
    """
    first = stored(root, [data], _LENGTH)
    store: Store = open_store(root)
    found: Counter[str] = Counter()
    for number, each in enumerate(damaged):
        shard_path(root).write_bytes(each)
        with StoredRows(store, first.manifest, "train") as rows:
            for group, batch in enumerate(_EXPECTED):
                try:
                    packed = rows.packed(group, loss_mask=True)
                except IntegrityError as error:
                    assert "d@v1: data/train-00000-00.parquet" in str(error), number
                    found["error"] += 1
                else:
                    assert_same(packed, batch, loss_mask=True)
                    found["right"] += 1
    return found


def _flipped(data: bytes, number: int, seed: int) -> Iterable[bytes]:
    for bit in random.Random(seed).sample(range(len(data) * 8), number):
        each = bytearray(data)
        each[bit // 8] ^= 1 << bit % 8
        yield bytes(each)


@pytest.mark.parametrize("name", _OURS)
def test_any_flipped_bit_is_an_error_or_changes_nothing(
    tmp_path: Path, name: str
) -> None:
    data = _OURS[name]()
    found = _outcomes(tmp_path, data, _flipped(data, 400, seed=len(data)))
    assert found["error"] > 170
    # Of the other row group, of columns that nobody asked for.
    assert found["right"] > 200


@pytest.mark.parametrize("name", _OTHERS)
def test_any_flipped_bit_is_an_error_or_changes_nothing_through_arrow(
    tmp_path: Path, name: str
) -> None:
    data = _OTHERS[name]()
    found = _outcomes(tmp_path, data, _flipped(data, 150, seed=len(data)))
    assert found["error"] > 70
    assert found["right"] > 70


def test_a_flipped_bit_in_a_footer_is_an_error_or_changes_nothing(
    tmp_path: Path,
) -> None:
    data = _OURS["whole"]()
    size = int.from_bytes(data[-8:-4], "little") + 8
    found = _outcomes(
        tmp_path,
        data,
        (data[:-size] + each for each in _flipped(data[-size:], 300, seed=1)),
    )
    assert found["error"] > 100


def test_a_file_that_ends_early_is_an_error(tmp_path: Path) -> None:
    data = _OURS["whole"]()
    cuts = random.Random(2).sample(range(len(data)), 100)
    assert _outcomes(tmp_path, data, (data[:cut] for cut in cuts)) == {"error": 200}
    # Of the size that the manifest says, as a file is whose blocks were lost.
    padded = (data[:cut].ljust(len(data), b"\0") for cut in cuts)
    assert _outcomes(tmp_path, data, padded) == {"error": 200}


def test_every_bit_of_a_page_is_covered(tmp_path: Path) -> None:
    table = packed_rows(4, 4, seed=2)
    data = ours(table, 4)
    rows = stored(tmp_path, [data], 4)
    batch = groups_of(table, 4)[0]
    chunk = rows._open.of(0).footer.chunk(0, "input_ids")
    right = 0
    for bit in range(8 * chunk.begin, 8 * (chunk.begin + chunk.size)):
        each = bytearray(data)
        each[bit // 8] ^= 1 << bit % 8
        shard_path(tmp_path).write_bytes(each)
        with StoredRows(open_store(tmp_path), rows.manifest, "train") as again:
            try:
                assert_same(again.packed(0, loss_mask=False), batch)
                right += 1
            except IntegrityError:
                pass
    assert right < 30  # of a header: what Arrow does not need to read it


def test_segments_that_a_page_header_hides_are_missed(tmp_path: Path) -> None:
    # One segment fewer than there are leaves all rows there are, the last of them
    # shorter.
    table = packed_rows(5, 4, seed=1)
    lengths = pa.array(
        [[1], [1], [1], [1], [1, 1]], table.schema.field("segment_lengths").type
    )
    table = table.set_column(1, table.schema.field(1), lengths)
    data = another(table, 5, compression="none")
    rows = stored(tmp_path, [data], 4)
    begin = rows._open.of(0).footer.chunk(0, "segment_lengths").begin
    values = data.index(bytes([0x1C, 0x15, 6 << 1, 0x15, 0x00]), begin) + 2
    shard_path(tmp_path).write_bytes(
        data[:values] + bytes([5 << 1]) + data[values + 1 :]
    )
    with (
        StoredRows(open_store(tmp_path), rows.manifest, "train") as again,
        pytest.raises(
            IntegrityError,
            match="its pages hold 1 values fewer than the 6 of the footer",
        ),
    ):
        again.packed(0, loss_mask=False)


def test_a_row_group_that_the_footer_has_not_is_damage(tmp_path: Path) -> None:
    table = packed_rows(20, 4)
    rows = stored(tmp_path, [ours(table, 5)], 4)
    entry: Any = rows.manifest.files[0]
    other = ours(table, 10)
    shard_path(tmp_path).write_bytes(
        other[:4] + bytes(max(0, entry.bytes - len(other))) + other[4:]
    )
    with StoredRows(open_store(tmp_path), rows.manifest, "train") as again:
        for group in range(4):
            with pytest.raises(IntegrityError, match="row group"):
                again.packed(group, loss_mask=False)
        with pytest.raises(
            IntegrityError, match="it has 2 row groups; expected more than 2"
        ):
            again.bytes_of(2)


# What Arrow decodes is believed by Arrow: footers and headers of pages have no
# checksums.


def _texts(root: Path, lists: list[list[int]]) -> tuple[StoredRows, bytes]:
    """Rows of many lengths, one row group; as other writers lay them, so that Arrow
    decodes them all the same.
    """
    table = pa.table(
        {
            "input_ids": lists,
            "file": [1] * len(lists),
            "position": range(len(lists)),
            "note": ["x"] * len(lists),
        },
        schema=tokens_schema(kept=[("note", pa.large_string())]),
    )
    data = ours(table, len(lists))
    rows = stored(root, [data], 4)
    config = {"build": {"kept": [["note", "large_string"]]}}
    manifest = replace(rows.manifest, kind="tokens", seq_length=None, config=config)
    return StoredRows(open_store(root), manifest, "train"), data


def test_values_that_a_page_header_hides_are_missed_in_any_list(tmp_path: Path) -> None:
    rows, data = _texts(tmp_path, [[5], [], [6, 7]])
    assert rows.read(0)["input_ids"].to_pylist() == [[5], [], [6, 7]]
    begin = rows._open.of(0).footer.chunk(0, "input_ids").begin
    at = data.index(bytes([0x1C, 0x15, 4 << 1, 0x15, 0x00]), begin) + 2
    shard_path(tmp_path).write_bytes(data[:at] + bytes([3 << 1]) + data[at + 1 :])
    rows.close()
    with pytest.raises(IntegrityError, match="values fewer than"):
        rows.read(0)


def test_types_that_a_footer_changes_are_missed(tmp_path: Path) -> None:
    rows, data = _texts(tmp_path, [[5], [6, 7]])
    assert rows.read(0)["note"].type == pa.large_string()
    at = data.index(b"ARROW:schema")
    shard_path(tmp_path).write_bytes(data[:at] + b"ARROW.schema" + data[at + 12 :])
    rows.close()
    with pytest.raises(
        IntegrityError, match="note is string; expected large_string, by the manifest"
    ):
        rows.read(0)


@pytest.mark.parametrize("seed", range(3))
def test_any_flipped_bit_of_whole_rows_is_an_error_or_changes_nothing(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    rows, data = _texts(
        tmp_path, [[dice.randrange(9)] * dice.randrange(5) for _ in range(20)]
    )
    whole, wrong = rows.read(0), 0
    for each in _flipped(data, 300, seed):
        shard_path(tmp_path).write_bytes(each)
        rows.close()
        try:
            got = rows.read(0)
        except IntegrityError:
            wrong += 1
        else:
            assert got.equals(whole)
    assert wrong > 150


def test_counts_of_values_are_those_of_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any nesting, nulls and empty lists included: a row group is read where our
    count is that of its writer.
    """
    item = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.list_(pa.int8())))])
    table = pa.table(
        {
            "lists": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())),
            "nested": pa.array(
                [[[1], []], [], None, [None, [2, 3]]],
                pa.list_(pa.large_list(pa.int8())),
            ),
            "structs": pa.array(
                [[{"a": 1, "b": [[1], []]}, None], [], [{"a": None, "b": None}], None],
                pa.list_(item),
            ),
            "fixed": pa.array([[1, 2], None, [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
            "text": ["a", None, "", "b"],
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    first = stored(tmp_path, [sink.getvalue()], 4)
    manifest = replace(first.manifest, kind="tokens", seq_length=None, config={})
    with StoredRows(open_store(tmp_path), manifest, "train") as rows:
        assert rows.read(0).to_pylist() == table.to_pylist()
    original = Footer.read
    for leaf in range(6):

        def read_wrong(source: Any, leaf: int = leaf) -> Footer:
            footer = original(source)
            wrong = footer.values.copy()
            wrong[0, leaf] -= 1
            return replace(footer, values=wrong)

        monkeypatch.setattr(Footer, "read", read_wrong)
        with (
            StoredRows(open_store(tmp_path), manifest, "train") as rows,
            pytest.raises(IntegrityError, match="as the footer says"),
        ):
            rows.read(0)
