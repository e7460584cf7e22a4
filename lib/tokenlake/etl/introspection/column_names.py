"""Names of columns: their words, their similarity, and the roles that they usually
stand for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from types import MappingProxyType
from typing import Final

# A capital begins a word after a small letter; the last of several capitals belongs to
# what follows (HTMLBody).
_BOUNDARY: Final = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)
_SEPARATORS: Final = re.compile(r"[\W_]+")
# Similarity of a name of which the wanted words are a small part.
_WHOLE_WORD: Final = 0.7


@lru_cache(maxsize=1 << 16)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name, lower case and singular: ``rawContents`` -> ``("raw",
    "content")``.

    Words end at separators, at a change from small to capital letters and between
    letters and digits.
    """
    parts = _SEPARATORS.split(_BOUNDARY.sub(" ", unicodedata.normalize("NFKC", name)))
    return tuple(_singular(part.casefold()) for part in parts if part)


def normalized(name: str) -> str:
    """Return what equal names have in common: the words without separators; "" for a
    name without letters.
    """
    return "".join(words_of(name))


def similarity(wanted: str, name: str) -> float:
    """Return how much `name` is like a wanted one, 0 to 1; 1.0 if they are normalised
    equal.

    The larger of two figures:

    - of the letters, 2 M / T: M letters in common blocks of T in both (Ratcliff and
      Metzener, "Pattern matching: the Gestalt approach", Dr. Dobb's Journal, July 1988;
      `difflib`), separators left out;
    - where the wanted words stand together in the name, 0.7 + 0.3 s, s being the share
      of its letters that they make up: `page_text` is 0.85 like `text`.
    """
    few, many = words_of(wanted), words_of(name)
    short, long = "".join(few), "".join(many)
    if not short or not long:
        return 0.0
    # Common blocks are looked for from the first text's point of view: the order must
    # not matter.
    letters = SequenceMatcher(None, *sorted((short, long)), autojunk=False).ratio()
    if any(many[at : at + len(few)] == few for at in range(len(many) - len(few) + 1)):
        return max(letters, _WHOLE_WORD + (1 - _WHOLE_WORD) * len(short) / len(long))
    return letters


def _singular(word: str) -> str:
    """Return the singular of a regular English plural, anything else as it is."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


_SYNONYMS: Final = {
    "text": (
        "content document raw_content raw_text body page_content full_text plain_text doc article passage "
        "story paragraph markdown code source_code sentence"
    ),
    "messages": "conversations chat dialog dialogue turns chat_history thread",
    "instruction": "prompt question query problem task user_prompt human",
    "input": "context background premise",
    "output": "response answer completion target solution reply generation assistant",
    "system": "system_prompt system_message",
    "chosen": "chosen_response preferred accepted winner better",
    "rejected": "rejected_response dispreferred loser worse",
    "label": "class category target_label",
    "id": "uid uuid guid doc_id document_id record_id example_id idx index key",
    "url": "uri link source_url href web_url",
    "lang": "language lang_code language_code locale",
    "source": "origin corpus dataset data_source domain provenance",
    "timestamp": "date time datetime created created_at published published_at crawl_date crawl_timestamp",
}
SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {role: tuple(names.split()) for role, names in _SYNONYMS.items()}
)
"""Role to other names, in the order of preference. A name belongs to one role."""

ROLES: Final = tuple(SYNONYMS)


_BY_NAME: Final = {
    normalized(name): (role, rank)
    for role, names in SYNONYMS.items()
    # The first of equal ones counts.
    for rank, name in reversed([*enumerate((role, *names))])
}


def role_of(name: str) -> str | None:
    """Return the role that a name stands for by itself, None where it says nothing."""
    return _BY_NAME.get(normalized(name), (None, 0))[0]


def rank_of(name: str) -> int:
    """Return how usual a name is for its role, 0 the most; behind all others where
    it says nothing.
    """
    return _BY_NAME.get(normalized(name), (None, 1 << 16))[1]


def names_of(wanted: str) -> tuple[str, ...]:
    """Return a wanted name and everything else that its role is called, without
    repeats.
    """
    role = role_of(wanted)
    return (
        (wanted,)
        if role is None
        else tuple(dict.fromkeys((wanted, role, *SYNONYMS[role])))
    )
