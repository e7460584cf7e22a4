"""Pages of columns without nulls and without empty lists, as they are written.

A page is a header, then its compressed body: levels, each kind after its length in four bytes, then values. The format:
https://parquet.apache.org/docs/file-format/data-pages/ and .../encodings/.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.parquet.dictionary import BITS, identity_dictionary
from tokenlake.parquet.thrift import Encoded, int32, struct, unsigned

PLAIN: Final = 0
RLE: Final = 3
RLE_DICTIONARY: Final = 8

_DATA, _DICTIONARY = 0, 2
_SHORT: Final = 64  # values of a row, up to which levels as bits are shorter than two runs
_ALIGNED: Final = 64  # levels that are a run of their own, of three bytes

# Of indices, level 3 makes a thirtieth less and takes a third longer (measured on text, code and other languages).
_INDICES: Final = pa.Codec("zstd", compression_level=2)
_VALUES: Final = pa.Codec("zstd", compression_level=3)


class WrittenPage(NamedTuple):
    """A page.

    Attributes:
        header, body: its bytes.
        size: bytes of the body before it was compressed.
    """

    header: bytes
    body: bytes | memoryview
    size: int

    @property
    def stored(self) -> int:
        """Bytes it takes."""
        return len(self.header) + len(self.body)

    @property
    def decoded(self) -> int:
        """Bytes it would take without compression."""
        return len(self.header) + self.size


def dictionary_page(entries: int) -> WrittenPage:
    """Return the page of a dictionary whose entries are their own indices."""
    detail = struct({1: int32(entries), 2: int32(PLAIN)})
    return _page(_DICTIONARY, identity_dictionary(entries), 4 * entries, {7: detail})


@final
class PageEncoder:
    """Makes data pages, in memory that is used again: fresh memory for each would cost a tenth of writing it."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def plain(self, count: int, repetition: bytes, values: npt.NDArray[Any]) -> WrittenPage:
        """Return a page of so many values, as they lie in memory."""
        data = values.view(np.uint8)
        body, place = self._body(_prefixed(repetition) + _prefixed(_ones(count)), len(data))
        place[:] = data
        return _data_page(_VALUES, body, count, PLAIN)

    def indices(self, repetition: bytes, numbers: npt.NDArray[np.int32]) -> WrittenPage:
        """Return a page of indices, each below 65,536; they lie at an even place of the body."""
        groups = (len(numbers) + 7) // 8
        width = bytes([BITS]) + unsigned(groups << 1 | 1)
        levels = _prefixed(repetition) + _prefixed(_ones(len(numbers), len(repetition) + 8 + len(width)))
        body, place = self._body(levels + width, BITS * groups)
        indices = place.view("<u2")
        indices[: len(numbers)], indices[len(numbers) :] = numbers, 0
        return _data_page(_INDICES, body, len(numbers), RLE_DICTIONARY)

    def _body(self, head: bytes, size: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Return memory for a body, and what of it follows the head, which is there already."""
        whole = len(head) + size
        if len(self._memory) < whole:
            self._memory = np.empty(whole, np.uint8)
        body = self._memory[:whole]
        body[: len(head)] = np.frombuffer(head, np.uint8)
        return body, body[len(head) :]


def _data_page(codec: pa.Codec, body: npt.NDArray[np.uint8], count: int, encoding: int) -> WrittenPage:
    detail = {1: int32(count), 2: int32(encoding), 3: int32(RLE), 4: int32(RLE)}
    # Arrow's memory is used again, too; its own view of a buffer is as long as what was reserved for it.
    given: Any = body
    stored: Any = codec.compress(given)
    return _page(_DATA, memoryview(stored)[: stored.size], len(body), {5: struct(detail)})


def _page(kind: int, body: bytes | memoryview, size: int, detail: Mapping[int, Encoded]) -> WrittenPage:
    crc = zlib.crc32(body)
    crc -= crc >> 31 << 32  # it is written as a signed number
    header = {1: int32(kind), 2: int32(size), 3: int32(len(body)), 4: int32(crc), **detail}
    return WrittenPage(struct(header)[1], body, size)


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


def _ones(count: int, before: int = 0) -> bytes:
    """Levels of 1, in as many bytes as let what stands `before` bytes further begin at an even place."""
    whole = _run(count, 1)
    if (before + len(whole)) % 2 == 0 or count < 3 * _ALIGNED:
        return whole
    parted = _run(_ALIGNED, 1) + _run(count - _ALIGNED, 1)
    return parted if (before + len(parted)) % 2 == 0 else whole


def _prefixed(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels
