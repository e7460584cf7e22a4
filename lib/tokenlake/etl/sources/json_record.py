"""One record of JSON, read strictly.

RFC 8259 as orjson reads it: valid UTF-8, no NaN, no lone surrogates, at most 1024 levels, one object and nothing else.

- A text alone: the content field must be there exactly once and hold a string.
- A row: each wanted field must be there at most once. Its numbers are those that Python's ``json.loads`` reads. An
  integer has all its digits; a number with a point or an exponent is the nearest double, infinity where that is
  nearest. orjson makes doubles of integers beyond 64 bits: a record with one is read a second time.
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

# What only large numbers, and some strings, hold: 2 ** 63 has 19 digits, 1e308 an exponent of three.
LARGE_NUMBER: Final = "[0-9]{19}|[eE][+]?[0-9]{3}"
_LARGE_BYTES: Final = re.compile(LARGE_NUMBER.encode())

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
KEY_END: Final = re.compile(rb'"[ \t\r\n]*:')
_INT64_MIN: Final = -(1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1
_UINT64_DIGITS: Final = 20
_MOST_DIGITS: Final = 4300  # of an integer that Python converts by default
_MISSING: Final = object()


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
    record = load_object(line)
    return record if isinstance(record, Fault) else text_of(record, line, name)


def judge_row(line: bytes, want: Want) -> Judged | Fault:
    """Return the record on `line` and its text, or what makes it unusable as a record."""
    if len(line) > want.max_record_bytes:
        return too_long(len(line), want.max_record_bytes)
    record = load_object(line)
    if isinstance(record, Fault):
        return record
    if len(KEY_END.findall(line)) != _count_members(record):
        for member in members_of(line):
            if member.repeats and _is_wanted(want, member.path[0]):
                name = ".".join(key for key in member.path if key is not None)
                return Fault("duplicate_key", f"the field {name!r} is given more than once")
    if _LARGE_BYTES.search(line):
        exact = _read_exactly(line, record, want)
        if isinstance(exact, Fault):
            return exact
        record = exact
    return Judged(record, None if want.text is None else text_of(record, line, want.text))


def judge_quickly(line: bytes, key_ends: int, want: Want) -> Judged | None:
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
    return Judged(found, None if want.text is None else text_of(found, line, want.text))


def load_object(line: bytes) -> Record | Fault:
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
        return syntax_fault(line, error)
    if isinstance(record, dict):
        return cast("Record", record)
    return Fault("not_an_object", f"the record is a JSON {_KINDS[type(record)]}, expected an object")


def syntax_fault(line: bytes, error: orjson.JSONDecodeError) -> Fault:
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


def text_of(record: Record, line: bytes, name: str) -> str | Fault:
    """Return the string in the field `name` (a dotted path) of `record`, which was parsed from `line`."""
    keys = keys_of(record, name)
    if keys[0] in record and (
        disguise_of(keys).search(line) or any(line.count(orjson.dumps(key)) != 1 for key in keys)
    ):
        # The member that `keys` lead to, or one on the way, may be given more than once.
        wanted = [list(keys[: depth + 1]) for depth in range(len(keys))]
        if any(member.repeats and member.path in wanted for member in members_of(line)):
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


def keys_of(record: Record, path: str) -> tuple[str, ...]:
    """Return the keys that `path` stands for: ``a.b`` is the field "a.b" where there is one, else "b" of "a"."""
    return (path,) if path in record else tuple(path.split("."))


def disguise_of(keys: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return what every other spelling of one of these keys holds; letters, digits and underscores have one."""
    return re.compile(rb"\\u00[2-7]" if all(map(is_plain_key, keys)) else rb"\\")


def is_plain_key(key: str) -> bool:
    return key.isascii() and key.isidentifier()


def members_of(line: bytes) -> Iterator[Member]:
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
