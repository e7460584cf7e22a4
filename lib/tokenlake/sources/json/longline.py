"""A JSON line of more than a block: parsed with about twice its own size in memory.

Decoding 200 MB at once would take up to five times as much (a Python string with one emoji has four
bytes per character). So long strings are lifted out first; what is left is small and goes through
the strict parser; the lifted ones are decoded piece by piece.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.faults import Fault, too_long
from tokenlake.sources.arrays import text_over
from tokenlake.sources.blocks import LongLine
from tokenlake.sources.json.paths import keys_of
from tokenlake.sources.json.rows import Judged, judge_row, parsed_rows
from tokenlake.sources.json.spans import Spans
from tokenlake.sources.json.strict import load_object, members, syntax_fault, text_of
from tokenlake.sources.lineindex import BOM
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.want import Want

_LONG_STRING: Final = 64 << 10  # longer ones are lifted out
_PIECE: Final = 1 << 20
_MAX_SKELETON: Final = 16 << 20  # bytes beside long strings; parsed, they can take 25 times as much
_LONGEST_UNIT: Final = 12  # bytes of the longest thing a piece must not be cut in: a surrogate pair


def parse_long(line: LongLine, want: Want) -> Parsed:
    """Parse one long line into a batch of one record, or of none if it is blank or bad."""
    start, stop, crlf, cut = _content(line)
    spans = Spans(
        data=line.head,
        starts=np.zeros(1, np.int64),
        stops=np.array([len(line.head)]),
        positions=np.array([line.offset]),
        numbers=np.zeros(1, np.int64),
        lines=1,
        open_end=cut,
        normalized={"bom": int(start > 0), "crlf": crlf, "blank_line": 0},
        bytes_read=line.bytes_read,
    )
    if stop - start > want.max_record_bytes or line.data is None:
        found = too_long(stop - start, want.max_record_bytes)
    elif want.text is not None and want.columns == ():
        found = parse_text(line.data, start, stop, want.text)
    else:
        found = parse_row(line.data, start, stop, want)
    return _parsed(spans, want, found)


def _parsed(spans: Spans, want: Want, found: bytes | bytearray | Judged | Fault | None) -> Parsed:
    """Return the account of the one record of `spans`, in which `found` was found."""
    if isinstance(found, bytes | bytearray):
        return spans.parsed([0], (), text=text_over(np.array([0, len(found)]), pa.py_buffer(found)))
    if found is None:
        spans = replace(spans, normalized={**spans.normalized, "blank_line": 1})
    rows = [found] if isinstance(found, tuple) else []
    bad = (spans.bad(0, found),) if isinstance(found, Fault) else ()
    return parsed_rows(spans, rows, [0] * len(rows), bad, want)


def _content(line: LongLine) -> tuple[int, int, int, bool]:
    """Return (start, stop) of the content, whether it ends in CRLF, and whether it has no end of line."""
    start = len(BOM) if line.offset == 0 and line.head.startswith(BOM) else 0
    if line.data is None:
        return start, line.size, 0, False
    if not line.data.endswith(b"\n"):
        return start, line.size, 0, True
    crlf = int(line.data.endswith(b"\r\n"))
    return start, line.size - 1 - crlf, crlf, False


def parse_text(data: bytearray, start: int, stop: int, field: str) -> bytes | bytearray | Fault | None:
    """Return the text as UTF-8, the record's fault, or None if there is nothing but space."""
    # Longer than the field's name, so that a lifted key is never taken for it.
    placeholder = b'"' + b"x" * (len(field) + 1) + b'"'
    skeleton, lifted = _lift(data, start, stop, placeholder)
    if len(skeleton) > _MAX_SKELETON:
        return _too_complex(skeleton)
    if not skeleton.strip(b" \t\r"):
        return None
    record = load_object(skeleton)
    if isinstance(record, Fault):
        return record
    keys = list(keys_of(record, field))
    wanted = [member.value for member in members(skeleton) if member.path == keys]
    text: bytes | bytearray | None = None
    for at, (a, b) in lifted.items():
        decoded = _decode(data, a, b, keep=at in wanted)
        if isinstance(decoded, Fault):
            return decoded
        text = decoded if at in wanted else text
    found = text_of(record, skeleton, field)
    return found if isinstance(found, Fault) else text if text is not None else found.encode()


def parse_row(data: bytearray, start: int, stop: int, want: Want) -> Judged | Fault | None:
    """Return the whole record, its fault, or None if there is nothing but space."""
    skeleton, _ = _lift(data, start, stop, b'""')
    if len(skeleton) > _MAX_SKELETON:
        return _too_complex(skeleton)
    return judge_row(bytes(data[start:stop]), want) if skeleton.strip(b" \t\r") else None


def _too_complex(skeleton: bytes) -> Fault:
    return Fault(
        "too_complex", f"the record has {len(skeleton)} bytes beside long strings, at most {_MAX_SKELETON}"
    )


def _lift(
    data: bytearray, start: int, stop: int, placeholder: bytes
) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Replace long strings; return what is left and {offset there: (start, stop) of a string's inside}."""
    skeleton = bytearray()
    lifted: dict[int, tuple[int, int]] = {}
    at = start
    while at < stop and len(skeleton) <= _MAX_SKELETON:
        quote = data.find(b'"', at, stop)
        if quote < 0:
            skeleton += data[at : min(stop, at + _MAX_SKELETON + 1)]
            break
        skeleton += data[at : min(quote, at + _MAX_SKELETON + 1)]
        at = _string_end(data, quote + 1, stop)
        if not at:  # never closed: not JSON, whatever follows
            skeleton += b'"'
            break
        if at - quote > _LONG_STRING:
            lifted[len(skeleton)] = (quote + 1, at - 1)
            skeleton += placeholder
        else:
            skeleton += data[quote:at]
    return bytes(skeleton), lifted


def _string_end(data: bytearray, start: int, stop: int) -> int:
    """Return where the string whose inside begins at `start` ends, after its quote; 0 if it does not."""
    at = start
    while (at := data.find(b'"', at, stop)) >= 0:
        back = at
        while data[back - 1] == ord("\\"):
            back -= 1
        at += 1
        if (at - back) % 2:
            return at
    return 0


def _decode(data: bytearray, start: int, stop: int, *, keep: bool) -> bytearray | Fault:
    """Decode the inside of a JSON string to UTF-8 piece by piece; validate only, if not `keep`."""
    text = bytearray()
    at = start
    while at < stop:
        size, decoded = _piece(data, at, stop)
        if isinstance(decoded, Fault):
            return decoded
        if keep:
            text += decoded
        at += size
    return text


def _piece(data: bytearray, at: int, stop: int) -> tuple[int, bytes | Fault]:
    """Decode one piece; return its length in the line and its text or fault.

    A piece that ends inside a character or an escape is not a valid JSON string, and one that ends
    between them is: so the end moves back until the piece is valid.
    """
    end = min(at + _PIECE, stop)
    fault: Fault | None = None
    for back in range(1 if end == stop else min(_LONGEST_UNIT, end - at)):
        piece = b'"' + data[at : end - back] + b'"'
        try:
            return end - back - at, orjson.loads(piece).encode()
        except orjson.JSONDecodeError as error:
            fault = fault or syntax_fault(piece, error)
    return 0, fault or Fault("invalid_json", "an empty piece of a string")
