"""Checks that the offsets and indices of an Arrow column lie within its buffers."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_AS_BYTES: Final = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
"""Type of strings to the type of bytes with the same layout."""


def check_offsets(column: Any) -> None:
    """Raise ArrowInvalid unless offsets and indices of a column lie within its buffers.

    Whether strings are UTF-8 is not checked: that makes a bad record, not a damaged
    file.
    """
    # A view of nulls inside of lists or structs has the wrong length (Arrow 26), and
    # would look like damage.
    if not _has_nulls_inside(column.type):
        column = column.view(_bytes_type(column.type))
    # `validate` would also check UTF-8 in strings, which is why they are viewed as
    # bytes.
    column.validate(full=True)


def _has_nulls_inside(column_type: Any) -> bool:
    """Say whether a type is the type of nulls, or has it anywhere inside."""
    if pa.types.is_null(column_type):
        return True
    return any(
        _has_nulls_inside(column_type.field(index).type)
        for index in range(column_type.num_fields)
    )


def _bytes_type(column_type: Any) -> Any:
    """Return the type with the same layout in which strings are mere bytes."""
    types = pa.types
    if isinstance(column_type, pa.BaseExtensionType):
        return _bytes_type(column_type.storage_type)
    if column_type in _AS_BYTES:
        return _AS_BYTES[column_type]
    if types.is_dictionary(column_type):
        return pa.dictionary(
            column_type.index_type,
            _bytes_type(column_type.value_type),
            column_type.ordered,
        )
    if types.is_struct(column_type):
        fields: list[Any] = []
        for index in range(column_type.num_fields):
            fields.append(_bytes_field(column_type.field(index)))
        return pa.struct(fields)
    if types.is_map(column_type):
        return pa.map_(
            _bytes_type(column_type.key_type), _bytes_type(column_type.item_type)
        )
    if types.is_large_list(column_type):
        return pa.large_list(_bytes_field(column_type.value_field))
    if types.is_fixed_size_list(column_type):
        return pa.list_(_bytes_field(column_type.value_field), column_type.list_size)
    if types.is_list(column_type):
        return pa.list_(_bytes_field(column_type.value_field))
    return column_type


def _bytes_field(field: Any) -> Any:
    return field.with_type(_bytes_type(field.type))
