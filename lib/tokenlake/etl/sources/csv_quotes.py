"""Check that every quote and carriage return of a CSV block is right.

The check is done with numpy, at the speed of memory.

Nearly every block passes this check, and is then read without being split into records.

The law behind it: if all quotes are right, every other quote opens a cell, and the next
one closes it or is followed by its double. Numbered from 0, even quotes open and odd
quotes close. For ``"a""b",c`` the quotes stand at bytes 0, 2, 3 and 5: quote 0 opens, 1
closes, 2 opens directly behind 1 (they are the escaped quote ``""``), 3 closes before
the delimiter.

So these conditions are enough:

1. The number of quotes is even.
2. An opening quote is the first byte, or follows a delimiter, a newline or a quote.
3. A closing quote is the last byte, or a delimiter, a newline, a quote or a carriage
   return follows it.
4. A carriage return outside of quotes is followed by a newline.
5. The bytes are UTF-8 without NUL.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64s, is_utf8, text_over
from tokenlake.etl.sources.csv_records import NEWLINE, QUOTE, RETURN, CsvSplit

# Searched at a time: fresh memory costs more than the search.
_CHUNK_BYTES: Final = 1 << 17
_ARROW: Final[Any] = pa


def counts_if_strict(
    data: bytearray, size: int, delimiter: int, *, is_final: bool
) -> CsvSplit | None:
    """Return the counts of the whole records in a block.

    They are None unless every quote and carriage return is right.

    Args:
        data: Buffer that begins with the block.
        size: Number of bytes of the block.
        delimiter: Byte between cells.
        is_final: Whether the file ends with the block.
    """
    # A block that is not the last one of its file ends within a record, which the next
    # block begins with. It is left out here.
    quotes = _places_of(np.frombuffer(data, np.uint8, size), QUOTE)
    if not is_final:
        size = _end_of_last_record(data, size, quotes)
    quotes = quotes[: np.searchsorted(quotes, size)]
    if not size or data.find(b"\0", 0, size) >= 0 or not _is_utf8(data, size):
        return None

    # Quotes: even ones open, odd ones close.
    view = np.frombuffer(data, np.uint8, size)
    last_byte = size - 1
    may_stand_beside = np.zeros(256, np.bool_)
    may_stand_beside[[delimiter, NEWLINE, QUOTE]] = True
    opening = quotes[0::2]
    closing = quotes[1::2]
    if len(opening) != len(closing):
        return None
    if not (may_stand_beside[view[opening - 1]] | (opening == 0)).all():
        return None
    may_stand_beside[RETURN] = True
    if not may_stand_beside[view[np.minimum(closing + 1, last_byte)]].all():
        return None

    # Carriage returns. Nearly no file has any, and `find` sees that at the speed of
    # memory.
    returns = quotes[:0]
    if data.find(b"\r", 0, size) >= 0:
        returns = _outside_quotes(_places_of(view, RETURN), quotes)
    if not (view[np.minimum(returns + 1, last_byte)] == NEWLINE).all():
        return None

    # A blank line is an end of line ("\n" or "\r\n") at the beginning of the block, or
    # right behind a newline.
    double_newlines = _outside_quotes(
        _places_of_pair(view[:-1], view[1:], NEWLINE), quotes
    )
    blank_lines = len(double_newlines) + int(data.startswith(b"\n"))
    blank_lines += int(
        np.count_nonzero((view[returns - 1] == NEWLINE) | (returns == 0))
    )
    return CsvSplit(size, _count_newlines(view), len(returns), blank_lines)


def _end_of_last_record(data: bytearray, size: int, quotes: Int64s) -> int:
    """Return the end of the last whole record, 0 without one.

    An even number of quotes stands before the end of a record. If the number is odd,
    that newline lies in a cell in quotes: no newline of this cell ends a record, nor
    one before a double quote in it.
    """
    # The cell in quotes that holds the newline is skipped as a whole: the search
    # continues before its opening quote.
    record_end = data.rfind(b"\n", 0, size) + 1
    quotes_before = int(np.searchsorted(quotes, record_end))
    while quotes_before % 2:
        record_end = data.rfind(b"\n", 0, int(quotes[quotes_before - 1])) + 1
        quotes_before = int(np.searchsorted(quotes, record_end))
    return record_end


def _is_utf8(data: bytearray, size: int) -> bool:
    return is_utf8(text_over(np.array([0, size]), _ARROW.py_buffer(data)))


def _count_newlines(view: npt.NDArray[np.uint8]) -> int:
    """Return the number of newlines, inside of quotes too."""
    newline_count = 0
    for chunk_start in range(0, len(view), _CHUNK_BYTES):
        newline_count += int(
            np.count_nonzero(view[chunk_start : chunk_start + _CHUNK_BYTES] == NEWLINE)
        )
    return newline_count


def _places_of(view: npt.NDArray[np.uint8], byte: int) -> Int64s:
    """Return int64[n], the offsets of a byte."""
    return _places_of_pair(view, None, byte)


def _places_of_pair(
    view: npt.NDArray[np.uint8], following: npt.NDArray[np.uint8] | None, byte: int
) -> Int64s:
    """Return the offsets of a byte, int64[n].

    Args:
        view: Bytes to search.
        following: Bytes that must have the byte at the same offset as well; None for no
            such condition.
        byte: The byte.
    """
    # Both masks are made in the same memory for every chunk: the allocation would cost
    # more than the comparison.
    scratch = np.empty((2, min(_CHUNK_BYTES, len(view))), np.bool_)
    byte_offsets: list[Int64s] = []
    for chunk_start in range(0, len(view), _CHUNK_BYTES):
        chunk = view[chunk_start : chunk_start + _CHUNK_BYTES]
        is_byte = np.equal(chunk, byte, out=scratch[0, : len(chunk)])
        if following is not None:
            next_chunk = following[chunk_start : chunk_start + _CHUNK_BYTES]
            is_byte &= np.equal(next_chunk, byte, out=scratch[1, : len(chunk)])
        byte_offsets.append(np.flatnonzero(is_byte) + chunk_start)
    return np.concatenate([*byte_offsets, np.zeros(0, np.int64)])


def _outside_quotes(places: Int64s, quotes: Int64s) -> Int64s:
    """Return the offsets before which an even number of quotes stands."""
    if not len(places):
        return places
    return places[np.searchsorted(quotes, places) % 2 == 0]
