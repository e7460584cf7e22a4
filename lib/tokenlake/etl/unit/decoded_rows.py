"""Bytes that are UTF-8, as text, in the fields that a renderer makes documents of.

Parquet's BINARY without annotation does not say whether its bytes are text. Fields of
which text is wanted are text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, cast

import pyarrow as pa

from tokenlake.etl.sources.rows import Rows
from tokenlake.runtime.column_types import is_list

_ARROW: Final[Any] = pa


def with_text(rows: Rows, names: Collection[str] | None) -> Rows:
    """Return rows with text in the place of bytes that are UTF-8; other bytes stay.

    Args:
        rows: Rows.
        names: Fields to convert, or dotted paths into them; None for all.
    """
    # JSON has no bytes; objects of other readers are converted value by value.
    if rows.has_objects:
        top_names: set[str] | None = None
        if names is not None:
            first_parts = [name.partition(".")[0] for name in names]
            top_names = {*names, *first_parts}
        return _with_decoded(rows, top_names)
    # Columns are cast as a whole, without a copy of their bytes.
    columns = rows.columns
    binary_names: set[str] = set()
    for field in columns.schema:
        if _is_wanted(field.name, names) and _holds_bytes(field.type):
            binary_names.add(field.name)
    if not binary_names:
        return rows
    arrays: dict[str, Any] = dict(
        zip(columns.schema.names, columns.columns, strict=True)
    )
    try:
        for name in binary_names:
            arrays[name] = arrays[name].cast(_text_type(arrays[name].type))
    except pa.ArrowException:  # some are not UTF-8, or Arrow has no such cast
        return _with_decoded(rows, binary_names)
    return Rows(pa.RecordBatch.from_pydict(arrays))


def _is_wanted(column: str, names: Collection[str] | None) -> bool:
    """Return True if a column, or a path into it, is among the names."""
    if names is None:
        return True
    return any(name == column or name.startswith(f"{column}.") for name in names)


def _is_bytes(kind: Any) -> bool:
    types = pa.types
    return (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def _holds_bytes(kind: Any) -> bool:
    """Return True if a type is bytes, or has bytes nested in it."""
    if is_list(kind):
        return _holds_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        member_types = [kind.field(index).type for index in range(kind.num_fields)]
        return any(map(_holds_bytes, member_types))
    return _is_bytes(kind)


def _text_type(kind: Any) -> Any:
    """Return a type with strings in the place of bytes."""
    if is_list(kind):
        return _ARROW.large_list(_text_type(kind.value_type))
    if pa.types.is_struct(kind):
        fields: list[tuple[str, Any]] = []
        for index in range(kind.num_fields):
            field = kind.field(index)
            fields.append((field.name, _text_type(field.type)))
        return _ARROW.struct(fields)
    if _is_bytes(kind):
        return pa.large_string()
    return kind


def _with_decoded(rows: Rows, names: set[str] | None) -> Rows:
    """Return rows as objects, with decoded values in the fields `names`.

    Args:
        rows: Rows.
        names: Fields to decode; None for all.
    """
    objects: list[dict[str, Any]] = []
    for row in rows.objects:
        decoded_row: dict[str, Any] = {}
        for name, value in row.items():
            if names is None or name in names:
                decoded_row[name] = _decoded(value)
            else:
                decoded_row[name] = value
        objects.append(decoded_row)
    return Rows(objects=objects)


def _decoded(value: Any) -> Any:
    """Return a value with text in the place of bytes that are UTF-8, at any level."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [_decoded(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _decoded(member) for name, member in members.items()}
    return value
