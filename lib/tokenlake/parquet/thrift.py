"""Thrift's compact protocol, in which Parquet writes footers and the headers of pages.

Neither has a checksum, and Arrow's Python objects end the process where some of their fields contradict each other. So
both are read here: structs are ``{id of a field: its value}``, and nothing is believed; what cannot be is a ValueError.

Written values carry their type, as the protocol wants it: :func:`int32`, :func:`int64`, :func:`text`, :func:`listed`
and :func:`struct` return it with the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

STRUCT: Final = 12

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY = 1, 2, 3, 7, 8
_INTEGERS, _LISTS = (4, 5, 6), (9, 10)
_DEPTH: Final = 16

Struct = dict[int, Any]


class Truncated(ValueError):
    """The bytes end before the struct does."""


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """Return the struct that begins at `at`, and where it ends.

    Raises:
        Truncated: the bytes end before it does.
        ValueError: there is none.
    """
    try:
        return _struct(data, at, _DEPTH)
    except IndexError as error:
        raise Truncated("a struct goes on after the last byte") from error


def _struct(data: bytes | memoryview, at: int, depth: int) -> tuple[Struct, int]:
    if not depth:
        raise ValueError(f"structs are nested more than {_DEPTH} deep")
    fields: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            value, at = _unsigned(data, at)
            number = value >> 1 ^ -(value & 1)
        if kind in _INTEGERS:
            # Most fields are numbers: a call for each would double the time.
            value, at = data[at], at + 1
            if value > 0x7F:
                value, shift = value & 0x7F, 7
                while (byte := data[at]) > 0x7F and shift < 63:
                    value |= (byte & 0x7F) << shift
                    at, shift = at + 1, shift + 7
                if byte > 0x7F:
                    raise ValueError("a number has more than 64 bits")
                value, at = value | byte << shift, at + 1
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind == STRUCT:
            fields[number], at = _struct(data, at, depth - 1)
        elif kind in _LISTS:
            fields[number], at = _list(data, at, depth)
        else:
            fields[number], at = _value(kind, data, at)
    return fields, at + 1


def _list(data: bytes | memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    if not depth:
        raise ValueError(f"lists are nested more than {_DEPTH} deep")
    size, kind, at = data[at] >> 4, data[at] & 15, at + 1
    if size == 15:
        size, at = _unsigned(data, at)
    if size > len(data) - at:
        raise Truncated(f"a list of {size} values; {len(data) - at} bytes are there")
    found: list[Any] = []
    if kind == STRUCT:
        for _ in range(size):
            value, at = _struct(data, at, depth - 1)
            found.append(value)
        return found, at
    for _ in range(size):
        first = data[at]
        if kind == _BINARY and first < 0x80 and at + first < len(data):  # a short name: what nearly all are
            found.append(bytes(data[at + 1 : at + 1 + first]))
            at += 1 + first
        elif kind in _INTEGERS and first < 0x80:
            found.append(first >> 1 ^ -(first & 1))
            at += 1
        else:
            value, at = _list(data, at, depth - 1) if kind in _LISTS else _value(kind, data, at)
            found.append(value)
    return found, at


def _value(kind: int, data: bytes | memoryview, at: int) -> tuple[Any, int]:
    if kind == _BINARY:
        size, at = (data[at], at + 1) if data[at] < 0x80 else _unsigned(data, at)
        return _bytes(data, at, size)
    if kind in _INTEGERS:
        value, at = (data[at], at + 1) if data[at] < 0x80 else _unsigned(data, at)
        return value >> 1 ^ -(value & 1), at
    if kind == _DOUBLE:
        return _bytes(data, at, 8)
    if kind in (_TRUE, _FALSE, _BYTE):  # in a list each is a byte
        return data[at], at + 1
    raise ValueError(f"a field has the unknown type {kind}")


def _bytes(data: bytes | memoryview, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(data):
        raise Truncated(f"a value of {size} bytes; {len(data) - at} are there")
    return bytes(data[at:end]), end


def _unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")


Encoded = tuple[int, bytes]
"""The type of a value, and its bytes."""


def int32(value: int) -> Encoded:
    """Return a number of 32 bits as it is written."""
    return 5, unsigned(value << 1 ^ value >> 63)


def int64(value: int) -> Encoded:
    """Return a number of 64 bits as it is written."""
    return 6, unsigned(value << 1 ^ value >> 63)


def text(value: bytes) -> Encoded:
    """Return bytes as they are written, after their number."""
    return _BINARY, unsigned(len(value)) + value


def listed(values: Sequence[Encoded], kind: int = STRUCT) -> Encoded:
    """Return a list of values of one type, which is `kind` where there are none."""
    kind = values[0][0] if values else kind
    size = len(values)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + unsigned(size)
    return _LISTS[0], head + b"".join(data for _, data in values)


def struct(fields: Mapping[int, Encoded]) -> Encoded:
    """Return a struct of fields, whose ids rise, each at most 15 more than the one before."""
    found, last = bytearray(), 0
    for number, (kind, data) in fields.items():
        found.append(number - last << 4 | kind)
        found += data
        last = number
    found.append(0)
    return STRUCT, bytes(found)


@lru_cache(maxsize=1 << 12)
def unsigned(value: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
