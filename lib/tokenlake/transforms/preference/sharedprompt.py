"""What two answers begin with alike: their prompt, where a row does not say it."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from tokenlake.transforms.preference.turns import Turn

_LAST_WORD: Final = re.compile(r"\s*\S+\s*\Z")


def shared_turns(left: list[Turn], right: list[Turn]) -> int:
    """Return how many turns two conversations begin with alike, at least one left to each."""
    most = min(len(left), len(right)) - 1
    return next((at for at in range(most) if left[at] != right[at]), max(most, 0))


def shared_text(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike, up to the end of a word.

    The blanks after that word belong to the answers, and so does a word that only begins alike: tokenizers put a
    word's blank before it. Each text keeps at least one word. Scripts without blanks are cut between characters.
    """
    end = _alike(left, right)
    shorter = min(len(left.rstrip()), len(right.rstrip()))
    if end >= shorter:
        found = _LAST_WORD.search(left[:shorter])
        end = found.start() if found else 0
    while end and (_inside_word(left, end) or _inside_word(right, end)):
        end -= 1
    return len(left[:end].rstrip())


def _alike(left: str, right: str) -> int:
    """Return how many characters are equal from the beginning: by halving, for texts may be long."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


def _inside_word(text: str, at: int) -> bool:
    if at >= len(text):
        return False
    before, after = text[at - 1], text[at]
    return bool(unicodedata.combining(after)) or (_bound(before) and _bound(after))


def _bound(character: str) -> bool:
    """Whether it stands in words that blanks separate: digits, and letters of scripts with capitals."""
    return character.isdigit() or character.lower() != character.upper()
