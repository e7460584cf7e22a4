"""The pages of a Parquet column chunk, from their headers alone: what decoding them can cost.

A footer may say anything of a chunk's size; a page's header says what the decoder will believe.

Columns that would take far more memory than what is stored of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from tokenlake.reading.page import Unfamiliar, parse_header
from tokenlake.reading.pagethrift import read_struct

Pread = Callable[[int, int], bytes]
"""(size, offset) -> bytes, fewer only at the end of the file."""

UNFOLDED_BYTES: Final = 1 << 30  # what little may unfold to
_UNFOLDED_TIMES: Final = 100


class Bomb(ValueError):
    """Decoding would take far more memory than what is stored can account for."""


def check_unfolded(decoded: int, stored: int) -> None:
    """Raise Bomb if `decoded` bytes came, or will come, out of `stored` ones that cannot account for them."""
    if decoded > UNFOLDED_BYTES and decoded > _UNFOLDED_TIMES * stored:
        raise Bomb(f"{stored} bytes of pages unfold to {decoded} bytes and more, as in a decompression bomb")


_PLAIN: Final = 0
PLAIN_DICTIONARY: Final = 2
DELTA_BYTE_ARRAY: Final = 7
RLE_DICTIONARY: Final = 8

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DETAILS: Final = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}  # the header's field for each kind of page
_HEADER_SIZES: Final = (192, 64 << 10, 16 << 20)  # nearly all fit the first; statistics may be long


class Page(NamedTuple):
    """One page.

    Attributes:
        dictionary: whether it holds a dictionary, not data.
        size: bytes once it is decompressed.
        values: how many values it holds, nulls included; of a dictionary, its entries.
        encoding: Parquet's number of it.
    """

    dictionary: bool
    size: int
    values: int
    encoding: int

    @property
    def indices(self) -> bool:
        """Whether it holds indices into the dictionary."""
        return not self.dictionary and self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)


def walk_pages(pread: Pread, column: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """Yield the pages of a column chunk in order, until there are as many values as its footer counts.

    Raises:
        ValueError: something is no page header, or the chunk ends too early.
    """
    return walk_chunk(pread, chunk_start(column), column.total_compressed_size, column.num_values)


def walk_chunk(pread: Pread, at: int, size: int, values: int) -> Iterator[Page]:
    """Yield the pages of a column chunk of `size` bytes from `at` on, until there are so many values.

    Raises:
        ValueError: something is no page header, or the chunk ends too early.
    """
    end, left = at + size, values
    while left > 0:
        if at >= end:
            raise ValueError(f"its pages hold {left} values fewer than the {values} of the footer")
        page, size, stored = _page_at(pread, at)
        if stored < 0 or (page and (page.size < 0 or page.values < 0)):
            raise ValueError(f"the page header at byte {at} counts less than nothing")
        if page:
            left -= 0 if page.dictionary else page.values
            yield page
        at += size + stored


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    """Return the offset of a column chunk's first page."""
    first: int = column.data_page_offset
    dictionary: int | None = column.dictionary_page_offset
    return dictionary if dictionary and dictionary < first else first


def _page_at(pread: Pread, at: int) -> tuple[Page | None, int, int]:
    """Return the page whose header is there, None for a kind that decoders pass over, and the sizes of both."""
    try:  # as our writer writes it, which is found out three times as fast
        ours = parse_header(pread(_HEADER_SIZES[0], at))
        return Page(False, ours.size, ours.values, _PLAIN), ours.begin, ours.stored
    except Unfamiliar:
        header, size = _header(pread, at)
        return _page(header), size, _count(header, 3)


def _header(pread: Pread, at: int) -> tuple[dict[int, Any], int]:
    for size in _HEADER_SIZES:
        data = pread(size, at)
        try:
            return read_struct(data)
        except IndexError:
            if len(data) < size:
                break
        except ValueError as error:
            raise ValueError(f"the page header at byte {at} is none: {error}") from error
    raise ValueError(f"the page header at byte {at} has no end")


def _page(header: dict[int, Any]) -> Page | None:
    """Return the page, None for a kind that decoders pass over."""
    kind = header.get(1)
    details: Any = header.get(_DETAILS.get(kind, 0)) if isinstance(kind, int) else None
    if not isinstance(details, dict):
        return None
    encoding = _count(details, 4 if kind == _DATA_V2 else 2)
    return Page(kind == _DICTIONARY, _count(header, 2), _count(details, 1), encoding)


def _count(struct: dict[int, Any], field: int) -> int:
    value = struct.get(field)
    return value if isinstance(value, int) else -1
