"""What a batch needs of a row group: ids by row, lengths of segments, which ids bear
loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.reading.support import LENGTH, lake_of, rows_of
from tests.store.support import copy_store
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime import packed_schema
from tokenlake.runtime.reading import GroupCache, PackedGroup
from tokenlake.runtime.store import Store, open_store


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return lake_of(tmp_path_factory)


def _listed(group: PackedGroup) -> list[dict[str, Any]]:
    """A row group as `to_pylist` shows its columns."""
    rows: list[dict[str, Any]] = []
    assert group.segments is not None
    for index, (view, lengths) in enumerate(
        zip(group.ids, group.segments.rows(), strict=True)
    ):
        row = {"input_ids": view.tolist(), "segment_lengths": lengths.tolist()}
        if group.learned is not None:
            row["loss_mask"] = group.learned[index].tolist()
        rows.append(row)
    return rows


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("name", ["plain", "learned"])
@pytest.mark.parametrize("loss_mask", [False, True])
def test_a_packed_group_holds_what_the_row_group_does(
    lake: Store, name: str, split: str, loss_mask: bool
) -> None:
    with rows_of(lake, name, split) as rows:
        for number in range(len(rows.group_rows)):
            group = rows.packed(number, loss_mask=loss_mask)
            stored = rows.read(number).drop_columns(["documents"])
            if not loss_mask and name == "learned":
                stored = stored.drop_columns(["loss_mask"])
            assert (group.rows, group.length) == (len(stored), LENGTH)
            assert (group.learned is not None) == (loss_mask and name == "learned")
            assert _listed(group) == stored.to_pylist()


def test_a_packed_group_cannot_be_written_to(lake: Store) -> None:
    group = rows_of(lake, "learned").packed(0, loss_mask=True)
    assert group.ids.dtype == np.int32
    assert group.segments is not None
    assert (group.segments.ids.dtype, group.segments.offsets.dtype) == (
        np.int32,
        np.int64,
    )
    assert group.learned is not None
    assert (group.learned.dtype, group.learned.shape) == (
        np.bool_,
        (group.rows, LENGTH),
    )
    assert group.nbytes >= group.rows * LENGTH * 5
    assert group.data.readonly
    assert not group.ids.flags.writeable


def test_only_packed_datasets_have_them(lake: Store) -> None:
    with pytest.raises(
        ConfigError, match="texts@v1/train is of kind tokens; expected packed"
    ):
        rows_of(lake, "texts").packed(0, loss_mask=False)
    with pytest.raises(ConfigError, match="plain@v1/train has row groups 0 to"):
        rows_of(lake, "plain").packed(-1, loss_mask=False)


def test_a_missing_file_is_damage(lake: Store, tmp_path: Path) -> None:
    damaged = open_store(copy_store(Path(lake.url), tmp_path / "store"))
    rows = rows_of(damaged, "plain")
    entry, _ = rows.shard_of(0)
    damaged.local_path(f"plain/v1/{entry.path}").unlink()
    with pytest.raises(IntegrityError, match=rf"plain@v1: {entry.path} is missing"):
        rows.packed(0, loss_mask=False)


# From a batch


def _batch(
    ids: list[list[int]], lengths: list[list[int]], **masks: list[list[bool]]
) -> pa.RecordBatch:
    schema = packed_schema(4, loss_mask=bool(masks))
    documents = [[{"file": 0, "position": 0, "start": 0}] * len(row) for row in lengths]
    columns = {
        "input_ids": ids,
        "segment_lengths": lengths,
        "documents": documents,
        **masks,
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema)


_IDS, _LENGTHS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]], [[4], [1, 2], [3]]
_MASK = [[True, False, True, True], [False] * 4, [False, True, True, False]]


def test_a_slice_of_a_batch_is_viewed_where_it_lies() -> None:
    group = PackedGroup.of(_batch(_IDS, _LENGTHS, loss_mask=_MASK).slice(1, 2), 4)
    assert group.ids.tolist() == _IDS[1:]
    assert group.segments is not None
    assert [lengths.tolist() for lengths in group.segments.rows()] == _LENGTHS[1:]
    assert group.learned is not None
    assert group.learned.tolist() == _MASK[1:]
    assert PackedGroup.of(_batch([], []), 4).rows == 0


@pytest.mark.parametrize(
    ("lengths", "match"),
    [
        ([[4], [], [1]], "a row without segments"),
        ([[4], [1, 0], [1]], "a segment of 0 ids"),
        ([[4], [2, -1], [1]], "a segment of -1 ids"),
        ([[4], [2, 3], [1]], "segments of 5 ids in a row; expected at most 4"),
        ([[4], [1], [2**31 - 1, 2**31 - 1, 3]], "segments of 4294967297 ids in a row"),
    ],
)
def test_lengths_that_no_row_can_have_are_refused(
    lengths: list[list[int]], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        PackedGroup.of(_batch(_IDS, lengths), 4)


def test_columns_of_other_types_are_refused() -> None:
    good = _batch(_IDS, _LENGTHS)
    with pytest.raises(ValueError, match="input_ids has rows of 4 ids; expected 5"):
        PackedGroup.of(good, 5)
    for name, kind in {
        "input_ids": pa.list_(pa.int32()),
        "segment_lengths": pa.list_(pa.int64()),
    }.items():
        changed = good.set_column(
            good.schema.get_field_index(name), name, good.column(name).cast(kind)
        )
        with pytest.raises(ValueError, match=f"{name} is .*; expected"):
            PackedGroup.of(changed, 4)


def test_nulls_are_refused() -> None:
    lengths = pa.array([[4], None, [3]], pa.list_(pa.int32()))
    ids = pa.array(
        [[1, 2, 3, 4], [5, None, 7, 8], [9, 9, 9, 9]], pa.list_(pa.int32(), 4)
    )
    good = _batch(_IDS, _LENGTHS)
    for index, column in enumerate((ids, lengths)):
        with pytest.raises(ValueError, match=f"{good.schema.names[index]} has nulls"):
            PackedGroup.of(good.set_column(index, good.schema.names[index], column), 4)


# In a cache


def test_a_cache_keeps_whatever_is_decoded(lake: Store) -> None:
    cache = GroupCache(1 << 20, lambda key: key[0].packed(key[1], loss_mask=False))
    rows = rows_of(lake, "plain")
    group = cache.read((rows, 3))
    assert cache.read((rows, 3)) is group
    decoded = cache.decoded
    assert (decoded.hits, decoded.groups) == (1, 1)
    assert (decoded.rows, decoded.bytes) == (group.rows, group.nbytes)
    assert cache.groups.held == group.nbytes
    cache.groups.invalidate((rows, 3))
    assert cache.groups.held == 0
