"""The Arrow schemas of a dataset's shards, how they are written, and their logical hash.

Three kinds of dataset:

``packed``
    One row per sequence of exactly ``L`` tokens. ``segment_lengths`` says how many tokens each
    document piece takes, in order; what is left of the row is padding. ``documents`` says, for the
    same pieces, where they come from: ``file`` (64-bit id of source and relative path), ``position``
    (row number, or byte offset of the line) and ``start`` (index of the piece's first token within
    the document's own tokens, its BOS included).
``tokens``
    One row per document, ragged.

``preference``
    One row per judged prompt: the columns of :mod:`tokenlake.preferences`, then ``file, position``.

Where only a part of the tokens is to be learned, the first two have ``loss_mask``, one bit per id: whether the id
bears loss when it is predicted. Padding and BOS never do.

Token columns are PLAIN, without dictionary and statistics: both cost size and time on token ids.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenlake.preferences import Method, Trainer, columns_for

FORMAT_VERSION: Final = 1

#: Tokens in a full row group: 256 sequences of 2,048, about 2 MiB, 2.5 ms to read one at random.
ROW_GROUP_TOKENS: Final = 1 << 19

DOCUMENT: Final = pa.struct(
    [
        pa.field("file", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
    ]
)


def packed_schema(seq_length: int, *, store_segment_ids: bool = False, loss_mask: bool = False) -> pa.Schema:
    """Schema of a packed shard whose rows hold ``seq_length`` tokens."""
    tokens = pa.list_(pa.field("item", pa.int32(), nullable=False), seq_length)
    fields: list[pa.Field[Any]] = [
        pa.field("input_ids", tokens, nullable=False),
        pa.field("segment_lengths", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("documents", pa.list_(pa.field("item", DOCUMENT, nullable=False)), nullable=False),
    ]
    if store_segment_ids:
        fields.insert(1, pa.field("segment_ids", tokens, nullable=False))
    if loss_mask:
        bits = pa.list_(pa.field("item", pa.bool_(), nullable=False), seq_length)
        fields.append(pa.field("loss_mask", bits, nullable=False))
    return pa.schema(fields)


def tokens_schema(*, loss_mask: bool = False) -> pa.Schema:
    """Schema of a tokens shard: one row per document."""
    fields: list[pa.Field[Any]] = [
        pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("file", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
    if loss_mask:
        bits = pa.list_(pa.field("item", pa.bool_(), nullable=False))
        fields.append(pa.field("loss_mask", bits, nullable=False))
    return pa.schema(fields)


_HELD: Final[dict[str, Any]] = {
    **dict.fromkeys(("ids", "labels"), pa.list_(pa.field("item", pa.int32(), nullable=False))),
    "mask": pa.list_(pa.field("item", pa.int8(), nullable=False)),
    "label": pa.bool_(),
    "text": pa.large_string(),
}


def preference_fields(method: Method, trainer: Trainer) -> list[pa.Field[Any]]:
    """Return the columns that the trainer of a method reads."""
    columns = columns_for(method, trainer)
    return [pa.field(column.name, _HELD[column.holds], nullable=False) for column in columns]


def preference_schema(method: Method, trainer: Trainer) -> pa.Schema:
    """Schema of a preference shard: one row per judged prompt, and where it comes from."""
    place = [pa.field(name, pa.int64(), nullable=False) for name in ("file", "position")]
    return pa.schema([*preference_fields(method, trainer), *place])


def row_group_rows(seq_length: int) -> int:
    """Rows of a full row group of sequences of ``seq_length`` tokens (at least one)."""
    return max(1, ROW_GROUP_TOKENS // seq_length)


def open_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer with the one set of properties every shard is written with.

    Args:
        sink: a path, a Python file object or an Arrow output stream.
        schema: the shard's schema.
    """
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
        data_page_size=1 << 20,
        write_batch_size=1 << 16,
        version="2.6",
        data_page_version="1.0",
    )


class LogicalHasher:
    """Hash of a shard's content that does not depend on encoding, compression or row groups.

    Per column, xxh3 (128 bit, hex) of the little-endian values of all rows in order; a list column
    hashes its lengths (int32) and its flattened values apart and joins the two; a struct hashes each
    child. Equal digests mean equal rows, whatever wrote the file.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[xxhash.xxh3_128]] = {}

    def update(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows; columns must not hold nulls."""
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            for chunk in chunks:
                flat = _flatten(chunk)
                parts = self._parts.setdefault(name, [xxhash.xxh3_128() for _ in flat])
                for part, values in zip(parts, flat, strict=True):
                    part.update(values.view(np.uint8).data)

    def digest(self) -> dict[str, str]:
        """Column name to hex digest (32 digits per part)."""
        return {name: "".join(part.hexdigest() for part in parts) for name, parts in self._parts.items()}


def _flatten(array: Any) -> list[np.ndarray[Any, Any]]:
    """The primitive arrays that make up ``array``, in a fixed order."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return _flatten(array.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.diff(array.offsets.to_numpy(zero_copy_only=False)).astype("<i4")
        return [lengths, *_flatten(array.flatten())]
    if pa.types.is_large_string(kind):
        return _flatten(array.cast(pa.large_binary()))
    if pa.types.is_large_binary(kind):
        offsets, data = (
            np.frombuffer(buffer, kind)
            for buffer, kind in zip(array.buffers()[1:], ("<i8", "u1"), strict=True)
        )
        begin = array.offset
        offsets = offsets[begin : begin + len(array) + 1]
        return [np.diff(offsets), data[offsets[0] : offsets[-1]]]
    if pa.types.is_struct(kind):
        return [part for index in range(kind.num_fields) for part in _flatten(array.field(index))]
    values = array.to_numpy(zero_copy_only=False)
    return [np.ascontiguousarray(values)]
