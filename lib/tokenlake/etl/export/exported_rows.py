"""The rows of a version with the columns of a flat directory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import cells, offsets_of
from tokenlake.runtime.column_types import is_list

_ARROW: Final[Any] = pa

_PROVENANCE: Final = frozenset({"file", "position", "documents"})
"""Columns that say which input each document comes from."""

_DERIVED: Final = frozenset({"segment_lengths"})
"""Columns that no export has."""


def as_exported(
    rows: pa.RecordBatch, *, attention_mask: bool, provenance: bool
) -> pa.RecordBatch:
    """Return rows of a version with the columns of a flat directory.

    Args:
        rows: Rows as they are stored.
        attention_mask: True to add an attention mask if the rows have none.
        provenance: True to keep the columns that say which input each document comes
            from.
    """
    column_names = rows.schema.names
    left_out = _DERIVED
    if not provenance:
        left_out = _DERIVED | _PROVENANCE
    needs_mask = attention_mask and "attention_mask" not in column_names
    columns: list[Any] = []
    fields: list[Any] = []
    # The attention mask comes right after the ids that it belongs to.
    for column_name, column in zip(column_names, rows.columns, strict=True):
        if column_name not in left_out:
            # Names of items must not depend on the file that the rows came from.
            if is_list(column.type):
                column = column.cast(_with_named_items(column.type))
            is_nullable = rows.schema.field(column_name).nullable
            columns.append(column)
            fields.append(pa.field(column_name, column.type, is_nullable))
        if column_name == "input_ids" and needs_mask:
            mask_column = _attention_mask(rows)
            columns.append(mask_column)
            fields.append(pa.field("attention_mask", mask_column.type, nullable=False))
    return _ARROW.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _attention_mask(rows: pa.RecordBatch) -> Any:
    """Return 1 for ids of documents and 0 for padding.

    Rows that are not packed and have no mask have no padding.
    """
    input_ids: Any = rows.column("input_ids")
    mask_type = _with_named_items(input_ids.type)
    if "segment_lengths" not in rows.schema.names:
        mask_values = _ARROW.array(np.ones(len(input_ids.flatten()), np.int32))
        offsets = _ARROW.array(_offsets_from_zero(input_ids))
        return _ARROW.ListArray.from_arrays(offsets, mask_values, type=mask_type)
    # The segments of a packed row lie at its beginning, and padding fills the rest.
    segments: Any = rows.column("segment_lengths")
    tokens_before = offsets_of(segments.flatten().to_numpy())
    row_lengths = np.diff(tokens_before[_offsets_from_zero(segments)])
    is_token = cells(row_lengths, input_ids.type.list_size, left=False)
    mask_values = _ARROW.array(is_token.astype(np.int32).reshape(-1))
    return _ARROW.FixedSizeListArray.from_arrays(mask_values, type=mask_type)


def _offsets_from_zero(column: Any) -> Any:
    """Return the offsets of a list column from 0, also of a slice."""
    return column.offsets.to_numpy() - column.offsets[0].as_py()


def _with_named_items(kind: Any) -> Any:
    """Return a list type whose values are called ``item``.

    Arrow calls them so; Parquet returns them as ``element``.
    """
    list_size = -1  # of lists of any length, for `pa.list_`
    if _ARROW.types.is_fixed_size_list(kind):
        list_size = kind.list_size
    item_field = pa.field("item", kind.value_type, kind.value_field.nullable)
    return pa.list_(item_field, list_size)
