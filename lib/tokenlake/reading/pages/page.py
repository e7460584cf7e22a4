"""Pages of a column chunk: each checked against its checksum, then decompressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tokenlake.reading.pages.header import PageHeader, Unfamiliar, parse_header

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
