"""JSON Lines: one object on every line; records in a buffer, as texts alone or as objects and columns.

A record is read strictly. RFC 8259 as orjson reads it: valid UTF-8, no NaN, no lone surrogates, at most 1024 levels,
one object and nothing else. Where texts alone are wanted, the content field must be there once and hold a string. Of
rows, each wanted field must be there at most once. Its numbers are those that Python's ``json.loads`` reads: an integer
has all its digits, and a number with a point or an exponent is the nearest double, infinity where that is nearest.
orjson makes doubles of integers beyond 64 bits, so that a record with one is read a second time. Fields that nobody
wants are only checked for being JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isinf
from typing import Any, Final, NamedTuple, cast, final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.arrays import binary_over, text_of_strings, text_over
from tokenlake.sources.bad_records import Fault, too_long
from tokenlake.sources.input_bytes import InputBytes
from tokenlake.sources.inputs import FileRange
from tokenlake.sources.line_records import RawRecords, index_lines, long_record
from tokenlake.sources.lines import LineBlock, LongLine, parsed_blocks, read_blocks
from tokenlake.sources.parsed import Parsed, Want
from tokenlake.sources.rows import Record, Rows, is_too_wide
from tokenlake.sources.where import Predicate

PIECE_BYTES: Final = 2 << 20
"""Of records that become Python objects together: these can take 25 times as much."""
TEXT_BYTES: Final = 8 << 20
"""Of records of which only the texts do: one emoji makes four times as much of a text."""
_SHORT_RECORD: Final = 1024
_CUT: Final = frozenset({"invalid_json", "invalid_utf8", "lone_surrogate"})
# A quote and a colon, between which nearly nobody writes anything, and what they may look like otherwise.
_CLOSE_KEY_END: Final = '":'
# What only large numbers, and some strings, hold: 2 ** 63 has 19 digits, 1e308 an exponent of three.
_LARGE: Final = "[0-9]{19}|[eE][+]?[0-9]{3}"
_LARGE_BYTES: Final = re.compile(_LARGE.encode())
_ODD: Final = _LARGE + '|"[ \t\r\n]+:|\\\\u00[23]'
_LONG_STRING: Final = 64 << 10  # longer ones are lifted out of a long line
_PIECE: Final = 1 << 20
_MAX_SKELETON: Final = 16 << 20  # bytes beside long strings; parsed, they can take 25 times as much
_LONGEST_UNIT: Final = 12  # bytes of the longest thing a piece must not be cut in: a surrogate pair
_LAST_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+("|\Z)', re.DOTALL)  # also one that is never closed
_MAX_DEPTH: Final = 1024  # orjson's limit: what is nested deeper is a bad record
_SHOWN: Final = 120  # characters of a foreign message or value in ours
_KINDS: Final[dict[type[Any], str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN: Final = re.compile(_STRING + rb'|[\[\]{}]|[^"\[\]{}]++', re.DOTALL)
_STRING_OR_NUMBER: Final = re.compile(
    _STRING + rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?", re.DOTALL
)
# What every member holds once; a string may, too, behind an escaped quote.
_KEY_END: Final = re.compile(rb'"[ \t\r\n]*:')
_INT64_MIN: Final = -(1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1
_UINT64_DIGITS: Final = 20
_MOST_DIGITS: Final = 4300  # of an integer that Python converts by default
_MISSING: Final = object()
_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc


def read_jsonl(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the lines that `part` owns."""
    return parsed_blocks(
        read_blocks(part, data, want.max_record_bytes, want.block_bytes),
        lambda line: parse_long(line, want),
        lambda block: parse_records(json_lines(block), want),
    )


def json_lines(block: LineBlock) -> RawRecords:
    """Return the lines of a block that hold something; those of nothing but spaces and tabs are blank."""
    return index_lines(block, blank=b" \t\r")


def parse_records(records: RawRecords, want: Want) -> Iterator[Parsed]:
    """Parse records: for their texts alone, or in pieces as objects and columns, the text beside them if wanted."""
    if want.text is not None and want.columns == ():
        for piece in records.pieces(TEXT_BYTES):
            yield _texts_of(piece, want.text, want.max_record_bytes)
    else:
        for piece in records.pieces(PIECE_BYTES):
            yield from _rows_of(piece, want)


def _parsed(records: RawRecords, faults: dict[int, Fault], **found: Any) -> Parsed:
    """Return what was found in the records without a fault; the last one of a file that just ends was cut."""
    last = len(records) - 1
    if records.open_end and last in faults and faults[last].reason in _CUT:
        told = f"the file ends in the middle of a record ({faults[last].detail})"
        faults[last] = Fault("truncated_line", told)
    return records.parsed(faults, **found)


# ---- texts alone -------------------------------------------------------------------------------------


def _texts_of(records: RawRecords, name: str, limit: int) -> Parsed:
    if _holds_each_once(records, name, limit):
        data, loads = records.data, orjson.loads
        spans = zip(records.starts.tolist(), records.stops.tolist(), strict=True)
        try:
            column = text_of_strings([loads(data[start:stop])[name] for start, stop in spans])
        except (ValueError, LookupError, TypeError, pa.ArrowException):  # no JSON, field, object or text
            column = None
        if column is not None and not column.null_count:
            return records.parsed({}, text=column)

    texts: list[str] = []
    faults: dict[int, Fault] = {}
    key, disguise, loads, data = orjson.dumps(name), _disguise_of((name,)), orjson.loads, records.data
    spans = zip(records.starts.tolist(), records.stops.tolist(), strict=True)
    for index, (start, stop) in enumerate(spans):
        line = data[start:stop]
        try:
            text = loads(line)[name]
        except (ValueError, LookupError, TypeError):
            text = None
        if type(text) is str and stop - start <= limit:
            # Of a key that is repeated the last value counts. Behind its key there is room for it, so that all
            # of them begin before `end`: most of the text need not be searched.
            end = stop - start - len(text)
            if line.find(key, line.find(key) + 1, end) < 0 and (
                line.find(b"\\", 0, end) < 0 or not disguise.search(line, 0, end)
            ):
                texts.append(text)
                continue
        found = judge_text(line, name, limit)
        if isinstance(found, Fault):
            faults[index] = found
        else:
            texts.append(found)
    return _parsed(records, faults, text=text_of_strings(texts))


def _holds_each_once(records: RawRecords, name: str, limit: int) -> bool:
    """Say whether records that all have the field surely have it once: it is there as often as there are records.

    Of long records the little before each text is searched instead, which costs less.
    """
    sizes = records.stops - records.starts
    if not len(sizes) or sizes.mean() > _SHORT_RECORD or sizes.max() > limit or not _is_plain(name):
        return False
    first, last = int(records.starts[0]), int(records.stops[-1])
    count = records.data.count(orjson.dumps(name), first, last)
    return count == len(sizes) and records.data.find(b"\\u00", first, last) < 0


# ---- whole records -----------------------------------------------------------------------------------


def _rows_of(records: RawRecords, want: Want) -> Iterator[Parsed]:
    # How often a quote and a colon stand together in each record; and whether it is odd: whether it has perhaps a large
    # number, a blank between quote and colon, or one of the two as an escape.
    edges = np.append(records.starts, records.stops[-1:] if len(records) else 0)
    each = binary_over(edges, pa.py_buffer(records.data))
    ends = _COMPUTE.count_substring(each, _CLOSE_KEY_END).to_pylist()
    odd = _COMPUTE.match_substring_regex(each, _ODD).to_pylist()
    found = [
        (None if odd[at] else _judge_quickly(line, ends[at], want)) or _judge_row(line, want)
        for at, line in enumerate(records)
    ]
    judged = [each for each in found if not isinstance(each, Fault)]
    if len(judged) > 1 and is_too_wide([each.record for each in judged], want.columns):
        del found, judged
        middle = len(records) // 2
        yield from _rows_of(records.part(0, middle), want)
        yield from _rows_of(records.part(middle, len(records)), want)
    else:
        yield _parsed_rows(records, found, want)


def _parsed_rows(records: RawRecords, found: list[Judged | Fault], want: Want) -> Parsed:
    """Return what was found in each record, as columns and as objects."""
    faults = {at: each for at, each in enumerate(found) if isinstance(each, Fault)}
    judged = [(at, each) for at, each in enumerate(found) if not isinstance(each, Fault)]
    strings = [None if isinstance(each.text, Fault) else each.text for _, each in judged]
    objects = [each.record for _, each in judged]
    return _parsed(
        records,
        faults,
        text=None if want.text is None else _ARROW.array(strings, pa.large_string()),
        rows=None if want.columns == () else Rows(objects=objects, names=want.columns),
        doubtful=tuple(records.bad(at, each.text) for at, each in judged if isinstance(each.text, Fault)),
    )


# ---- one record ---------------------------------------------------------------------------------------


class Member(NamedTuple):
    """One ``"key": value`` of a record.

    Attributes:
        path: the keys from the record down to this one, None for every array on the way. It changes as
            the next member is looked for.
        repeats: whether the same object has given the key before.
        value: offset at which the value begins.
    """

    path: list[str | None]
    repeats: bool
    value: int


class Judged(NamedTuple):
    """A record, and its text or why it has none; None where no text is wanted."""

    record: Record
    text: str | Fault | None


def judge_text(line: bytes, name: str, limit: int) -> str | Fault:
    """Return the text in the field `name` of the JSON object `line` (no newline), or what is wrong with it."""
    if len(line) > limit:
        return too_long(len(line), limit)
    record = _load_object(line)
    return record if isinstance(record, Fault) else _text_of(record, line, name)


def _judge_row(line: bytes, want: Want) -> Judged | Fault:
    """Return the record on `line` and its text, or what makes it unusable as a record."""
    if len(line) > want.max_record_bytes:
        return too_long(len(line), want.max_record_bytes)
    record = _load_object(line)
    if isinstance(record, Fault):
        return record
    if len(_KEY_END.findall(line)) != _count_members(record):
        for member in _members_of(line):
            if member.repeats and _is_wanted(want, member.path[0]):
                name = ".".join(key for key in member.path if key is not None)
                return Fault("duplicate_key", f"the field {name!r} is given more than once")
    if _LARGE_BYTES.search(line):
        exact = _read_exactly(line, record, want)
        if isinstance(exact, Fault):
            return exact
        record = exact
    return Judged(record, None if want.text is None else _text_of(record, line, want.text))


def _judge_quickly(line: bytes, key_ends: int, want: Want) -> Judged | None:
    """Return the record of a line that is not odd, if it surely holds every member of it; None: look closer.

    Written out again it has as many ends of keys then: a repeated key would be there once.
    """
    if len(line) > want.max_record_bytes:
        return None
    try:
        record = orjson.loads(line)
        if type(record) is not dict or key_ends != orjson.dumps(record).count(b'":'):
            return None
    except (ValueError, TypeError):  # orjson's own: no JSON, or nested deeper than it writes
        return None
    found = cast("Record", record)
    return Judged(found, None if want.text is None else _text_of(found, line, want.text))


def _load_object(line: bytes) -> Record | Fault:
    """Parse `line` as one JSON object."""
    try:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if "infinity" not in str(error):
                raise
            # A number beyond a double's range is valid JSON and nothing to us. `0e0` cannot be extended to
            # another number by what follows, so nothing malformed becomes valid.
            record = orjson.loads(
                _STRING_OR_NUMBER.sub(lambda it: it[0] if it[0].startswith(b'"') else b"0e0", line)
            )
    except orjson.JSONDecodeError as error:
        return _syntax_fault(line, error)
    if isinstance(record, dict):
        return cast("Record", record)
    return Fault("not_an_object", f"the record is a JSON {_KINDS[type(record)]}, expected an object")


def _syntax_fault(line: bytes, error: orjson.JSONDecodeError) -> Fault:
    """Name the reason for which orjson refused `line`."""
    message = str(error)[:_SHOWN]
    try:
        str(line, "utf-8")
    except UnicodeDecodeError as unicode_error:
        return Fault("invalid_utf8", f"byte {unicode_error.start} of the record is not UTF-8")
    if "depth limit" in message or "recursion limit" in message:
        return Fault("too_deep", f"values are nested more than {_MAX_DEPTH} levels deep")
    if "surrogate" in message:
        told = f"half a surrogate pair stands alone, which is no character: {message}"
        return Fault("lone_surrogate", told)
    return Fault("invalid_json", f"not a JSON object: {message}")


def _text_of(record: Record, line: bytes, name: str) -> str | Fault:
    """Return the string in the field `name` (a dotted path) of `record`, which was parsed from `line`."""
    keys = _keys_of(record, name)
    if keys[0] in record and (
        _disguise_of(keys).search(line) or any(line.count(orjson.dumps(key)) != 1 for key in keys)
    ):
        # The member that `keys` lead to, or one on the way, may be given more than once.
        wanted = [list(keys[: depth + 1]) for depth in range(len(keys))]
        if any(member.repeats and member.path in wanted for member in _members_of(line)):
            return Fault("duplicate_key", f"the field {name!r} is given more than once")
    text: Any = record
    for key in keys:
        text = cast("Record", text).get(key, _MISSING) if isinstance(text, dict) else _MISSING
    if isinstance(text, str):
        return text
    if text is _MISSING:
        names = ", ".join(map(repr, sorted(record)[:12]))[:_SHOWN]
        return Fault("missing_field", f"there is no field {name!r}; the record has {names or 'no fields'}")
    if text is None:
        return Fault("null_text", f"the field {name!r} is null, expected a string")
    return Fault("not_a_string", f"the field {name!r} holds a JSON {_KINDS[type(text)]}, expected a string")


def _keys_of(record: Record, path: str) -> tuple[str, ...]:
    """Return the keys that `path` stands for: ``a.b`` is the field "a.b" where there is one, else "b" of "a"."""
    return (path,) if path in record else tuple(path.split("."))


def _disguise_of(keys: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return what every other spelling of one of these keys holds; letters, digits and underscores have one."""
    return re.compile(rb"\\u00[2-7]" if all(map(_is_plain, keys)) else rb"\\")


def _is_plain(key: str) -> bool:
    return key.isascii() and key.isidentifier()


def _members_of(line: bytes) -> Iterator[Member]:
    """Yield every member of every object in the valid JSON `line`, repeated ones too."""
    path: list[str | None] = []
    seen: list[set[str]] = []
    name = b""
    for token in _TOKEN.finditer(line):
        first = token[0][:1]
        if first in b"{[":
            path.append(None)
            seen.append(set())
        elif first in b"}]":
            path.pop()
            seen.pop()
        elif first == b'"':
            name = token[0]
        elif (colon := token[0].find(b":")) >= 0 and not token[0][:colon].strip():
            key: str = orjson.loads(name)
            path[-1] = key
            yield Member(path, key in seen[-1], token.end() - len(token[0][colon + 1 :].lstrip()))
            seen[-1].add(key)


def _count_members(record: Record) -> int:
    """Return how many members a record has, those of all objects inside it included."""
    total, rest = 0, cast("list[Any]", [record])
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            members = cast("Record", value)
            total += len(members)
            value = members.values()
        rest += [item for item in value if type(item) is dict or type(item) is list]
    return total


@final
class _UnreadInteger:
    """An integer of more digits than Python converts.

    Attributes:
        shown: its first digits.
    """

    __slots__ = ("shown",)

    def __init__(self, digits: str) -> None:
        self.shown = f"{digits[:40]}..."


def _integer(digits: str) -> int | _UnreadInteger:
    return int(digits) if len(digits.lstrip("-")) <= _MOST_DIGITS else _UnreadInteger(digits)


def _read_exactly(line: bytes, record: Record, want: Want) -> Record | Fault:
    """Return the record on the valid JSON `line` with its numbers as ``json.loads`` reads them.

    Args:
        record: it as orjson reads it, where integers beyond 64 bits are doubles.
    """
    if not any(map(_is_altered, _STRING_OR_NUMBER.finditer(line))):
        return record
    try:
        exact: Record = json.loads(line, parse_int=_integer)
    except RecursionError:
        return Fault("too_deep", "values beside a number beyond 64 bits are nested too deeply")
    for name, value in exact.items():
        if _is_wanted(want, name) and (unread := _unread_integer(value)) is not None:
            told = f"the field {name!r} holds {unread.shown}, an integer of more than {_MOST_DIGITS} digits"
            return Fault("number_too_large", told)
    return exact


def _is_altered(token: re.Match[bytes]) -> bool:
    """Return whether a token of JSON is a number that orjson does not read as it is."""
    number = token[0]
    if number.startswith(b'"'):
        return False
    if number.strip(b"-0123456789"):
        return isinf(float(number))
    is_long = len(number) > _UINT64_DIGITS
    return is_long or not _INT64_MIN <= int(number) <= _UINT64_MAX


def _unread_integer(value: Any) -> _UnreadInteger | None:
    """Return an integer in a value of JSON that was not read, None where all were."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _UnreadInteger):
            return item
        if isinstance(item, dict):
            pending.extend(cast("Record", item).values())
        elif isinstance(item, list):
            pending.extend(cast("list[Any]", item))
    return None


def _is_wanted(want: Want, name: str | None) -> bool:
    return want.columns is None or name in want.columns


# ---- lines of more than a block ----------------------------------------------------------------------


def parse_long(line: LongLine, want: Want) -> Parsed:
    """Parse one long line, with about twice its own size in memory, into a batch of one record or none.

    Decoded at once it would take up to five times as much (a Python string with one emoji has four bytes for every
    character). So long strings are lifted out; what is left is small and goes through the strict parser, and the
    lifted ones are decoded piece by piece.
    """
    data, (record, start, stop) = line.data, long_record(line)
    if data is None or stop - start > want.max_record_bytes:
        return _parsed_rows(record, [too_long(stop - start, want.max_record_bytes)], want)
    # A placeholder longer than the field's name, so that a lifted key is never taken for it.
    skeleton, lifted = _lift(data, start, stop, len(want.text or "") + 1)
    if skeleton is None:
        told = f"the record has more than {_MAX_SKELETON} bytes beside long strings"
        return _parsed_rows(record, [Fault("too_complex", told)], want)
    if not skeleton.strip(b" \t\r"):
        return _parsed_rows(record.blank(), [], want)
    if want.text is None or want.columns != ():
        return _parsed_rows(record, [_judge_row(bytes(data[start:stop]), want)], want)
    found = _long_text(skeleton, data, lifted, want.text)
    if isinstance(found, Fault):
        return _parsed_rows(record, [found], want)
    return record.parsed({}, text=text_over(np.array([0, len(found)]), pa.py_buffer(found)))


def _long_text(
    skeleton: bytes, data: bytearray, lifted: dict[int, tuple[int, int]], name: str
) -> bytes | bytearray | Fault:
    """Return the text as UTF-8, or the record's fault."""
    record = _load_object(skeleton)
    if isinstance(record, Fault):
        return record
    keys = list(_keys_of(record, name))
    wanted = [member.value for member in _members_of(skeleton) if member.path == keys]
    text: bytearray | None = None
    for at, (start, stop) in lifted.items():
        decoded = _decoded(data, start, stop)
        if isinstance(decoded, Fault):
            return decoded
        text = decoded if at in wanted else text
    found = _text_of(record, skeleton, name)
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
                fault = fault or _syntax_fault(piece, error)
            else:
                start, fault = cut, None
                break
        if fault:
            return fault
    return text
