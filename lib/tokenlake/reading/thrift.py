"""Parquet's metadata as Thrift's compact protocol writes it: structs read as ``{id of a field: its value}``.

Neither a footer nor the header of a page has a checksum, and Arrow's Python objects end the process where some of their
fields contradict each other. So both are read here, with nothing believed: what cannot be is a ValueError.
"""

from __future__ import annotations

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
            number, at = _integer(data, at)
        if kind in _INTEGERS:
            # Most fields are numbers of one byte: a call for each would double the time.
            byte = data[at]
            if byte < 0x80:
                fields[number], at = byte >> 1 ^ -(byte & 1), at + 1
            else:
                fields[number], at = _integer(data, at)
        elif kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(kind, data, at, depth)
    return fields, at + 1


def _value(kind: int, data: bytes | memoryview, at: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == STRUCT:
        return _struct(data, at, depth - 1)
    if kind in _LISTS:
        return _list(data, at, depth)
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        return _bytes(data, at, size)
    if kind == _DOUBLE:
        return _bytes(data, at, 8)
    if kind in (_TRUE, _FALSE, _BYTE):  # in a list each is a byte
        return data[at], at + 1
    raise ValueError(f"a field has the unknown type {kind}")


def _list(data: bytes | memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    size, kind, at = data[at] >> 4, data[at] & 15, at + 1
    if size == 15:
        size, at = _unsigned(data, at)
    if size > len(data) - at:
        raise Truncated(f"a list of {size} values; {len(data) - at} bytes are there")
    found: list[Any] = []
    for _ in range(size):
        value, at = _value(kind, data, at, depth)
        found.append(value)
    return found, at


def _bytes(data: bytes | memoryview, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise Truncated(f"a value of {size} bytes; {len(data) - at} are there")
    return bytes(data[at : at + size]), at + size


def _integer(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at


def _unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")
