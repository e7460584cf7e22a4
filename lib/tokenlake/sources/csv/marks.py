"""Where the cells and records of CSV end, found with bit arithmetic instead of a loop over bytes.

One bit per byte says whether it is a quote, another whether it is a delimiter or newline. The running
parity of the quotes (a prefix XOR, as in simdjson) says which bytes stand between quotes. By RFC 4180
that is so exactly where every quote stands at an edge of a cell or is doubled; where a single one does
not, :func:`mark` gives up and :mod:`tokenlake.sources.csv.scan` decides.
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
_CHUNK: Final = 1 << 19  # bytes compared at a time: what is made of them stays in the processor's cache
_WORD: Final = np.dtype("<u8")
_ONE: Final = np.uint64(1)
_TOP: Final = np.uint64(63)
_SHIFTS: Final = tuple(np.uint64(1 << step) for step in range(6))
_ARROW: Final[Any] = pa
_NUMBERS: Final[Any] = _ARROW.Array.from_buffers(
    pa.int32(), _CHUNK, [None, _ARROW.py_buffer(np.arange(_CHUNK, dtype=np.int32))]
)

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[
    np.uint64
]  # one bit per byte: the lowest of the first word for byte 0, zeros beyond the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What structures a stretch of bytes that begins with a record.

    Attributes:
        ends: int64, where cells end: every delimiter and newline that is not in quotes.
        doubled: int64, the second quote of every two that stand for one; None if they were not looked for.
        stray: int64, quotes where none may stand.
        unclosed: the quote that is still open at the end, or was closed on a later line where no cell can
            end; None if there is none.
        newlines: how many there are, those in quotes included.
    """

    ends: Int64s
    doubled: Int64s | None
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
        opening = quotes & inside
        ends &= np.invert(inside, out=inside)
        after = _next(quotes ^ opening)  # what follows closing quotes
        fine = ends | opening
        if data.find(b"\r", 0, size) >= 0:
            fine |= _crlf(view)
        if _beyond(after, fine, size) or _beyond(opening, _next(ends) | after, 0):
            return None
        doubled = _positions(np.bitwise_and(opening, after, out=opening), size)
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
    found, moved = bits.copy(), np.empty_like(bits)
    for shift in _SHIFTS:
        found ^= np.left_shift(found, shift, out=moved)
    np.right_shift(found, _TOP, out=moved)
    carry = np.zeros_like(bits)
    np.bitwise_xor.accumulate(moved[:-1], out=carry[1:])
    found ^= np.negative(carry, out=carry)  # all ones where an odd number of quotes came before the word
    return found


def _beyond(bits: Bits, allowed: Bits, but: int) -> bool:
    """Say whether any bit is set that is not allowed; bit `but` always is. Overwrites `allowed`."""
    if but < 64 * len(allowed):
        allowed[but // 64] |= np.uint64(1 << but % 64)
    return bool(np.bitwise_and(bits, np.invert(allowed, out=allowed), out=allowed).any())


def _next(bits: Bits) -> Bits:
    """Return the bits moved to the byte after."""
    moved = bits << _ONE
    moved[1:] |= bits[:-1] >> _TOP
    return moved


def _crlf(view: Bytes) -> Bits:
    """Return the carriage returns before a newline, or at the end: a newline may follow."""
    newlines = _equal(view, NEWLINE)
    before = newlines >> _ONE
    before[:-1] |= newlines[1:] << _TOP
    last = len(view) - 1
    before[last // 64] |= np.uint64(1 << last % 64)
    return np.bitwise_and(_equal(view, RETURN), before, out=before)


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
