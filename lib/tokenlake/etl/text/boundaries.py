"""Boundaries in a text at which a cut reads well: ends of sentences, and ends of words."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import numpy as np

from tokenlake.base.arrays import Int64

_CLOSERS: Final = "\"'”’»)\\]}」』】》〉）］"
_MARKS: Final = "!?…‽"
_FULL_STOPS: Final = "。！？｡．।॥؟۔።፧፨။၊។։܀"
# One set of characters in front lets the engine skip what lies between, and every part begins where a run begins and
# gives nothing back, so that a text is looked at once, whatever is in it.
_END: Final = re.compile(
    rf"[.{_MARKS}{_FULL_STOPS}\n](?:"
    rf"(?<=[.])(?<![.][.])(?P<dots>[.]*+)[{_CLOSERS}]*+(?=\s|\Z)"
    rf"|(?<=[{_MARKS}])(?<![{_MARKS}][{_MARKS}])[{_MARKS}]*+[.]*+[{_CLOSERS}]*+(?=\s|\Z)"
    rf"|(?<=[{_FULL_STOPS}])[{_FULL_STOPS}]*+[{_CLOSERS}]*+"
    r"|(?<=\n)(?P<gap>[^\S\n]*+\n)\s*+)"
)
_BLANKS: Final = re.compile(r"\s*")
_LAST_WORD: Final = re.compile(r"[^\s(\[{\"'“‘«]*\Z")

_LISTED: Final = (
    "mr mrs ms mx dr prof st sr jr rev hon gen col maj capt lt sgt cmdr gov sen rep pres messrs mme mlle "
    "vs cf eg ie e.g i.e viz al approx ca nos vol vols fig figs eq eqs secs ch pp p ed eds dept est "
    "jan feb mar apr jun jul aug sep sept oct nov dec inc ltd co corp u.s u.k "
    "bzw z.b d.h u.a vgl nr bd hr fr usw m.e p.ex sig dott"
)
ABBREVIATIONS: Final = frozenset(_LISTED.split())
"""Without their last full stop, in lower case. Those that often end a sentence (etc., a.m., no.) are left out: there
the case of the next letter tells."""


def sentence_breaks(text: str) -> tuple[Int64, Int64]:
    """Return the breaks between the sentences of `text`: (end, begin), int64[k] each, ascending, in characters.

    A sentence ends before the character ``end``, and the next begins with the character ``begin`` after the blanks
    between them; the text may be cut anywhere from ``end`` to ``begin``. The text's own ends are none.
    """
    ends: list[int] = []
    begins: list[int] = []
    for match in _END.finditer(text):
        if match["gap"] is None:
            blanks = _BLANKS.match(text, match.end())
            end, begin = match.end(), blanks.end() if blanks else match.end()
        else:
            end, begin = match.start(), match.end()
            while end > 0 and text[end - 1].isspace():
                end -= 1
        if 0 < end < len(text) and not _goes_on(text, match, begin):
            ends.append(end)
            begins.append(begin)
    return np.array(ends, np.int64), np.array(begins, np.int64)


def _goes_on(text: str, match: re.Match[str], begin: int) -> bool:
    """Whether the sentence goes on after a full stop."""
    dots = match["dots"]
    if dots is None or text.count("\n", match.end(), begin) > 1:
        return False
    if text[begin : begin + 1].islower():
        return True
    # No abbreviation is longer.
    found = _LAST_WORD.search(text[max(0, match.start() - 16) : match.start()])
    word = found.group() if found else ""
    return not dots and (word.lower() in ABBREVIATIONS or (len(word) == 1 and word.isupper()))


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
    if _clings(text[at - 1], text[at]):
        return False
    return not _in_word(text, at)


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
