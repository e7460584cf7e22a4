"""Columns of a version's shards: schema, and checks of decoded row groups.

The schema is that of the manifest.

Pages have checksums; their headers and the footer have none, and Arrow believes both. A
flipped bit in one of them turns the same bytes into other types, or drops the last
values of a list, and the result still looks like rows. Therefore both are compared with
other records: types with the manifest, numbers of values with the footer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64, values
from tokenlake.base.columns import columns_for
from tokenlake.runtime.column_types import arrow_type
from tokenlake.runtime.reading.packed import IDS
from tokenlake.runtime.reading.token_ids import MOST_IDS
from tokenlake.runtime.schema import packed_schema, preference_schema, tokens_schema
from tokenlake.runtime.store.manifest import Manifest


def stored_schema(manifest: Manifest) -> pa.Schema:
    """Return the columns that shards of a version have by its manifest.

    Shards may have other columns too.
    """
    # Columns that shards have, and fields kept of the input.
    build = manifest.config.get("build", {})
    names: set[str] = set()
    for shard in manifest.files:
        names.update(shard.logical)
    kept_fields = tuple(
        (name, arrow_type(kind)) for name, kind in build.get("kept", ())
    )
    if manifest.preference is not None:
        return preference_schema(*manifest.preference, kept_fields)
    has_loss_mask = "loss_mask" in names
    if manifest.width:
        has_segment_ids = "segment_ids" in names
        return packed_schema(
            manifest.width, store_segment_ids=has_segment_ids, loss_mask=has_loss_mask
        )
    has_attention_mask = bool(build.get("attention_mask"))
    return tokens_schema(
        loss_mask=has_loss_mask, attention_mask=has_attention_mask, kept=kept_fields
    )


def id_columns(manifest: Manifest) -> tuple[str, ...]:
    """Return the columns that hold lists of ids."""
    if manifest.preference is None:
        return (IDS,)
    return tuple(
        column.name
        for column in columns_for(*manifest.preference)
        if column.holds == "ids"
    )


def id_limit(manifest: Manifest) -> int:
    """Return one more than the largest id of the version's tokenizers.

    It is the limit of int32 if a tokenizer does not state its own.
    """
    sizes = [int(facts.get("vocab_size", 0)) for facts in manifest.tokenizer.values()]
    if not sizes or min(sizes) <= 0:
        return MOST_IDS
    return min(max(sizes), MOST_IDS)


def runs(batch: pa.RecordBatch, name: str) -> tuple[Any, Int64]:
    """Return the values of a list column, and their offsets by row, int64[rows + 1].

    The values are an Arrow array.
    """
    column: Any = batch.column(name)
    return column.values, values(column.offsets).astype(np.int64)


def check_types(schema: pa.Schema, expected: pa.Schema) -> None:
    """Raise ValueError if a column has a wrong type, or may hold nulls.

    The manifest states the type.

    Args:
        schema: Columns of a decoded row group.
        expected: Columns by the manifest; those that were not decoded are skipped.
    """
    for name in expected.names:
        index = schema.get_field_index(name)
        if index < 0:
            continue
        got = schema.field(index)
        expected_field = expected.field(name)
        if got.type != expected_field.type or (
            got.nullable and not expected_field.nullable
        ):
            raise ValueError(
                f"{name} is {_shown(got)}; expected {_shown(expected_field)}, by the manifest"
            )


def _shown(field: Any) -> str:
    """Return the type of a field for a message."""
    if field.nullable:
        return str(field.type)
    return f"{field.type} not null"


def check_values(batch: pa.RecordBatch, expected: npt.NDArray[np.int64]) -> None:
    """Raise ValueError unless a row group holds as many values as its footer says.

    Args:
        batch: Decoded row group, all columns.
        expected: Number of values of each leaf of the schema, int64[leaves]; an empty
            list, and a null, counts as one.
    """
    # A damaged page may decode without an error, but to another number of values.
    columns: list[Any] = batch.columns
    counts: list[int] = []
    for column in columns:
        counts += _counts_of_leaves(column, 0)
    if counts != expected.tolist():
        raise ValueError(
            f"columns of {counts} values; expected {expected.tolist()}, as the footer says"
        )


def _counts_of_leaves(array: Any, empty_above: int) -> list[int]:
    """Return the number of values of each leaf below an array.

    Leaves are in the order of the schema.

    Args:
        array: Column, or values of one.
        empty_above: Number of empty lists and nulls above the array, each of which is a
            value of every leaf.
    """
    # Parquet writes one entry for an empty list or a null. These entries are added to
    # the values of every leaf below.
    kind = array.type
    types = pa.types
    if types.is_struct(kind):
        counts: list[int] = []
        for index in range(kind.num_fields):
            counts += _counts_of_leaves(array.field(index), empty_above)
        return counts
    if types.is_fixed_size_list(kind):
        empty = array.null_count if kind.list_size else len(array)
        return _counts_of_leaves(array.flatten(), empty_above + empty)
    if types.is_list(kind) or types.is_large_list(kind):
        empty = int(np.count_nonzero(np.diff(values(array.offsets)) == 0))
        return _counts_of_leaves(array.flatten(), empty_above + empty)
    return [len(array) + empty_above]
