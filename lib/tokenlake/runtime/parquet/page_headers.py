"""Headers of pages, of any writer.

They give the place of a page, and the memory that decoding it can take.

A footer may state any size for a column chunk. The headers of its pages state the sizes
that a decoder will believe, so that they are read before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from tokenlake.base.arrays import Pread
from tokenlake.runtime.parquet.form import PLAIN, RLE_DICTIONARY
from tokenlake.runtime.parquet.pages import DATA_PAGE, DICTIONARY_PAGE, RLE
from tokenlake.runtime.parquet.thrift import Struct, Truncated, read_struct

PLAIN_DICTIONARY: Final = 2
"""Encoding number of indices in files of old writers."""

DELTA_BYTE_ARRAY: Final = 7
"""Encoding number of strings that share the beginning of the string before."""

_DATA_PAGE_V2: Final = 3

# Thrift fields of a page header.
_TYPE = 1
_UNCOMPRESSED_SIZE = 2
_COMPRESSED_SIZE = 3
_CRC = 4
# Field that has the details of a page, by the type of the page.
_DETAILS_FIELD: Final = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}

# Thrift fields of the details of a page. Those of version 2 have the encoding
# elsewhere.
_NUM_VALUES = 1
_ENCODING = 2
_DEFINITION_LEVELS = 3
_REPETITION_LEVELS = 4
_STATISTICS = 5
_ENCODING_V2: Final = 4
_OUR_DATA_FIELDS: Final = {
    _NUM_VALUES,
    _ENCODING,
    _DEFINITION_LEVELS,
    _REPETITION_LEVELS,
    _STATISTICS,
}

# Bytes that are read for a header, one after the other until it is whole. Nearly all
# headers fit the first; statistics may be long.
_HEADER_SIZES: Final = (192, 64 << 10, 16 << 20)
_UNKNOWN: Final = -1  # stands for a number that a header does not state


class PageHeader(NamedTuple):
    """Header of a page. A number that the header does not state is -1.

    Attributes:
        dictionary: True for a page that holds a dictionary instead of values.
        size: Bytes of the decompressed body.
        values: Number of values, nulls included; number of entries of a dictionary.
        encoding: Parquet's number of the encoding.
        begin: Offset of the body in the bytes that the header was parsed from.
        stored: Bytes of the body in the file.
        crc: Checksum of the body in the file, unsigned.
        known: False for a page of another type, which decoders skip.
        ours: True for the layout of our writers: a data page of version 1, PLAIN or
            indices, levels in runs, a checksum, no statistics; or a PLAIN dictionary
            with a checksum.
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
        """True for a page of indices into the dictionary."""
        if self.dictionary:
            return False
        return self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)


def parse_header(data: bytes | memoryview, at: int = 0) -> PageHeader:
    """Return the page header that begins at byte `at`.

    Raises:
        Truncated: The data end before the header does.
        ValueError: The bytes are no page header.
    """
    # The details are in a field of their own for each type of page. A page of an
    # unknown type has none.
    header, begin = read_struct(data, at)
    page_type = header.get(_TYPE)
    details_field = 0
    if isinstance(page_type, int):
        details_field = _DETAILS_FIELD.get(page_type, 0)
    details: Any = header.get(details_field)
    is_known = isinstance(details, dict)
    if not is_known:
        details = {}
    encoding_field = _ENCODING
    if page_type == _DATA_PAGE_V2:
        encoding_field = _ENCODING_V2
    # Pages of our writers have no field more and no field less, so that a decoder may
    # rely on their layout.
    has_our_fields = header.keys() == {
        _TYPE,
        _UNCOMPRESSED_SIZE,
        _COMPRESSED_SIZE,
        _CRC,
        details_field,
    }
    return PageHeader(
        dictionary=is_known and page_type == DICTIONARY_PAGE,
        size=_number(header, _UNCOMPRESSED_SIZE),
        values=_number(details, _NUM_VALUES),
        encoding=_number(details, encoding_field),
        begin=begin,
        stored=_number(header, _COMPRESSED_SIZE),
        crc=_number(header, _CRC) & 0xFFFFFFFF,
        known=is_known,
        ours=has_our_fields and _has_our_details(page_type, details),
    )


def _has_our_details(page_type: Any, details: Struct) -> bool:
    """Return whether the details of a page are those that our writers write."""
    if page_type == DICTIONARY_PAGE:
        has_our_fields = details.keys() == {_NUM_VALUES, _ENCODING}
        return has_our_fields and details[_ENCODING] == PLAIN
    # Version 2 of data pages is not written by us.
    if page_type != DATA_PAGE:
        return False
    has_levels_in_runs = (
        details.get(_DEFINITION_LEVELS) == details.get(_REPETITION_LEVELS) == RLE
    )
    has_no_statistics = details.get(_STATISTICS, {}) == {}
    has_our_encoding = details.get(_ENCODING) in (PLAIN, RLE_DICTIONARY)
    return (
        has_levels_in_runs
        and has_no_statistics
        and has_our_encoding
        and details.keys() <= _OUR_DATA_FIELDS
    )


def _number(struct: Struct, field: int) -> int:
    """Return the number in a field of a struct; -1 if the field has no number."""
    value = struct.get(field)
    if isinstance(value, int):
        return value
    return _UNKNOWN


def walk_pages(pread: Pread, column: pq.ColumnChunkMetaData) -> Iterator[PageHeader]:
    """Yield the pages of a column chunk, until they hold all values of its footer.

    Args:
        pread: Function of a size and an offset that returns bytes of the file.
        column: Metadata of the column chunk.

    Raises:
        ValueError: A header is invalid, or the chunk ends too early.
    """
    return walk_chunk(
        pread, chunk_start(column), column.total_compressed_size, column.num_values
    )


def walk_chunk(pread: Pread, at: int, size: int, values: int) -> Iterator[PageHeader]:
    """Yield the pages of a column chunk in order, until they hold all its values.

    Args:
        pread: Function of a size and an offset that returns bytes of the file.
        at: Offset of the column chunk in the file.
        size: Bytes of the column chunk.
        values: Number of values of the column chunk.

    Raises:
        ValueError: A header is invalid, or the chunk ends too early.
    """
    # Pages follow each other without gaps. Their sizes are believed only inside the
    # chunk.
    chunk_end = at + size
    missing_values = values
    while missing_values > 0:
        if at >= chunk_end:
            raise ValueError(
                f"its pages hold {missing_values} values fewer than the {values} of the footer"
            )
        page = _header_at(pread, at)
        has_sizes = page.size >= 0 and page.values >= 0
        if page.stored < 0 or (page.known and not has_sizes):
            raise ValueError(
                f"the page header at byte {at} has a negative size or number of values"
            )
        # Decoders skip pages of other types. A dictionary holds no values of rows.
        if page.known:
            if not page.dictionary:
                missing_values -= page.values
            yield page
        at += page.begin + page.stored


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    """Return the offset of a column chunk's first page in the file."""
    data_page_offset: int = column.data_page_offset
    dictionary_page_offset: int | None = column.dictionary_page_offset
    if dictionary_page_offset and dictionary_page_offset < data_page_offset:
        return dictionary_page_offset
    return data_page_offset


def _header_at(pread: Pread, at: int) -> PageHeader:
    """Return the page header at an offset of a file, from as few bytes as hold it."""
    # A header that is cut off is read again, with more bytes, unless the file ends.
    for header_bytes in _HEADER_SIZES:
        header_data = pread(header_bytes, at)
        try:
            return parse_header(header_data)
        except Truncated:
            if len(header_data) < header_bytes:
                break
        except ValueError as error:
            raise ValueError(
                f"the page header at byte {at} is invalid: {error}"
            ) from error
    raise ValueError(f"the page header at byte {at} is cut off")
