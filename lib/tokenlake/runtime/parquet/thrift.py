"""Thrift's compact protocol, in which Parquet has footers and the headers of pages, as it is read.

Neither has a checksum, and Arrow's Python objects end the process where some of their fields contradict each other. So
both are read here: structs are ``{id of a field: its value}``, and nothing is believed; what cannot be is a ValueError.
:mod:`tokenlake.runtime.parquet.writer` writes them.
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
            value, at = read_unsigned(data, at)
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
        size, at = read_unsigned(data, at)
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
        size, at = (data[at], at + 1) if data[at] < 0x80 else read_unsigned(data, at)
        return _bytes(data, at, size)
    if kind in _INTEGERS:
        value, at = (data[at], at + 1) if data[at] < 0x80 else read_unsigned(data, at)
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


def read_unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned number in groups of seven bits, and where it ends; ValueError, IndexError for none."""
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")
