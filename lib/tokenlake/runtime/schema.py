"""Arrow schemas of a dataset's shards, and the properties with which they are written.

Datasets are of three kinds:

``packed``
    One row per sequence of exactly ``L`` tokens. ``segment_lengths`` has the number of
    tokens of each document piece, in order; the rest of the row is padding.
    ``documents`` has the origin of the same pieces: ``file`` (64-bit id of source and
    relative path), ``position`` (row index, or byte offset of the line) and ``start``
    (index of the piece's first token within the document's own tokens, its BOS
    included; for a long document that was split, within its pieces laid end to end,
    each with its own BOS and EOS).
``tokens``
    One row per document. Where documents are padded, or on request, ``attention_mask``
    is 1 for an id of the document and 0 for padding. Fields kept of the input
    (`additional_fields`) are columns after all others, under their own names; only they
    may hold nulls.
``preference``
    One row per judged prompt: the columns of :mod:`tokenlake.base.columns`, then
    ``file, position``.

If only a part of the tokens is to be learned, the first two kinds have ``loss_mask``,
one bit per id: 1 if the id counts toward the loss when it is predicted. Padding and BOS
never do.

No token column has statistics or a dictionary of its values: both cost size and time on
token ids. Packed rows are written by :mod:`tokenlake.runtime.parquet.writer`, the
others by Arrow. The key-values of each file describe it (:func:`described`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.columns import Method, Trainer, columns_for

FORMAT_VERSION: Final = 1

#: Number of tokens in a full row group: 128 sequences of 2,048, 1 MiB, one page of ids,
#: 1 ms to read one at random.
ROW_GROUP_TOKENS: Final = 1 << 18

# Origin of a document, in kinds whose rows are documents.
_PLACE: Final = {"file": pa.int64(), "position": pa.int64()}


def _fields(columns: Mapping[str, Any]) -> list[pa.Field[Any]]:
    """Return fields without nulls, from their names and types."""
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


def _lists(kind: Any, length: int = -1) -> Any:
    """Return the type of lists without nulls.

    Args:
        kind: Type of the values.
        length: Length of all lists; -1 if lists have different lengths.
    """
    return pa.list_(pa.field("item", kind, nullable=False), length)


DOCUMENT: Final = pa.struct(_fields({**_PLACE, "start": pa.int32()}))


@functools.cache
def packed_schema(
    width: int, *, store_segment_ids: bool = False, loss_mask: bool = False
) -> pa.Schema:
    """Return the schema of a packed shard.

    Args:
        width: Number of tokens in a row.
        store_segment_ids: True to store ``segment_ids`` as a column.
        loss_mask: True to store a loss mask.
    """
    # The order of the columns is part of the format.
    columns: dict[str, Any] = {"input_ids": _lists(pa.int32(), width)}
    if store_segment_ids:
        columns["segment_ids"] = _lists(pa.int32(), width)
    columns["segment_lengths"] = _lists(pa.int32())
    columns["documents"] = _lists(DOCUMENT)
    if loss_mask:
        columns["loss_mask"] = _lists(pa.bool_(), width)
    return pa.schema(_fields(columns))


def tokens_schema(
    *,
    loss_mask: bool = False,
    attention_mask: bool = False,
    kept: Sequence[tuple[str, pa.DataType]] = (),
) -> pa.Schema:
    """Return the schema of a tokens shard: one row per document.

    Args:
        loss_mask: True to store a loss mask.
        attention_mask: True to store an attention mask.
        kept: Name and type of each kept field.
    """
    columns: dict[str, Any] = {"input_ids": _lists(pa.int32())}
    if attention_mask:
        columns["attention_mask"] = _lists(pa.int32())
    columns.update(_PLACE)
    if loss_mask:
        columns["loss_mask"] = _lists(pa.bool_())
    # Kept fields come last, and may hold nulls.
    kept_fields = [pa.field(name, kind) for name, kind in kept]
    return pa.schema([*_fields(columns), *kept_fields])


# Arrow types of the columns of preference datasets, by the kind of their values.
_PREFERENCE_TYPES: Final[dict[str, Any]] = {
    "ids": _lists(pa.int32()),
    "labels": _lists(pa.int32()),
    "mask": _lists(pa.int8()),
    "label": pa.bool_(),
    "text": pa.large_string(),
}


def preference_fields(method: Method, trainer: Trainer) -> list[pa.Field[Any]]:
    """Return the columns that the trainer of a method reads."""
    columns = columns_for(method, trainer)
    return _fields({column.name: _PREFERENCE_TYPES[column.holds] for column in columns})


def preference_schema(
    method: Method, trainer: Trainer, kept: Sequence[tuple[str, pa.DataType]] = ()
) -> pa.Schema:
    """Return the schema of a preference shard: one row per judged prompt.

    Each row has the origin of its record.

    Args:
        method: Method of preference training.
        trainer: Trainer that reads the columns.
        kept: Name and type of each kept field.
    """
    kept_fields = [pa.field(name, kind) for name, kind in kept]
    return pa.schema(
        [*preference_fields(method, trainer), *_fields(_PLACE), *kept_fields]
    )


def described(schema: pa.Schema, tokenizer: str | None) -> pa.Schema:
    """Return the schema of a shard with a description as metadata.

    The metadata become key-values of the Parquet file.

    The description is the same in every version that has the shard: versions share
    files, so that it has neither the name of a dataset nor the number of a version.

    Args:
        schema: Schema of the shard.
        tokenizer: Sha256 (hex) of the ``tokenizer.json`` that made the ids; None if it
            is unknown.
    """
    # The first column tells the kinds apart: its name, and whether its lists have one
    # length.
    first_column: Any = schema.field(0)
    description: dict[str, object] = {"format_version": FORMAT_VERSION}
    if first_column.name != "input_ids":
        description["kind"] = "preference"
    elif pa.types.is_fixed_size_list(first_column.type):
        description["kind"] = "packed"
    else:
        description["kind"] = "tokens"
    if pa.types.is_fixed_size_list(first_column.type):
        description["seq_length"] = first_column.type.list_size
    if tokenizer is not None:
        description["tokenizer"] = tokenizer
    metadata: dict[str, str] = {}
    for fact_name, fact in description.items():
        metadata[f"tokenlake.{fact_name}"] = str(fact)
    return schema.with_metadata(metadata)


def row_group_rows(width: int) -> int:
    """Return the number of rows of a full row group of sequences, at least one.

    Args:
        width: Number of tokens in a sequence.
    """
    return max(1, ROW_GROUP_TOKENS // width)


def open_writer(
    sink: Any, schema: pa.Schema, compression: str = "zstd", encoded: Sequence[str] = ()
) -> pq.ParquetWriter:
    """Return a Parquet writer with the properties that all files have.

    Args:
        sink: Path, Python file object or Arrow output stream.
        schema: Schema of the file.
        compression: Name of the codec; lz4 is LZ4_RAW, because no two readers agree on
            Parquet's own lz4.
        encoded: Paths of the columns that have dictionaries and statistics; all others
            are PLAIN.
    """
    # Token columns have neither a dictionary nor statistics, as the module explains.
    encoded_columns: Any = list(encoded) or False
    codec: Any = compression
    compression_level: int | None = None
    if compression == "zstd":
        compression_level = 3
    return pq.ParquetWriter(
        sink,
        schema,
        compression=codec,
        compression_level=compression_level,
        use_dictionary=encoded_columns,
        write_statistics=encoded_columns,
        write_page_checksum=True,
        data_page_size=1 << 20,
        write_batch_size=1 << 16,
        version="2.6",
        data_page_version="1.0",
    )
