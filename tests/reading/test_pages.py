"""Pages decoded without Arrow: the same rows as Arrow reads, whatever their shape;
what is not ours is left to it.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reading.shards import (
    another,
    assert_same,
    groups_of,
    ours,
    packed_rows,
    shard_path,
    stored,
)
from tests.sources.parquet_by_hand import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    PLAIN,
    RLE,
    page,
    thrift,
    varint,
)
from tokenlake.errors import IntegrityError
from tokenlake.runtime import packed_schema
from tokenlake.runtime.parquet import PageHeader, parse_header
from tokenlake.runtime.reading import (
    SeenLevels,
    StoredRows,
    Unfamiliar,
    fixed_numbers,
    list_numbers,
)
from tokenlake.runtime.store import Store, open_store

PLAIN_DICTIONARY = 2
"""The encoding of indices in files of old writers."""

# Headers

_HEADER = bytes.fromhex(
    "1500 1598 8a8001 159c ed1a 1582 a6e8 8d0e 1c 1580 8020 1500 1506 1506 1c00 00 00"
)


def test_a_header_says_where_the_body_is_how_large_and_what_its_checksum_is() -> None:
    found = parse_header(b"before" + _HEADER + b"body", 6)
    assert found == PageHeader(
        False,
        1049228,
        262144,
        PLAIN,
        begin=6 + len(_HEADER),
        stored=219982,
        crc=0x70DD0981,
        ours=True,
    )
    without = _HEADER.replace(b"\x1c\x00\x00\x00", b"\x00\x00")
    assert parse_header(without) == found._replace(begin=len(without))
    negative = thrift({1: 0, 2: 9, 3: 8, 4: -2, 5: {1: 1, 2: 0, 3: 3, 4: 3}})
    assert parse_header(negative).crc == 0xFFFFFFFE


@pytest.mark.parametrize(
    "fields",
    [
        {1: DICTIONARY_PAGE, 2: 9, 3: 8, 7: {1: 1, 2: 0}},  # no checksum
        {1: DICTIONARY_PAGE, 2: 9, 3: 8, 4: 7, 7: {1: 1, 2: 0, 3: True}},  # sorted
        # A data page of version 2.
        {1: 3, 2: 9, 3: 8, 4: 7, 8: {1: 1, 2: 0, 3: 1, 4: 0, 5: 0, 6: 0}},
        {1: 0, 2: 9, 3: 8, 5: {1: 1, 2: 0, 3: 3, 4: 3}},  # no checksum
        {1: 0, 2: 9, 3: 8, 4: 7, 5: {1: 1, 2: PLAIN_DICTIONARY, 3: 3, 4: 3}},
        {1: 0, 2: 9, 3: 8, 4: 7, 5: {1: 1, 2: 0, 3: 4, 4: 3}},  # levels as bits alone
        {1: 0, 2: 9, 3: 8, 4: 7, 5: {1: 1, 2: 0, 3: 3, 4: 3, 5: {5: b"low"}}},
    ],
)
def test_a_header_of_another_form_is_not_ours(fields: dict[int, Any]) -> None:
    assert not parse_header(thrift(fields) + bytes(8)).ours


def test_a_header_that_is_cut_is_refused() -> None:
    for size in range(len(_HEADER)):
        with pytest.raises(ValueError, match=r"after the last byte|are there"):
            parse_header(_HEADER[:size])


# Columns by hand


def _page(
    values: Sequence[int],
    repetition: bytes,
    *,
    definition: bytes | None = None,
    size: int | None = None,
    stored: bytes | None = None,
) -> bytes:
    if definition is None:
        definition = varint(len(values) << 1) + b"\x01"
    levels = b"".join(
        len(part).to_bytes(4, "little") + part for part in (repetition, definition)
    )
    body = levels + np.array(values, "<i4").tobytes()
    packed: Any = pa.Codec("zstd").compress(body)
    return page(
        DATA_PAGE,
        body,
        len(values),
        PLAIN,
        stored=stored or packed.to_pybytes(),
        size=size,
    )


def _fixed(*pages: bytes, rows: int = 2) -> list[list[int]]:
    return fixed_numbers(memoryview(b"".join(pages)), rows, 3, SeenLevels(3)).tolist()


_WHOLE = _page([1, 2, 3, 4, 5, 6], b"\x03\x36")  # 0 1 1 0 1 1
_FIRST, _SECOND = _page([1, 2, 3, 4], b"\x03\x06"), _page([5, 6], b"\x04\x01")


# Levels


def _begins(repetition: bytes, count: int) -> list[int]:
    """The values at which lists begin, by the repetition levels of a page of `count`
    values.
    """
    numbers, offsets = list_numbers(memoryview(_page(range(count), repetition)), count)
    assert numbers.tolist() == list(range(count))
    assert offsets[-1] == count
    return offsets[:-1].tolist()


@st.composite
def _runs(draw: st.DrawFn) -> tuple[list[int], bytes]:
    """Levels, and one of the many ways to store them; the first value begins a list."""
    levels: list[int] = [0]
    data = b"\x02\x00"
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            value, times = draw(st.integers(0, 1)), draw(st.integers(1, 300))
            levels += [value] * times
            data += varint(times << 1) + bytes([value])
        else:
            packed = draw(st.binary(min_size=1, max_size=9))
            levels += [byte >> bit & 1 for byte in packed for bit in range(8)]
            data += varint(len(packed) << 1 | 1) + packed
    return levels, data


@given(_runs())
def test_levels_are_decoded_however_they_are_split_into_runs(
    case: tuple[list[int], bytes],
) -> None:
    levels, data = case
    assert _begins(data, len(levels)) == [
        at for at, level in enumerate(levels) if not level
    ]


@given(st.integers(1, 8), st.binary(min_size=1, max_size=1))
def test_what_fills_the_last_byte_is_no_level(count: int, packed: bytes) -> None:
    levels = [0, *(packed[0] >> bit & 1 for bit in range(1, count))]
    data = b"\x03" + bytes([packed[0] & 0xFE])
    assert _begins(data, count) == [at for at, level in enumerate(levels) if not level]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 1),
        (b"\x80", 1),  # a run's head without an end
        (b"\x80" * 6, 1),
        (b"\x00\x01", 1),  # no level
        (b"\x01", 8),
        (b"\x06\x01", 2),  # three levels
        (b"\x06\x01", 4),
        (b"\x06", 3),  # of which there is none
        (b"\x06\x02", 3),  # level 2
        (b"\x05\xff\xff", 8),  # a byte too many
        (b"\x05\xff", 16),  # a byte too few
        (b"\x06\x01\x00", 3),  # something after them
        (varint(1 << 40) + b"\x01", 8),
    ],
)
def test_levels_that_cannot_be_are_unfamiliar(data: bytes, count: int) -> None:
    one_list = b"\x02\x00" + (varint((count - 1) << 1) + b"\x01" if count > 1 else b"")
    assert _begins(one_list, count) == [0]
    for repetition, definition in ((data, None), (one_list, data)):
        with pytest.raises(Unfamiliar):
            list_numbers(
                memoryview(_page(range(count), repetition, definition=definition)),
                count,
            )


def test_levels_of_rows_are_known_again_by_their_bytes_and_place() -> None:
    """The second time levels that were right are not decoded; wrong ones are refused
    each time.
    """
    seen = SeenLevels(4)
    numbers = range(8)
    right, turned = b"\x03\xee", b"\x03\xdd"  # 0 1 1 1 0 1 1 1 and 1 0 1 1 1 0 1 1
    for _ in range(2):
        whole = fixed_numbers(memoryview(_page(numbers, right)), 2, 4, seen)
        assert whole.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(Unfamiliar):  # the same bytes, of seven values
            fixed_numbers(
                memoryview(_page(range(7), right, definition=b"\x10\x01")), 2, 4, seen
            )
        with pytest.raises(Unfamiliar):  # the same bytes, one value later in a row
            fixed_numbers(
                memoryview(_page([9], b"\x02\x00") + _page(numbers, right)), 3, 4, seen
            )
        with pytest.raises(Unfamiliar, match="4 values"):  # one of them null
            fixed_numbers(
                memoryview(_page(numbers, right, definition=b"\x10\x00")), 2, 4, seen
            )
    pages = (
        _page(range(3), b"\x03\x06") + _page(numbers, turned) + _page([8], b"\x02\x01")
    )
    assert fixed_numbers(memoryview(pages), 3, 4, seen).shape == (3, 4)


# Columns of several pages


def test_rows_of_one_length_are_put_together_from_pages() -> None:
    assert _fixed(_WHOLE) == _fixed(_FIRST, _SECOND) == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ValueError, match="read-only"):
        fixed_numbers(memoryview(_WHOLE), 2, 3, SeenLevels(3))[0, 0] = 7


def test_lists_are_put_together_from_pages() -> None:
    lengths, offsets = list_numbers(
        memoryview(_page([7, 8, 9], b"\x03\x02") + _page([5, 6], b"\x03\x01")), 5
    )
    assert (lengths.tolist(), offsets.tolist()) == ([7, 8, 9, 5, 6], [0, 2, 4, 5])
    with pytest.raises(Unfamiliar, match="begins before"):
        list_numbers(memoryview(_page([7, 8, 9], b"\x06\x01")), 3)


@pytest.mark.parametrize(
    ("pages", "match"),
    [
        ([_FIRST], "pages of 4 values; expected 6"),
        ([_WHOLE, _FIRST], "a page of 4 values; expected 1 to 0"),
        ([_WHOLE[:-1]], "bytes; .* are there"),
        (
            [_page([1, 2, 3, 4, 5, 6], b"\x03\x36", size=2**31 - 1)],
            "2147483647 bytes decompressed; expected 24",
        ),
        ([_page([1, 2, 3, 4, 5, 6], b"\x03\x36", size=-5)], "-5 bytes decompressed"),
        ([_page([1, 2, 3, 4, 5, 6], b"\x03\x36", size=43)], "zstd|ZSTD"),
        ([_page([1, 2, 3, 4, 5, 6], b"\x03\x36", stored=b"junk")], "zstd|ZSTD"),
        (
            [_WHOLE[:-1] + bytes([_WHOLE[-1] ^ 1])],
            "the checksum of a page is [0-9a-f]{8}; expected [0-9a-f]{8}",
        ),
        ([page(DATA_PAGE, b"x", -1, PLAIN)], "a page of -1 values; expected 1 to 6"),
        ([page(DATA_PAGE, b"x", 0, PLAIN)], "a page of 0 values"),
        ([page(DATA_PAGE, b"x", 2**31 - 1, PLAIN)], "a page of 2147483647 values"),
    ],
)
def test_pages_that_claim_what_cannot_be_are_damage(
    pages: list[bytes], match: str
) -> None:
    with pytest.raises((ValueError, OSError), match=match):
        _fixed(*pages)


@pytest.mark.parametrize(
    "pages",
    [
        [_page([1, 2, 3, 4, 5, 6], b"\x03\x3e")],  # rows of 1 and 5
        [_page([1, 2, 3, 4, 5, 6], b"\x03\x36" + b"\x00" * 4)],
        [_page([1, 2, 3, 4, 5, 6], b"")],
        [_SECOND, _FIRST],
        [b"\x15\x02" + _WHOLE[2:]],
        [page(DATA_PAGE, b"", 6, RLE)],
    ],
)
def test_pages_of_another_kind_are_unfamiliar(pages: list[bytes]) -> None:
    with pytest.raises(Unfamiliar):
        _fixed(*pages)


# Whole shards


@pytest.mark.parametrize("loss_mask", [False, True])
@pytest.mark.parametrize("length", [1, 7, 64, 2048, 5000])
def test_shards_of_ours_hold_what_arrow_reads(
    tmp_path: Path, length: int, loss_mask: bool
) -> None:
    number, group_rows = max(12, 3000 // length), max(5, 700 // length)
    table = packed_rows(number, length, seed=length, loss_mask=True)
    # Rows and lists straddle pages.
    small = {"data_page_size": 1000, "write_batch_size": 100}
    rows = stored(
        tmp_path, [ours(table, group_rows), another(table, group_rows, **small)], length
    )
    expected = groups_of(table, group_rows)
    assert len(rows.group_rows) == 2 * len(expected)
    for group in range(len(rows.group_rows)):
        found = rows.packed(group, loss_mask=loss_mask)
        assert_same(found, expected[group % len(expected)], loss_mask=loss_mask)
    assert rows.through_arrow == ()


def test_pages_of_a_mebibyte_hold_what_arrow_reads(tmp_path: Path) -> None:
    table = packed_rows(120, 5000, seed=3)
    rows = stored(tmp_path, [ours(table, 104)], 5000)
    for group, batch in enumerate(groups_of(table, 104)):
        assert_same(rows.packed(group, loss_mask=True), batch)
    assert rows.through_arrow == ()


def _nullable(table: pa.Table) -> pa.Table:
    length: Any = table.schema.field("input_ids").type
    kinds = {
        "input_ids": pa.list_(pa.int32(), length.list_size),
        "segment_lengths": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.bool_(), length.list_size),
    }
    return pa.table(
        {
            name: table.column(name).combine_chunks().cast(kind)
            for name, kind in kinds.items()
        }
    )


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none"},
        {"compression": "snappy"},
        {"data_page_version": "2.0"},
        {"use_dictionary": True},
        {"write_page_checksum": False},
        {"column_encoding": {"segment_lengths.list.element": "DELTA_BINARY_PACKED"}},
        {"write_statistics": True},
        {"nullable": True},
    ],
)
def test_shards_of_other_writers_are_read_through_arrow(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table = packed_rows(40, 16, loss_mask=True)
    table = _nullable(table) if options.pop("nullable", False) else table
    rows = stored(
        tmp_path, [ours(packed_rows(40, 16), 9), another(table, 9, **options)], 16
    )
    for group, batch in enumerate(groups_of(table, 9)):
        assert rows.packed(group, loss_mask=True).rows == len(batch)
        assert_same(rows.packed(5 + group, loss_mask=True), batch, loss_mask=True)
    assert rows.through_arrow == ("data/train-00001-00.parquet",)


def test_nulls_are_damage_and_never_numbers(tmp_path: Path) -> None:
    table = _nullable(packed_rows(6, 4, loss_mask=True))
    whole = [[1, 2, 3, 4]] * 5
    columns: dict[str, Any] = {
        "input_ids": ([*whole, None], [*whole, [1, None, 3, 4]]),
        "segment_lengths": ([[1]] * 5 + [None], [[1]] * 5 + [[]], [[1]] * 5 + [[None]]),
        "loss_mask": ([[True] * 4] * 5 + [[True, None, True, True]],),
    }
    for name, cases in columns.items():
        for case in cases:
            place = table.schema.get_field_index(name)
            changed = table.set_column(
                place, name, pa.array(case, table.schema.field(name).type)
            )
            rows = stored(tmp_path, [another(changed, 6)], 4)
            with pytest.raises(
                IntegrityError, match=r"d@v1: data/train-00000-00.parquet: row group 0"
            ):
                rows.packed(0, loss_mask=True)


def test_a_column_that_should_be_there_is_damage(tmp_path: Path) -> None:
    for missing in ("input_ids", "segment_lengths"):
        rows = stored(tmp_path, [ours(packed_rows(6, 4).drop_columns([missing]), 6)], 4)
        with pytest.raises(IntegrityError, match=f"no column {missing} of row group 0"):
            rows.packed(0, loss_mask=False)
    rows = stored(tmp_path, [ours(packed_rows(6, 4), 6)], 5)
    with pytest.raises(
        IntegrityError, match="24 values of input_ids; expected 6 rows of 5"
    ):
        rows.packed(0, loss_mask=False)


def test_what_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    table = packed_rows(6, 4, loss_mask=True)
    rows = stored(
        tmp_path, [ours(table, 6), ours(table.drop_columns(["segment_lengths"]), 6)], 4
    )
    for group in (0, 1):
        found = rows.packed(group, loss_mask=False, segments=False)
        assert (found.segments, found.learned) == (None, None)
        assert found.ids.tolist() == table["input_ids"].to_pylist()


def test_segments_that_are_longer_than_a_row_are_damage(tmp_path: Path) -> None:
    table = packed_rows(3, 4)
    column = pa.array(
        [[4], [4, 1], [1]], packed_schema(4).field("segment_lengths").type
    )
    rows = stored(
        tmp_path, [ours(table.set_column(1, table.schema.field(1), column), 3)], 4
    )
    with pytest.raises(
        IntegrityError, match="row group 0 cannot be read: segments of 5 ids in a row"
    ):
        rows.packed(0, loss_mask=False)


# Where the bytes come from


class _Streams:
    """A store whose files lie in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.opened: list[io.BytesIO] = []

    def open(self, key: str, **_: Any) -> io.BytesIO:
        self.opened.append(io.BytesIO(self._store.read(key)))
        return self.opened[-1]


def test_streams_that_are_no_files_are_read_as_well(tmp_path: Path) -> None:
    table = packed_rows(30, 8, loss_mask=True)
    manifest = stored(tmp_path, [ours(table, 7)], 8).manifest
    streams: Any = _Streams(open_store(tmp_path))
    rows = StoredRows(streams, manifest, "train")
    for index, batch in enumerate(groups_of(table, 7)):
        assert_same(rows.packed(index, loss_mask=True), batch, loss_mask=True)
    assert (len(streams.opened), rows.through_arrow) == (1, ())


def test_few_files_stay_open(tmp_path: Path) -> None:
    table = packed_rows(8, 4)
    rows = stored(tmp_path, [ours(table, 4)] * 100, 4)
    gc.collect()  # what other tests left open
    before = len(list(Path("/dev/fd").iterdir()))
    for group in range(200):
        rows.packed(group, loss_mask=False)
    assert len(list(Path("/dev/fd").iterdir())) <= before + 32
    rows.close()
    assert len(list(Path("/dev/fd").iterdir())) == before
    assert_same(rows.packed(0, loss_mask=False), groups_of(table, 4)[0])


def test_threads_read_the_same_rows(tmp_path: Path) -> None:
    tables = [packed_rows(20, 64, seed=seed, loss_mask=True) for seed in range(3)]
    shards = [
        ours(tables[0], 5),
        another(tables[1], 5, data_page_size=500, write_batch_size=50),
    ]
    rows = stored(tmp_path, [*shards, another(tables[2], 5, compression="none")], 64)
    expected = [batch for table in tables for batch in groups_of(table, 5)]
    asked = np.random.default_rng(0).integers(0, len(expected), 300).tolist()
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda group: rows.packed(group, loss_mask=True), asked)
        for group, packed in zip(asked, found, strict=True):
            assert_same(packed, expected[group], loss_mask=True)
    assert rows.through_arrow == ("data/train-00002-00.parquet",)


def test_a_file_that_is_cut_or_written_over_while_it_is_open_is_damage(
    tmp_path: Path,
) -> None:
    table = packed_rows(40, 64)
    rows, path = stored(tmp_path, [ours(table, 10)], 64), shard_path(tmp_path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:4], bytes(len(whole)), b""):
        path.write_bytes(whole)
        rows.packed(3, loss_mask=False)
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=r"train-00000-00.parquet"):
            rows.packed(3, loss_mask=False)
    path.write_bytes(whole)
    assert_same(rows.packed(3, loss_mask=False), groups_of(table, 10)[3])


def test_a_file_that_is_replaced_is_read_anew_when_it_is_opened_again(
    tmp_path: Path,
) -> None:
    # Of one size, but their columns lie elsewhere: the second is the first with its row
    # groups in another order.
    table = packed_rows(40, 64)
    turned = pa.concat_tables([table[20:], table[:20]])
    rows, path = stored(tmp_path, [ours(table, 20)], 64), shard_path(tmp_path)
    assert_same(rows.packed(1, loss_mask=False), groups_of(table, 20)[1])
    other = ours(turned, 20)
    assert len(other) == path.stat().st_size
    path.with_suffix(".new").write_bytes(other)
    path.with_suffix(".new").rename(path)
    # It is still open.
    assert_same(rows.packed(1, loss_mask=False), groups_of(table, 20)[1])
    rows.close()
    assert_same(rows.packed(1, loss_mask=False), groups_of(turned, 20)[1])


# Memory that is used again: see test_blocks.py


def test_rows_that_are_held_stay_what_they_are_while_others_are_decoded(
    tmp_path: Path,
) -> None:
    table = packed_rows(60, 64)
    rows, batches = stored(tmp_path, [ours(table, 4)], 64), groups_of(table, 4)
    held = [rows.packed(group, loss_mask=False).ids[1] for group in range(15)]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(lambda group: rows.packed(group % 15, loss_mask=False), range(200))
        )
    assert [view.tolist() for view in held] == [
        batch.column("input_ids")[1].as_py() for batch in batches
    ]
