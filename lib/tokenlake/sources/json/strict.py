"""One JSON record, read strictly: the judge of what the vectorised reader is not sure about.

RFC 8259 as orjson reads it: valid UTF-8, no NaN, no lone surrogates, at most 1024 levels, one object
and nothing else; numbers of any size. The content field must be there once and hold a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import orjson

from tokenlake.faults import Fault
from tokenlake.sources.json.paths import MISSING, follow, keys_of

MAX_DEPTH: Final = 1024  # orjson's limit: what is nested deeper is a bad record
_SHOWN: Final = 120  # characters of a foreign message or value in ours
_CUT: Final = frozenset({"invalid_json", "invalid_utf8", "lone_surrogate"})
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
STRING_OR_NUMBER: Final = re.compile(
    _STRING + rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?", re.DOTALL
)


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


def parse_line(line: bytes, field: str) -> str | Fault:
    """Return the text in `field` of the JSON object `line` (no newline), or what is wrong with it."""
    record = load_object(line)
    return record if isinstance(record, Fault) else text_of(record, line, field)


def load_object(line: bytes) -> dict[str, Any] | Fault:
    """Parse `line` as one JSON object."""
    try:
        record = _loads(line)
    except orjson.JSONDecodeError as error:
        return syntax_fault(line, error)
    if isinstance(record, dict):
        return cast("dict[str, Any]", record)
    return Fault("not_an_object", f"the record is a JSON {_kind(record)}, expected an object")


def text_of(record: dict[str, Any], line: bytes, field: str) -> str | Fault:
    """Return the string in `field` (a dotted path) of `record`, which was parsed from `line`."""
    keys = keys_of(record, field)
    if keys[0] in record and _may_repeat(line, keys) and _is_repeated(line, keys):
        return Fault("duplicate_key", f"the field {field!r} is given more than once")
    text = follow(record, keys)
    if isinstance(text, str):
        return text
    if text is MISSING:
        names = ", ".join(map(repr, sorted(record)[:12]))[:_SHOWN]
        return Fault("missing_field", f"there is no field {field!r}; the record has {names or 'no fields'}")
    if text is None:
        return Fault("null_text", f"the field {field!r} is null, expected a string")
    return Fault("not_a_string", f"the field {field!r} holds a JSON {_kind(text)}, expected a string")


def members(line: bytes) -> Iterator[Member]:
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


def syntax_fault(line: bytes, error: orjson.JSONDecodeError) -> Fault:
    """Name the reason for which orjson refused `line`."""
    message = str(error)[:_SHOWN]
    try:
        str(line, "utf-8")
    except UnicodeDecodeError as unicode_error:
        return Fault("invalid_utf8", f"byte {unicode_error.start} of the record is not UTF-8")
    if "depth limit" in message or "recursion limit" in message:
        return Fault("too_deep", f"values are nested more than {MAX_DEPTH} levels deep")
    if "surrogate" in message:
        return Fault(
            "lone_surrogate", f"half a surrogate pair stands alone, which is no character: {message}"
        )
    return Fault("invalid_json", f"not a JSON object: {message}")


def at_the_end(fault: Fault) -> Fault:
    """Return the fault of the last line of a file without a newline: if it is broken, it was cut."""
    if fault.reason not in _CUT:
        return fault
    return Fault("truncated_line", f"the file ends in the middle of a record ({fault.detail})")


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            raise
        return orjson.loads(STRING_OR_NUMBER.sub(_tame, line))


def _tame(token: re.Match[bytes]) -> bytes:
    # A number beyond a double's range is valid JSON and nothing to us. `0e0` cannot be extended to
    # another number by what follows, so nothing malformed becomes valid.
    return token[0] if token[0].startswith(b'"') else b"0e0"


def _may_repeat(line: bytes, keys: tuple[str, ...]) -> bool:
    # Letters, digits and underscores have one other spelling in a key, \\u00XX.
    escape = b"\\u00" if all(key.isascii() and key.isidentifier() for key in keys) else b"\\"
    return escape in line or any(line.count(orjson.dumps(key)) != 1 for key in keys)


def _is_repeated(line: bytes, keys: tuple[str, ...]) -> bool:
    """Say whether the member that `keys` lead to, or one on the way, is given more than once."""
    wanted = [list(keys[: depth + 1]) for depth in range(len(keys))]
    return any(member.repeats and member.path in wanted for member in members(line))


def _kind(value: object) -> str:
    return _KINDS[type(value)]
