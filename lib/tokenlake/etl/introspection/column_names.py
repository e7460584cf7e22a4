"""Names of columns: their words, their similarity, and the roles that they stand for.

Examples: ``rawContents`` has the words ``raw`` and ``content``; it is 0.91 like
``content``, because a block of 7 of its 10 letters is the whole wanted word
(0.7 + 0.3 * 7 / 10); its role is ``text``, because ``raw_content`` is a synonym of it.
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

# Rank of a name that is no synonym of any role: behind all that are.
_NO_RANK: Final = 1 << 16


# The names of a table's columns are compared with each synonym of each role, so that
# the words of a name are needed many times.
@lru_cache(maxsize=1 << 16)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name, in lower case and the singular.

    Words end at separators, at a change from small to capital letters, and between
    letters and digits: ``rawContents`` has the words ``("raw", "content")``.
    """
    # NFKC: full-width letters and ligatures become plain letters.
    plain_name = unicodedata.normalize("NFKC", name)
    separated = _BOUNDARY.sub(" ", plain_name)
    words: list[str] = []
    for word in _SEPARATORS.split(separated):
        if word:
            words.append(_singular(word.casefold()))
    return tuple(words)


def normalized(name: str) -> str:
    """Return the words of a name without separators, which equal names have in common.

    It is empty for a name without letters.
    """
    return "".join(words_of(name))


def similarity(wanted: str, name: str) -> float:
    """Return the similarity of a name to a wanted one, 0 to 1; 1 if they are equal.

    Equal means equal when normalised.

    The larger of two figures:

    - Of the letters: 2 M / T, with M letters in common blocks of T letters in both
      names, without separators (Ratcliff and Metzener, "Pattern matching: the Gestalt
      approach", Dr. Dobb's Journal, July 1988; `difflib`).
    - If the wanted words stand together in the name: 0.7 + 0.3 s, with s the share of
      its letters that they make up. `page_text` is 0.85 like `text`.
    """
    wanted_words = words_of(wanted)
    name_words = words_of(name)
    wanted_letters = "".join(wanted_words)
    name_letters = "".join(name_words)
    if not wanted_letters or not name_letters:
        return 0.0
    # The result of `difflib` depends on the order of its texts. Sorted, the similarity
    # of a to b is that of b to a.
    first_letters, second_letters = sorted((wanted_letters, name_letters))
    matcher = SequenceMatcher(None, first_letters, second_letters, autojunk=False)
    ratio = matcher.ratio()
    if _contains_run(name_words, wanted_words):
        letter_share = len(wanted_letters) / len(name_letters)
        return max(ratio, _WHOLE_WORD + (1 - _WHOLE_WORD) * letter_share)
    return ratio


def _contains_run(words: tuple[str, ...], run: tuple[str, ...]) -> bool:
    """Return True if words contain other words together and in their order."""
    starts = range(len(words) - len(run) + 1)
    return any(words[start : start + len(run)] == run for start in starts)


def _singular(word: str) -> str:
    """Return the singular of a regular English plural; any other word as it is."""
    # Short words and endings such as "ss" are no plurals: news, class, corpus, basis.
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


# Role -> its other names, the most usual one first.
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
"""Role -> other names, in the order of preference. A name belongs to one role."""

ROLES: Final = tuple(SYNONYMS)
"""All roles, in the order in which columns are given to them."""


def _ranked_names() -> dict[str, tuple[str, int]]:
    """Return normalised name -> its role, and its rank among the names of the role."""
    ranked_names: dict[str, tuple[str, int]] = {}
    for role, synonyms in SYNONYMS.items():
        # Two spellings can have one normalised name: the better rank counts.
        for rank, name in enumerate((role, *synonyms)):
            ranked_names.setdefault(normalized(name), (role, rank))
    return ranked_names


_RANKED_NAMES: Final = _ranked_names()


def role_of(name: str) -> str | None:
    """Return the role that a name stands for by itself; None if it is of no role."""
    ranked_name = _RANKED_NAMES.get(normalized(name))
    if ranked_name is None:
        return None
    role, _ = ranked_name
    return role


def rank_of(name: str) -> int:
    """Return how usual a name is for its role: 0 is the most usual one.

    A name of no role comes after all others.
    """
    ranked_name = _RANKED_NAMES.get(normalized(name))
    if ranked_name is None:
        return _NO_RANK
    _, rank = ranked_name
    return rank


def names_of(wanted: str) -> tuple[str, ...]:
    """Return a wanted name and all other names of its role, without repetitions."""
    role = role_of(wanted)
    if role is None:
        return (wanted,)
    return tuple(dict.fromkeys((wanted, role, *SYNONYMS[role])))
