"""Where one sentence ends and the next begins.

A sentence ends with ``.``, ``!``, ``?`` or ``…``, with quotes and brackets that close after it, before a blank or
the end of the text; with the full stop of a script that needs no blank (``。``, ``！``, ``।``, ``؟`` ...); or
before an empty line. A full stop ends none after an abbreviation or an initial (``Dr. J. Smith``), nor where the text
goes on in lower case.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

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
            end, begin = match.end(), _after_blanks(text, match.end())
        else:
            end, begin = _before_blanks(text, match.start()), match.end()
        if 0 < end < len(text) and not _goes_on(text, match, begin):
            ends.append(end)
            begins.append(begin)
    return np.array(ends, np.int64), np.array(begins, np.int64)


def _after_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _before_blanks(text: str, at: int) -> int:
    while at > 0 and text[at - 1].isspace():
        at -= 1
    return at


def _goes_on(text: str, match: re.Match[str], begin: int) -> bool:
    """Whether the sentence goes on after a full stop."""
    dots = match["dots"]
    if dots is None or text.count("\n", match.end(), begin) > 1:
        return False
    if text[begin : begin + 1].islower():
        return True
    word = _word_before(text, match.start())
    return not dots and (word.lower() in ABBREVIATIONS or (len(word) == 1 and word.isupper()))


def _word_before(text: str, end: int) -> str:
    # No abbreviation is longer.
    match = _LAST_WORD.search(text[max(0, end - 16) : end])
    return match.group() if match else ""
