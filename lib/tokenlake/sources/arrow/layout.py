"""Which buffers of an Arrow record batch belong to which column, and what they take once decompressed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from tokenlake.sources.arrow.messages import Message

_PREFIX: Final = 8


def column_buffers(schema: pa.Schema, message: Message) -> list[list[int]]:
    """Return for every top-level column the numbers of its buffers; ValueError if there are others."""
    variadic = iter(message.variadic)
    counts = [_count(field.type, variadic) for field in schema]
    if sum(counts) != len(message.buffers):
        raise ValueError(f"a batch has {len(message.buffers)} buffers, its schema needs {sum(counts)}")
    numbers = iter(range(sum(counts)))
    return [[next(numbers) for _ in range(count)] for count in counts]


def _count(kind: Any, variadic: Iterator[int]) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _count(kind.storage_type, variadic)
    if pa.types.is_dictionary(kind):
        return 2
    own = _own(kind, variadic)
    if pa.types.is_nested(kind):
        return own + sum(_count(kind.field(at).type, variadic) for at in range(kind.num_fields))
    return own


def _own(kind: Any, variadic: Iterator[int]) -> int:
    types = pa.types
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    if types.is_union(kind):
        return 1 if kind.mode == "sparse" else 2
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return 2 + next(variadic, 0)
    three = (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )
    return 3 if three else 2


def decoded_bytes(message: Message, numbers: list[int], pread: Callable[[int, int], bytes]) -> int:
    """Return what the buffers `numbers` take in memory; `pread` (size, offset) reads from the message's body."""
    total = 0
    for number in numbers:
        offset, size = message.buffers[number]
        if message.compressed and size >= _PREFIX:
            (declared,) = struct.unpack("<q", pread(_PREFIX, offset))
            total += size if declared == -1 else max(declared, 0)  # -1: stored as it is
        total += size
    return total


def all_numbers(columns: list[list[int]]) -> list[int]:
    """Return the buffers of all `columns`."""
    return list(chain.from_iterable(columns))
