"""Column chunks as our own writer lays them out, decoded without a detour.

A column chunk is a run of pages; a page is a header, then its compressed body: levels, then values. Of all that
Parquet allows only what :func:`tokenlake.schema.open_writer` writes is understood here: zstd, PLAIN, no dictionary,
data pages of version 1 with a checksum, no nulls, no empty lists. Whatever is another way raises :class:`Unfamiliar`,
and the caller lets Arrow read it; what cannot be right in any file is a ValueError.

Values are copied out of the pages: a page is decompressed to the same memory as the one before, which is in the
processor's cache, and that is worth more than the copy costs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.ragged import Bools, Int32, Int64
from tokenlake.reading.arrays import BLOCKS
from tokenlake.reading.page_headers import PageHeader, parse_header

UInt8 = npt.NDArray[np.uint8]

_CODEC: Final = pa.Codec("zstd")
_SEEN: Final = 128
_EIGHT: Final = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]


class Unfamiliar(Exception):
    """Bytes that may be good Parquet, but are not laid out as our writer lays them out."""


def fixed_numbers(chunk: memoryview, rows: int, length: int, seen: SeenLevels) -> Int32:
    """Return a column of rows of `length` numbers, int32[rows, length] that cannot be written to.

    Raises:
        Unfamiliar: the pages are laid out in another way, or not all rows have so many values.
        ValueError, OSError: they are damaged.
    """
    found = BLOCKS.take(rows * length * 4).view(np.int32)
    at = 0
    for page in pages_of(chunk, rows * length, 32):
        seen.check(at % length, page)
        found[at : at + page.values] = np.frombuffer(page.data, "<i4")
        at += page.values
        del page  # its memory is that of the next one
    return _sealed(found).reshape(rows, length)


def fixed_bits(chunk: memoryview, rows: int, length: int, seen: SeenLevels) -> Bools:
    """Return a column of rows of `length` bits, bool[rows, length]; errors as of :func:`fixed_numbers`."""
    parts: list[UInt8] = []
    at = 0
    for page in pages_of(chunk, rows * length, 1):
        seen.check(at % length, page)
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
    levels: list[UInt8] = []
    for page in pages_of(chunk, values, 32):
        if not _all_ones(page.definition, page.values):
            raise Unfamiliar("lists that are null or empty")
        levels.append(decode_levels(page.repetition, page.values))
        parts.append(np.frombuffer(page.data, "<i4").astype(np.int32))
    offsets = np.append(np.flatnonzero(_joined(levels) == 0), values)
    if offsets[0]:
        raise Unfamiliar("a list that begins before the first page")
    return _sealed(_joined(parts)), offsets


@final
class SeenLevels:
    """Levels of rows of one length, compared with what they must be; what was found right once is known by its bytes.

    Args:
        length: values of a row.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._right: set[tuple[int, int, bytes, bytes]] = set()

    def check(self, phase: int, page: DecodedPage) -> None:
        """Raise Unfamiliar unless rows begin where they must in a page.

        Args:
            phase: values of the first row that lie in pages before.
        """
        key = (phase, page.values, page.repetition, page.definition)
        if key in self._right:
            return
        expected = np.ones(page.values, np.uint8)
        expected[-phase % self._length :: self._length] = 0
        right = np.array_equal(decode_levels(page.repetition, page.values), expected)
        if not right or not _all_ones(page.definition, page.values):
            raise Unfamiliar(f"rows that do not all have {self._length} values")
        if len(self._right) >= _SEEN:
            self._right.clear()
        self._right.add(key)


class DecodedPage(NamedTuple):
    """A decompressed page.

    Attributes:
        values: how many.
        repetition, definition: the levels, as they are stored.
        data: the values, as they are stored.
    """

    values: int
    repetition: bytes
    definition: bytes
    data: memoryview


def pages_of(chunk: memoryview, values: int, bits: int) -> Iterator[DecodedPage]:
    """Yield the pages of a column chunk that holds so many values of some bits each.

    Raises:
        Unfamiliar: a page is not of the one kind that is understood.
        ValueError, OSError: the pages hold another number of values, have sizes that cannot be, or are damaged.
    """
    at, left = 0, values
    while at < len(chunk):
        header = parse_header(chunk, at)
        if not header.ours:
            raise Unfamiliar("the header of a page has another form")
        at = header.begin + header.stored
        if not 0 < header.values <= left:
            raise ValueError(f"a page of {header.values} values; expected 1 to {left}")
        if header.stored < 0 or at > len(chunk):
            raise ValueError(f"a page of {header.stored} bytes; {len(chunk) - header.begin} are there")
        left -= header.values
        yield _decoded(chunk[header.begin : at], header, (header.values * bits + 7) // 8)
    if left:
        raise ValueError(f"pages of {values - left} values; expected {values}")


def _decoded(stored: memoryview, header: PageHeader, wide: int) -> DecodedPage:
    """Decompress a page whose values take `wide` bytes."""
    # Levels take far less than a byte each, but for what a few of them begin with.
    if not wide < header.size <= wide + header.values + 64:
        raise ValueError(f"a page of {header.size} bytes decompressed; expected {wide} of values, and levels")
    if (found := zlib.crc32(stored)) != header.crc:
        raise ValueError(f"the checksum of a page is {found:08x}; expected {header.crc:08x}")
    buffer: Any = _CODEC.decompress(stored, header.size)
    body = memoryview(buffer)
    repetition, middle = _levels(body, 0)
    definition, begin = _levels(body, middle)
    if len(body) - begin != wide:
        raise Unfamiliar(f"{len(body) - begin} bytes of values; expected {wide}")
    return DecodedPage(header.values, repetition, definition, body[begin:])


def _levels(body: memoryview, at: int) -> tuple[bytes, int]:
    """Return levels, which their number of bytes stands before, and where they end."""
    end = at + 4 + int.from_bytes(body[at : at + 4], "little")
    if end > len(body):
        raise Unfamiliar("levels that are longer than the page")
    return bytes(body[at + 4 : end]), end


def decode_levels(data: bytes, count: int) -> UInt8:
    """Return `count` levels of lists that are never null and never empty, uint8[count] of 0 and 1.

    The repetition level is 0 where a row begins; the definition level is 1 for every value. They are stored as runs: a
    varint, odd for a run of bits (its half: bytes of eight levels each, the first lowest), even for one level repeated
    (its half: how often; the level follows in a byte).

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


def _all_ones(data: bytes, count: int) -> bool:
    return bool(decode_levels(data, count).all())


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


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
