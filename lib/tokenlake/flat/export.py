"""The shards of a built version as rows of a flat directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.manifest import Manifest
from tokenlake.reading.shardfile import ShardFile
from tokenlake.storage import Layout, Store
from tokenlake.storage.layout import CONFIG, QUARANTINE, TOKENIZER

_ARROW: Final[Any] = pa
_PROVENANCE: Final = ("file", "position", "documents")
_DERIVED: Final = ("segment_lengths",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """How a version's columns become those of a flat directory.

    Attributes:
        attention_mask: add the column, where the version has none: 1 for ids, 0 for padding.
        provenance: keep the columns that say which input each document comes from.
    """

    attention_mask: bool = True
    provenance: bool = False

    def schema(self, source: pa.Schema) -> pa.Schema:
        """Return the schema of what :meth:`batch` makes of batches of `source`."""
        return self.batch(_empty(source)).schema

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns of a flat directory."""
        left_out = {*_DERIVED, *(() if self.provenance else _PROVENANCE)}
        columns: dict[str, Any] = {}
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name not in left_out:
                columns[name] = _named(column)
            if name == "input_ids" and self.attention_mask and "attention_mask" not in rows.schema.names:
                columns["attention_mask"] = _mask(rows)
        fields = [
            pa.field(name, column.type, _may_be_null(rows.schema, name)) for name, column in columns.items()
        ]
        return _ARROW.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def version_batches(store: Store, manifest: Manifest, split: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version's split in order, a row group at a time; every page's checksum is verified."""
    layout = Layout(manifest.dataset, manifest.version)
    for shard in manifest.files:
        if shard.split != split:
            continue
        with store.open(layout.key(shard.path)) as stream, ShardFile(stream) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, use_threads=False).to_batches()


def keep_beside(store: Store, manifest: Manifest, folder: Path) -> None:
    """Copy what a version has besides its data into `folder`: configuration, tokenizer, bad records set aside."""
    layout = Layout(manifest.dataset, manifest.version)
    for path in manifest.other_files:
        if path == CONFIG or path.startswith((f"{TOKENIZER}/", f"{QUARANTINE}/")):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download(layout.key(path), target)


def version_schema(store: Store, manifest: Manifest) -> pa.Schema | None:
    """Return the schema of a version's shards, None where it has none."""
    layout = Layout(manifest.dataset, manifest.version)
    for shard in manifest.files:
        with store.open(layout.key(shard.path)) as stream:
            return pq.read_schema(stream)
    return None


def _mask(rows: pa.RecordBatch) -> Any:
    ids: Any = rows.column("input_ids")
    kind: Any = ids.type
    inner = pa.field("item", pa.int32(), nullable=False)
    if _ARROW.types.is_fixed_size_list(kind):
        mask = _filled(rows, kind.list_size)
        return _ARROW.FixedSizeListArray.from_arrays(_ARROW.array(mask), type=pa.list_(inner, kind.list_size))
    offsets = ids.offsets.to_numpy()
    ones = np.ones(int(offsets[-1] - offsets[0]), np.int32)
    at = _ARROW.array((offsets - offsets[0]).astype(np.int32))
    return _ARROW.ListArray.from_arrays(at, _ARROW.array(ones), type=pa.list_(inner))


def _filled(rows: pa.RecordBatch, width: int) -> Any:
    """int32[rows * width]: 1 where a packed row holds a piece of a document."""
    lengths: Any = rows.column("segment_lengths")
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths.flatten().to_numpy(), dtype=np.int64)])
    bounds = lengths.offsets.to_numpy() - lengths.offsets[0].as_py()
    used = np.diff(ends[bounds])
    return (np.arange(width) < used[:, None]).astype(np.int32).reshape(-1)


def _may_be_null(schema: pa.Schema, name: str) -> bool:
    """Whether a column may hold nulls: fields kept of the input may."""
    return name in schema.names and schema.field(name).nullable


def _named(column: Any) -> Any:
    """Call the values of a list ``item``, as Arrow does; Parquet gives them back as ``element``."""
    kind = column.type
    if _ARROW.types.is_fixed_size_list(kind):
        return column.cast(
            pa.list_(pa.field("item", kind.value_type, kind.value_field.nullable), kind.list_size)
        )
    if _ARROW.types.is_list(kind):
        return column.cast(pa.list_(pa.field("item", kind.value_type, kind.value_field.nullable)))
    return column


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_ARROW.array([], field.type) for field in schema]
    return _ARROW.RecordBatch.from_arrays(arrays, schema=schema)
