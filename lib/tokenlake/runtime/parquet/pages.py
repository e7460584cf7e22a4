"""Pages of a column chunk as they are written.

A page is a header, then the compressed body of levels and values.

All rows have at least one value and nothing is null, so that the levels follow from the
lengths of the rows alone: the repetition level is 0 where a row begins, otherwise 1;
the definition level is always 1. They are stored as runs in Parquet's RLE/bit-packed
form, each kind after its length in four bytes. A run begins with a number in groups of
seven bits: ``count << 1``, then one level that is repeated; or ``bytes << 1 | 1``, then
bits, the lowest first.

Example: rows of 100 values have the levels ``02 00`` (level 0, once) and ``c6 01 01``
(level 1, 99 times) for each row.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.runtime.parquet.fields import DataPageHeaderField, PageHeaderField
from tokenlake.runtime.parquet.thrift_writer import (
    I32,
    Fields,
    Written,
    unsigned,
    write_thrift,
)

RLE: Final = 3  # encoding number of levels

# Types of pages.
DATA_PAGE: Final = 0
DICTIONARY_PAGE: Final = 2
# Values of a row: levels of shorter rows take fewer bytes as bits than as two runs for
# each row.
_SHORT_ROW: Final = 64
# Definition levels of the first of two runs, which takes three bytes.
_FIRST_RUN: Final = 64

# Types of the fields of a page header: its numbers, the details of a data page (5) and
# those of a dictionary page (7).
_PAGE: Final[Written] = {
    **dict.fromkeys((1, 2, 3, 4), I32),
    5: dict.fromkeys((1, 2, 3, 4), I32),
    7: {1: I32, 2: I32},
}


class WrittenPage(NamedTuple):
    """Page with its header.

    Attributes:
        header: Bytes of the header.
        body: Bytes of the compressed body.
        size: Size of the body before it was compressed.
    """

    header: bytes
    body: bytes | memoryview
    size: int


def data_page(
    codec: pa.Codec, body: npt.NDArray[np.uint8], count: int, encoding: int
) -> WrittenPage:
    """Return a data page.

    Args:
        codec: Compression of the body.
        body: Levels and values, not compressed.
        count: Number of values.
        encoding: Encoding of the values.
    """
    uncompressed: Any = body
    compressed: Any = codec.compress(uncompressed)
    detail = {
        PageHeaderField.DATA_PAGE: {
            DataPageHeaderField.NUM_VALUES: count,
            DataPageHeaderField.ENCODING: encoding,
            DataPageHeaderField.DEFINITION_LEVELS: RLE,
            DataPageHeaderField.REPETITION_LEVELS: RLE,
        }
    }
    # Only the compressed bytes: Arrow's buffer is as long as the memory that was
    # reserved for them.
    return written_page(
        DATA_PAGE, memoryview(compressed)[: compressed.size], len(body), detail
    )


def written_page(
    kind: int, body: bytes | memoryview, size: int, detail: Fields
) -> WrittenPage:
    """Return a page with its header.

    Args:
        kind: :data:`DATA_PAGE` or :data:`DICTIONARY_PAGE`.
        body: Compressed body.
        size: Size of the body before it was compressed.
        detail: Part of the header that only pages of this kind have.
    """
    crc = zlib.crc32(body)
    if crc >= 1 << 31:
        crc -= 1 << 32  # Parquet stores it as a signed number
    header = {
        PageHeaderField.TYPE: kind,
        PageHeaderField.UNCOMPRESSED_SIZE: size,
        PageHeaderField.COMPRESSED_SIZE: len(body),
        PageHeaderField.CRC: crc,
        **detail,
    }
    return WrittenPage(write_thrift(_PAGE, header), body, size)


@lru_cache(maxsize=64)
def fixed_levels(length: int, begin: int, count: int) -> bytes:
    """Return the repetition levels of values of rows that all have one length.

    Example: of rows of 4 values, the levels of 7 values from value 6 on are ``1 1 0 1 1
    1 0``.

    Args:
        length: Number of values of a row.
        begin: First value.
        count: Number of values.
    """
    # A page may begin inside a row: the rest of that row, whole rows, and a part of the
    # last one.
    rest_of_first_row = min(-begin % length, count)
    if length < _SHORT_ROW:
        row_begins = np.arange(rest_of_first_row, count, length)
        return list_levels(row_begins, 0, count)
    whole_rows, part_of_last_row = divmod(count - rest_of_first_row, length)
    first_levels = _run(rest_of_first_row, 1)
    return first_levels + _row(length) * whole_rows + _row(part_of_last_row)


def list_levels(begins: npt.NDArray[np.int64], begin: int, end: int) -> bytes:
    """Return the repetition levels of the values from `begin` to `end`.

    They are one run of bits.

    Args:
        begins: Value at which each row begins, ascending, int64[rows].
        begin: First value of the page.
        end: Value after the last one of the page.
    """
    # Level 1 everywhere but at the begins of rows in this page.
    levels = np.ones(end - begin, np.uint8)
    first_row, end_row = np.searchsorted(begins, (begin, end))
    levels[begins[first_row:end_row] - begin] = 0
    bits = np.packbits(levels, bitorder="little")
    return unsigned(len(bits) << 1 | 1) + bits.tobytes()


def _row(length: int) -> bytes:
    """Return the repetition levels of a row, or of the first values of one."""
    if not length:
        return b""
    return _run(1, 0) + _run(length - 1, 1)


def _run(count: int, level: int) -> bytes:
    """Return a run of one level that is repeated."""
    if not count:
        return b""
    return unsigned(count << 1) + bytes([level])


def all_ones(count: int, other_bytes: int = 0) -> bytes:
    """Return definition levels of 1.

    Where possible, these bytes and `other_bytes` more are an even number, so that
    16-bit values after them are aligned. If one run would take an odd number, the
    levels are written as two runs.

    Args:
        count: Number of levels.
        other_bytes: Number of other bytes before the values.
    """
    # The first of two runs adds three bytes, which makes an odd number of bytes even.
    one_run = _run(count, 1)
    if (other_bytes + len(one_run)) % 2 == 0 or count < 3 * _FIRST_RUN:
        return one_run
    two_runs = _run(_FIRST_RUN, 1) + _run(count - _FIRST_RUN, 1)
    if (other_bytes + len(two_runs)) % 2:
        return one_run
    return two_runs


def with_length(levels: bytes) -> bytes:
    """Return levels after their length in four bytes."""
    return len(levels).to_bytes(4, "little") + levels
