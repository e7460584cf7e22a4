"""Repetition and definition levels of lists that are never null and never empty.

Each level is 0 or 1. The repetition level is 0 where a row begins; the definition level is 1 for every value. They
are stored as runs: a varint, odd for a run of bits (its half: bytes of eight levels each, the first lowest), even for
one level repeated (its half: how often; the level follows in a byte).
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.reading.pages.header import Unfamiliar

UInt8 = npt.NDArray[np.uint8]

_SEEN: Final = 128
_EIGHT: Final = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]


def decode_levels(data: bytes, count: int) -> UInt8:
    """Return `count` levels, uint8[count] of 0 and 1.

    Raises:
        Unfamiliar: they are fewer, or something else follows them.
    """
    parts: list[bytes] = []
    at, left = 0, count
    while left > 0:
        head, at = _varint(data, at)
        length = head >> 1
        if head & 1:
            end, taken = at + length, min(8 * length, left)
            if not 0 < length <= (left + 7) >> 3 or end > len(data):
                raise Unfamiliar("a run of levels that goes on too long")
            parts.extend(map(_EIGHT.__getitem__, data[at:end]))
            if taken < 8 * length:
                parts[-1] = parts[-1][: taken - 8 * length]
        else:
            end, taken = at + 1, length
            if not 0 < length <= left or end > len(data) or data[at] > 1:
                raise Unfamiliar("a run of levels that goes on too long, or of another level than 0 and 1")
            parts.append(data[at:end] * length)
        at, left = end, left - taken
    if at != len(data):
        raise Unfamiliar("bytes after the last level")
    return np.frombuffer(b"".join(parts), np.uint8)


def all_ones(data: bytes, count: int) -> bool:
    """Return whether `count` levels are all 1; Unfamiliar as :func:`decode_levels`."""
    return data == _ones(count) or bool(decode_levels(data, count).all())


@final
class SeenLevels:
    """Levels of rows of one length, compared with what they must be; what was found right once is known by its bytes.

    Args:
        length: values of a row.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._right: set[tuple[int, int, bytes, bytes]] = set()

    def check(self, phase: int, count: int, repetition: bytes, definition: bytes) -> None:
        """Raise Unfamiliar unless rows begin where they must in a page of `count` values.

        Args:
            phase: values of the first row that lie in pages before.
            count: of values.
            repetition, definition: the levels as they are stored.
        """
        key = (phase, count, repetition, definition)
        if key in self._right:
            return
        levels = decode_levels(repetition, count)
        expected = np.ones(count, np.uint8)
        expected[-phase % self._length :: self._length] = 0
        if not np.array_equal(levels, expected) or not all_ones(definition, count):
            raise Unfamiliar(f"rows that do not all have {self._length} values")
        if len(self._right) >= _SEEN:
            self._right.clear()
        self._right.add(key)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number of at most 32 bits, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise Unfamiliar("a run of levels without an end")


def _ones(count: int) -> bytes:
    """Return one run of `count` levels 1."""
    value, data = count << 1, bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value, 1])
