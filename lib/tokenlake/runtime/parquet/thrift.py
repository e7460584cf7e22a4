"""Reader of Thrift's compact protocol, in which Parquet stores footers and the headers
of pages.

Neither has a checksum, and Arrow's Python objects end the process where some of their
fields contradict each other. Therefore both are read here: a struct is ``{number of a
field: its value}``, nothing is believed, and impossible bytes are a ValueError.
:mod:`tokenlake.runtime.parquet.thrift_writer` describes the protocol and writes it.
"""

from __future__ import annotations

from typing import Any, Final

STRUCT: Final = 12

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY = 1, 2, 3, 7, 8
_INTEGERS: Final = (4, 5, 6)
_LISTS: Final = (9, 10)
_MOST_DEEP: Final = 16

Struct = dict[int, Any]


class Truncated(ValueError):
    """The bytes end before the struct does."""


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """Return the struct that begins at byte `at`, and the offset after it.

    Raises:
        Truncated: The bytes end before the struct does.
        ValueError: The bytes are no struct.
    """
    try:
        return _struct(data, at, _MOST_DEEP)
    except IndexError as error:
        raise Truncated("a struct goes on after the last byte") from error


def _struct(data: bytes | memoryview, at: int, levels_left: int) -> tuple[Struct, int]:
    if not levels_left:
        raise ValueError(f"structs are nested more than {_MOST_DEEP} deep")
    fields: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            value, at = read_unsigned(data, at)
            number = _signed(value)
        if kind in _INTEGERS:
            # Most fields are numbers: a call for each would double the time.
            value = data[at]
            at += 1
            if value > 0x7F:
                value &= 0x7F
                shift = 7
                while (byte := data[at]) > 0x7F and shift < 63:
                    value |= (byte & 0x7F) << shift
                    at += 1
                    shift += 7
                if byte > 0x7F:
                    raise ValueError("a number has more than 64 bits")
                value |= byte << shift
                at += 1
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind == STRUCT:
            fields[number], at = _struct(data, at, levels_left - 1)
        elif kind in _LISTS:
            fields[number], at = _list(data, at, levels_left)
        else:
            fields[number], at = _value(kind, data, at)
    return fields, at + 1


def _list(data: bytes | memoryview, at: int, levels_left: int) -> tuple[list[Any], int]:
    if not levels_left:
        raise ValueError(f"lists are nested more than {_MOST_DEEP} deep")
    head = data[at]
    at += 1
    size = head >> 4
    kind = head & 15
    if size == 15:
        size, at = read_unsigned(data, at)
    if size > len(data) - at:
        raise Truncated(f"a list of {size} values; {len(data) - at} bytes are there")
    items: list[Any] = []
    if kind == STRUCT:
        for _ in range(size):
            item, at = _struct(data, at, levels_left - 1)
            items.append(item)
        return items, at
    for _ in range(size):
        first = data[at]
        # A short name, as nearly all are.
        if kind == _BINARY and first < 0x80 and at + first < len(data):
            items.append(bytes(data[at + 1 : at + 1 + first]))
            at += 1 + first
        elif kind in _INTEGERS and first < 0x80:
            items.append(first >> 1 ^ -(first & 1))
            at += 1
        elif kind in _LISTS:
            item, at = _list(data, at, levels_left - 1)
            items.append(item)
        else:
            item, at = _value(kind, data, at)
            items.append(item)
    return items, at


def _value(kind: int, data: bytes | memoryview, at: int) -> tuple[Any, int]:
    """Return a value that is neither a list nor a struct, and the offset after it."""
    if kind == _BINARY:
        size, at = read_unsigned(data, at)
        return _bytes(data, at, size)
    if kind in _INTEGERS:
        value, at = read_unsigned(data, at)
        return _signed(value), at
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


def _signed(value: int) -> int:
    """Return the number whose zigzag form is `value`: 0, -1, 1, -2 ... for 0, 1, 2,
    3 ...
    """
    return value >> 1 ^ -(value & 1)


def read_unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned number in groups of seven bits, and the offset after it.

    Raises:
        IndexError: The bytes end before the number does.
        ValueError: The number has more than 64 bits.
    """
    value = 0
    shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")
