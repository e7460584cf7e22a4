"""Repetition and definition levels of lists that are never null and never empty.

The repetition level of a value is 0 where a row begins, otherwise 1. The definition
level of every value is 1. Both are stored as runs. A run begins with an unsigned number
``head`` in groups of seven bits:

- ``head`` is odd: a run of bits. ``head >> 1`` bytes follow, each with eight levels,
  the lowest bit first. Bits after the last level of the page mean nothing.
- ``head`` is even: one level, ``head >> 1`` times. The level follows in one byte.

Example: rows of 4 values have the repetition levels ``0 1 1 1 0 1 1 1``. As a run of
bits they are ``03 ee``: head 3, one byte, 0b11101110. Their definition levels are ``10
01``: head 16, eight times level 1.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import UInt8
from tokenlake.runtime.parquet.thrift import read_unsigned

_MOST_KNOWN: Final = 128  # levels that are remembered


class Unfamiliar(Exception):
    """Bytes that may be valid Parquet, but have another layout than ours."""


class PageLevels(Protocol):
    """Part of a page that the check of levels needs.

    Attributes:
        values: Number of values.
        repetition: Repetition levels as stored.
        definition: Definition levels as stored.
    """

    @property
    def values(self) -> int: ...

    @property
    def repetition(self) -> bytes: ...

    @property
    def definition(self) -> bytes: ...


@final
class SeenLevels:
    """Check of the levels of rows of one length.

    Levels that were correct once are recognized by their bytes.

    Args:
        length: Number of values of a row.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._correct: set[tuple[int, int, bytes, bytes]] = set()

    def check(self, phase: int, page: PageLevels) -> None:
        """Raise Unfamiliar unless every row of a page begins where it must.

        Args:
            phase: Number of values of the page's first row that are in earlier pages.
            page: Page with its levels.
        """
        # Most pages of a dataset have the same levels: comparing bytes is far cheaper than
        # decoding them.
        key = (phase, page.values, page.repetition, page.definition)
        if key in self._correct:
            return
        # 0 at the first value of each row, 1 elsewhere.
        expected = np.ones(page.values, np.uint8)
        expected[-phase % self._length :: self._length] = 0
        is_correct = np.array_equal(
            decode_levels(page.repetition, page.values), expected
        )
        if not is_correct or not is_all_ones(page.definition, page.values):
            raise Unfamiliar(f"rows that do not all have {self._length} values")
        if len(self._correct) >= _MOST_KNOWN:
            self._correct.clear()
        self._correct.add(key)


def decode_levels(data: bytes, count: int) -> UInt8:
    """Return levels, uint8[count] of 0 and 1.

    Args:
        data: Levels as stored, without their length.
        count: Number of levels.

    Raises:
        Unfamiliar: The data hold fewer levels, other levels, or bytes after the last
            level.
    """
    # Run by run, until all levels are there. The length of a run is compared with the
    # missing levels before memory is allocated for it.
    runs: list[UInt8] = []
    byte_offset = 0
    missing = count
    while missing > 0:
        run_head, byte_offset = read_run_head(data, byte_offset)
        run_length = run_head >> 1
        if run_head & 1:
            # A run of bits.
            run_end = byte_offset + run_length
            if not 0 < run_length <= (missing + 7) >> 3 or run_end > len(data):
                raise Unfamiliar("a run of levels that is too long")
            levels_of_run = min(8 * run_length, missing)
            stored_bits = np.frombuffer(data, np.uint8, run_length, byte_offset)
            runs.append(
                np.unpackbits(stored_bits, count=levels_of_run, bitorder="little")
            )
        else:
            # One level, repeated.
            run_end = byte_offset + 1
            levels_of_run = run_length
            if (
                not 0 < run_length <= missing
                or run_end > len(data)
                or data[byte_offset] > 1
            ):
                raise Unfamiliar(
                    "a run of levels that is too long, or of a level other than 0 and 1"
                )
            runs.append(np.full(run_length, data[byte_offset], np.uint8))
        byte_offset = run_end
        missing -= levels_of_run
    if byte_offset != len(data):
        raise Unfamiliar("bytes after the last level")
    return joined(runs)


def is_all_ones(data: bytes, count: int) -> bool:
    """Return whether all stored levels are 1.

    The errors are those of :func:`decode_levels`.
    """
    return bool(decode_levels(data, count).all())


def read_run_head(data: bytes, at: int) -> tuple[int, int]:
    """Return the head of the run at byte `at`, and the offset after it.

    Unfamiliar is raised if the head is cut off.
    """
    try:
        return read_unsigned(data, at)
    except (IndexError, ValueError) as error:
        raise Unfamiliar("the head of a run of levels is cut off") from error


def joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays joined into one, without a copy where there is only one."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts)
