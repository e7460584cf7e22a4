"""One long line of JSON Lines, read with about twice its own size in memory.

The line is longer than a block.

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
    """Parse one long line into a block of one record or none.

    It takes about twice the line's own size in memory.

    Args:
        line: The line.
        want: Wanted text and columns. Of columns the line is read as a whole.
    """
    record, content_start, content_stop = long_record(line)
    line_bytes = line.data
    content_size = content_stop - content_start
    if line_bytes is None or content_size > want.max_record_bytes:
        fault = too_long(content_size, want.max_record_bytes)
        return parsed_rows(record, [fault], want)

    # A placeholder is longer than the field's name, so that a lifted key is never taken
    # for it.
    placeholder_size = len(want.text or "") + 1
    lifted = _lift_long_strings(
        line_bytes, content_start, content_stop, placeholder_size
    )
    if lifted is None:
        problem = f"the record has more than {_MAX_SKELETON} bytes in addition to long strings"
        return parsed_rows(record, [Fault("too_complex", problem)], want)
    if not lifted.skeleton.strip(b" \t\r"):
        return parsed_rows(record.blank(), [], want)
    # Columns need every value of the record, which therefore is read as a whole.
    if want.text is None or want.columns != ():
        content = bytes(line_bytes[content_start:content_stop])
        return parsed_rows(record, [judge_row(content, want)], want)
    text = _text_of_long_line(lifted, line_bytes, want.text)
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
    places_of_text: list[int] = []
    for member in members_of(skeleton):
        if member.path == keys:
            places_of_text.append(member.value)
    long_text: bytearray | None = None
    for skeleton_offset, (string_start, string_stop) in lifted.strings.items():
        decoded = _decode_string(data, string_start, string_stop)
        if isinstance(decoded, Fault):
            return decoded
        if skeleton_offset in places_of_text:
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
    """Replace every long string by a placeholder; None if the rest is too large.

    Args:
        data: The line.
        start: Offset of its content.
        stop: End of its content.
        placeholder_size: Number of characters of a placeholder.
    """
    skeleton = bytearray()
    placeholder = b'"' + b"x" * placeholder_size + b'"'
    strings: dict[int, tuple[int, int]] = {}
    copied_until = start  # bytes up to here are in the skeleton
    for string_match in _LAST_STRING.finditer(data, start, stop):
        if string_match.start() - copied_until + len(skeleton) > _MAX_SKELETON:
            break
        if not string_match[1]:  # never closed: not JSON, whatever it holds
            stop = string_match.start() + 1
        elif string_match.end() - string_match.start() > _LONG_STRING:
            skeleton += data[copied_until : string_match.start()]
            strings[len(skeleton)] = (string_match.start() + 1, string_match.end() - 1)
            skeleton += placeholder
            copied_until = string_match.end()
    if stop - copied_until + len(skeleton) > _MAX_SKELETON:
        return None
    return _Lifted(bytes(skeleton + data[copied_until:stop]), strings)


def _decode_string(data: bytearray, start: int, stop: int) -> bytearray | Fault:
    """Decode the inside of a JSON string to UTF-8, piece by piece.

    A piece that ends inside a character or an escape is not a valid JSON string, and
    one that ends between them is: the end moves back until the piece is valid.
    """
    text = bytearray()
    while start < stop:
        piece_end = min(start + _PIECE, stop)
        # The end of the last piece must not move.
        earliest = piece_end - 1
        if piece_end < stop:
            earliest = max(piece_end - _LONGEST_UNIT, start)
        fault: Fault | None = None
        # At most 12 attempts: a surrogate pair has that many bytes.
        for piece_stop in range(piece_end, earliest, -1):
            quoted_piece = b'"%b"' % data[start:piece_stop]
            try:
                text += orjson.loads(quoted_piece).encode()
            except orjson.JSONDecodeError as error:
                fault = fault or syntax_fault(quoted_piece, error)
            else:
                start = piece_stop
                break
        else:
            if fault is not None:
                return fault
    return text
