"""How much longer the stages of a tokenizer make a text.

Each stage takes n bytes and gives at most ``factor * n + added``. Stages that follow
each other multiply:

    Replace "a" by "aaaaaaaaaa", twelve times:  10 ** 12 bytes for each "a".

Unicode's own forms (NFC, NFKC, lower case ...) count as 1: their growth (up to 11
times, for one Arabic ligature) does not add up when they are repeated.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

_CHARACTER: Final = 4  # most bytes of a character in UTF-8
_UNICODE_FORMS: Final = frozenset(
    (
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "StripAccents",
        "Nmt",
        "Strip",
        "BertNormalizer",
    )
)
_SPLITTERS: Final = frozenset(
    (
        "Split",
        "Punctuation",
        "Digits",
        "Whitespace",
        "WhitespaceSplit",
        "BertPreTokenizer",
        "CharDelimiterSplit",
        "UnicodeScripts",
        "FixedLength",
    )
)
_JOINERS: Final = frozenset(("ByteFallback", "Fuse", "ByteLevel"))


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """What becomes of n bytes at most: ``factor * n + added``.

    Attributes:
        factor: Bytes that come out for each byte.
        added: Bytes that come out beside them.
    """

    factor: float = 1.0
    added: float = 0.0

    def then(self, following: Growth) -> Growth:
        """Return the growth of this stage and one that follows it."""
        return Growth(
            self.factor * following.factor,
            self.added * following.factor + following.added,
        )


def growth_of(stage: Mapping[str, Any] | None) -> Growth | None:
    """Return the growth of a normalizer, a pre-tokenizer or a decoder; None where it
    has a part that is not known.

    Args:
        stage: parsed form of the stage, whose shape has been checked; None: there is
            none.
    """
    if stage is None:
        return Growth()
    parts = parts_of(stage)
    # The growth of a table is estimated for one table; several of them would multiply
    # the error.
    if sum(part.get("type") == "Precompiled" for part in parts) > 1:
        return None
    growth = Growth()
    for part in parts:
        following = _growth_of_part(part)
        if following is None:
            return None
        growth = growth.then(following)
    return growth


def parts_of(stage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of a stage in order, those of nested sequences included.

    A sequence that is not one of the three known kinds is returned as a part.
    """
    parts: list[Mapping[str, Any]] = []
    pending: list[Any] = [stage]
    while pending:
        part = pending.pop()
        members: Any = None
        if isinstance(part, Mapping) and part.get("type") == "Sequence":
            members = part.get(
                "normalizers", part.get("pretokenizers", part.get("decoders"))
            )
        if isinstance(members, list):
            pending.extend(reversed(members))
        else:
            parts.append(part if isinstance(part, Mapping) else {})
    return parts


def _growth_of_part(part: Mapping[str, Any]) -> Growth | None:
    kind = part.get("type")
    if kind in _UNICODE_FORMS or kind in _SPLITTERS:
        return Growth()
    if kind == "Replace":
        return _growth_of_replace(part)
    if kind == "Prepend":
        return _growth_of_prepend(part)
    if kind == "Precompiled":
        return _growth_of_charsmap(part)
    if kind == "Metaspace":
        return Growth(3.0, _CHARACTER)  # a space becomes the mark
    if kind == "ByteLevel":
        # A byte becomes a character below 324, which has two bytes at most.
        return Growth(2.0, 1.0)
    if kind in _JOINERS:
        return Growth()
    if kind in ("WordPiece", "BPEDecoder", "CTC"):
        return _growth_of_word_decoder(part)
    return None


def _growth_of_replace(part: Mapping[str, Any]) -> Growth | None:
    pattern = part.get("pattern")
    content = part.get("content")
    if not isinstance(pattern, Mapping) or not isinstance(content, str):
        return None
    size = len(content.encode("utf-8", "replace"))
    string = pattern.get("String")
    if isinstance(string, str) and string:
        return Growth(max(1.0, size / len(string.encode("utf-8", "replace"))))
    # A regular expression may match one byte, or the place between two.
    return Growth(1.0 + size, size)


def _growth_of_prepend(part: Mapping[str, Any]) -> Growth | None:
    text = part.get("prepend")
    return (
        Growth(1.0, len(text.encode("utf-8", "replace")))
        if isinstance(text, str)
        else None
    )


def _growth_of_charsmap(part: Mapping[str, Any]) -> Growth | None:
    """Return the growth of SentencePiece's table of replacements: the longest of them,
    for each byte.

    The table is a trie, behind its size in four bytes (little-endian), and the
    replacements, each with a zero byte at its end.
    """
    written = part.get("precompiled_charsmap")
    if written is None:
        return Growth()
    if not isinstance(written, str):
        return None
    try:
        table = base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        return None
    replacements = table[4 + int.from_bytes(table[:4], "little") :]
    longest = max(map(len, replacements.split(b"\0")), default=0)
    # Unicode's longest compatibility form has 33 bytes, for a ligature of three; it is
    # in the tables of all models.
    return Growth(max(1.0, longest / 11))


def _growth_of_word_decoder(part: Mapping[str, Any]) -> Growth | None:
    for key in ("prefix", "suffix", "word_delimiter_token", "pad_token"):
        if not isinstance(part.get(key, ""), str):
            return None
    # A space before a word; an empty text to be replaced by one is between all
    # characters.
    return Growth(2.0, 1.0)


def total_of(growths: Iterable[Growth | None]) -> Growth | None:
    """Return the growth of stages that follow each other; None where one of them is
    not known.
    """
    total = Growth()
    for growth in growths:
        if growth is None:
            return None
        total = total.then(growth)
    return total
