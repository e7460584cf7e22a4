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

from tokenlake.parquet.thrift_writer import I32, Fields, Written, thrift, unsigned

RLE: Final = 3

DATA_PAGE, DICTIONARY_PAGE = 0, 2
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
        header, body: its bytes.
        size: bytes of the body before it was compressed.
    """

    header: bytes
    body: bytes | memoryview
    size: int


def data_page(codec: pa.Codec, body: npt.NDArray[np.uint8], count: int, encoding: int) -> WrittenPage:
    # Arrow's memory is used again, too; its own view of a buffer is as long as what was reserved for it.
    given: Any = body
    stored: Any = codec.compress(given)
    return written_page(
        DATA_PAGE, memoryview(stored)[: stored.size], len(body), {5: {1: count, 2: encoding, 3: RLE, 4: RLE}}
    )


def written_page(kind: int, body: bytes | memoryview, size: int, detail: Fields) -> WrittenPage:
    crc = zlib.crc32(body)
    crc -= crc >> 31 << 32  # it is written as a signed number
    header = {1: kind, 2: size, 3: len(body), 4: crc, **detail}
    return WrittenPage(thrift(_PAGE, header), body, size)


@lru_cache(maxsize=64)
def fixed_levels(length: int, begin: int, count: int) -> bytes:
    """Return levels of the values from `begin` on, of rows of one length: 0 where a row begins, else 1."""
    before = min(-begin % length, count)
    if length < _SHORT:
        return list_levels(np.arange(before, count, length), 0, count)
    rows, rest = divmod(count - before, length)
    return _run(before, 1) + _row(length) * rows + _row(rest)


def list_levels(begins: npt.NDArray[np.int64], begin: int, end: int) -> bytes:
    """Return levels of the values from `begin` to `end`, as one run of bits; rows begin at `begins`, ascending."""
    levels = np.ones(end - begin, np.uint8)
    levels[begins[slice(*np.searchsorted(begins, (begin, end)))] - begin] = 0
    bits = np.packbits(levels, bitorder="little")
    return unsigned(len(bits) << 1 | 1) + bits.tobytes()


def _row(length: int) -> bytes:
    return _run(1, 0) + _run(length - 1, 1) if length else b""


def _run(count: int, level: int) -> bytes:
    """One level, repeated."""
    return unsigned(count << 1) + bytes([level]) if count else b""


def all_ones(count: int, before: int = 0) -> bytes:
    """Levels of 1, in as many bytes as let what stands `before` bytes further begin at an even place."""
    whole = _run(count, 1)
    if (before + len(whole)) % 2 == 0 or count < 3 * _ALIGNED:
        return whole
    parted = _run(_ALIGNED, 1) + _run(count - _ALIGNED, 1)
    return parted if (before + len(parted)) % 2 == 0 else whole


def with_length(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels
