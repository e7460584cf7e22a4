"""Types of the columns of kept fields, and the conversions between them.

Of several Arrow types that hold the same values there is one
:data:`~tokenlake.base.columns.ColumnType`: strings and lists are the large ones,
dictionaries are their values, and seconds are milliseconds, because Parquet has no
seconds. Values that Parquet cannot hold as they are (unions, maps, extensions) become
JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import pyarrow as pa

from tokenlake.base.arrays import STRINGS
from tokenlake.base.columns import JSON, NULL, ColumnType
from tokenlake.base.markup import is_encodable

_ARROW: Final[Any] = pa  # functions that pyarrow's stubs do not have
_FLOATS: Final = ("halffloat", "float", "double")  # the narrowest first
_BITS: Final = (8, 16, 32, 64)
_RANGES: Final[dict[str, tuple[int, int]]] = {
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in _BITS},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in _BITS},
}
"""Smallest and largest number of each type of integers."""

_LARGE_INTEGERS: Final = "decimal128(38, 0)"  # integers beyond 64 bits
# Arrow's texts for types with parameters.
_DECIMAL: Final = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_ZONED: Final = re.compile(r"timestamp\[(ms|us|ns), tz=(.+)\]")
# Types that Parquet lacks, and the type that takes their values.
_COARSE: Final = {
    "timestamp[s]": "timestamp[ms]",
    "time32[s]": "time32[ms]",
    "date64[ms]": "date32[day]",
}
_EXACT_FLOAT: Final = 1 << 53  # integers up to this size are exact as float64


def is_list(kind: Any) -> bool:
    """Return whether values of an Arrow type are lists, in any layout."""
    types = pa.types
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def column_type(kind: Any) -> ColumnType:
    """Return the type of a column of an Arrow type.

    It is JSON text if Parquet cannot hold the values as they are.
    """
    # Encodings of the values do not count as types.
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return column_type(kind.value_type)
    if kind in STRINGS:
        return "large_string"
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return "large_binary"
    if is_list(kind):
        inner = column_type(kind.value_type)
        if inner == JSON:
            return JSON
        return {"list": inner}
    if types.is_struct(kind):
        return _struct_type(kind)
    return _flat_type(kind)


def _struct_type(kind: Any) -> ColumnType:
    """Return the type of a struct column.

    It is JSON text if the struct has no fields, equal names, or fields of JSON text.
    """
    fields: dict[str, ColumnType] = {}
    for field in kind:
        fields[field.name] = column_type(field.type)
    # Equal names would be one key here: one of the two fields would be lost.
    has_equal_names = len(fields) < kind.num_fields
    if not fields or has_equal_names or JSON in fields.values():
        return JSON
    return _struct_of(fields)


def _struct_of(fields: Mapping[str, ColumnType]) -> ColumnType:
    """Return the type of a struct with these fields, in their order."""
    return {"struct": [[field_name, inner] for field_name, inner in fields.items()]}


def _flat_type(kind: Any) -> str:
    """Return the type of a column that is not nested, text or bytes."""
    # A time zone stays, and seconds become milliseconds.
    name = str(kind)
    if name.startswith("timestamp[s, "):
        return name.replace("timestamp[s", "timestamp[ms")
    is_time = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    is_known_name = name in (*_RANGES, *_FLOATS, "bool", NULL)
    if is_time or pa.types.is_decimal(kind) or is_known_name:
        return _COARSE.get(name, name)
    return JSON


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type with which a column is stored."""
    if isinstance(kind, dict):
        if "list" in kind:
            return _ARROW.large_list(arrow_type(kind["list"]))
        return _ARROW.struct(
            [(name, arrow_type(inner)) for name, inner in kind["struct"]]
        )
    if kind == JSON:
        return pa.large_string()
    # Types with parameters are parsed; the others have an alias.
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is not None:
        bits, precision, scale = decimal.groups()
        return getattr(_ARROW, f"decimal{bits}")(int(precision), int(scale))
    zoned_time = _ZONED.fullmatch(kind)
    if zoned_time is not None:
        unit, zone = zoned_time.groups()
        return _ARROW.timestamp(unit, zone)
    return _ARROW.type_for_alias(kind)


def joined(a: ColumnType, b: ColumnType) -> ColumnType:
    """Return the narrowest type that holds the values of both types.

    It is JSON text if no other type does.
    """
    # A column that held no value yet takes the type of the other one.
    if a == b or b == NULL:
        return a
    if a == NULL:
        return b
    if isinstance(a, str) and isinstance(b, str):
        return _joined_numbers(a, b)
    # Lists and structs are joined member by member. A field that one of the structs
    # lacks may be null there.
    if isinstance(a, dict) and isinstance(b, dict):
        if "list" in a and "list" in b:
            inner = joined(a["list"], b["list"])
            if inner == JSON:
                return JSON
            return {"list": inner}
        if "struct" in a and "struct" in b:
            fields: dict[str, ColumnType] = dict(a["struct"])
            for field_name, inner in b["struct"]:
                fields[field_name] = joined(fields.get(field_name, NULL), inner)
            if JSON in fields.values():
                return JSON
            return _struct_of(fields)
    return JSON


def _joined_numbers(a: str, b: str) -> str:
    """Return the narrowest type that holds the values of two different flat types."""
    if a in _RANGES and b in _RANGES:
        # Two integer types: the narrowest type whose range has both ranges. For int64
        # and uint64 it is a decimal.
        lowest = min(_RANGES[a][0], _RANGES[b][0])
        highest = max(_RANGES[a][1], _RANGES[b][1])
        narrowest = _LARGE_INTEGERS
        narrowest_width: int | None = None
        for type_name, (smallest, largest) in _RANGES.items():
            width = largest - smallest
            holds_both = smallest <= lowest and highest <= largest
            is_narrower = narrowest_width is None or width < narrowest_width
            if holds_both and is_narrower:
                narrowest = type_name
                narrowest_width = width
        return narrowest
    if {a, b} <= {*_RANGES, _LARGE_INTEGERS}:
        return _LARGE_INTEGERS
    if a in _FLOATS and b in _FLOATS:
        return max(a, b, key=_FLOATS.index)
    # An integer and a float: only double holds the integers up to 2^53.
    numbers = (*_RANGES, *_FLOATS)
    if a in numbers and b in numbers:
        return "double"
    return JSON


def settled(kind: ColumnType) -> ColumnType:
    """Return the final type of a column.

    It is JSON text if a part of it never held a value, because any value may come.
    """
    if _has_null_type(kind):
        return JSON
    return kind


def _has_null_type(kind: ColumnType) -> bool:
    """Return whether some part of a type has held no value."""
    if not isinstance(kind, dict):
        return kind == NULL
    if "list" in kind:
        return _has_null_type(kind["list"])
    return any(_has_null_type(inner) for _, inner in kind["struct"])


def may_become(kind: ColumnType, declared: ColumnType) -> bool:
    """Return whether values of a type can be converted to a declared type.

    Some values may not fit.

    Numbers may become other numbers, text may spell a number or a truth value, and
    bytes may be text.
    """
    if declared == JSON or kind == NULL or joined(kind, declared) == declared:
        return True
    # Lists and structs: every part must be convertible. A declared field may be
    # missing.
    if isinstance(kind, dict) and isinstance(declared, dict):
        if "list" in kind and "list" in declared:
            return may_become(kind["list"], declared["list"])
        if "struct" in kind and "struct" in declared:
            declared_fields: dict[str, ColumnType] = dict(declared["struct"])
            return all(
                field_name in declared_fields
                and may_become(inner, declared_fields[field_name])
                for field_name, inner in kind["struct"]
            )
        return False
    if isinstance(kind, str) and isinstance(declared, str):
        if kind == "large_string":
            return _is_number(declared) or declared == "bool"
        if kind == "large_binary":
            return declared == "large_string"
        return _is_number(kind) and _is_number(declared)
    return False


def _is_number(kind: str) -> bool:
    """Return whether values of a type are numbers."""
    return kind in _RANGES or kind in _FLOATS or _DECIMAL.fullmatch(kind) is not None


def fits(value: Any, kind: ColumnType) -> bool:
    """Return whether a column can hold a Python value exactly; None always fits."""
    if value is None or kind == JSON:
        return True
    if isinstance(kind, dict):
        return _fits_nested(value, kind)
    # `type(...) is` instead of `isinstance`: True is no integer here.
    if kind in _RANGES:
        lowest, highest = _RANGES[kind]
        return type(value) is int and lowest <= value <= highest
    if kind in _FLOATS:
        return _fits_float(value, kind)
    if kind == "bool":
        return type(value) is bool
    if kind == "large_string":
        return type(value) is str and is_encodable(value)
    if kind == "large_binary":
        return type(value) is bytes
    return type(value) is not bool and _survives(value, kind)


def _fits_nested(value: Any, kind: dict[str, Any]) -> bool:
    """Return whether a column of lists or structs can hold a value exactly."""
    if "list" in kind:
        if not isinstance(value, list):
            return False
        items = cast("list[Any]", value)
        return all(fits(item, kind["list"]) for item in items)
    if not isinstance(value, dict):
        return False
    fields: dict[str, ColumnType] = dict(kind["struct"])
    members = cast("dict[str, Any]", value)
    # A field that the type lacks would be lost.
    return all(
        field_name in fields and fits(member, fields[field_name])
        for field_name, member in members.items()
    )


def _fits_float(value: Any, kind: str) -> bool:
    """Return whether a column of floats can hold a value exactly."""
    if type(value) is int:
        if abs(value) > _EXACT_FLOAT:
            return False
        return kind == "double" or _survives(float(value), kind)
    if type(value) is not float:
        return False
    # NaN is not equal to itself, and survives in every float type.
    is_nan = value != value
    return kind == "double" or is_nan or _survives(value, kind)


def _survives(value: Any, kind: str) -> bool:
    """Return whether a value survives a conversion to an Arrow type and back."""
    try:
        return _ARROW.scalar(value, arrow_type(kind)).as_py() == value
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        return False
