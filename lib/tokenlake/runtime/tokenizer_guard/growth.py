"""Growth of texts in the stages of a tokenizer.

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
# Normalizers that count as 1, as the module explains.
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
# Pre-tokenizers that cut a text, and give all its characters.
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
# Decoders that give at most the bytes of their tokens.
_JOINERS: Final = frozenset(("ByteFallback", "Fuse", "ByteLevel"))


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """Bound of a stage: n bytes become at most ``factor * n + added``.

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
    """Return the growth of a normalizer, a pre-tokenizer or a decoder.

    The result is None if it has a part that is not known.

    Args:
        stage: Parsed form of the stage, whose shape has been checked; None for no
            stage.
    """
    if stage is None:
        return Growth()
    # The growth of a table is estimated for one table; several of them would multiply
    # the error.
    stage_parts = parts_of(stage)
    table_count = sum(
        stage_part.get("type") == "Precompiled" for stage_part in stage_parts
    )
    if table_count > 1:
        return None
    # The parts follow each other, so that their growths multiply.
    growth = Growth()
    for stage_part in stage_parts:
        part_growth = _growth_of_part(stage_part)
        if part_growth is None:
            return None
        growth = growth.then(part_growth)
    return growth


def parts_of(stage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of a stage in order, those of nested sequences included.

    A sequence that is not one of the three known kinds is returned as a part.
    """
    # A stack instead of recursion, because a file may nest sequences without end.
    stage_parts: list[Mapping[str, Any]] = []
    pending: list[Any] = [stage]
    while pending:
        stage_part = pending.pop()
        members: Any = None
        if isinstance(stage_part, Mapping) and stage_part.get("type") == "Sequence":
            members = stage_part.get(
                "normalizers",
                stage_part.get("pretokenizers", stage_part.get("decoders")),
            )
        if isinstance(members, list):
            # Reversed, so that the first member is taken first.
            pending.extend(reversed(members))
        else:
            stage_parts.append(stage_part if isinstance(stage_part, Mapping) else {})
    return stage_parts


def _growth_of_part(part: Mapping[str, Any]) -> Growth | None:
    """Return the growth of one part; None for a part that is not known."""
    part_type = part.get("type")
    if part_type in _UNICODE_FORMS or part_type in _SPLITTERS:
        return Growth()
    if part_type == "Replace":
        return _growth_of_replace(part)
    if part_type == "Prepend":
        return _growth_of_prepend(part)
    if part_type == "Precompiled":
        return _growth_of_charsmap(part)
    if part_type == "Metaspace":
        return Growth(3.0, _CHARACTER)  # a space becomes the mark
    if part_type == "ByteLevel":
        # A byte becomes a character below 324, which has two bytes at most.
        return Growth(2.0, 1.0)
    if part_type in _JOINERS:
        return Growth()
    if part_type in ("WordPiece", "BPEDecoder", "CTC"):
        return _growth_of_word_decoder(part)
    return None


def _growth_of_replace(part: Mapping[str, Any]) -> Growth | None:
    """Return the growth of a replacement: its text for each match of its pattern."""
    pattern = part.get("pattern")
    content = part.get("content")
    if not isinstance(pattern, Mapping) or not isinstance(content, str):
        return None
    # The worst text consists of matches alone.
    content_bytes = len(content.encode("utf-8", "replace"))
    literal_pattern = pattern.get("String")
    if isinstance(literal_pattern, str) and literal_pattern:
        return Growth(
            max(1.0, content_bytes / len(literal_pattern.encode("utf-8", "replace")))
        )
    # A regular expression may match one byte, or the place between two.
    return Growth(1.0 + content_bytes, content_bytes)


def _growth_of_prepend(part: Mapping[str, Any]) -> Growth | None:
    """Return the growth of a part that adds a text once."""
    prepended = part.get("prepend")
    if not isinstance(prepended, str):
        return None
    return Growth(1.0, len(prepended.encode("utf-8", "replace")))


def _growth_of_charsmap(part: Mapping[str, Any]) -> Growth | None:
    """Return the growth of SentencePiece's table of replacements.

    It is that of the longest replacement, for each byte.

    The table is a trie, behind its size in four bytes (little-endian), and the
    replacements, each with a zero byte at its end.
    """
    encoded_table = part.get("precompiled_charsmap")
    if encoded_table is None:
        return Growth()
    if not isinstance(encoded_table, str):
        return None
    try:
        table = base64.b64decode(encoded_table, validate=True)
    except (binascii.Error, ValueError):
        return None
    # The size of the trie comes first, then the trie, then the replacements.
    replacements = table[4 + int.from_bytes(table[:4], "little") :]
    longest_bytes = max(map(len, replacements.split(b"\0")), default=0)
    # Unicode's longest compatibility form has 33 bytes, for a ligature of three; it is
    # in the tables of all models.
    return Growth(max(1.0, longest_bytes / 11))


def _growth_of_word_decoder(part: Mapping[str, Any]) -> Growth | None:
    """Return the growth of a decoder that joins words."""
    for option in ("prefix", "suffix", "word_delimiter_token", "pad_token"):
        if not isinstance(part.get(option, ""), str):
            return None
    # A space before a word; an empty text to be replaced by one is between all
    # characters.
    return Growth(2.0, 1.0)


def total_of(growths: Iterable[Growth | None]) -> Growth | None:
    """Return the growth of stages that follow each other.

    The result is None if one of them is not known.
    """
    total = Growth()
    for growth in growths:
        if growth is None:
            return None
        total = total.then(growth)
    return total
