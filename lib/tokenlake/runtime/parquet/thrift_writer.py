"""Structs of Thrift's compact protocol, written from mappings of field numbers.

Headers of pages and the footer of a Parquet file are such structs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

Written: TypeAlias = "int | list[Written] | dict[int, Written]"
"""What a value is written as: numbers and bytes by Thrift's number of their type, a list by the type of its values, and
a struct by those of its fields."""

I32, I64, BINARY = 5, 6, 8
LIST, STRUCT = 9, 12

Fields: TypeAlias = Mapping[int, Any]
"""A struct of Thrift: the values of its fields by their ids, which rise, each at most 15 more than the one before."""


def write_thrift(kind: Written, value: Any) -> bytes:
    """Return a value as Thrift's compact protocol has it.

    Args:
        value: a number; bytes; a sequence of values; or a struct (:data:`Fields`). In the place of a list or a struct,
            bytes are what this returned for it before.
    """
    if isinstance(value, bytes):
        return unsigned(len(value)) + value if kind == BINARY else value
    if isinstance(kind, int):
        return unsigned(value << 1 ^ value >> 63)
    if isinstance(kind, list):
        (each,), size = kind, len(value)
        head = bytes([size << 4 | _code(each)]) if size < 15 else bytes([0xF0 | _code(each)]) + unsigned(size)
        return head + b"".join([write_thrift(each, item) for item in value])
    found, last = bytearray(), 0
    kinds: Mapping[int, Any] = kind
    for number, item in value.items():
        inner = kinds[number]
        if isinstance(item, int):  # as most are: to call for each would take as long again
            found.append(number - last << 4 | inner)
            found += unsigned(item << 1 ^ item >> 63)
        else:
            found.append(number - last << 4 | _code(inner))
            found += write_thrift(inner, item)
        last = number
    found.append(0)
    return bytes(found)


def _code(kind: Written) -> int:
    """Return Thrift's number of a type."""
    return kind if isinstance(kind, int) else LIST if isinstance(kind, list) else STRUCT


@lru_cache(maxsize=1 << 12)
def unsigned(value: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
