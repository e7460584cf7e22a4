"""One record of JSON, read strictly.

RFC 8259 as orjson reads it: valid UTF-8, no NaN, no lone surrogates, at most 1024
levels, one object and nothing else.

- A text alone: the content field must be given exactly once and hold a string.
- A row: each wanted field must be given at most once. Its numbers are those that
  Python's ``json.loads`` reads. An integer has all its digits; a number with a point or
  an exponent is the nearest double, infinity if that is nearest. orjson makes doubles
  of integers beyond 64 bits: a record with one is read a second time.
- Fields that are not wanted are only checked for being JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isinf
from typing import Any, Final, NamedTuple, cast, final

import orjson

from tokenlake.etl.sources.bad_records import Fault, too_long
from tokenlake.etl.sources.parsed import Want
from tokenlake.etl.sources.rows import Record

LARGE_NUMBER: Final = "[0-9]{19}|[eE][+]?[0-9]{3}"
"""Pattern of which every large number has a match: 2 ** 63 has 19 digits, 1e308 an
exponent of three.
"""
_LARGE_NUMBER_BYTES: Final = re.compile(LARGE_NUMBER.encode())

_MAX_DEPTH: Final = 1024  # orjson's limit: a record that is nested deeper is a bad one
_SHOWN_CHARACTERS: Final = 120  # of a foreign message or value in ours
_SHOWN_FIELDS: Final = 12
_SHOWN_DIGITS: Final = 40
_NOUNS: Final[dict[type[Any], str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
# Possessive quantifiers, so that no record takes time quadratic in its length.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN: Final = re.compile(_STRING + rb'|[\[\]{}]|[^"\[\]{}]++', re.DOTALL)
_STRING_OR_NUMBER: Final = re.compile(
    _STRING + rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?", re.DOTALL
)
KEY_END: Final = re.compile(rb'"[ \t\r\n]*:')
"""Pattern that every member matches once; a string may match it, too, behind an
escaped quote.
"""
# Limits of the integers that orjson reads exactly.
_INT64_MIN: Final = -(1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1
_UINT64_DIGITS: Final = 20
_MAX_DIGITS: Final = 4300  # of an integer that Python converts by default
# A value that no JSON has: null is a value, too.
_MISSING: Final = object()


class Member(NamedTuple):
    """One ``"key": value`` of a record.

    Attributes:
        path: Keys from the record down to this one, None for every array on the way. It
            changes when the next member is read.
        repeats: Whether the same object has given the key before.
        value: Offset of the value in the line.
    """

    path: list[str | None]
    repeats: bool
    value: int


class Judged(NamedTuple):
    """A record that was read.

    Attributes:
        record: The record.
        text: Its text, or the reason for which it has none; None if no text is wanted.
    """

    record: Record
    text: str | Fault | None


def judge_text(line: bytes, name: str, limit: int) -> str | Fault:
    """Return the text of a record, or its fault.

    Args:
        line: The record as JSON, without a newline.
        name: Dotted path of the text.
        limit: Largest size of a record in bytes.
    """
    if len(line) > limit:
        return too_long(len(line), limit)
    record = load_object(line)
    if isinstance(record, Fault):
        return record
    return text_of(record, line, name)


def judge_row(line: bytes, want: Want) -> Judged | Fault:
    """Return the record on `line` and its text, or the fault that makes it unusable."""
    if len(line) > want.max_record_bytes:
        return too_long(len(line), want.max_record_bytes)
    record = load_object(line)
    if isinstance(record, Fault):
        return record

    # A key that is repeated is in the record once: then the line has more ends of keys
    # than the record has members.
    if len(KEY_END.findall(line)) != _count_members(record):
        for member in members_of(line):
            if member.repeats and _is_wanted(want, member.path[0]):
                name = ".".join(key for key in member.path if key is not None)
                return Fault(
                    "duplicate_key", f"the field {name!r} is given more than once"
                )
    if _LARGE_NUMBER_BYTES.search(line):
        exact_record = _read_exactly(line, record, want)
        if isinstance(exact_record, Fault):
            return exact_record
        record = exact_record
    text = None
    if want.text is not None:
        text = text_of(record, line, want.text)
    return Judged(record, text)


def judge_quickly(line: bytes, key_ends: int, want: Want) -> Judged | None:
    """Return the record of a line that is not odd, if it surely holds every member.

    It is None for a line to judge strictly.

    Written out again, a record that lost a repeated key has fewer ends of keys than its
    line.

    Args:
        line: The record as JSON.
        key_ends: Number of places in the line where a quote and a colon are side by
            side.
        want: Wanted text and columns.
    """
    if len(line) > want.max_record_bytes:
        return None
    try:
        parsed = orjson.loads(line)
        if type(parsed) is not dict or key_ends != orjson.dumps(parsed).count(b'":'):
            return None
    # Orjson's own: no JSON, or nested deeper than it writes.
    except (ValueError, TypeError):
        return None
    record = cast("Record", parsed)
    text = None
    if want.text is not None:
        text = text_of(record, line, want.text)
    return Judged(record, text)


def load_object(line: bytes) -> Record | Fault:
    """Parse `line` as one JSON object; return its fault if it is something else."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            return syntax_fault(line, error)
        # A number beyond a double's range is valid JSON. With `0e0` in the place of
        # each number the rest is parsed. It cannot be extended to another number by the
        # bytes behind it, so that nothing malformed becomes valid.
        try:
            record = orjson.loads(_STRING_OR_NUMBER.sub(_zero_for_number, line))
        except orjson.JSONDecodeError as other_error:
            return syntax_fault(line, other_error)
    if isinstance(record, dict):
        return cast("Record", record)
    return Fault(
        "not_an_object",
        f"the record is a JSON {_NOUNS[type(record)]}, expected an object",
    )


def _zero_for_number(token: re.Match[bytes]) -> bytes:
    """Return a zero for a number, and a string as it is.

    Strings are tokens, too, because digits inside of a string are no number.
    """
    if token[0].startswith(b'"'):
        return token[0]
    return b"0e0"


def syntax_fault(line: bytes, error: orjson.JSONDecodeError) -> Fault:
    """Return the fault for which orjson refused `line`."""
    # orjson has one exception for all reasons: they are recognized by the line and by
    # its message.
    message = str(error)[:_SHOWN_CHARACTERS]
    try:
        str(line, "utf-8")
    except UnicodeDecodeError as unicode_error:
        return Fault(
            "invalid_utf8", f"byte {unicode_error.start} of the record is not UTF-8"
        )
    if "depth limit" in message or "recursion limit" in message:
        return Fault(
            "too_deep", f"values are nested more than {_MAX_DEPTH} levels deep"
        )
    if "surrogate" in message:
        detail = (
            f"it contains half of a surrogate pair, which is not a character: {message}"
        )
        return Fault("lone_surrogate", detail)
    return Fault("invalid_json", f"not a JSON object: {message}")


def text_of(record: Record, line: bytes, name: str) -> str | Fault:
    """Return the text of a record, or the reason for which it has none.

    Args:
        record: The record.
        line: JSON that it was parsed from.
        name: Dotted path of the text.
    """
    keys = keys_of(record, name)
    if keys[0] in record and _may_be_repeated(line, keys):
        # The member that `keys` lead to, or one on the way, may be given more than
        # once.
        paths = [list(keys[: depth + 1]) for depth in range(len(keys))]
        for member in members_of(line):
            if member.repeats and member.path in paths:
                detail = f"the field {name!r} is given more than once"
                return Fault("duplicate_key", detail)
    # The value at the path, and the reason for which it is no text.
    field_value: Any = record
    for key in keys:
        if not isinstance(field_value, dict):
            field_value = _MISSING
            break
        field_value = cast("Record", field_value).get(key, _MISSING)
    if isinstance(field_value, str):
        return field_value
    if field_value is _MISSING:
        all_fields = ", ".join(map(repr, sorted(record)[:_SHOWN_FIELDS]))
        fields = all_fields[:_SHOWN_CHARACTERS]
        return Fault(
            "missing_field",
            f"there is no field {name!r}; the record has {fields or 'no fields'}",
        )
    if field_value is None:
        return Fault("null_text", f"the field {name!r} is null, expected a string")
    noun = _NOUNS[type(field_value)]
    return Fault(
        "not_a_string", f"the field {name!r} holds a JSON {noun}, expected a string"
    )


def _may_be_repeated(line: bytes, keys: tuple[str, ...]) -> bool:
    """Say whether a line may give one of some keys twice, or in another spelling.

    If each key occurs once in the line, and no other spelling of it can, it is surely
    given once.
    """
    if disguise_of(keys).search(line):
        return True
    return any(line.count(orjson.dumps(key)) != 1 for key in keys)


def keys_of(record: Record, path: str) -> tuple[str, ...]:
    """Return the keys that `path` stands for.

    ``a.b`` is the field "a.b" if it exists, otherwise "b" of "a".
    """
    if path in record:
        return (path,)
    return tuple(path.split("."))


def disguise_of(keys: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return a pattern that every other spelling of one of these keys matches.

    Letters, digits and underscores can only be written as themselves or as ``\\u00``
    and two digits.
    """
    if all(is_plain_key(key) for key in keys):
        return re.compile(rb"\\u00[2-7]")
    return re.compile(rb"\\")


def is_plain_key(key: str) -> bool:
    """Say whether a key consists of letters of ASCII, digits and underscores."""
    return key.isascii() and key.isidentifier()


def members_of(line: bytes) -> Iterator[Member]:
    """Yield every member of every object in the valid JSON `line`, repeated ones too."""
    # One entry per open object or array: the key that is read in it, None in an array,
    # and the keys of an object so far.
    path: list[str | None] = []
    seen_keys: list[set[str]] = []
    latest_string = b""
    for token in _TOKEN.finditer(line):
        first_byte = token[0][:1]
        if first_byte in b"{[":
            path.append(None)
            seen_keys.append(set())
        elif first_byte in b"}]":
            path.pop()
            seen_keys.pop()
        elif first_byte == b'"':
            latest_string = token[0]
        else:
            # Bytes between strings and brackets: with a colon in front, the string
            # before them was a key.
            bytes_before, colon, bytes_after = token[0].partition(b":")
            if colon and not bytes_before.strip():
                key: str = orjson.loads(latest_string)
                path[-1] = key
                yield Member(
                    path, key in seen_keys[-1], token.end() - len(bytes_after.lstrip())
                )
                seen_keys[-1].add(key)


def _count_members(record: Record) -> int:
    """Return the number of members of a record and of all objects inside it."""
    member_count = 0
    # A list of pending values instead of recursion: records are nested up to 1,024
    # levels.
    pending = cast("list[Any]", [record])
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            members = cast("Record", value)
            member_count += len(members)
            value = members.values()
        pending += [item for item in value if type(item) is dict or type(item) is list]
    return member_count


@final
class _UnreadInteger:
    """An integer of more digits than Python converts.

    Attributes:
        shown: Its first digits.
    """

    __slots__ = ("shown",)

    def __init__(self, digits: str) -> None:
        self.shown = f"{digits[:_SHOWN_DIGITS]}..."


def _integer(digits: str) -> int | _UnreadInteger:
    if len(digits.lstrip("-")) <= _MAX_DIGITS:
        return int(digits)
    return _UnreadInteger(digits)


def _read_exactly(line: bytes, record: Record, want: Want) -> Record | Fault:
    """Return a record with its numbers as ``json.loads`` reads them.

    Args:
        line: The record as valid JSON.
        record: The record as orjson reads it, in which integers beyond 64 bits are
            doubles.
        want: Wanted columns.
    """
    # Most matches of the quick pattern are digits in strings.
    if not any(_is_altered(token) for token in _STRING_OR_NUMBER.finditer(line)):
        return record
    # Python's own reader is slower, but keeps all digits.
    try:
        exact_record: Record = json.loads(line, parse_int=_integer)
    except RecursionError:
        return Fault(
            "too_deep",
            "values next to a number of more than 64 bits are nested too deeply",
        )
    # Only wanted fields count: an enormous integer in another one does no harm.
    for field_name, field_value in exact_record.items():
        unread = _unread_integer(field_value) if _is_wanted(want, field_name) else None
        if unread is not None:
            detail = f"the field {field_name!r} holds {unread.shown}, an integer of more than {_MAX_DIGITS} digits"
            return Fault("number_too_large", detail)
    return exact_record


def _is_altered(token: re.Match[bytes]) -> bool:
    """Say whether a token of JSON is a number that orjson does not read as it is."""
    number = token[0]
    if number.startswith(b'"'):
        return False
    if number.strip(b"-0123456789"):
        return isinf(float(number))
    is_long = len(number) > _UINT64_DIGITS
    return is_long or not _INT64_MIN <= int(number) <= _UINT64_MAX


def _unread_integer(value: Any) -> _UnreadInteger | None:
    """Return an integer in a value of JSON that was not read, None if all were."""
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
