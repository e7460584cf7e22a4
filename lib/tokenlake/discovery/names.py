"""Names of columns, compared as people mean them: `rawContents`, `raw-content` and `RAW_CONTENT` are one name."""

from __future__ import annotations

import re
import unicodedata
from difflib import SequenceMatcher
from typing import Final

# A capital begins a word after a small letter; the last of several capitals belongs to what follows (HTMLBody).
_BOUNDARY: Final = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)
_SEPARATORS: Final = re.compile(r"[\W_]+")
_WHOLE_WORD: Final = 0.7  # similarity of a name of which the wanted words are a small part


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name, lower case and singular: ``rawContents`` -> ``("raw", "content")``.

    Words end at separators, at a change from small to capital letters and between letters and digits.
    """
    parts = _SEPARATORS.split(_BOUNDARY.sub(" ", unicodedata.normalize("NFKC", name)))
    return tuple(_singular(part.casefold()) for part in parts if part)


def normalized(name: str) -> str:
    """Return what equal names have in common: the words without separators; "" for a name without letters."""
    return "".join(words_of(name))


def similarity(wanted: str, name: str) -> float:
    """Return how much `name` is like a wanted one, 0 to 1; 1.0 if they are normalised equal.

    The larger of two figures:

    - of the letters, 2 M / T: M letters in common blocks of T in both (Ratcliff and Metzener, "Pattern
      matching: the Gestalt approach", Dr. Dobb's Journal, July 1988; `difflib`), separators left out;
    - where the wanted words stand together in the name, 0.7 + 0.3 s, s being the share of its letters
      that they make up: `page_text` is 0.85 like `text`.
    """
    few, many = words_of(wanted), words_of(name)
    short, long = "".join(few), "".join(many)
    if not short or not long:
        return 0.0
    # Common blocks are looked for from the first text's point of view: the order must not matter.
    letters = SequenceMatcher(None, *sorted((short, long)), autojunk=False).ratio()
    if not _stands_in(few, many):
        return letters
    return max(letters, _WHOLE_WORD + (1 - _WHOLE_WORD) * len(short) / len(long))


def _stands_in(few: tuple[str, ...], many: tuple[str, ...]) -> bool:
    return any(many[at : at + len(few)] == few for at in range(len(many) - len(few) + 1))


def _singular(word: str) -> str:
    """Return the singular of a regular English plural, anything else as it is."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
