"""Structs in Thrift's compact protocol, read as they are: ``{id of a field: its value}``.

A footer has no checksum, and Arrow's Python objects end the process where some of its fields contradict each other.
So it is read here, with nothing believed: what cannot be is a ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

_TRUE, _FALSE, _BYTE, _INTS, _DOUBLE, _BINARY, _LISTS = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10)
STRUCT: Final = 12
_DEPTH: Final = 16

Struct = dict[int, Any]
ListReader = Callable[[bytes, int, Struct], tuple[Any, int] | None]
"""Reads a list that begins at a place, the fields before it being known, and returns it and where it ends; None where
it cannot."""


def read_struct(data: bytes, instead: tuple[int, ListReader] | None = None) -> Struct:
    """Read the struct that bytes begin with: integers, bytes, lists and structs.

    Args:
        instead: what reads the list that is a field of it, by the field's id.

    Raises:
        ValueError: there is none.
    """
    try:
        return _struct(data, 0, _DEPTH, instead)[0]
    except (IndexError, struct.error) as error:
        raise ValueError("a struct of the footer goes on after the footer's end") from error


def _struct(
    data: bytes, at: int, depth: int, instead: tuple[int, ListReader] | None = None
) -> tuple[Struct, int]:
    if not depth:
        raise ValueError(f"structs of the footer are nested more than {_DEPTH} deep")
    fields: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = integer(data, at)
        kind = head & 15
        if kind in _INTS:
            # What a footer consists of, for the most part: small numbers.
            byte = data[at]
            if byte < 0x80:
                fields[number], at = byte >> 1 ^ -(byte & 1), at + 1
            else:
                fields[number], at = integer(data, at)
        elif kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif (
            instead is not None
            and number == instead[0]
            and (found := instead[1](data, at, fields)) is not None
        ):
            fields[number], at = found
        else:
            fields[number], at = _value(kind, data, at, depth)
    return fields, at + 1


def _value(kind: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if kind in _INTS:
        return integer(data, at)
    if kind == STRUCT:
        return _struct(data, at, depth - 1)
    if kind in _LISTS:
        return _list(data, at, depth)
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        if at + size > len(data):
            raise ValueError(f"a text of {size} bytes in the footer; {len(data) - at} are there")
        return data[at : at + size], at + size
    if kind in (_TRUE, _FALSE, _BYTE):  # of a list: each is a byte
        return data[at], at + 1
    if kind == _DOUBLE:
        return struct.unpack_from("<d", data, at)[0], at + 8
    raise ValueError(f"a field of kind {kind} in the footer; Parquet has none")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    size, kind, at = list_head(data, at)
    found: list[Any] = []
    for _ in range(size):
        value, at = _value(kind, data, at, depth)
        found.append(value)
    return found, at


def list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Read what a list begins with: how many it has, of which kind, and where the first begins."""
    size, kind, at = data[at] >> 4, data[at] & 15, at + 1
    if size == 15:
        size, at = _unsigned(data, at)
    if size > len(data) - at:
        raise ValueError(f"a list of {size} in the footer; {len(data) - at} bytes are there")
    return size, kind, at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number in the footer has more than 64 bits")


def integer(data: bytes, at: int) -> tuple[int, int]:
    """Read a signed number, and return it and where it ends."""
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at


def signed(varint: bytes) -> int:
    """Return the signed number that a varint is: seven bits a byte, the lowest first, its sign the lowest of all."""
    value = 0
    for byte in reversed(varint):
        value = value << 7 | byte & 0x7F
    return value >> 1 ^ -(value & 1)
