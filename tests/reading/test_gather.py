"""Any rows of several datasets, in any order: what a loop over the stored rows
gives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.reading.shards import ours, packed_rows, stored
from tests.reading.support import (
    BOS,
    LENGTH,
    chosen_rows,
    lake_of,
    placed,
    rows_of,
    table_of,
)
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime import packed_schema
from tokenlake.runtime.mixing import EpochOrder, LaneLayout
from tokenlake.runtime.reading import (
    StoredRows,
    batch_cache,
    copy_runs,
    take_documents,
    take_packed,
)
from tokenlake.runtime.store import Store

Row = dict[str, Any]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return lake_of(tmp_path_factory)


@pytest.fixture(scope="module")
def bos_id() -> int:
    return next(
        token["id"]
        for token in sentencepiece().spec["added_tokens"]
        if token["content"] == BOS
    )


def _stored(lake: Store, sources: list[StoredRows], source: Any, row: Any) -> list[Row]:
    tables = [table_of(lake, rows).to_pylist() for rows in sources]
    return [
        tables[one][at] for one, at in zip(source.tolist(), row.tolist(), strict=True)
    ]


# Packed


@pytest.mark.parametrize("number", [1, 7, 300])
def test_packed_rows_come_as_stored_in_the_order_they_are_asked_for(
    lake: Store, number: int
) -> None:
    sources = [rows_of(lake, "plain"), rows_of(lake, "plain", "validation")]
    source, row = chosen_rows(sources, number, seed=number)
    batch = take_packed(
        sources, *placed(sources, source, row), read=batch_cache(1 << 20).read
    )
    batch.validate(full=True)
    assert batch.schema == packed_schema(LENGTH)
    assert batch.to_pylist() == _stored(lake, sources, source, row)


def test_a_stored_loss_mask_comes_along(lake: Store) -> None:
    sources = [rows_of(lake, "learned", "validation"), rows_of(lake, "learned")]
    source, row = chosen_rows(sources, 100, seed=1)
    batch = take_packed(
        sources, *placed(sources, source, row), read=batch_cache(1 << 20).read
    )
    batch.validate(full=True)
    assert batch.schema == packed_schema(LENGTH, loss_mask=True)
    assert batch.to_pylist() == _stored(lake, sources, source, row)


@pytest.mark.parametrize("with_bos", [True, False])
def test_rows_without_a_mask_learn_all_but_padding_and_bos(
    lake: Store, bos_id: int, with_bos: bool
) -> None:
    sources = [rows_of(lake, "learned"), rows_of(lake, "plain")]
    source, row = chosen_rows(sources, 300, seed=2)
    bos = bos_id if with_bos else None
    batch = take_packed(
        sources,
        *placed(sources, source, row),
        read=batch_cache(1 << 20).read,
        bos_id=bos,
    )
    expected = _stored(lake, sources, source, row)
    for expected_row in expected:
        expected_row.setdefault("loss_mask", _all_but_bos(expected_row, bos))
    assert batch.to_pylist() == expected
    assert any(
        False in stored["loss_mask"][: sum(stored["segment_lengths"])]
        for stored in expected
    )


def _all_but_bos(stored: Row, bos: int | None) -> list[bool]:
    bits: list[bool] = []
    for length, document in zip(
        stored["segment_lengths"], stored["documents"], strict=True
    ):
        begins = document["start"] == 0 and stored["input_ids"][len(bits)] == bos
        bits += [not begins, *[True] * (length - 1)]
    return bits + [False] * (LENGTH - len(bits))


def test_an_id_that_is_bos_only_counts_where_a_document_begins(lake: Store) -> None:
    """The first id of pieces that go on (``start`` above 0) bears loss, whatever it
    is.
    """
    sources = [rows_of(lake, "plain"), rows_of(lake, "learned")]
    stored = table_of(lake, sources[0]).to_pylist()
    row = next(
        at for at, each in enumerate(stored) if each["documents"][0]["start"] > 0
    )
    first = stored[row]["input_ids"][0]
    place = placed(sources, np.array([0]), np.array([row]))
    batch = take_packed(sources, *place, read=batch_cache(0).read, bos_id=first)
    assert batch.to_pylist()[0]["loss_mask"][0] is True


def test_no_rows_are_a_batch_without_rows(lake: Store) -> None:
    none = np.zeros(0, np.int64)
    for name, masked in (("plain", False), ("learned", True)):
        batch = take_packed(
            [rows_of(lake, name)], none, none, none, read=batch_cache(0).read
        )
        assert (len(batch), batch.schema) == (
            0,
            packed_schema(LENGTH, loss_mask=masked),
        )
    documents = take_documents(
        [rows_of(lake, "texts")], none, none, none, read=batch_cache(0).read
    )
    assert [len(part) for part in documents[:4]] == [0, 1, 0, 0]


def test_each_row_group_is_decoded_once_a_call_even_if_nothing_is_kept(
    lake: Store,
) -> None:
    sources = [rows_of(lake, "plain"), rows_of(lake, "learned")]
    place = placed(sources, *chosen_rows(sources, 2000, seed=3))
    cache = batch_cache(0)
    take_packed(sources, *place, read=cache.read)
    distinct = len(set(zip(place[0].tolist(), place[1].tolist(), strict=True)))
    assert (
        cache.decoded.groups
        == distinct
        == sum(len(rows.group_rows) for rows in sources)
    )
    assert cache.decoded.rows == sum(rows.rows for rows in sources)


def test_an_epoch_read_batch_by_batch_holds_every_stored_row_once(lake: Store) -> None:
    rows, cache = rows_of(lake, "plain"), batch_cache(1 << 20)
    order = EpochOrder(rows.group_rows, lanes=4, seed=0)
    layout = LaneLayout(order.lengths, 4, 16)
    batches: list[Row] = []
    for first in range(0, order.rows, 16):
        lane, place = layout.locate(np.arange(first, min(first + 16, order.rows)))
        group, row = order.at(3, lane, place)
        batches += take_packed(
            [rows], np.zeros_like(group), group, row, read=cache.read
        ).to_pylist()
    stored = table_of(lake, rows).to_pylist()
    assert batches != stored
    assert sorted(map(repr, batches)) == sorted(map(repr, stored))
    assert cache.decoded.groups == len(rows.group_rows)


def test_segments_without_their_documents_are_damage(lake: Store) -> None:
    rows = rows_of(lake, "plain")
    batch = rows.read(0)
    documents: Any = batch.column(2)
    assert documents.value_lengths()[0] != documents.value_lengths()[1]
    wrong = batch.set_column(
        2, batch.schema.field(2), documents.take(pa.array([1, 0, 2, 3, 4, 5]))
    )
    with pytest.raises(IntegrityError, match="numbers of segments"):
        take_packed([rows], *np.zeros((3, 1), np.int64), read=lambda _: wrong)


# Documents


@pytest.mark.parametrize("long", [0, 10**9], ids=["run by run", "id by id"])
@pytest.mark.parametrize(
    "names", [("texts",), ("texts", "left", "right"), ("answers",)]
)
def test_documents_come_as_stored_without_their_padding(
    lake: Store, names: tuple[str, ...], long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_runs, "LONG", long)
    sources = [
        rows_of(lake, name, split)
        for name in names
        for split in ("train", "validation")
    ]
    source, row = chosen_rows(sources, 200, seed=4)
    found = take_documents(
        sources, *placed(sources, source, row), read=batch_cache(1 << 20).read
    )
    expected = _stored(lake, sources, source, row)
    kept = [_unpadded(stored) for stored in expected]
    assert found.offsets.tolist() == _offsets([len(ids) for ids in kept])
    assert found.ids.tolist() == [token for ids in kept for token in ids]
    assert found.file.tolist() == [stored["file"] for stored in expected]
    assert found.position.tolist() == [stored["position"] for stored in expected]
    masks = [bit for stored in expected for bit in stored.get("loss_mask", ())]
    assert (found.learned is not None) == bool(masks)
    assert found.learned is None or found.learned.tolist() == masks


def _offsets(lengths: list[int]) -> list[int]:
    """Where runs of these lengths begin, end to end, and where the last ends."""
    return [0, *np.cumsum(np.array(lengths, np.int64)).tolist()]


def _unpadded(stored: Row) -> list[int]:
    mask = stored.get("attention_mask", [1] * len(stored["input_ids"]))
    return [
        token for token, there in zip(stored["input_ids"], mask, strict=True) if there
    ]


def test_padding_is_really_there_on_both_sides(lake: Store) -> None:
    """What the test above rests on."""
    for side, edge in (("left", 0), ("right", -1)):
        masks: list[Any] = table_of(lake, rows_of(lake, side))[
            "attention_mask"
        ].to_pylist()
        assert {mask[edge] for mask in masks} == {0, 1}
        assert {mask[-1 - edge] for mask in masks} == {1}


@pytest.mark.parametrize("few", [True, False], ids=["a few of a row group", "all"])
def test_documents_without_a_mask_learn_all_but_bos(
    lake: Store, bos_id: int, few: bool
) -> None:
    sources = [rows_of(lake, "answers"), rows_of(lake, "left"), rows_of(lake, "texts")]
    source, row = chosen_rows(sources, 4 if few else 400, seed=6)
    place = placed(sources, source, row)
    found = take_documents(
        sources, *place, read=batch_cache(1 << 20).read, bos_id=bos_id
    )
    assert found.learned is not None
    expected: list[bool] = []
    begins = 0
    for stored_row in _stored(lake, sources, source, row):
        ids = _unpadded(stored_row)
        begins += ids[0] == bos_id
        expected += stored_row.get(
            "loss_mask", [ids[0] != bos_id, *[True] * (len(ids) - 1)]
        )
    assert found.learned.tolist() == expected
    assert begins


# What cannot be


def test_datasets_that_do_not_fit_each_other_are_refused(lake: Store) -> None:
    one, cache = np.zeros(1, np.int64), batch_cache(0)
    plain, texts = rows_of(lake, "plain"), rows_of(lake, "texts")
    with pytest.raises(
        ConfigError, match=r"kind packed, got .* texts@v1/train \(tokens\)"
    ):
        take_packed([plain, texts], one, one, one, read=cache.read)
    with pytest.raises(
        ConfigError, match=r"kind tokens, got plain@v1/train \(packed, 32 ids a row\)"
    ):
        take_documents([plain], one, one, one, read=cache.read)
    with pytest.raises(ConfigError, match="kind packed, got none"):
        take_packed([], one, one, one, read=cache.read)
    longer = StoredRows(
        lake, replace(rows_of(lake, "learned").manifest, seq_length=64), "train"
    )
    with pytest.raises(
        ConfigError, match=r"different lengths .* 32 ids a row.* 64 ids a row"
    ):
        take_packed([plain, longer], one, one, one, read=cache.read)


@pytest.mark.parametrize(
    ("source", "group", "row", "match"),
    [
        (2, 0, 0, "sources 0 to 2 are asked for; expected those of 0 to 1"),
        (-1, 0, 0, "sources -1 to 0 are asked for"),
        (0, 28, 0, "plain@v1/train: there is no row 0 in row group 28"),
        (0, -1, 0, "plain@v1/train: there is no row 0 in row group -1"),
        (1, 0, 6, "learned@v1/train: there is no row 6 in row group 0"),
        (1, 0, -1, "learned@v1/train: there is no row -1 in row group 0"),
    ],
)
def test_rows_that_are_not_there_are_refused(
    lake: Store, source: int, group: int, row: int, match: str
) -> None:
    sources = [rows_of(lake, "plain"), rows_of(lake, "learned")]
    asked = (np.array([0, each]) for each in (source, group, row))
    with pytest.raises(ConfigError, match=match):
        take_packed(sources, *asked, read=batch_cache(0).read)


# Runs and bits


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
    st.sampled_from([0, 10**9]),
)
@settings(max_examples=50)
def test_runs_are_moved_whole(
    lake: Store, lengths: list[int], dice: Any, long: int
) -> None:
    """Documents of any length, also of none, come in any order; any of the two ways
    of copying may be the faster.
    """
    rows = replace_rows(rows_of(lake, "texts"), len(lengths))
    offsets = _offsets(lengths)
    ids = np.arange(offsets[-1], dtype=np.int32)
    arrow: Any = pa
    lists = arrow.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
    numbers = pa.array(range(len(lengths)), pa.int64())
    batch = pa.RecordBatch.from_arrays(
        [lists, numbers, numbers], names=["input_ids", "file", "position"]
    )
    order = list(range(len(lengths)))
    dice.shuffle(order)
    none = np.zeros(len(order), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_runs, "LONG", long)
        found = take_documents(
            [rows], none, none, np.array(order), read=lambda _: batch
        )
    assert found.offsets.tolist() == _offsets([lengths[row] for row in order])
    assert found.ids.tolist() == [
        token
        for row in order
        for token in range(offsets[row], offsets[row] + lengths[row])
    ]
    assert found.position.tolist() == order


def replace_rows(rows: StoredRows, number: int) -> StoredRows:
    """The same dataset, with a first row group of so many rows."""
    rows.group_rows = np.array([number, *rows.group_rows[1:]])
    return rows


@given(
    st.integers(1, 20).flatmap(lambda length: arrays.arrays(np.bool_, (5, length))),
    st.integers(0, 4),
    st.sampled_from([0, 3, 8]),
)
@settings(max_examples=50)
def test_bits_travel_eight_in_a_byte(
    tmp_path_factory: pytest.TempPathFactory,
    bits: npt.NDArray[np.bool_],
    first: int,
    before: int,
) -> None:
    """Rows from any on, of any length, also one that bytes do not divide, and of
    bits that begin inside a byte.
    """
    length = bits.shape[1]
    table = packed_rows(5, length, loss_mask=True)
    flat = pa.array([True] * before + bits.reshape(-1).tolist()).slice(before)
    column = pa.FixedSizeListArray.from_arrays(
        flat, type=table.schema.field("loss_mask").type
    )
    table = table.set_column(3, table.schema.field("loss_mask"), column)
    rows = stored(tmp_path_factory.mktemp("bits"), [ours(table[first:], 5)], length)
    slice_of_rows = table.combine_chunks().to_batches()[0].slice(first)
    number = len(bits) - first
    none = np.zeros(number, np.int64)
    for order in (np.arange(number), np.arange(number)[::-1]):
        batch = take_packed([rows], none, none, order, read=lambda _: slice_of_rows)
        assert batch.column("loss_mask").to_pylist() == bits[first:][order].tolist()
