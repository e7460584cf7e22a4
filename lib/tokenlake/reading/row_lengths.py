"""How many ids each row of an unpacked dataset has, read without decoding an id.

A page of lists begins with its repetition levels, which say for each id whether a row begins there. So only the first
bytes of a page are decompressed; the rest is read for its checksum alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.ragged import Int64
from tokenlake.reading.arrays import BLOCKS
from tokenlake.reading.pages import Unfamiliar, pages_of, parse_header, stored_body, varint

_ZEROS: Final = [tuple(bit for bit in range(8) if not byte >> bit & 1) for byte in range(256)]


def list_lengths(chunk: memoryview, values: int) -> Int64:
    """Return how many values each list of a column chunk has, int64[n]; every page is read against its checksum.

    Args:
        chunk: the bytes of the column chunk.
        values: of the column chunk, as the footer counts them.

    Raises:
        Unfamiliar: the pages are laid out in another way than ours, or a list is null or empty.
        ValueError, OSError: they are damaged.
    """
    starts: list[int] = []
    at = done = 0
    while at < len(chunk):
        header = parse_header(chunk, at)
        if not header.ours or header.dictionary:
            raise Unfamiliar("the header of a page has another form")
        if not 0 < header.values <= values - done:
            raise ValueError(f"a page of {header.values} values; expected 1 to {values - done}")
        starts.extend(_starts(stored_body(chunk, header), header.values, done))
        at = header.begin + header.stored
        done += header.values
    if done != values or not starts or starts[0]:
        raise ValueError(f"pages of {done} values; expected {values}, the first of which begins a list")
    return np.diff(np.array([*starts, values], np.int64))


def list_values(chunk: memoryview, values: int, bits: int) -> npt.NDArray[Any]:
    """Return the values of all lists of a column chunk, one list after the other; where each begins is known.

    Args:
        chunk, values: as of :func:`list_lengths`.
        bits: of a value: 32 for int32, 1 for bool.

    Returns:
        int32[values] or bool[values], which cannot be written to.

    Raises:
        Unfamiliar: the pages are laid out in another way than ours.
        ValueError, OSError: they are damaged.
    """
    found = BLOCKS.take(values * 4).view(np.int32) if bits > 1 else BLOCKS.take(values).view(np.bool_)
    at = 0
    for page in pages_of(chunk, values, bits):
        there = found[at : at + page.values]
        if bits > 1:
            there[:] = page.numbers
        else:
            unpacked = np.unpackbits(np.frombuffer(page.data, np.uint8), count=page.values, bitorder="little")
            there[:] = unpacked.view(np.bool_)
        at += page.values
        del page  # its memory is that of the next one
    found.flags.writeable = False
    return found


def narrowest(lengths: Int64) -> npt.NDArray[Any]:
    """Return lengths as uint16[n] where all fit, else as uint32[n]: there may be 10^8 of them."""
    return lengths.astype(np.uint16 if not len(lengths) or lengths.max() < 1 << 16 else np.uint32)


def _starts(body: memoryview, count: int, before: int) -> list[int]:
    """Return which of a page's values begin a list, counted from `before`."""
    stream: Any = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), "zstd")
    repetition, definition = _levels(stream, count), _levels(stream, count)
    if _zeros(definition, count, 0):
        raise Unfamiliar("lists that are null or empty")
    return _zeros(repetition, count, before)


def _levels(stream: Any, count: int) -> bytes:
    size = int.from_bytes(stream.read(4), "little")
    if size > count + 64:
        raise Unfamiliar("levels that are longer than what they are of")
    levels: bytes = stream.read(size)
    if len(levels) != size:
        raise ValueError(f"levels of {len(levels)} bytes; expected {size}")
    return levels


def _zeros(levels: bytes, count: int, before: int) -> list[int]:
    """Return where `count` levels are 0, counted from `before`.

    They are stored as runs: see :func:`tokenlake.reading.pages.decode_levels`, which gives all of them, and takes a
    multiple of the time where rows are long.
    """
    found: list[int] = []
    at, place, end = 0, before, before + count
    try:
        while place < end:
            head, at = levels[at], at + 1
            if head > 0x7F:
                head, at = varint(levels, at - 1)
            length = head >> 1
            if head & 1:
                if not 0 < length <= (end - place + 7) >> 3:
                    raise Unfamiliar("a run of levels that goes on too long")
                for byte in levels[at : at + length]:
                    if byte != 0xFF:
                        found += [place + bit for bit in _ZEROS[byte]]
                    place += 8
                at += length
            else:
                if not 0 < length <= end - place or levels[at] > 1:
                    raise Unfamiliar("a run of levels that goes on too long, or of others than 0 and 1")
                if not levels[at]:
                    found += range(place, place + length)
                place, at = place + length, at + 1
    except IndexError as error:
        raise Unfamiliar("levels that end too early") from error
    while found and found[-1] >= end:  # a run of bits is of whole bytes
        found.pop()
    return found
