"""An independent reader of the text in one line of JSON Lines, made of Python's own
`json` module.
"""

from __future__ import annotations

import json
from typing import Any

BLANK = b" \t\r"
"""Bytes of which a blank line consists."""


class _NotJson(ValueError):
    """The line is no valid JSON in the sense of RFC 8259, or its text is given
    twice.
    """


class _Members(list[tuple[str, Any]]):
    """Members of an object, repeated ones included."""


def text_of_line(line: bytes) -> str | None:
    """Return the string in the field ``text`` of a line (no newline); None if the
    record is a bad one.
    """
    try:
        record = json.loads(
            line.decode(),
            object_pairs_hook=_Members,
            parse_constant=_refuse_constant,
            parse_int=str,  # Python refuses to convert integers of many digits
        )
        _refuse_surrogates(record)
    except ValueError:
        return None
    if not isinstance(record, _Members):
        return None
    texts = [value for key, value in record if key == "text"]
    # Numbers are strings here, which `text` may not be: their kind is read once more.
    is_string = len(texts) == 1 and isinstance(texts[0], str) and _is_string(line)
    return texts[0] if is_string else None


def _is_string(line: bytes) -> bool:
    value = json.loads(line.decode(), parse_int=float)["text"]
    return isinstance(value, str)


def _refuse_constant(name: str) -> None:
    raise _NotJson(f"{name} is no JSON")


def _refuse_surrogates(value: Any) -> None:
    """Raise UnicodeEncodeError, which is a ValueError, if a string has half a
    surrogate pair.
    """
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_surrogates(item)


def texts_of_lines(data: bytes) -> tuple[list[tuple[int, str]], list[int]]:
    """Return (offset, text) of the good records of a file without a byte order mark,
    and offsets of the bad ones.
    """
    good: list[tuple[int, str]] = []
    bad: list[int] = []
    offset = 0
    for line in data.split(b"\n"):
        if line.strip(BLANK):
            text = text_of_line(line)
            if text is None:
                bad.append(offset)
            else:
                good.append((offset, text))
        offset += len(line) + 1
    return good, bad
