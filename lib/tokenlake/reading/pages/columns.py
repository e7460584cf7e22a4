"""From pages to rows. The values of a row may lie in several pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenlake.reading.pages.header import Unfamiliar
from tokenlake.reading.pages.levels import SeenLevels, all_ones, decode_levels
from tokenlake.reading.pages.page import Page

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def fixed_rows(pages: Sequence[Page], length: int, seen: SeenLevels) -> list[Int32]:
    """Return rows of `length` values: views of the pages, copies where a row lies in several.

    Raises:
        Unfamiliar: the rows do not all have so many values.
    """
    rows: list[Int32] = []
    begun: list[Int32] = []
    have = 0  # values in `begun`
    for page in pages:
        seen.check(have, page.values, page.repetition, page.definition)
        values = _int32(page)
        if have:
            begun.append(values[: length - have])
            have += len(begun[-1])
            values = values[len(begun[-1]) :]
            if have == length:
                rows.append(_joined(begun))
                begun, have = [], 0
        whole = len(values) // length * length
        rows.extend(values[:whole].reshape(-1, length))
        if whole < len(values):
            begun, have = [values[whole:]], len(values) - whole
    if have:
        raise Unfamiliar(f"a last row of {have} values")
    return rows


def fixed_bits(pages: Sequence[Page], length: int, seen: SeenLevels) -> Bools:
    """Return rows of `length` bits, bool[rows, length]; Unfamiliar as :func:`fixed_rows`."""
    parts: list[npt.NDArray[np.uint8]] = []
    done = 0
    for page in pages:
        seen.check(done % length, page.values, page.repetition, page.definition)
        done += page.values
        packed = np.frombuffer(page.body, np.uint8, offset=page.begin)
        parts.append(np.unpackbits(packed, count=page.values, bitorder="little"))
    if done % length:
        raise Unfamiliar(f"a last row of {done % length} bits")
    found = (parts[0] if len(parts) == 1 else np.concatenate(parts)).view(np.bool_).reshape(-1, length)
    found.flags.writeable = False
    return found


def list_rows(pages: Sequence[Page]) -> tuple[Int32, Int64]:
    """Return the values of n lists, one list after the other, and where each begins and the last ends: int64[n + 1].

    Raises:
        Unfamiliar: a list is null or empty, or the first begins in the middle.
    """
    levels = [decode_levels(page.repetition, page.values) for page in pages]
    if not all(all_ones(page.definition, page.values) for page in pages):
        raise Unfamiliar("lists that are null or empty")
    values = _joined([_int32(page) for page in pages])
    joined = levels[0] if len(levels) == 1 else np.concatenate(levels)
    offsets = np.append(np.flatnonzero(joined == 0), len(joined))
    if offsets[0]:
        raise Unfamiliar("a list that begins before the first page")
    return values, offsets


def _int32(page: Page) -> Int32:
    return np.frombuffer(page.body, "<i4", offset=page.begin)


def _joined(parts: Sequence[Int32]) -> Int32:
    """All parts as one array that cannot be written to; a copy where there are several."""
    if len(parts) == 1:
        return parts[0]
    found = np.concatenate(parts)
    found.flags.writeable = False
    return found
