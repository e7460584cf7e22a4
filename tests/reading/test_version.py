"""Rows of a stored version by row group: as written, or an error that names what is
damaged.
"""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reading.support import lake_of, rows_of, table_of
from tests.store.support import copy_store
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.query import read_sequences
from tokenlake.runtime.reading import OpenShards, StoredRows, open_rows
from tokenlake.runtime.store import Store, open_store

NAMES = ["plain", "learned", "texts", "answers", "left", "judged"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return lake_of(tmp_path_factory)


@pytest.fixture
def damaged(lake: Store, tmp_path: Path) -> Store:
    """A copy that a test may damage."""
    return open_store(copy_store(Path(lake.url), tmp_path / "store"))


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("name", NAMES)
def test_row_groups_hold_the_rows_as_they_were_written(
    lake: Store, name: str, split: str
) -> None:
    with rows_of(lake, name, split) as rows:
        batches = [rows.read(group) for group in range(len(rows.group_rows))]
        assert [len(batch) for batch in batches] == rows.group_rows.tolist()
        assert pa.Table.from_batches(batches).equals(table_of(lake, rows))
        assert rows.rows == rows.manifest.splits[split].rows


def test_row_groups_are_numbered_over_the_shards_of_the_split(lake: Store) -> None:
    rows = rows_of(lake, "texts")
    places = [rows.shard_of(group) for group in range(len(rows.group_rows))]
    assert len({entry.path for entry, _ in places}) == 3
    shards = [entry for entry in rows.manifest.files if entry.split == "train"]
    assert places == [
        (entry, index) for entry in shards for index in range(len(entry.row_groups))
    ]
    firsts = [rows.row_of(group) for group in range(len(rows.group_rows))]
    assert firsts == (np.cumsum(rows.group_rows) - rows.group_rows).tolist()
    group, inside = rows.group_of(np.arange(rows.rows))
    assert (
        group.tolist()
        == np.repeat(np.arange(len(rows.group_rows)), rows.group_rows).tolist()
    )
    assert (np.array(firsts)[group] + inside).tolist() == list(range(rows.rows))


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1000), (3, 4), (5, 30), (6, 6), (40, 10_000)]
)
def test_a_range_of_rows_is_that_of_its_row_groups(
    lake: Store, start: int, stop: int
) -> None:
    rows = rows_of(lake, "plain")
    found = [
        rows.row_of(group) + row
        for group, low, high in rows.ranges(start, stop)
        for row in range(low, high)
    ]
    assert found == list(range(rows.rows))[start:stop]


def test_what_begins_where_is_known_without_opening_a_file(
    lake: Store, damaged: Store
) -> None:
    for path in Path(damaged.url).rglob("*.parquet"):
        path.unlink()
    assert (
        rows_of(damaged, "plain").group_rows.tolist()
        == rows_of(lake, "plain").group_rows.tolist()
    )


def test_bytes_of_row_groups_are_those_of_the_footers(lake: Store) -> None:
    rows = rows_of(lake, "learned")
    expected: list[int] = []
    for entry in (entry for entry in rows.manifest.files if entry.split == "train"):
        metadata = pq.read_metadata(lake.local_path(f"learned/v1/{entry.path}"))
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            expected.append(
                sum(
                    group.column(i).total_compressed_size
                    for i in range(group.num_columns)
                )
            )
    assert [rows.bytes_of(group) for group in range(len(rows.group_rows))] == expected


def test_a_loss_mask_is_known_from_the_manifest(lake: Store) -> None:
    assert {name: rows_of(lake, name).has_loss_mask for name in NAMES} == {
        "plain": False,
        "learned": True,
        "texts": False,
        "answers": True,
        "left": False,
        "judged": False,
    }


def test_what_is_not_there_is_refused(lake: Store) -> None:
    with pytest.raises(
        ConfigError,
        match=r"plain@v1 has no split 'test'; expected one of train, validation",
    ):
        open_rows(lake, "plain", 1, "test")
    with pytest.raises(NotFoundError, match="plain@v7"):
        open_rows(lake, "plain", 7, "train")
    rows = open_rows(lake, "judged", 1, "validation")
    assert rows.name == "judged@v1/validation"
    for group in (-1, 3):
        with pytest.raises(
            ConfigError,
            match=f"judged@v1/validation has row groups 0 to 2, not {group}",
        ):
            rows.read(group)
    with pytest.raises(ConfigError, match="has rows 0 to 4, not 0 to 5"):
        rows.group_of(np.array([0, 5]))


# Damage


def _flip(path: Path, group: int, column: int) -> None:
    """Flip one bit in the middle of a page of a row group."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_flipped_bit_is_an_error_that_names_file_and_row_group(
    damaged: Store, column: int
) -> None:
    rows = rows_of(damaged, "plain")
    entry, index = rows.shard_of(12)
    assert index == 2
    _flip(damaged.local_path(f"plain/v1/{entry.path}"), index, column)
    match = rf"plain@v1: {entry.path}: row group 2 cannot be read: .* Run `tokenlake verify plain@v1`"
    with pytest.raises(IntegrityError, match=match):
        rows.read(12)
    assert len(rows.read(11)) == len(rows.read(13)) == 6  # the others can still be read
    with pytest.raises(IntegrityError, match="row group 2"):
        rows.read(12)


def test_a_missing_file_is_damage(damaged: Store) -> None:
    rows = rows_of(damaged, "texts")
    entry, _ = rows.shard_of(0)
    damaged.local_path(f"texts/v1/{entry.path}").unlink()
    with pytest.raises(
        IntegrityError,
        match=rf"texts@v1: {entry.path} is missing\. Run `tokenlake verify texts@v1`.*`tokenlake repair texts@v1`",
    ):
        rows.read(0)
    with pytest.raises(IntegrityError, match="is missing"):
        rows.bytes_of(0)
    assert len(rows.read(len(rows.group_rows) - 1)) == 1


def test_a_cut_file_and_another_in_its_place_are_damage(damaged: Store) -> None:
    rows = rows_of(damaged, "texts")
    entry, _ = rows.shard_of(0)
    path = damaged.local_path(f"texts/v1/{entry.path}")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        IntegrityError, match=f"has {entry.bytes - 1} bytes; expected {entry.bytes}"
    ):
        rows.read(0)
    path.write_bytes(whole[:-4] + b"RAP1")
    with pytest.raises(IntegrityError, match=r"row group 0 cannot be read: .*magic"):
        rows.read(0)
    path.write_bytes(whole)
    assert len(rows.read(0)) == rows.group_rows[0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"logical": {"input_ids": "0" * 32}}, "expected 7 rows of input_ids"),
        ({"row_groups": (0, 5, 12)}, "row group 0 holds 7 rows of .*; expected 5 rows"),
    ],
)
def test_rows_that_are_not_what_the_manifest_says_are_damage(
    lake: Store, change: dict[str, object], match: str
) -> None:
    manifest = rows_of(lake, "answers").manifest
    files = tuple(
        replace(entry, **change) if entry.split == "train" else entry
        for entry in manifest.files
    )
    rows = StoredRows(lake, replace(manifest, files=files), "train")
    with pytest.raises(IntegrityError, match=match):
        rows.read(0)


def test_peek_names_what_is_damaged(damaged: Store) -> None:
    rows = rows_of(damaged, "plain")
    entry, index = rows.shard_of(1)
    _flip(damaged.local_path(f"plain/v1/{entry.path}"), index, 0)
    assert len(list(read_sequences(damaged, rows.manifest, "train", 0, 6))) == 6
    with pytest.raises(IntegrityError, match="row group 1 cannot be read"):
        list(read_sequences(damaged, rows.manifest, "train", 0, 7))


# Open files


class _Shards:
    """Opens shards and remembers the streams."""

    def __init__(self, store: Store, rows: StoredRows) -> None:
        self.paths = [entry.path for entry in rows.manifest.files]
        self.store, self.opened = store, list[BinaryIO]()

    def __call__(self, shard: int) -> BinaryIO:
        self.opened.append(self.store.open(f"plain/v1/{self.paths[shard]}"))
        return self.opened[-1]

    @property
    def still_open(self) -> int:
        return sum(not stream.closed for stream in self.opened)


@pytest.fixture
def shards(lake: Store) -> _Shards:
    return _Shards(lake, rows_of(lake, "plain"))


def test_a_file_stays_open_for_the_next_and_only_a_few_do(shards: _Shards) -> None:
    files = OpenShards(shards, kept=2)
    for shard in (0, 1, 0, 1, 2, 2, 0):
        assert files.of(shard).parquet().metadata.num_row_groups > 0
    assert len(shards.opened) == 4  # 0, 1, 2, and 0 again, which was closed for 2
    assert shards.still_open == 2
    files.close()
    assert shards.still_open == 0


def test_a_file_is_closed_when_nobody_reads_it_any_more(shards: _Shards) -> None:
    files = OpenShards(shards, kept=2)
    file = files.of(0).parquet()
    files.close()
    assert (shards.still_open, file.read_row_group(0).num_rows) == (1, 6)
    del file, files
    gc.collect()
    assert (len(shards.opened), shards.still_open) == (1, 0)


def test_threads_read_the_same_rows(lake: Store) -> None:
    rows = rows_of(lake, "texts")
    alone = [rows.read(group) for group in range(len(rows.group_rows))]
    asked = random.Random(0).choices(range(len(alone)), k=200)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(rows.read, asked))
    rows.close()
    assert all(
        batch.equals(alone[group]) for group, batch in zip(asked, found, strict=True)
    )
