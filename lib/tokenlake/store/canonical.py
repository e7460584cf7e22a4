"""Parsing what must be canonical JSON, fast.

Text that is the canonical form of what it was parsed to has no key twice and nothing else that is unclear, so parsing
and writing it again is the whole check. Most of a large manifest are the first rows of row groups, a hundred numbers
for each of ten thousand shards, and most of these lists are equal. So each list is set aside, equal ones once; in its
place stands its number, and the short text and the lists are parsed and written for themselves.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from tokenlake.fingerprint import canonical_text

_KEY: Final = "row_groups"
_MARK: Final = f'"{_KEY}":['
_NUMBERS: Final = b"0123456789,"


def parse_canonical(text: str) -> Any:
    """Return what canonical JSON says; equal lists of ``row_groups`` are one object, not to be changed.

    Raises:
        ValueError: the text is not JSON, or not the canonical form of anything; RecursionError: or too deep.
    """
    short, lists = _set_aside(text)
    holders: list[dict[str, Any]] = []

    def notice(value: dict[str, Any]) -> dict[str, Any]:
        if _KEY in value:
            holders.append(value)
        return value

    found = json.loads(short, object_hook=notice if lists else None, parse_constant=_no_constant)
    if canonical_text(found) != short:
        raise ValueError("not canonical JSON")
    if lists:
        for holder in holders:
            holder[_KEY] = lists[holder[_KEY]]
    return found


def _set_aside(text: str) -> tuple[str, list[list[int]]]:
    """Return the text with numbers in place of its lists of row groups, and these lists; or as it is, and none."""
    first, *rest = text.split(_MARK)
    # Every mark must be a whole key, and every such key have a list: else a number in its place would not be clear.
    if not rest or text.count(f'"{_KEY}":') != len(rest) or f'\\"{_KEY}"' in text:
        return text, []
    known: dict[str, int] = {}
    short = [first]
    for piece in rest:
        numbers, _, after = piece.partition("]")
        short += [f'"{_KEY}":{known.setdefault(numbers, len(known))}', after]
    if "".join(known).encode().translate(None, _NUMBERS):
        return text, []
    # Of digits and commas JSON makes no list that could be written in another way: it has no leading zeros.
    return "".join(short), json.loads(f"[[{'],['.join(known)}]]")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
