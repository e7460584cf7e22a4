"""Headers of pages, in the one form that our writer gives them.

A header is a Thrift struct in the compact protocol: each field a byte (steps from the last field's id << 4 | type),
then its value; integers are zigzag varints; a zero byte ends a struct::

    PageHeader       1 type = DATA_PAGE   2 uncompressed size   3 compressed size   4 crc   5 DataPageHeader
    DataPageHeader   1 values   2 encoding = PLAIN   3, 4 encoding of levels = RLE   5 statistics, none or empty

All of it but four numbers is the same in every page, so that a pattern says all there is to say about it.

Repetition and definition levels of lists that are never null and never empty.

Each level is 0 or 1. The repetition level is 0 where a row begins; the definition level is 1 for every value. They
are stored as runs: a varint, odd for a run of bits (its half: bytes of eight levels each, the first lowest), even for
one level repeated (its half: how often; the level follows in a byte).

Pages of a column chunk: each checked against its checksum, then decompressed.

From pages to rows. The values of a row may lie in several pages.

Values are copied out of the pages: a page is decompressed to the same memory as the one before, which is in the
processor's cache, and that is worth more than the copy costs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.reading.arrays import BLOCKS
from tokenlake.reading.thrift import signed

_NUMBER: Final = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
_FORM: Final = re.compile(
    rb"\x15\x00"
    + (rb"\x15" + _NUMBER) * 3
    + rb"\x1c\x15"
    + _NUMBER
    + rb"\x15\x00\x15\x06\x15\x06(?:\x1c\x00)?\x00\x00",
    re.DOTALL,
)


class Unfamiliar(Exception):
    """Bytes that may be good Parquet, but are not laid out as our writer lays them out."""


class PageHeader(NamedTuple):
    """What a page says of itself.

    Attributes:
        begin: where its body begins.
        size, stored: bytes of its body, and of what that is compressed to.
        crc: of the compressed body, unsigned.
        values: or levels, which there are as many of.
    """

    begin: int
    size: int
    stored: int
    crc: int
    values: int


def parse_header(data: bytes | memoryview, at: int = 0) -> PageHeader:
    """Read the header that begins at a place.

    Raises:
        Unfamiliar: it has another form, or numbers of more than 32 bits.
    """
    found = _FORM.match(data, at)
    if found is None:
        raise Unfamiliar("the header of a page has another form")
    size, stored, crc, values = map(signed, found.groups())
    if not all(-(1 << 31) <= number < 1 << 31 for number in (size, stored, crc, values)):
        raise Unfamiliar("a number in the header of a page has more than 32 bits")
    return PageHeader(found.end(), size, stored, crc & 0xFFFFFFFF, values)


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


_CODEC: Final = pa.Codec("zstd")


class Page(NamedTuple):
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


def page_headers(chunk: memoryview, values: int, *, bits: int) -> Iterator[PageHeader]:
    """Yield the headers of a column chunk that holds so many values of some bits each.

    What they say of sizes is possible: the bodies lie in the chunk, one after the other, and no page decompresses to
    more than its values can take.

    Raises:
        Unfamiliar: a page is not of the one kind that is understood.
        ValueError: the pages hold another number of values, or have sizes that cannot be.
    """
    at, left = 0, values
    while at < len(chunk):
        header = parse_header(chunk, at)
        at = header.begin + header.stored
        wide = _bytes(header.values, bits)
        if not 0 < header.values <= left:
            raise ValueError(f"a page of {header.values} values; expected 1 to {left}")
        if header.stored < 0 or at > len(chunk):
            raise ValueError(f"a page of {header.stored} bytes; {len(chunk) - header.begin} are there")
        # Levels take far less than a byte each, but for what a few of them begin with.
        if not wide < header.size <= wide + header.values + 64:
            raise ValueError(
                f"a page of {header.size} bytes decompressed; expected {wide} of values, and levels"
            )
        left -= header.values
        yield header
    if left:
        raise ValueError(f"pages of {values - left} values; expected {values}")


def read_page(chunk: memoryview, header: PageHeader, *, bits: int) -> Page:
    """Decompress a page of values of some bits each.

    Raises:
        Unfamiliar: its parts do not have the sizes that they must have.
        ValueError, OSError: it is damaged.
    """
    stored = chunk[header.begin : header.begin + header.stored]
    if (found := zlib.crc32(stored)) != header.crc:
        raise ValueError(f"the checksum of a page is {found:08x}; expected {header.crc:08x}")
    buffer: Any = _CODEC.decompress(stored, header.size)
    body = memoryview(buffer)
    repetition, middle = _levels(body, 0)
    definition, begin = _levels(body, middle)
    if len(body) - begin != (wide := _bytes(header.values, bits)):
        raise Unfamiliar(f"{len(body) - begin} bytes of values; expected {wide}")
    return Page(header.values, repetition, definition, body[begin:])


def _levels(body: memoryview, at: int) -> tuple[bytes, int]:
    """Return levels, which their number of bytes stands before, and where they end."""
    end = at + 4 + int.from_bytes(body[at : at + 4], "little")
    if end > len(body):
        raise Unfamiliar("levels that are longer than the page")
    return bytes(body[at + 4 : end]), end


def _bytes(values: int, bits: int) -> int:
    return (values * bits + 7) // 8


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
