"""Reader of Thrift's compact protocol.

Parquet stores footers and the headers of pages in it.

Neither has a checksum, and Arrow's Python objects end the process where some of their
fields contradict each other. Therefore both are read here: a struct is ``{number of a
field: its value}``, nothing is believed, and impossible bytes are a ValueError.
:mod:`tokenlake.runtime.parquet.thrift_writer` describes the protocol and writes it.
"""

from __future__ import annotations

from typing import Any, Final

STRUCT: Final = 12

# Thrift's numbers of types; a field of type bool has its value as the type.
_TRUE = 1
_FALSE = 2
_BYTE = 3
_DOUBLE = 7
_BINARY = 8
_INTEGERS: Final = (4, 5, 6)
_LISTS: Final = (9, 10)
_MOST_DEEP: Final = 16  # levels of structs and lists; recursion must end

Struct = dict[int, Any]  # fields by their numbers


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


def _struct(
    data: bytes | memoryview, offset: int, levels_left: int
) -> tuple[Struct, int]:
    """Return the struct that begins at an offset, and the offset after it."""
    if not levels_left:
        raise ValueError(f"structs are nested more than {_MOST_DEEP} deep")
    fields: Struct = {}
    field_number = 0
    # A field has a head: distance to the number before, and type. A head of 0 ends the
    # struct.
    while field_head := data[offset]:
        offset += 1
        field_type = field_head & 15
        # A distance of 0 means that the number of the field follows.
        if field_head > 15:
            field_number += field_head >> 4
        else:
            value, offset = read_unsigned(data, offset)
            field_number = _signed(value)
        if field_type in _INTEGERS:
            # Most fields are numbers: a call for each would double the time.
            value = data[offset]
            offset += 1
            if value > 0x7F:
                value &= 0x7F
                shift = 7
                while (byte := data[offset]) > 0x7F and shift < 63:
                    value |= (byte & 0x7F) << shift
                    offset += 1
                    shift += 7
                if byte > 0x7F:
                    raise ValueError("a number has more than 64 bits")
                value |= byte << shift
                offset += 1
            fields[field_number] = value >> 1 ^ -(value & 1)
        elif field_type in (_TRUE, _FALSE):
            fields[field_number] = field_type == _TRUE
        elif field_type == STRUCT:
            fields[field_number], offset = _struct(data, offset, levels_left - 1)
        elif field_type in _LISTS:
            fields[field_number], offset = _list(data, offset, levels_left)
        else:
            fields[field_number], offset = _value(field_type, data, offset)
    return fields, offset + 1


def _list(
    data: bytes | memoryview, offset: int, levels_left: int
) -> tuple[list[Any], int]:
    """Return the list that begins at an offset, and the offset after it."""
    if not levels_left:
        raise ValueError(f"lists are nested more than {_MOST_DEEP} deep")
    list_head = data[offset]
    offset += 1
    item_count = list_head >> 4
    item_type = list_head & 15
    # 15 means that the size follows.
    if item_count == 15:
        item_count, offset = read_unsigned(data, offset)
    # Each value takes a byte at least: a false size must not reserve memory.
    if item_count > len(data) - offset:
        raise Truncated(
            f"a list of {item_count} values; {len(data) - offset} bytes are there"
        )
    items: list[Any] = []
    # Structs have a loop of their own: the lists of row groups and columns are the
    # longest ones.
    if item_type == STRUCT:
        for _ in range(item_count):
            list_item, offset = _struct(data, offset, levels_left - 1)
            items.append(list_item)
        return items, offset
    # Short forms of other values are read here: a call for each would double the time.
    for _ in range(item_count):
        first_byte = data[offset]
        # A short name, as nearly all are.
        if (
            item_type == _BINARY
            and first_byte < 0x80
            and offset + first_byte < len(data)
        ):
            items.append(bytes(data[offset + 1 : offset + 1 + first_byte]))
            offset += 1 + first_byte
        elif item_type in _INTEGERS and first_byte < 0x80:
            items.append(first_byte >> 1 ^ -(first_byte & 1))
            offset += 1
        elif item_type in _LISTS:
            list_item, offset = _list(data, offset, levels_left - 1)
            items.append(list_item)
        else:
            list_item, offset = _value(item_type, data, offset)
            items.append(list_item)
    return items, offset


def _value(value_type: int, data: bytes | memoryview, offset: int) -> tuple[Any, int]:
    """Return a value that is neither a list nor a struct, and the offset after it."""
    if value_type == _BINARY:
        byte_count, offset = read_unsigned(data, offset)
        return _bytes(data, offset, byte_count)
    if value_type in _INTEGERS:
        value, offset = read_unsigned(data, offset)
        return _signed(value), offset
    if value_type == _DOUBLE:
        return _bytes(data, offset, 8)
    if value_type in (_TRUE, _FALSE, _BYTE):  # in a list each is a byte
        return data[offset], offset + 1
    raise ValueError(f"a field has the unknown type {value_type}")


def _bytes(data: bytes | memoryview, offset: int, size: int) -> tuple[bytes, int]:
    """Return some bytes from an offset on, and the offset after them."""
    end_offset = offset + size
    if end_offset > len(data):
        raise Truncated(f"a value of {size} bytes; {len(data) - offset} are there")
    return bytes(data[offset:end_offset]), end_offset


def _signed(value: int) -> int:
    """Return the number whose zigzag form is a value: 0, -1, 1 for 0, 1, 2."""
    return value >> 1 ^ -(value & 1)


def read_unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned number in groups of seven bits, and the offset after it.

    Raises:
        IndexError: The bytes end before the number does.
        ValueError: The number has more than 64 bits.
    """
    # The lowest seven bits come first; the eighth bit says that another byte follows.
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
