"""Bytes that are UTF-8 as text, in the fields of which a renderer makes documents.

Parquet's BINARY without annotation says nothing of whether its bytes are text. Where text is wanted they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, cast

import pyarrow as pa

from tokenlake.etl.sources.rows import Rows
from tokenlake.runtime.column_types import is_list

_ARROW: Final[Any] = pa


def with_text(rows: Rows, names: Collection[str] | None) -> Rows:
    """Return rows in whose fields bytes are text where they are UTF-8; bytes that are not stay bytes.

    Args:
        names: fields, or dotted paths into them; None for all.
    """
    if rows.has_objects:
        top = None if names is None else {*names, *(name.partition(".")[0] for name in names)}
        return _with_decoded(rows, top)
    columns = rows.columns
    binary = [
        field.name for field in columns.schema if _is_wanted(field.name, names) and _holds_bytes(field.type)
    ]
    if not binary:
        return rows
    arrays: dict[str, Any] = dict(zip(columns.schema.names, columns.columns, strict=True))
    try:
        for name in binary:
            arrays[name] = arrays[name].cast(_text_type(arrays[name].type))
    except pa.ArrowException:  # some are not UTF-8, or Arrow has no such cast
        return _with_decoded(rows, set(binary))
    return Rows(pa.RecordBatch.from_pydict(arrays))


def _is_wanted(column: str, names: Collection[str] | None) -> bool:
    return names is None or any(name == column or name.startswith(f"{column}.") for name in names)


def _is_bytes(kind: Any) -> bool:
    types = pa.types
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _holds_bytes(kind: Any) -> bool:
    if is_list(kind):
        return _holds_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_holds_bytes(kind.field(index).type) for index in range(kind.num_fields))
    return _is_bytes(kind)


def _text_type(kind: Any) -> Any:
    """Return a type with strings in the place of bytes."""
    if is_list(kind):
        return _ARROW.large_list(_text_type(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return _ARROW.struct([(field.name, _text_type(field.type)) for field in fields])
    return pa.large_string() if _is_bytes(kind) else kind


def _with_decoded(rows: Rows, names: set[str] | None) -> Rows:
    objects: list[dict[str, Any]] = []
    for row in rows.objects:
        decoded = {
            name: _decoded(value) if names is None or name in names else value for name, value in row.items()
        }
        objects.append(decoded)
    return Rows(objects=objects)


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [_decoded(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _decoded(item) for name, item in cast("dict[str, Any]", value).items()}
    return value
