"""One line of JSON Lines that is longer than a block, read with about twice its own
size in memory.

Decoded at once it would take up to five times as much (a Python string with one emoji
has four bytes per character).

1. Long strings are lifted out of the line. A placeholder is put in the place of each.
2. The rest, the *skeleton*, is small and goes through the strict reader.
3. The lifted strings are decoded part by part.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.base.arrays import text_over
from tokenlake.etl.sources.bad_records import Fault, too_long
from tokenlake.etl.sources.json_parsed import parsed_rows
from tokenlake.etl.sources.json_record import (
    judge_row,
    keys_of,
    load_object,
    members_of,
    syntax_fault,
    text_of,
)
from tokenlake.etl.sources.line_records import long_record
from tokenlake.etl.sources.lines import LongLine
from tokenlake.etl.sources.parsed import Parsed, Want

_LONG_STRING: Final = 64 << 10  # bytes; longer strings are lifted out of a long line
_PIECE: Final = 1 << 20
# Bytes beside long strings; parsed, they can take 25 times as much.
_MAX_SKELETON: Final = 16 << 20
# Bytes of the longest unit that a piece must not be cut in: a surrogate pair.
_LONGEST_UNIT: Final = 12
# Also one that is never closed.
_LAST_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+("|\Z)', re.DOTALL)


class _Lifted(NamedTuple):
    """A line without its long strings.

    Attributes:
        skeleton: Line with a placeholder for each long string.
        strings: Offset of a placeholder in the skeleton to the start and stop of the
            string's inside in the line.
    """

    skeleton: bytes
    strings: dict[int, tuple[int, int]]


def parse_long(line: LongLine, want: Want) -> Parsed:
    """Parse one long line, with about twice its own size in memory, into a block of one
    record or none.

    Args:
        line: The line.
        want: Wanted text and columns. Of columns the line is read as a whole.
    """
    record, start, stop = long_record(line)
    data = line.data
    if data is None or stop - start > want.max_record_bytes:
        return parsed_rows(
            record, [too_long(stop - start, want.max_record_bytes)], want
        )

    # A placeholder is longer than the field's name, so that a lifted key is never taken
    # for it.
    placeholder_size = len(want.text or "") + 1
    lifted = _lift_long_strings(data, start, stop, placeholder_size)
    if lifted is None:
        detail = f"the record has more than {_MAX_SKELETON} bytes in addition to long strings"
        return parsed_rows(record, [Fault("too_complex", detail)], want)
    if not lifted.skeleton.strip(b" \t\r"):
        return parsed_rows(record.blank(), [], want)
    if want.text is None or want.columns != ():
        return parsed_rows(record, [judge_row(bytes(data[start:stop]), want)], want)
    text = _text_of_long_line(lifted, data, want.text)
    if isinstance(text, Fault):
        return parsed_rows(record, [text], want)
    return record.parsed(
        {}, text=text_over(np.array([0, len(text)]), pa.py_buffer(text))
    )


def _text_of_long_line(
    lifted: _Lifted, data: bytearray, name: str
) -> bytes | bytearray | Fault:
    """Return the text as UTF-8, or the record's fault.

    Args:
        lifted: The line without its long strings.
        data: The line.
        name: Dotted path of the text.
    """
    skeleton = lifted.skeleton
    record = load_object(skeleton)
    if isinstance(record, Fault):
        return record
    # Every long string must be valid; the one at the place of the text is the text.
    keys = list(keys_of(record, name))
    places_of_text = [
        member.value for member in members_of(skeleton) if member.path == keys
    ]
    long_text: bytearray | None = None
    for place, (start, stop) in lifted.strings.items():
        decoded = _decode_string(data, start, stop)
        if isinstance(decoded, Fault):
            return decoded
        if place in places_of_text:
            long_text = decoded
    # The strict reader judges the skeleton: the field may be missing, repeated or no
    # string.
    text = text_of(record, skeleton, name)
    if isinstance(text, Fault):
        return text
    if long_text is not None:
        return long_text
    return text.encode()


def _lift_long_strings(
    data: bytearray, start: int, stop: int, placeholder_size: int
) -> _Lifted | None:
    """Replace every long string by a placeholder; None if the rest of the line is too
    large.

    Args:
        data: The line.
        start: Offset of its content.
        stop: End of its content.
        placeholder_size: Number of characters of a placeholder.
    """
    skeleton = bytearray()
    placeholder = b'"' + b"x" * placeholder_size + b'"'
    strings: dict[int, tuple[int, int]] = {}
    copied = start  # bytes up to here are in the skeleton
    for string in _LAST_STRING.finditer(data, start, stop):
        if string.start() - copied + len(skeleton) > _MAX_SKELETON:
            break
        if not string[1]:  # never closed: not JSON, whatever it holds
            stop = string.start() + 1
        elif string.end() - string.start() > _LONG_STRING:
            skeleton += data[copied : string.start()]
            strings[len(skeleton)] = (string.start() + 1, string.end() - 1)
            skeleton += placeholder
            copied = string.end()
    if stop - copied + len(skeleton) > _MAX_SKELETON:
        return None
    return _Lifted(bytes(skeleton + data[copied:stop]), strings)


def _decode_string(data: bytearray, start: int, stop: int) -> bytearray | Fault:
    """Decode the inside of a JSON string to UTF-8, piece by piece.

    A piece that ends inside a character or an escape is not a valid JSON string, and
    one that ends between them is: the end moves back until the piece is valid.
    """
    text = bytearray()
    while start < stop:
        end = min(start + _PIECE, stop)
        # The end of the last piece must not move.
        earliest = end - 1
        if end < stop:
            earliest = max(end - _LONGEST_UNIT, start)
        fault: Fault | None = None
        for cut in range(end, earliest, -1):
            piece = b'"%b"' % data[start:cut]
            try:
                text += orjson.loads(piece).encode()
            except orjson.JSONDecodeError as error:
                fault = fault or syntax_fault(piece, error)
            else:
                start = cut
                break
        else:
            if fault is not None:
                return fault
    return text
