"""Where the cells and records of CSV end, found with bit arithmetic instead of a loop over bytes.

One bit per byte says whether it is a quote, another whether it is a delimiter or newline. The running
parity of the quotes (a prefix XOR, as in simdjson) says which bytes stand between quotes. By RFC 4180
that is so exactly where every quote stands at an edge of a cell or is doubled; where a single one does
not, :func:`mark` gives up and :mod:`tokenlake.sources.csvscan` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.sources.arrays import Int64s

QUOTE: Final = 34
NEWLINE: Final = 10
RETURN: Final = 13
_CHUNK: Final = 1 << 17  # bytes compared at a time: what is made of them stays in the processor's cache
_WORD: Final = np.dtype("<u8")
_ONE: Final = np.uint64(1)
_TOP: Final = np.uint64(63)
_SHIFTS: Final = tuple(np.uint64(1 << step) for step in range(6))
_ARROW: Final[Any] = pa
_NUMBERS: Final[Any] = pa.array(np.arange(_CHUNK, dtype=np.int32))

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[
    np.uint64
]  # one bit per byte: the lowest of the first word for byte 0, zeros beyond the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What structures a stretch of bytes that begins with a record.

    Attributes:
        ends: int64, where cells end: every delimiter and newline that is not in quotes.
        doubled: int64, the second quote of every two that stand for one.
        stray: int64, quotes where none may stand.
        unclosed: the quote that is still open at the end, or was closed on a later line where no cell can
            end; None if there is none.
        newlines: how many there are, those in quotes included.
    """

    ends: Int64s
    doubled: Int64s
    stray: Int64s
    unclosed: int | None
    newlines: int


def mark(data: bytearray, size: int, delimiter: int) -> Marks | None:
    """Return the marks of ``data[:size]``, None if a quote stands where none may.

    A quote that is open at the end is not looked for: what follows the last newline of `ends` may be
    the beginning of a record.
    """
    none = np.zeros(0, np.int64)
    if not size:
        return Marks(ends=none, doubled=none, stray=none, unclosed=None, newlines=0)
    view, doubled = np.frombuffer(data, np.uint8, size), none
    ends, newlines = _ends(view, delimiter)
    if data.find(b'"', 0, size) >= 0:
        quotes = _equal(view, QUOTE)
        inside = _prefix_xor(quotes)
        ends &= ~inside
        opening, closing = quotes & inside, quotes & ~inside
        after = _next(closing)
        followed = ends | opening if data.find(b"\r", 0, size) < 0 else ends | opening | _crlf(view)
        if _any(opening & ~(_next(ends) | after | _first(ends))) or _any(
            closing & ~(_before(followed) | _last(ends, size))
        ):
            return None
        doubled = _positions(opening & after, size)
    return Marks(ends=_positions(ends, size), doubled=doubled, stray=none, unclosed=None, newlines=newlines)


def _ends(view: Bytes, delimiter: int) -> tuple[Bits, int]:
    """Return where delimiters and newlines are, and how many newlines."""
    packed = _room(len(view))
    newlines, scratch = 0, np.empty((2, min(_CHUNK, len(view))), np.bool_)
    for at in range(0, len(view), _CHUNK):
        part = view[at : at + _CHUNK]
        newline, other = scratch[0, : len(part)], scratch[1, : len(part)]
        np.equal(part, NEWLINE, out=newline)
        newlines += int(np.count_nonzero(newline))
        np.equal(part, delimiter, out=other)
        np.logical_or(newline, other, out=newline)
        _pack(newline, packed, at)
    return packed.view(_WORD), newlines


def _equal(view: Bytes, value: int) -> Bits:
    packed = _room(len(view))
    scratch = np.empty(min(_CHUNK, len(view)), np.bool_)
    for at in range(0, len(view), _CHUNK):
        part = view[at : at + _CHUNK]
        _pack(np.equal(part, value, out=scratch[: len(part)]), packed, at)
    return packed.view(_WORD)


def _room(size: int) -> Bytes:
    return np.zeros(-(-size // 64) * 8, np.uint8)


def _pack(mask: npt.NDArray[np.bool_], packed: Bytes, at: int) -> None:
    bits = np.packbits(mask, bitorder="little")
    packed[at // 8 : at // 8 + len(bits)] = bits


def _prefix_xor(bits: Bits) -> Bits:
    """Return for every bit the parity of all up to and with it: 1 from an opening quote to before its end."""
    found = bits.copy()
    for shift in _SHIFTS:
        found ^= found << shift
    odd = found >> _TOP
    carry = np.zeros_like(odd)
    np.bitwise_xor.accumulate(odd[:-1], out=carry[1:])
    found ^= ~carry + _ONE  # all ones where an odd number of quotes came before the word
    return found


def _next(bits: Bits) -> Bits:
    """Return the bits moved to the byte after."""
    moved = bits << _ONE
    moved[1:] |= bits[:-1] >> _TOP
    return moved


def _before(bits: Bits) -> Bits:
    """Return the bits moved to the byte before."""
    moved = bits >> _ONE
    moved[:-1] |= bits[1:] << _TOP
    return moved


def _crlf(view: Bytes) -> Bits:
    """Return the carriage returns before a newline, or at the end: a newline may follow."""
    return _equal(view, RETURN) & (
        _before(_equal(view, NEWLINE)) | _last(_room(len(view)).view(_WORD), len(view))
    )


def _first(like: Bits) -> Bits:
    bits = np.zeros_like(like)
    bits[0] = 1
    return bits


def _last(like: Bits, size: int) -> Bits:
    bits = np.zeros_like(like)
    bits[(size - 1) // 64] = np.uint64(1 << (size - 1) % 64)
    return bits


def _any(bits: Bits) -> bool:
    return bool(bits.any())


def _positions(bits: Bits, size: int) -> Int64s:
    """Return where bits are set."""
    if np.count_nonzero(bits) < len(bits) // 8:
        held = bits.view(np.uint8)
        places = np.flatnonzero(held != 0)  # numpy is faster on booleans
        found = np.flatnonzero(np.unpackbits(held[places], bitorder="little"))
        return (places[found >> 3] << 3) + (found & 7)
    return _dense_positions(bits, size)


def _dense_positions(bits: Bits, size: int) -> Int64s:
    # Arrow's filter takes packed bits as they are, several times as fast as numpy's search in booleans.
    found: list[Int64s] = []
    for at in range(0, size, _CHUNK):
        count = min(_CHUNK, size - at)
        words = bits[at // 64 : (at + _CHUNK) // 64]
        mask = _ARROW.BooleanArray.from_buffers(pa.bool_(), count, [None, _ARROW.py_buffer(words)])
        found.append(np.add(_NUMBERS.slice(0, count).filter(mask).to_numpy(), at, dtype=np.int64))
    return np.concatenate(found)
