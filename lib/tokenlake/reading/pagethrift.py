"""Thrift's compact form, as far as Parquet's page headers use it."""

from __future__ import annotations

from typing import Any, Final

_BOOL: Final = (1, 2)
_BYTE: Final = 3
_INTEGERS: Final = (4, 5, 6)
_DOUBLE: Final = 7
_BINARY: Final = 8
_LISTS: Final = (9, 10)
_STRUCT: Final = 12
_MAX_DEPTH: Final = 8


def read_struct(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the struct that begins at `at` as {field id: value}, and where it ends.

    Raises:
        IndexError: `data` ends before the struct does.
        ValueError: this is no struct.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"structs are nested more than {_MAX_DEPTH} levels deep")
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        found[number], at = _value(data, at, head & 0x0F, depth)
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == _STRUCT:
        return read_struct(data, at, depth + 1)
    if kind in _BOOL:
        return kind == 1, at
    if kind == _BINARY:
        size, at = _varint(data, at)
        return None, _within(data, at + size)
    if kind in (_BYTE, _DOUBLE):
        return None, _within(data, at + (1 if kind == _BYTE else 8))
    if kind in _LISTS:
        return _list(data, at, depth)
    raise ValueError(f"a field has the unknown type {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[None, int]:
    head = data[at]
    size, at = (head >> 4, at + 1) if head >> 4 < 15 else _varint(data, at + 1)
    kind = head & 0x0F
    if kind in _BOOL:  # inside a list they take a byte each
        return None, _within(data, at + size)
    for _ in range(size):
        _, at = _value(data, at, kind, depth + 1)
    return None, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("an integer has more than 64 bits")


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError(at)
    return at
