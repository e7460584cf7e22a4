"""Pages of a column chunk: a header, then the compressed body of levels and values.

All rows have at least one value and nothing is null, so that the levels follow from the lengths of the rows alone.
Levels are in Parquet's RLE/bit-packed form, each kind after its length in four bytes.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.runtime.parquet.fields import DataPageHeaderField, PageHeaderField
from tokenlake.runtime.parquet.thrift_writer import I32, Fields, Written, unsigned, write_thrift

RLE: Final = 3

DATA_PAGE: Final = 0
DICTIONARY_PAGE: Final = 2
_SHORT: Final = 64  # values of a row, up to which levels as bits are shorter than two runs
_ALIGNED: Final = 64  # levels that are a run of their own, of three bytes

_PAGE: Final[Written] = {
    **dict.fromkeys((1, 2, 3, 4), I32),
    5: dict.fromkeys((1, 2, 3, 4), I32),
    7: {1: I32, 2: I32},
}


class WrittenPage(NamedTuple):
    """A page.

    Attributes:
        header: Bytes of the header.
        body: Bytes of the compressed body.
        size: Size of the body before it was compressed.
    """

    header: bytes
    body: bytes | memoryview
    size: int


def data_page(codec: pa.Codec, body: npt.NDArray[np.uint8], count: int, encoding: int) -> WrittenPage:
    """Return a data page.

    Args:
        codec: Compresses the body.
        body: Levels and values, not compressed.
        count: Number of values.
        encoding: Encoding of the values.
    """
    uncompressed: Any = body
    # A view of what was written: Arrow's buffer is as long as the memory that was reserved for it.
    compressed: Any = codec.compress(uncompressed)
    detail = {
        PageHeaderField.DATA_PAGE: {
            DataPageHeaderField.NUM_VALUES: count,
            DataPageHeaderField.ENCODING: encoding,
            DataPageHeaderField.DEFINITION_LEVELS: RLE,
            DataPageHeaderField.REPETITION_LEVELS: RLE,
        }
    }
    return written_page(DATA_PAGE, memoryview(compressed)[: compressed.size], len(body), detail)


def written_page(kind: int, body: bytes | memoryview, size: int, detail: Fields) -> WrittenPage:
    """Return a page with its header.

    Args:
        kind: :data:`DATA_PAGE` or :data:`DICTIONARY_PAGE`.
        body: Compressed body.
        size: Size of the body before it was compressed.
        detail: The part of the header that pages of this kind have.
    """
    crc = zlib.crc32(body)
    if crc >= 1 << 31:
        crc -= 1 << 32  # it is written as a signed number
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
    """Return the repetition levels of `count` values from value `begin` on: 0 where a row begins, else 1.

    All rows have one length. With rows of 4 values, the levels of 7 values from value 6 on are ``1 1 0 1 1 1 0``.
    """
    rest_of_first_row = min(-begin % length, count)
    if length < _SHORT:
        return list_levels(np.arange(rest_of_first_row, count, length), 0, count)
    whole_rows, part_of_last_row = divmod(count - rest_of_first_row, length)
    return _run(rest_of_first_row, 1) + _row(length) * whole_rows + _row(part_of_last_row)


def list_levels(begins: npt.NDArray[np.int64], begin: int, end: int) -> bytes:
    """Return the repetition levels of the values from `begin` to `end`, as one run of bits.

    Args:
        begins: Values at which rows begin, ascending, int64[rows].
        begin, end: Values of the page.
    """
    levels = np.ones(end - begin, np.uint8)
    first, last = np.searchsorted(begins, (begin, end))
    levels[begins[first:last] - begin] = 0
    bits = np.packbits(levels, bitorder="little")
    return unsigned(len(bits) << 1 | 1) + bits.tobytes()


def _row(length: int) -> bytes:
    return _run(1, 0) + _run(length - 1, 1) if length else b""


def _run(count: int, level: int) -> bytes:
    """One level, repeated."""
    return unsigned(count << 1) + bytes([level]) if count else b""


def all_ones(count: int, other_bytes: int = 0) -> bytes:
    """Return `count` definition levels of 1.

    Where possible, these bytes and `other_bytes` more are an even number: 16-bit values after them are then aligned. To
    that end the levels are written as two runs instead of one.
    """
    one_run = _run(count, 1)
    if (other_bytes + len(one_run)) % 2 == 0 or count < 3 * _ALIGNED:
        return one_run
    two_runs = _run(_ALIGNED, 1) + _run(count - _ALIGNED, 1)
    return two_runs if (other_bytes + len(two_runs)) % 2 == 0 else one_run


def with_length(levels: bytes) -> bytes:
    """Return levels after their length in four bytes."""
    return len(levels).to_bytes(4, "little") + levels
