"""Values in Thrift's compact protocol, written from mappings of field numbers.

Headers of pages and the footer of a Parquet file are structs of this protocol::

    number    zigzag (0, -1, 1, -2 ... are 0, 1, 2, 3 ...), in groups of seven bits,
              the lowest first
    bytes     their length in groups of seven bits, then the bytes
    list      size << 4 | type, or f0 | type and the size from 15 on; then the values
    struct    for each field: (number - number before) << 4 | type, then the value;
              at the end a zero byte

Example: ``write_thrift({1: I32, 3: I32}, {1: 5, 3: -2})`` is ``15 0a 25 03 00``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

Written: TypeAlias = "int | list[Written] | dict[int, Written]"
"""Type of a value.

It is Thrift's number for numbers and bytes, ``[type of the values]`` for a list, and
the types of the fields by their numbers for a struct.
"""

# Thrift's numbers of types, as heads of fields and lists have them.
I32 = 5
I64 = 6
BINARY = 8
LIST = 9
STRUCT = 12

_LONG_LIST: Final = 15  # size from which a list has its size after its head

Fields: TypeAlias = Mapping[int, Any]
"""Struct: values of its fields by their numbers.

The numbers rise, each by at most 15.
"""


def write_thrift(kind: Written, value: Any) -> bytes:
    """Return a value in Thrift's compact protocol.

    Args:
        kind: Type of the value.
        value: Number; bytes; sequence of values; or struct (:data:`Fields`). In place
            of a list or a struct, bytes are the result of an earlier call.
    """
    # Bytes are a value of type BINARY, or the form of a list or struct that was written
    # before.
    if isinstance(value, bytes):
        if kind == BINARY:
            return unsigned(len(value)) + value
        return value
    if isinstance(kind, int):
        return unsigned(_zigzag(value))
    if isinstance(kind, list):
        (item_kind,) = kind
        items = [write_thrift(item_kind, field_value) for field_value in value]
        return _list_head(len(value), _code(item_kind)) + b"".join(items)

    # A struct: each field has a head with the distance to the number before and its
    # type.
    field_kinds: Mapping[int, Any] = kind
    struct_bytes = bytearray()
    previous_number = 0
    for field_number, field_value in value.items():
        field_kind = field_kinds[field_number]
        # Most fields are numbers: a call for each would double the time.
        if isinstance(field_value, int):
            struct_bytes.append(field_number - previous_number << 4 | field_kind)
            struct_bytes += unsigned(field_value << 1 ^ field_value >> 63)
        else:
            struct_bytes.append(field_number - previous_number << 4 | _code(field_kind))
            struct_bytes += write_thrift(field_kind, field_value)
        previous_number = field_number
    struct_bytes.append(0)
    return bytes(struct_bytes)


def _list_head(size: int, code: int) -> bytes:
    """Return the head of a list: number and type of its values."""
    if size < _LONG_LIST:
        return bytes([size << 4 | code])
    return bytes([_LONG_LIST << 4 | code]) + unsigned(size)


def _code(kind: Written) -> int:
    """Return Thrift's number of a type."""
    if isinstance(kind, int):
        return kind
    if isinstance(kind, list):
        return LIST
    return STRUCT


def _zigzag(value: int) -> int:
    """Return a signed number of at most 64 bits as an unsigned one, small near 0."""
    return value << 1 ^ value >> 63


@lru_cache(maxsize=1 << 12)
def unsigned(value: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
