"""Boundaries at which a cut of a text reads well: ends of sentences and of words.

Example: ``Dr. Who left. It rained!`` has one break between sentences, behind ``left.``:
the full stop of ``Dr.`` belongs to an abbreviation, and the end of the text is no
break. ``don't`` has no boundary of a word inside it, and ``left. It`` has three.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import numpy as np

from tokenlake.base.arrays import Int64

# Quotes and brackets that may close behind the mark that ends a sentence, and belong to
# it.
_CLOSERS: Final = "\"'”’»)\\]}」』】》〉）］"
# These marks, and a full stop, end a sentence only before a blank: "wow!a" is a typo,
# and "1.5" a number.
_MARKS: Final = "!?…‽"
# Full stops of scripts that need no blank after a sentence.
_FULL_STOPS: Final = "。！？｡．।॥؟۔።፧፨။၊។։܀"
# One set of characters in front lets the regex engine skip all others. Every
# alternative begins where a run of marks begins and gives nothing back, so that each
# character of a text is looked at once.
_END: Final = re.compile(
    rf"[.{_MARKS}{_FULL_STOPS}\n](?:"
    rf"(?<=[.])(?<![.][.])(?P<dots>[.]*+)[{_CLOSERS}]*+(?=\s|\Z)"
    rf"|(?<=[{_MARKS}])(?<![{_MARKS}][{_MARKS}])[{_MARKS}]*+[.]*+[{_CLOSERS}]*+(?=\s|\Z)"
    rf"|(?<=[{_FULL_STOPS}])[{_FULL_STOPS}]*+[{_CLOSERS}]*+"
    r"|(?<=\n)(?P<gap>[^\S\n]*+\n)\s*+)"
)
# Possessive or simple expressions only: a text of megabytes is searched in linear time.
_BLANKS: Final = re.compile(r"\s*")
_LAST_WORD: Final = re.compile(r"[^\s(\[{\"'“‘«]*\Z")

# German, French, Spanish and Italian ones stand in the last line.
_LISTED: Final = (
    "mr mrs ms mx dr prof st sr jr rev hon gen col maj capt lt sgt cmdr gov sen rep pres messrs mme mlle "
    "vs cf eg ie e.g i.e viz al approx ca nos vol vols fig figs eq eqs secs ch pp p ed eds dept est "
    "jan feb mar apr jun jul aug sep sept oct nov dec inc ltd co corp u.s u.k "
    "bzw z.b d.h u.a vgl nr bd hr fr usw m.e p.ex sig dott"
)
ABBREVIATIONS: Final = frozenset(_LISTED.split())
"""Abbreviations without their last full stop, in lower case. Those that often end a
sentence (etc., a.m., no.) are left out: there the case of the next letter decides.
"""
_LONGEST_ABBREVIATION: Final = 16  # characters, with room to spare


def sentence_breaks(text: str) -> tuple[Int64, Int64]:
    """Return the breaks between the sentences of `text`.

    A sentence ends before the character ``end``, and the next begins with the character
    ``begin``, after the blanks between them; the text may be cut anywhere from ``end``
    to ``begin``. The ends of the text itself are no breaks.

    Returns:
        Ends and begins in characters, ascending, int64[k] each.
    """
    ends: list[int] = []
    begins: list[int] = []
    for match in _END.finditer(text):
        if match["gap"] is None:
            # A mark that ends a sentence: the blanks after it belong to neither
            # sentence.
            sentence_end = match.end()
            blanks = _BLANKS.match(text, sentence_end)
            next_begin = blanks.end() if blanks else sentence_end
        else:
            # An empty line: the blanks before it belong to neither sentence.
            next_begin = match.end()
            sentence_end = match.start()
            while sentence_end > 0 and text[sentence_end - 1].isspace():
                sentence_end -= 1
        # Blanks at the beginning or the end of the text separate no two sentences.
        is_between_sentences = 0 < sentence_end < len(text)
        if is_between_sentences and not _is_inside_sentence(text, match, next_begin):
            ends.append(sentence_end)
            begins.append(next_begin)
    return np.array(ends, np.int64), np.array(begins, np.int64)


def _is_inside_sentence(text: str, match: re.Match[str], begin: int) -> bool:
    """Return whether a full stop ends no sentence.

    Lower case after it, or an abbreviation before it, shows that.

    Args:
        text: Text.
        match: Match of the full stop, or of another end, which always ends a sentence.
        begin: Index of the first character after the blanks behind it.
    """
    more_dots = match["dots"]
    # Only full stops are doubtful. An empty line after one always ends the sentence.
    if more_dots is None or text.count("\n", match.end(), begin) > 1:
        return False
    if text[begin : begin + 1].islower():
        return True
    if more_dots:  # an ellipsis abbreviates nothing
        return False
    # The word is searched in a short window, so that a long text costs no more.
    before = text[max(0, match.start() - _LONGEST_ABBREVIATION) : match.start()]
    last_word = _LAST_WORD.search(before)
    word = ""
    if last_word:
        word = last_word.group()
    is_initial = len(word) == 1 and word.isupper()
    return is_initial or word.lower() in ABBREVIATIONS


# Han, Kana, Bopomofo, Thai, Lao, Tibetan, Myanmar, Khmer and their extensions: scripts
# that write words without blanks between them.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029"
    "\u3038-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f"
    "\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
# Characters that join two parts of a word or a number: don't, co-op, 1.5, 12:30.
_JOINERS: Final = frozenset("'’-‐‑.,:·‧")
# The zero-width joiner makes one emoji of several. Skin tones belong to the emoji
# before them, and two flag letters are one flag.
_ZWJ: Final = "\u200d"
_SKIN_TONES: Final = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS: Final = range(0x1F1E6, 0x1F200)


def is_word_boundary(text: str, at: int) -> bool:
    """Return whether `text` may be cut before its character `at`.

    Both ends of the text are boundaries.
    """
    if not 0 < at < len(text):
        return True
    if _form_one_character(text[at - 1], text[at]):
        return False
    return not _is_in_word(text, at)


def _is_in_word(text: str, at: int) -> bool:
    """Return whether a cut before the character `at` would go through a word."""
    left = _base_character(text, at - 1)
    right = text[at]
    if _is_word_character(left) and _is_word_character(right):
        # In a script without blanks every letter is a word of its own.
        return not (_UNSPACED.match(left) or _UNSPACED.match(right))
    # A joiner, such as an apostrophe, belongs to a word only between two of its
    # characters.
    if right in _JOINERS:
        return at + 1 < len(text) and _is_spaced(left) and _is_spaced(text[at + 1])
    if left in _JOINERS:
        # A joiner at the very beginning of the text has no word before it.
        if at < 2:
            return False
        return _is_spaced(right) and _is_spaced(_base_character(text, at - 2))
    return False


def _base_character(text: str, at: int) -> str:
    """Return the character that the combining marks ending at index `at` belong to."""
    while at > 0 and unicodedata.category(text[at])[0] == "M":
        at -= 1
    return text[at]


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


def _is_spaced(character: str) -> bool:
    """Return whether a character belongs to words that blanks separate."""
    return _is_word_character(character) and not _UNSPACED.match(character)


def _form_one_character(left: str, right: str) -> bool:
    """Return whether two code points are parts of one visible character or line end."""
    # Most text is ASCII, for which the Unicode tables need not be asked.
    if right.isascii():
        return left == _ZWJ or (left == "\r" and right == "\n")
    if _ZWJ in (left, right) or ord(right) in _SKIN_TONES:
        return True
    if ord(left) in _FLAG_LETTERS and ord(right) in _FLAG_LETTERS:
        return True
    return unicodedata.category(right)[0] == "M"
