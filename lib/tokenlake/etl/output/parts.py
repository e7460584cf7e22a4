"""Writing a unit's Parquet parts: hashed as they are written, rolled by size, published whole."""

from __future__ import annotations

import contextlib
from typing import Any, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Bools
from tokenlake.errors import StoreError
from tokenlake.packing.segments import Packed
from tokenlake.ragged import cells
from tokenlake.schema import DOCUMENT, LogicalHasher, open_writer
from tokenlake.store.base import Store
from tokenlake.store.entries import ShardEntry
from tokenlake.store.layout import Layout, shard_path
from tokenlake.store.local_files import HashingFile, remove_temp


@final
class PartWriter:
    """The parts of one unit and split, in order.

    Args:
        store: where to publish.
        layout: the version's keys.
        split, unit: they name the files.
        schema: Arrow schema of the rows.
        max_bytes: a part is closed at the first row group past this size.
        only: number of the one part that is written then, however large, and also where there are no rows.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        split: str,
        unit: int,
        schema: pa.Schema,
        max_bytes: int,
        only: int | None = None,
    ) -> None:
        self._store = store
        self._layout = layout
        self._split = split
        self._unit = unit
        self._schema = schema
        self._max_bytes = max_bytes
        self._only = only
        self._entries: list[ShardEntry] = []
        self._part: _PartFile | None = None

    def write(self, rows: pa.RecordBatch, *, tokens: int, documents: int) -> None:
        """Write one row group.

        Args:
            rows: the row group.
            tokens: tokens in it, padding not counted.
            documents: documents that begin in it.
        """
        if self._part is None:
            self._part = _PartFile(self._store, self._layout, self._schema)
        self._part.write(rows, tokens, documents)
        if self._only is None and self._part.bytes >= self._max_bytes:
            self._close_part()

    def finish(self) -> list[ShardEntry]:
        """Publish the last part and return all entries."""
        if self._only is not None and self._part is None:
            self._part = _PartFile(self._store, self._layout, self._schema)
        if self._part is not None:
            self._close_part()
        return self._entries

    def discard(self) -> None:
        """Remove the unfinished part's temporary file."""
        if self._part is not None:
            self._part.discard()
            self._part = None

    def _close_part(self) -> None:
        assert self._part is not None
        number = len(self._entries) if self._only is None else self._only
        path = shard_path(self._split, self._unit, number)
        self._entries.append(self._part.publish(self._layout, path, self._split, self._unit, number))
        self._part = None


@final
class _PartFile:
    """One Parquet file being written to a temporary place."""

    def __init__(self, store: Store, layout: Layout, schema: pa.Schema) -> None:
        self._store = store
        self._temp = store.temp(layout.prefix)
        try:
            self._file = HashingFile(self._temp)
            self._writer = open_writer(self._file, schema)
        except BaseException:
            remove_temp(self._temp)
            raise
        self._logical = LogicalHasher()
        self._logical.update(schema.empty_table())
        self._row_groups: list[int] = []
        self._rows = self._tokens = self._documents = 0

    @property
    def bytes(self) -> int:
        return self._file.bytes

    def write(self, rows: pa.RecordBatch, tokens: int, documents: int) -> None:
        self._row_groups.append(self._rows)
        self._writer.write_batch(rows, row_group_size=len(rows))
        self._logical.update(rows)
        self._rows += len(rows)
        self._tokens += tokens
        self._documents += documents

    def publish(self, layout: Layout, path: str, split: str, unit: int, part: int) -> ShardEntry:
        self._writer.close()
        self._file.close()
        sha256, size = self._file.sha256, self._file.bytes
        key, ledger = layout.key(path), layout.ledger(unit)
        self._store.publish(self._temp, key, sha256, replace_orphan=lambda: not self._store.exists(ledger))
        return ShardEntry(
            path=path,
            split=split,
            unit=unit,
            part=part,
            bytes=size,
            sha256=sha256,
            rows=self._rows,
            tokens=self._tokens,
            documents=self._documents,
            row_groups=tuple(self._row_groups),
            logical=self._logical.digest(),
        )

    def discard(self) -> None:
        # A writer that nobody closes closes itself when it is collected, and finds its file closed.
        with contextlib.suppress(OSError, ValueError, StoreError, pa.ArrowException):
            self._writer.close()
        self._file.close()
        remove_temp(self._temp)


def packed_batches(
    packed: Packed, schema: pa.Schema, seq_length: int, group_rows: int, mask: Bools | None = None
) -> list[tuple[pa.RecordBatch, int, int]]:
    """Cut packed rows into row groups; `mask` (bool[rows * seq_length]) is the column ``loss_mask``.

    Returns:
        (rows, tokens of all pieces, documents that begin there) per row group.
    """
    batch = packed_batch(packed, schema, seq_length, mask)
    out: list[tuple[pa.RecordBatch, int, int]] = []
    for first in range(0, packed.rows, group_rows):
        last = min(first + group_rows, packed.rows)
        pieces = slice(packed.row_offsets[first], packed.row_offsets[last])
        tokens = int(packed.segment_lengths[pieces].sum(dtype=np.int64))
        begun = int((packed.start[pieces] == 0).sum())
        out.append((batch.slice(first, last - first), tokens, begun))
    return out


def packed_batch(
    packed: Packed, schema: pa.Schema, seq_length: int, mask: Bools | None = None
) -> pa.RecordBatch:
    """Packed rows as Arrow, without copying the tokens."""
    offsets: Any = pa.array(packed.row_offsets.astype(np.int32))
    children: list[Any] = [pa.array(values) for values in (packed.file, packed.position, packed.start)]
    structs: Any = pa.StructArray.from_arrays(children, fields=list(DOCUMENT))
    lengths: Any = pa.array(packed.segment_lengths)
    columns: dict[str, Any] = {
        "input_ids": _fixed(packed.input_ids, schema.field("input_ids").type),
        "segment_lengths": _ragged(offsets, lengths, schema.field("segment_lengths").type),
        "documents": _ragged(offsets, structs, schema.field("documents").type),
    }
    if mask is not None:
        columns["loss_mask"] = _fixed(mask, schema.field("loss_mask").type)
    if "segment_ids" in schema.names:
        columns["segment_ids"] = _fixed(segment_ids(packed, seq_length), schema.field("segment_ids").type)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def segment_ids(packed: Packed, seq_length: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32[rows * seq_length]: 1, 2, 3 ... for the pieces of each row, 0 for padding."""
    per_row = np.diff(packed.row_offsets)
    number = np.arange(len(packed.segment_lengths)) - np.repeat(packed.row_offsets[:-1], per_row) + 1
    ids = np.repeat(number.astype(np.int32), packed.segment_lengths)
    if not packed.pad:
        return ids
    out = np.zeros((packed.rows, seq_length), np.int32)
    out[cells(packed.row_lengths, seq_length, left=False)] = ids
    return out.ravel()


def _ragged(offsets: Any, values: Any, kind: Any) -> Any:
    return pa.ListArray.from_arrays(offsets, values, type=kind)


def _fixed(values: np.ndarray[Any, Any], kind: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(values), type=kind)
