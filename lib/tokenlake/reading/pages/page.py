"""Pages of a column chunk: each checked against its checksum, then decompressed."""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tokenlake.reading.pages.header import PageHeader, Unfamiliar, parse_header

_CODEC: Final = pa.Codec("zstd")


class Page(NamedTuple):
    """A decompressed page.

    Attributes:
        values: how many.
        repetition, definition: the levels, as they are stored.
        body: all bytes of the page, with the levels.
        begin: where the values begin in it; they go on to its end.
    """

    values: int
    repetition: bytes
    definition: bytes
    body: memoryview
    begin: int


def read_pages(chunk: memoryview, count: int, *, bits: int) -> list[Page]:
    """Decompress the pages of a column chunk that holds `count` values of some bits each.

    Nothing is decompressed before its checksum is right and its size is one that so many values can have.

    Raises:
        Unfamiliar: a page is not of the one kind that is understood.
        ValueError, OSError: the pages are damaged, or hold another number of values.
    """
    pages: list[Page] = []
    at = 0
    while at < len(chunk):
        header = parse_header(chunk, at)
        at = header.begin + header.stored
        pages.append(_page(chunk, header, count, bits))
        count -= header.values
    if count:
        raise ValueError(f"pages end {count} values early")
    return pages


def _page(chunk: memoryview, header: PageHeader, most: int, bits: int) -> Page:
    if not 0 < header.values <= most:
        raise ValueError(f"a page of {header.values} values; expected 1 to {most}")
    end, wide = header.begin + header.stored, (header.values * bits + 7) // 8
    if header.stored < 0 or end > len(chunk):
        raise ValueError(f"a page of {header.stored} bytes; {len(chunk) - header.begin} are there")
    # Levels take far less than a bit of each value, or a few of each where rows are short.
    if not wide < header.size <= wide + header.values + 64:
        raise ValueError(
            f"a page of {header.size} bytes, decompressed; expected {wide} of values, and levels"
        )
    stored = chunk[header.begin : end]
    if (found := zlib.crc32(stored)) != header.crc:
        raise ValueError(f"the checksum of a page is {found:08x}; expected {header.crc:08x}")
    buffer: Any = _CODEC.decompress(stored, header.size)
    return _parts(memoryview(buffer).toreadonly(), header, wide)


def _parts(body: memoryview, header: PageHeader, wide: int) -> Page:
    repetition, middle = _levels(body, 0)
    definition, begin = _levels(body, middle)
    if len(body) - begin != wide:
        raise Unfamiliar(f"{len(body) - begin} bytes of values; expected {wide}")
    return Page(header.values, repetition, definition, body, begin)


def _levels(body: memoryview, at: int) -> tuple[bytes, int]:
    """Return levels, which their number of bytes stands before, and where they end."""
    end = at + 4 + int.from_bytes(body[at : at + 4], "little")
    if end > len(body):
        raise Unfamiliar("levels that are longer than the page")
    return bytes(body[at + 4 : end]), end
