"""One line of JSON Lines that is longer than a block, read with about twice its own size in memory.

Decoded at once it would take up to five times as much (a Python string with one emoji has four bytes per character).

1. Long strings are lifted out of the line. A placeholder is put in the place of each.
2. The rest, the *skeleton*, is small and goes through the strict reader.
3. The lifted strings are decoded part by part.
"""

from __future__ import annotations

import re
from typing import Final

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

_LONG_STRING: Final = 64 << 10  # longer ones are lifted out of a long line
_PIECE: Final = 1 << 20
_MAX_SKELETON: Final = 16 << 20  # bytes beside long strings; parsed, they can take 25 times as much
_LONGEST_UNIT: Final = 12  # bytes of the longest thing a piece must not be cut in: a surrogate pair
_LAST_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+("|\Z)', re.DOTALL)  # also one that is never closed


def parse_long(line: LongLine, want: Want) -> Parsed:
    """Parse one long line, with about twice its own size in memory, into a batch of one record or none.

    Decoded at once it would take up to five times as much (a Python string with one emoji has four bytes for every
    character). So long strings are lifted out; what is left is small and goes through the strict parser, and the
    lifted ones are decoded piece by piece.
    """
    data, (record, start, stop) = line.data, long_record(line)
    if data is None or stop - start > want.max_record_bytes:
        return parsed_rows(record, [too_long(stop - start, want.max_record_bytes)], want)
    # A placeholder longer than the field's name, so that a lifted key is never taken for it.
    skeleton, lifted = _lift(data, start, stop, len(want.text or "") + 1)
    if skeleton is None:
        told = f"the record has more than {_MAX_SKELETON} bytes beside long strings"
        return parsed_rows(record, [Fault("too_complex", told)], want)
    if not skeleton.strip(b" \t\r"):
        return parsed_rows(record.blank(), [], want)
    if want.text is None or want.columns != ():
        return parsed_rows(record, [judge_row(bytes(data[start:stop]), want)], want)
    found = _long_text(skeleton, data, lifted, want.text)
    if isinstance(found, Fault):
        return parsed_rows(record, [found], want)
    return record.parsed({}, text=text_over(np.array([0, len(found)]), pa.py_buffer(found)))


def _long_text(
    skeleton: bytes, data: bytearray, lifted: dict[int, tuple[int, int]], name: str
) -> bytes | bytearray | Fault:
    """Return the text as UTF-8, or the record's fault."""
    record = load_object(skeleton)
    if isinstance(record, Fault):
        return record
    keys = list(keys_of(record, name))
    wanted = [member.value for member in members_of(skeleton) if member.path == keys]
    text: bytearray | None = None
    for at, (start, stop) in lifted.items():
        decoded = _decoded(data, start, stop)
        if isinstance(decoded, Fault):
            return decoded
        text = decoded if at in wanted else text
    found = text_of(record, skeleton, name)
    if isinstance(found, Fault):
        return found
    return found.encode() if text is None else text


def _lift(
    data: bytearray, start: int, stop: int, size: int
) -> tuple[bytes | None, dict[int, tuple[int, int]]]:
    """Put a string of `size` characters for every long one.

    Returns:
        What is left, None if that is too large; and {offset there: (start, stop) of a string's inside}.
    """
    skeleton, placeholder = bytearray(), b'"' + b"x" * size + b'"'
    lifted: dict[int, tuple[int, int]] = {}
    at = start
    for found in _LAST_STRING.finditer(data, start, stop):
        if found.start() - at + len(skeleton) > _MAX_SKELETON:
            break
        if not found[1]:  # never closed: not JSON, whatever it holds
            stop = found.start() + 1
        elif found.end() - found.start() > _LONG_STRING:
            skeleton += data[at : found.start()]
            lifted[len(skeleton)] = found.start() + 1, found.end() - 1
            skeleton += placeholder
            at = found.end()
    if stop - at + len(skeleton) > _MAX_SKELETON:
        return None, {}
    return bytes(skeleton + data[at:stop]), lifted


def _decoded(data: bytearray, start: int, stop: int) -> bytearray | Fault:
    """Decode the inside of a JSON string to UTF-8, piece by piece.

    A piece that ends inside a character or an escape is not a valid JSON string, and one that ends
    between them is: so the end moves back until the piece is valid.
    """
    text = bytearray()
    while start < stop:
        end, fault = min(start + _PIECE, stop), None
        for cut in range(end, max(end - _LONGEST_UNIT, start) if end < stop else end - 1, -1):
            piece = b'"%b"' % data[start:cut]
            try:
                text += orjson.loads(piece).encode()
            except orjson.JSONDecodeError as error:
                fault = fault or syntax_fault(piece, error)
            else:
                start, fault = cut, None
                break
        if fault:
            return fault
    return text
