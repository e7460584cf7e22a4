"""Where a text may be cut between words.

A word is a run of letters, digits, marks and underscores, with an apostrophe, hyphen, full stop, comma or colon
between two of them (``don't``, ``well-known``, ``3.14``, ``12:30``). In scripts that are written without blanks
every letter is a word of its own: there is no telling words apart without a dictionary. What stands between words
may be cut anywhere, but never between a character and the marks that belong to it, nor inside an emoji sequence.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

#: Han, Kana, Bopomofo, Thai, Lao, Tibetan, Myanmar, Khmer and their extensions.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029"
    "\u3038-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f"
    "\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
_JOINERS: Final = frozenset("'’-‐‑.,:·‧")
_ZWJ: Final = "\u200d"
_SKIN_TONES: Final = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS: Final = range(0x1F1E6, 0x1F200)


def is_word_boundary(text: str, at: int) -> bool:
    """Return whether `text` may be cut before its character `at`; both ends of it are boundaries."""
    if not 0 < at < len(text):
        return True
    return not (_clings(text[at - 1], text[at]) or _in_word(text, at))


def _in_word(text: str, at: int) -> bool:
    before, after = _base(text, at - 1), text[at]
    if _of_word(before) and _of_word(after):
        return not (_UNSPACED.match(before) or _UNSPACED.match(after))
    if after in _JOINERS:
        return _spaced(before) and at + 1 < len(text) and _spaced(text[at + 1])
    if before in _JOINERS:
        return _spaced(after) and at >= 2 and _spaced(_base(text, at - 2))
    return False


def _base(text: str, at: int) -> str:
    """The character that the marks ending at `at` belong to."""
    while at > 0 and unicodedata.category(text[at])[0] == "M":
        at -= 1
    return text[at]


def _of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _spaced(character: str) -> bool:
    return _of_word(character) and not _UNSPACED.match(character)


def _clings(before: str, after: str) -> bool:
    """Whether two characters are parts of one that is seen."""
    if after.isascii():
        return before == _ZWJ or (before == "\r" and after == "\n")
    if _ZWJ in (before, after) or ord(after) in _SKIN_TONES:
        return True
    if ord(before) in _FLAG_LETTERS and ord(after) in _FLAG_LETTERS:
        return True
    return unicodedata.category(after)[0] == "M"
