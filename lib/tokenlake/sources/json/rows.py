"""JSON records as rows: every field that is wanted, read strictly.

A number that neither a 64-bit integer nor a finite double can hold would be altered, and a repeated
key would hide a value: in a wanted field both make a bad record. Fields that nobody wants are only
checked for being JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import compress
from math import isfinite
from typing import Any, Final, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.columns import Record, count_members, is_too_wide
from tokenlake.faults import Fault, too_long
from tokenlake.rows import Rows
from tokenlake.sources.json.spans import Spans
from tokenlake.sources.json.strict import STRING_OR_NUMBER, load_object, members, text_of
from tokenlake.sources.parsed import BadLine, Parsed
from tokenlake.sources.want import Want

# What only large numbers, and some strings, hold: 2 ** 63 has 19 digits, 1e308 an exponent of three.
_LARGE: Final = "[0-9]{19}|[eE][+]?[0-9]{3}"
_LARGE_BYTES: Final = re.compile(_LARGE.encode())
# What every member holds once; a string may, too, behind an escaped quote.
_KEY_END_BYTES: Final = re.compile(rb'"[ \t\r\n]*:')
# The same where nothing stands between them, which is how nearly everybody writes JSON.
_CLOSE_KEY_END: Final = '":'
_SPACED_KEY_END: Final = '"[ \t\r\n]+:'
_ESCAPED_KEY_END: Final = r"\\u00[23]"
_COMPUTE: Final[Any] = pc
_INT64_MIN: Final = -(1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1
_UINT64_DIGITS: Final = 20

Judged = tuple[Record, str | Fault | None]
"""A record, and its text or why it has none; None where no text is wanted."""


def read_rows_of(spans: Spans, want: Want) -> Iterator[Parsed]:
    """Read records as objects and columns, in pieces; the text beside them if it is wanted."""
    for piece in spans.pieces():
        yield from _rows_of(piece, want)


def _rows_of(spans: Spans, want: Want) -> Iterator[Parsed]:
    ends, odd = _doubts(spans)

    def judge(index: int, line: bytes) -> Judged | Fault:
        record = None if odd[index] else _quickly(line, ends[index], want.max_record_bytes)
        if record is None:
            return judge_row(line, want)
        return record, None if want.text is None else text_of(record, line, want.text)

    found, indices, bad = spans.judged(judge)
    if len(found) > 1 and is_too_wide([record for record, _ in found], want.columns):
        del found
        for half in spans.halves():
            yield from _rows_of(half, want)
    else:
        yield parsed_rows(spans, found, indices, bad, want)


def parsed_rows(
    spans: Spans, found: list[Judged], indices: list[int], bad: tuple[BadLine, ...], want: Want
) -> Parsed:
    """Return what was found in the records `indices` of `spans`, as columns and as objects."""
    records = [record for record, _ in found]
    texts, doubtful = _texts(spans, indices, [text for _, text in found])
    return spans.parsed(
        indices,
        bad,
        text=None if want.text is None else texts,
        rows=Rows(objects=records, names=want.columns) if want.columns != () else None,
        doubtful=doubtful,
        as_bad=spans.bad_at,
    )


def judge_row(line: bytes, want: Want) -> Judged | Fault:
    """Return the record on `line` and its text, or what makes it unusable as a record."""
    if len(line) > want.max_record_bytes:
        return too_long(len(line), want.max_record_bytes)
    record = load_object(line)
    if isinstance(record, Fault):
        return record
    fault = _repeated(line, want) if _may_repeat(line, record) else None
    fault = fault or (_too_large(line, want) if _LARGE_BYTES.search(line) else None)
    if fault:
        return fault
    return record, None if want.text is None else text_of(record, line, want.text)


def _quickly(line: bytes, key_ends: int, max_record_bytes: int) -> Record | None:
    """Return the record of a line that is not odd, if it surely holds every member of it; None: look closer.

    Written out again it has as many ends of keys then: a repeated key would be there once.
    """
    if len(line) > max_record_bytes:
        return None
    try:
        record = orjson.loads(line)
        if type(record) is dict and key_ends == orjson.dumps(record).count(b'":'):
            return cast("Record", record)
    except (ValueError, TypeError):  # orjson's own: no JSON, or nested deeper than it writes
        pass
    return None


def _may_repeat(line: bytes, record: Record) -> bool:
    return sum(1 for _ in _KEY_END_BYTES.finditer(line)) != count_members(record)


def _doubts(spans: Spans) -> tuple[list[int], list[bool]]:
    """Return how often a quote and a colon stand together in each record, and whether it is odd.

    That is: has it perhaps a large number, a blank between quote and colon, or one of the two as an escape?
    """
    each = spans.each()
    ends = _COMPUTE.count_substring(each, _CLOSE_KEY_END)
    odd = _COMPUTE.match_substring_regex(each, f"{_LARGE}|{_SPACED_KEY_END}|{_ESCAPED_KEY_END}")
    return ends.to_pylist(), odd.to_pylist()


def _texts(
    spans: Spans, indices: list[int], found: list[str | Fault | None]
) -> tuple[pa.LargeStringArray, tuple[BadLine, ...]]:
    arrow: Any = pa
    faulty = [isinstance(text, Fault) for text in found]
    array = arrow.array(
        [None if bad else text for text, bad in zip(found, faulty, strict=True)], pa.large_string()
    )
    doubtful = [
        spans.bad(index, text)
        for index, text in zip(compress(indices, faulty), compress(found, faulty), strict=True)
        if isinstance(text, Fault)
    ]
    return array, tuple(doubtful)


def _wanted(want: Want, name: str | None) -> bool:
    return want.columns is None or name in want.columns


def _repeated(line: bytes, want: Want) -> Fault | None:
    for member in members(line):
        if member.repeats and _wanted(want, member.path[0]):
            name = ".".join(key for key in member.path if key is not None)
            return Fault("duplicate_key", f"the field {name!r} is given more than once")
    return None


def _too_large(line: bytes, want: Want) -> Fault | None:
    fields = [(member.value, member.path[0]) for member in members(line) if len(member.path) == 1]
    starts = [start for start, _ in fields]
    for token in STRING_OR_NUMBER.finditer(line):
        if token[0].startswith(b'"') or _is_held(token[0]):
            continue
        name = fields[bisect_right(starts, token.start()) - 1][1]
        if _wanted(want, name):
            shown = token[0][:40].decode() + ("..." if len(token[0]) > 40 else "")
            return Fault(
                "number_too_large",
                f"the field {name!r} holds {shown}, which neither 64 bits nor a double can hold",
            )
    return None


def _is_held(number: bytes) -> bool:
    """Say whether a JSON number is an integer of 64 bits, or another number in a double's range."""
    if number.strip(b"-0123456789"):
        return isfinite(float(number))
    return len(number) <= _UINT64_DIGITS and _INT64_MIN <= int(number) <= _UINT64_MAX
