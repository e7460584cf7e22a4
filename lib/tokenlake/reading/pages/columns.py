"""From pages to rows. The values of a row may lie in several pages.

Values are copied out of the pages: a page is decompressed to the same memory as the one before, which is in the
processor's cache, and that is worth more than the copy costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenlake.reading.blocks import BLOCKS
from tokenlake.reading.pages.header import Unfamiliar
from tokenlake.reading.pages.levels import SeenLevels, all_ones, decode_levels
from tokenlake.reading.pages.page import Page, page_headers, read_page

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def fixed_numbers(chunk: memoryview, rows: int, length: int, seen: SeenLevels) -> Int32:
    """Return a column of rows of `length` numbers, int32[rows, length] that cannot be written to.

    Raises:
        Unfamiliar: the pages are laid out in another way, or not all rows have so many values.
        ValueError, OSError: they are damaged.
    """
    found = BLOCKS.take(rows * length * 4).view(np.int32)
    at = 0
    for header in page_headers(chunk, rows * length, bits=32):
        at += _put_numbers(read_page(chunk, header, bits=32), found, at, length, seen)
    return _sealed(found).reshape(rows, length)


def fixed_bits(chunk: memoryview, rows: int, length: int, seen: SeenLevels) -> Bools:
    """Return a column of rows of `length` bits, bool[rows, length]; errors as of :func:`fixed_numbers`."""
    parts: list[npt.NDArray[np.uint8]] = []
    at = 0
    for header in page_headers(chunk, rows * length, bits=1):
        page = read_page(chunk, header, bits=1)
        seen.check(at % length, page.values, page.repetition, page.definition)
        parts.append(np.unpackbits(np.frombuffer(page.data, np.uint8), count=page.values, bitorder="little"))
        at += page.values
    return _sealed(_joined(parts).view(np.bool_)).reshape(rows, length)


def list_numbers(chunk: memoryview, values: int) -> tuple[Int32, Int64]:
    """Return the `values` numbers of n lists, one list after the other, and where each begins and the last ends.

    Returns:
        int32[values] that cannot be written to, and int64[n + 1] from 0.

    Raises:
        Unfamiliar: the pages are laid out in another way, or a list is null or empty.
        ValueError, OSError: they are damaged.
    """
    parts: list[Int32] = []
    levels: list[npt.NDArray[np.uint8]] = []
    for header in page_headers(chunk, values, bits=32):
        page = read_page(chunk, header, bits=32)
        if not all_ones(page.definition, page.values):
            raise Unfamiliar("lists that are null or empty")
        levels.append(decode_levels(page.repetition, page.values))
        parts.append(np.frombuffer(page.data, "<i4").astype(np.int32))
    offsets = np.append(np.flatnonzero(_joined(levels) == 0), values)
    if offsets[0]:
        raise Unfamiliar("a list that begins before the first page")
    return _sealed(_joined(parts)), offsets


def _put_numbers(page: Page, target: Int32, at: int, length: int, seen: SeenLevels) -> int:
    """Copy a page's values to their place and return how many they are; the page is not kept."""
    seen.check(at % length, page.values, page.repetition, page.definition)
    target[at : at + page.values] = np.frombuffer(page.data, "<i4")
    return page.values


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
