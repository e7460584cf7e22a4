"""The pages of a Parquet column chunk, from their headers alone: where they lie, and what decoding them can cost.

A footer may say anything of a chunk's size; a page's header says what a decoder will believe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from tokenlake.reading.thrift import Truncated, read_struct

Pread = Callable[[int, int], bytes]
"""(size, offset) -> bytes, fewer only at the end of the file."""

UNFOLDED_BYTES: Final = 1 << 30  # what little may unfold to
PLAIN_DICTIONARY: Final = 2
DELTA_BYTE_ARRAY: Final = 7
RLE_DICTIONARY: Final = 8

_UNFOLDED_TIMES: Final = 100
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DETAILS: Final = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}  # the header's field for each kind of page
_OUR_LEVELS: Final = {2: 0, 3: 3, 4: 3, 5: {}}  # PLAIN values, levels in runs, empty statistics or none
_HEADER_SIZES: Final = (192, 64 << 10, 16 << 20)  # nearly all fit the first; statistics may be long


class Bomb(ValueError):
    """Decoding would take far more memory than what is stored can account for."""


def check_unfolded(decoded: int, stored: int) -> None:
    """Raise Bomb if `decoded` bytes came, or will come, out of `stored` ones that cannot account for them."""
    if decoded > UNFOLDED_BYTES and decoded > _UNFOLDED_TIMES * stored:
        raise Bomb(f"{stored} bytes of pages unfold to {decoded} bytes and more, as in a decompression bomb")


class PageHeader(NamedTuple):
    """What a page says of itself; -1 where it does not say a number.

    Attributes:
        dictionary: whether it holds a dictionary, not values.
        size: bytes of its body once it is decompressed.
        values: how many values it holds, nulls included; of a dictionary, its entries.
        encoding: Parquet's number of it.
        begin: where its body begins.
        stored: bytes of its body in the file.
        crc: of the body in the file, unsigned.
        known: False for a page of another kind, which decoders pass over.
        ours: whether it is laid out as our writer does: version 1, PLAIN, levels in runs, a checksum, no statistics.
    """

    dictionary: bool
    size: int
    values: int
    encoding: int
    begin: int = 0
    stored: int = 0
    crc: int = 0
    known: bool = True
    ours: bool = False

    @property
    def indices(self) -> bool:
        """Whether it holds indices into the dictionary."""
        return not self.dictionary and self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)


def parse_header(data: bytes | memoryview, at: int = 0) -> PageHeader:
    """Read the header that begins at a place; ValueError where there is none, Truncated where it has no end."""
    header, begin = read_struct(data, at)
    kind = header.get(1)
    details: Any = header.get(_DETAILS.get(kind, 0)) if isinstance(kind, int) else None
    known = isinstance(details, dict)
    details = details if known else {}
    rest = {5: {}} | {field: value for field, value in details.items() if field != 1}
    return PageHeader(
        dictionary=known and kind == _DICTIONARY,
        size=_number(header, 2),
        values=_number(details, 1),
        encoding=_number(details, 4 if kind == _DATA_V2 else 2),
        begin=begin,
        stored=_number(header, 3),
        crc=_number(header, 4) & 0xFFFFFFFF,
        known=known,
        ours=header.keys() == {1, 2, 3, 4, 5} and kind == _DATA and rest == _OUR_LEVELS,
    )


def walk_pages(pread: Pread, column: pq.ColumnChunkMetaData) -> Iterator[PageHeader]:
    """Yield the pages of a column chunk in order, until there are as many values as its footer counts.

    Raises:
        ValueError: something is no page header, or the chunk ends too early.
    """
    return walk_chunk(pread, chunk_start(column), column.total_compressed_size, column.num_values)


def walk_chunk(pread: Pread, at: int, size: int, values: int) -> Iterator[PageHeader]:
    """Yield the pages of a column chunk of `size` bytes from `at` on, until there are so many values.

    Raises:
        ValueError: something is no page header, or the chunk ends too early.
    """
    end, left = at + size, values
    while left > 0:
        if at >= end:
            raise ValueError(f"its pages hold {left} values fewer than the {values} of the footer")
        page = _header_at(pread, at)
        if page.stored < 0 or (page.known and (page.size < 0 or page.values < 0)):
            raise ValueError(f"the page header at byte {at} counts less than nothing")
        if page.known:
            left -= 0 if page.dictionary else page.values
            yield page
        at += page.begin + page.stored


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    """Return the offset of a column chunk's first page."""
    first: int = column.data_page_offset
    dictionary: int | None = column.dictionary_page_offset
    return dictionary if dictionary and dictionary < first else first


def _header_at(pread: Pread, at: int) -> PageHeader:
    for size in _HEADER_SIZES:
        data = pread(size, at)
        try:
            return parse_header(data)
        except Truncated:
            if len(data) < size:
                break
        except ValueError as error:
            raise ValueError(f"the page header at byte {at} is none: {error}") from error
    raise ValueError(f"the page header at byte {at} has no end")


def _number(struct: dict[int, Any], field: int) -> int:
    value = struct.get(field)
    return value if isinstance(value, int) else -1
