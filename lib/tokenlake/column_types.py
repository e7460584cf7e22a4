"""Types of columns as plain values: they travel in jobs, stand in manifests and are part of identity.

A type is a name (``int64``, ``large_string``, ``timestamp[us, tz=UTC]``; as Arrow spells it), ``{"list": type}`` or
``{"struct": [[name, type], ...]}``. ``json`` stands for values of no one type: each is JSON text. ``null`` is what
is known of a column that has held no value yet.

Of several Arrow types that hold the same values there is one: strings and lists are the large ones, dictionaries
are their values, seconds are milliseconds, because Parquet knows no seconds.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa

ColumnType: TypeAlias = str | dict[str, Any]

JSON: Final = "json"
NULL: Final = "null"

RESERVED: Final = frozenset(
    {"input_ids", "attention_mask", "loss_mask", "labels", "file", "position"}
    | {"split", "shard", "row", "filename", "file_row_number"}
)
"""Names, in lower case, that a kept field cannot have: columns of every row, and what views in SQL add to them."""

STRINGS: Final = frozenset({pa.string(), pa.large_string(), pa.string_view()})
"""Arrow's types of text."""

_ARROW: Final[Any] = pa
_FLOATS: Final = ("halffloat", "float", "double")
_RANGES: Final[dict[str, tuple[int, int]]] = {
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
_DECIMAL: Final = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_ZONED: Final = re.compile(r"timestamp\[(ms|us|ns), tz=(.+)\]")
_COARSE: Final = {"timestamp[s]": "timestamp[ms]", "time32[s]": "time32[ms]", "date64[ms]": "date32[day]"}


def is_list(kind: Any) -> bool:
    """Return whether values of an Arrow type are lists, whatever their layout."""
    types = _ARROW.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def column_type(kind: Any) -> ColumnType:
    """Return the type of an Arrow column; what Parquet cannot hold as it is (unions, maps, extensions) is JSON text."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return column_type(kind.value_type)
    if kind in STRINGS:
        return "large_string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "large_binary"
    if is_list(kind):
        inner = column_type(kind.value_type)
        return JSON if inner == JSON else {"list": inner}
    if types.is_struct(kind):
        fields = {field.name: column_type(field.type) for field in kind}
        unfit = not fields or len(fields) < kind.num_fields or JSON in fields.values()
        return JSON if unfit else {"struct": [[name, inner] for name, inner in fields.items()]}
    return _flat_type(kind)


def _flat_type(kind: Any) -> str:
    name = str(kind)
    if name.startswith("timestamp[s, "):
        return name.replace("timestamp[s", "timestamp[ms")
    known = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    if known or pa.types.is_decimal(kind) or name in (*_RANGES, *_FLOATS, "bool", NULL):
        return _COARSE.get(name, name)
    return JSON


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type that a column of type `kind` is stored with."""
    if isinstance(kind, dict):
        if "list" in kind:
            return _ARROW.large_list(arrow_type(kind["list"]))
        return _ARROW.struct([(name, arrow_type(inner)) for name, inner in kind["struct"]])
    if kind == JSON:
        return pa.large_string()
    if (found := _DECIMAL.fullmatch(kind)) is not None:
        return getattr(_ARROW, f"decimal{found[1]}")(int(found[2]), int(found[3]))
    if (found := _ZONED.fullmatch(kind)) is not None:
        return _ARROW.timestamp(found[1], found[2])
    return _ARROW.type_for_alias(kind)


def joined(a: ColumnType, b: ColumnType) -> ColumnType:
    """Return the narrowest type that holds the values of both; JSON text where no other does."""
    if a == b or b == NULL:
        return a
    if a == NULL:
        return b
    if isinstance(a, dict) and isinstance(b, dict):
        if "list" in a and "list" in b:
            inner = joined(a["list"], b["list"])
            return JSON if inner == JSON else {"list": inner}
        if "struct" in a and "struct" in b:
            fields = dict(cast("list[tuple[str, ColumnType]]", a["struct"]))
            for name, inner in b["struct"]:
                fields[name] = joined(fields.get(name, NULL), inner)
            struct = [[name, inner] for name, inner in fields.items()]
            return JSON if JSON in fields.values() else {"struct": struct}
    elif isinstance(a, str) and isinstance(b, str):
        return _joined_numbers(a, b)
    return JSON


def _joined_numbers(a: str, b: str) -> str:
    if a in _RANGES and b in _RANGES:
        low, high = (pick(_RANGES[a][at], _RANGES[b][at]) for at, pick in ((0, min), (1, max)))
        fits = [name for name, (least, most) in _RANGES.items() if least <= low and high <= most]
        return min(fits, key=lambda name: _RANGES[name][1] - _RANGES[name][0]) if fits else JSON
    numbers = (*_RANGES, *_FLOATS)
    if a in numbers and b in numbers:
        return max(a, b, key=_FLOATS.index) if a in _FLOATS and b in _FLOATS else "double"
    return JSON


def settled(kind: ColumnType) -> ColumnType:
    """Return the type for good: where some place of it has held no value, nobody knows what may come."""
    return JSON if _is_open(kind) else kind


def _is_open(kind: ColumnType) -> bool:
    if isinstance(kind, dict):
        return (
            _is_open(kind["list"]) if "list" in kind else any(_is_open(inner) for _, inner in kind["struct"])
        )
    return kind == NULL


def fits(value: Any, kind: ColumnType) -> bool:
    """Say whether a Python value can be held exactly; None always can."""
    if value is None or kind == JSON:
        return True
    if isinstance(kind, dict):
        if "list" in kind:
            items = cast("list[Any]", value)
            return isinstance(value, list) and all(fits(item, kind["list"]) for item in items)
        fields: dict[str, ColumnType] = dict(kind["struct"])
        return isinstance(value, dict) and all(
            name in fields and fits(inner, fields[name])
            for name, inner in cast("dict[str, Any]", value).items()
        )
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return type(value) is int and low <= value <= high
    if kind in _FLOATS:
        if type(value) is int:
            return abs(value) <= 1 << 53 and (kind == "double" or _survives(float(value), kind))
        return type(value) is float and (kind == "double" or value != value or _survives(value, kind))
    expected: dict[str, type[Any]] = {"bool": bool, "large_string": str, "large_binary": bytes}
    if kind in expected:
        return type(value) is expected[kind] and (kind != "large_string" or is_encodable(value))
    return _survives(value, kind)


def is_encodable(text: str) -> bool:
    """Say whether a text can be encoded as UTF-8: it holds no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _survives(value: Any, kind: str) -> bool:
    try:
        return _ARROW.scalar(value, arrow_type(kind)).as_py() == value
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        return False
