"""Values of kept fields whose types are declared.

Text may spell a number, as cells of CSV do, and floats may be shortened.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, cast

from tokenlake.base.columns import ColumnType

# A limit of digits: Python takes quadratic time for an integer of many.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")
_TRUTH: Final = {"true": True, "false": False}
_TEXT: Final = frozenset({"large_string", "large_binary"})
_FLOATS: Final = frozenset({"float", "double"})


def read_declared(value: Any, kind: ColumnType) -> Any:
    """Return a value as one of the type that is declared for its field.

    Text becomes the number or truth value that it spells, and null where it is empty.
    Bytes of UTF-8 become text. A float becomes the nearest one of 32 bits. A value that
    is none of these stays as it is.

    Args:
        value: Value of the field.
        kind: Declared type.
    """
    if isinstance(kind, dict):
        return _read_nested(value, kind)
    if isinstance(value, bytes):
        return _decoded(value) if kind == "large_string" else value
    if isinstance(value, str) and kind not in _TEXT:
        value = _read_spelled(value, kind)
    if isinstance(value, float) and kind == "float":
        return _shortened(value)
    return value


def _read_nested(value: Any, kind: dict[str, Any]) -> Any:
    """Return a list or an object with its members as their declared types."""
    if "list" in kind and isinstance(value, list):
        items = cast("list[Any]", value)
        return [read_declared(item, kind["list"]) for item in items]
    if "struct" in kind and isinstance(value, dict):
        fields: dict[str, ColumnType] = dict(kind["struct"])
        members = cast("dict[str, Any]", value)
        read_members: dict[str, Any] = {}
        for name, member in members.items():
            if name in fields:
                read_members[name] = read_declared(member, fields[name])
            else:
                read_members[name] = member
        return read_members
    return value


def _read_spelled(text: str, kind: str) -> Any:
    """Return the value that a text spells, or the text where it spells none."""
    spelled_value = text.strip()
    # A cell of CSV has no other spelling of null.
    if not spelled_value:
        return None
    if kind == "bool":
        return _TRUTH.get(spelled_value.lower(), text)
    # The expressions refuse much that float and int read: nan, inf, 1_000, and digits of
    # other scripts.
    if kind in _FLOATS:
        return float(spelled_value) if _NUMBER.fullmatch(spelled_value) else text
    return int(spelled_value) if _INTEGER.fullmatch(spelled_value) else text


def _shortened(value: float) -> float:
    """Return the nearest float of 32 bits; the value itself where it is too large."""
    try:
        (shortened,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return value
    return shortened


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
