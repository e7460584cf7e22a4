"""Packed shards of any shape and writer, stored under a manifest made for them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenlake import Manifest
from tokenlake.runtime import open_writer, packed_schema
from tokenlake.runtime.parquet import open_shard, writer
from tokenlake.runtime.reading import PackedGroup, StoredRows
from tokenlake.runtime.store import ShardEntry, open_store

OURS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_statistics": False,
    "write_page_checksum": True,
    "version": "2.6",
    "data_page_version": "1.0",
}
"""What shards are written with, but for the sizes of pages: see
:func:`tokenlake.runtime.schema.open_writer`.
"""


def packed_rows(
    rows: int, length: int, *, seed: int = 0, loss_mask: bool = False
) -> pa.Table:
    """Rows of some segments each, the last ones followed by padding here and there."""
    dice = np.random.default_rng(seed)
    lengths: list[list[int]] = []
    for _ in range(rows):
        cuts = np.unique(dice.integers(1, length + 1, dice.integers(1, 6)))
        lengths.append(np.diff(cuts, prepend=0).tolist())
    ids = (dice.zipf(1.3, (rows, length)) % 50_000).astype(np.int32)
    documents = [
        [{"file": 1, "position": i, "start": 0} for i in range(len(row))]
        for row in lengths
    ]
    columns: dict[str, Any] = {
        "input_ids": list(ids),
        "segment_lengths": lengths,
        "documents": documents,
    }
    if loss_mask:
        columns["loss_mask"] = list(dice.random((rows, length)) < 0.6)
    return pa.Table.from_pydict(
        columns, schema=packed_schema(length, loss_mask=loss_mask)
    )


def ours(table: pa.Table, group_rows: int) -> bytes:
    """A shard as builds write it."""
    sink = io.BytesIO()
    shard = open_shard(sink, table.schema)
    for batch in table.combine_chunks().to_batches():
        shard.write_batch(batch, group_rows)
    shard.close()
    return sink.getvalue()


def indexed(table: pa.Table, group_rows: int) -> bytes:
    """A shard as builds write it where row groups are large: ids are indices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "LEAST_INDICES", 0)
        return ours(table, group_rows)


def earlier(table: pa.Table, group_rows: int) -> bytes:
    """A shard as builds wrote it before ids were stored in 16 bits."""
    sink = io.BytesIO()
    with open_writer(sink, table.schema) as shard:
        shard.write_table(table, row_group_size=group_rows)
    return sink.getvalue()


def another(table: pa.Table, group_rows: int, **options: Any) -> bytes:
    """A shard as another writer might write it, or with other sizes of pages."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=group_rows, **{**OURS, **options})
    return sink.getvalue()


def stored(root: Path, shards: Sequence[bytes], length: int) -> StoredRows:
    """Store shards as `d@v1/train`."""
    entries: list[ShardEntry] = []
    for unit, data in enumerate(shards):
        metadata = pq.read_metadata(io.BytesIO(data))
        rows = [
            metadata.row_group(index).num_rows
            for index in range(metadata.num_row_groups)
        ]
        entries.append(
            ShardEntry(
                path=f"data/train-{unit:05d}-00.parquet",
                split="train",
                unit=unit,
                part=0,
                bytes=len(data),
                sha256="0" * 64,
                rows=sum(rows),
                tokens=sum(rows) * length,
                documents=sum(rows),
                row_groups=tuple((np.cumsum(rows) - rows).tolist()),
                logical=dict.fromkeys(
                    metadata.schema.to_arrow_schema().names, "0" * 32
                ),
            )
        )
        shard_path(root, unit).parent.mkdir(parents=True, exist_ok=True)
        shard_path(root, unit).write_bytes(data)
    manifest = Manifest(
        kind="packed",
        dataset="d",
        version=1,
        fingerprint="0" * 64,
        seq_length=length,
        config={},
        tokenizer={},
        files=tuple(entries),
        other_files={},
        inputs=(),
        accounts={},
        produced_by={},
    )
    return StoredRows(open_store(root), manifest, "train")


def shard_path(root: Path, unit: int = 0) -> Path:
    """Where a shard lies."""
    return root / "d" / "v1" / "data" / f"train-{unit:05d}-00.parquet"


def groups_of(table: pa.Table, group_rows: int) -> list[pa.RecordBatch]:
    """The rows of a table by row group."""
    return [
        table[at : at + group_rows].combine_chunks().to_batches()[0]
        for at in range(0, len(table), group_rows)
    ]


def assert_same(
    group: PackedGroup, batch: pa.RecordBatch, *, loss_mask: bool = False
) -> None:
    """Fail unless a decoded row group holds the rows of a batch, whatever is
    compared.
    """
    ids, lengths, size = (
        _flat(batch, "input_ids"),
        batch.column("segment_lengths"),
        group.length,
    )
    assert (group.rows, len(ids)) == (len(batch), len(batch) * size)
    assert group.data == group.ids.tobytes()
    assert np.array_equal(group.ids.reshape(-1), ids)
    assert group.segments is not None
    assert [each.tolist() for each in group.segments.rows()] == lengths.to_pylist()
    assert (group.learned is not None) == loss_mask
    if group.learned is not None:
        assert np.array_equal(group.learned.reshape(-1), _flat(batch, "loss_mask"))


def _flat(batch: pa.RecordBatch, name: str) -> np.ndarray[Any, Any]:
    column: Any = batch.column(name)
    return column.flatten().to_numpy(zero_copy_only=False)
