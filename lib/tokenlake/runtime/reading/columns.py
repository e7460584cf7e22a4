"""Whole column chunks of packed rows, decoded page by page.

Where a column chunk is one page of indices, its numbers stay in the memory that the
page was decompressed to. Otherwise they are copied: each page is decompressed to the
memory of the page before, which is in the processor's cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64, UInt8
from tokenlake.runtime.reading.blocks import BLOCKS
from tokenlake.runtime.reading.levels import (
    SeenLevels,
    Unfamiliar,
    decode_levels,
    is_all_ones,
    joined,
)
from tokenlake.runtime.reading.pages import pages_of
from tokenlake.runtime.reading.token_ids import Ids


def fixed_numbers(
    chunk: memoryview,
    rows: int,
    length: int,
    seen: SeenLevels,
    limit: int | None = None,
) -> Ids:
    """Return a column of rows of one length, read-only int32 or uint16 [rows, length].

    Args:
        chunk: Bytes of the column chunk.
        rows: Number of rows.
        length: Number of values of each row.
        seen: Check of the levels, shared by all column chunks of rows of this length.
        limit: Upper bound of the values, which are ids from 0 to `limit` - 1; None for
            any numbers.

    Raises:
        Unfamiliar: The pages have another layout, or not all rows have this length.
        ValueError, OSError: The pages are damaged, or a number is no id below `limit`.
    """
    values = rows * length
    column: Ids | None = None
    at = 0
    for page in pages_of(chunk, values, 32, limit):
        seen.check(at % length, page)
        numbers = page.numbers
        if page.indices and page.values == values:
            return _read_only(numbers).reshape(rows, length)
        if column is None:
            column = BLOCKS.take(values * numbers.itemsize).view(numbers.dtype)
        column[at : at + page.values] = numbers
        at += page.values
        del page, numbers  # the next page is decompressed to their memory
    if column is None:  # no values and no pages
        column = np.zeros(0, np.int32)
    return _read_only(column).reshape(rows, length)


def fixed_bits(chunk: memoryview, rows: int, length: int, seen: SeenLevels) -> Bools:
    """Return a column of rows of one length, read-only bool[rows, length].

    Errors are those of :func:`fixed_numbers`.
    """
    parts: list[UInt8] = []
    at = 0
    for page in pages_of(chunk, rows * length, 1):
        seen.check(at % length, page)
        stored_bits = np.frombuffer(page.data, np.uint8)
        parts.append(np.unpackbits(stored_bits, count=page.values, bitorder="little"))
        at += page.values
    return _read_only(joined(parts).view(np.bool_)).reshape(rows, length)


def list_numbers(chunk: memoryview, values: int) -> tuple[Int32, Int64]:
    """Return the numbers of n lists, one list after the other, and their offsets.

    Args:
        chunk: Bytes of the column chunk.
        values: Number of values of all lists.

    Returns:
        The numbers, read-only int32[values], and the begin of each list and the end of
        the last, int64[n + 1] from 0.

    Raises:
        Unfamiliar: The pages have another layout, or a list is null or empty.
        ValueError, OSError: The pages are damaged.
    """
    numbers: list[Int32] = []
    levels: list[UInt8] = []
    for page in pages_of(chunk, values, 32):
        if not is_all_ones(page.definition, page.values):
            raise Unfamiliar("lists that are null or empty")
        levels.append(decode_levels(page.repetition, page.values))
        numbers.append(page.numbers.astype(np.int32))
    begins = np.flatnonzero(joined(levels) == 0)
    if not len(begins) or begins[0]:
        raise Unfamiliar("a list that begins before the first page")
    return _read_only(joined(numbers)), np.append(begins, values)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
