"""Documents as words, in which texts that people would call the same are equal.

Lower case, without accents (NFD without nonspacing marks), every number as ``0``. All
characters except letters, marks and digits separate words; an ideograph is a word by
itself. Hugging Face's datatrove and Meta's CCNet normalize in the same way (Wenzek et
al. 2020, https://arxiv.org/abs/1911.00359).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import xxhash

from tokenlake.base.arrays import Int64, UInt8, UInt64
from tokenlake.config.resolved import Normal

_NUMBERS: Final = re.compile(r"\d+(?:[.,\u060C\u066B]\d+)?")
_ASCII_NUMBERS: Final = re.compile(rb"[0-9]+(?:[.,][0-9]+)?")


def _ascii_letter(byte: int) -> int:
    """Return the lower case of an ASCII letter or digit; a space for any other byte."""
    character = chr(byte)
    if byte < 128 and character.isalnum():
        return ord(character.lower())
    return ord(" ")


_ASCII_LETTERS: Final = bytes(map(_ascii_letter, range(256)))
"""Translation of each byte of ASCII text."""
# Kana, Han, and compatibility ideographs: each is a word by itself.
_IDEOGRAPHS: Final = (
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


@final
class _Letters(dict[int, str | int | None]):
    """Translation of each character, computed at its first use."""

    def __missing__(self, code: int) -> str | int | None:
        category = unicodedata.category(chr(code))
        translation: str | int | None = code
        if category == "Mn":  # an accent
            translation = None
        elif _is_ideograph(code):
            translation = f" {chr(code)} "
        elif category[0] not in "LMN":  # neither letter, mark nor number
            translation = " "
        self[code] = translation
        return translation


def _is_ideograph(code: int) -> bool:
    """Return whether a code point is one of a script without blanks between words."""
    return any(begin <= code <= end for begin, end in _IDEOGRAPHS)


_LETTERS: Final = _Letters()


def words_of(text: str) -> bytes:
    """Return a document's words as UTF-8, one space between each two."""
    # ASCII has no accents: a table of bytes does the work of the tables of Unicode.
    if text.isascii():
        lowered_words = _ASCII_NUMBERS.sub(b"0", text.encode())
        return b" ".join(lowered_words.translate(_ASCII_LETTERS).split())
    numbered_text = _NUMBERS.sub("0", text.lower())
    separated_words = unicodedata.normalize("NFD", numbered_text).translate(_LETTERS)
    return " ".join(separated_words.split()).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class WordBuffer:
    """The words of several documents, one after the other.

    Attributes:
        data: UTF-8 bytes of all words, uint8.
        ends: Byte offset of each document's beginning, and of the last one's end,
            int64[documents + 1].
    """

    data: UInt8
    ends: Int64

    @classmethod
    def of(cls, texts: Iterable[str]) -> WordBuffer:
        """Return the words of some texts."""
        # Per document: a loop of appends would cost more than the list.
        words_of_texts = [words_of(text) for text in texts]
        ends = np.zeros(len(words_of_texts) + 1, np.int64)
        np.cumsum([len(words) for words in words_of_texts], out=ends[1:])
        return cls(np.frombuffer(b"".join(words_of_texts), np.uint8), ends)


def exact_hashes(texts: Sequence[str], normal: Normal) -> UInt64:
    """Return a hash that equal documents share, in two halves.

    Args:
        texts: Texts of the documents.
        normal: ``text`` to hash the text itself, ``folded`` to hash its case-folded
            words with single spaces.

    Returns:
        Halves of XXH3-128, the high one first, uint64[n, 2].
    """
    hashes = np.empty((len(texts), 2), np.uint64)
    for row, text in enumerate(texts):
        hashed_text = text
        if normal == "folded":
            hashed_text = " ".join(text.casefold().split())
        digest = xxhash.xxh3_128_intdigest(hashed_text.encode())
        hashes[row] = digest >> 64, digest & 0xFFFFFFFFFFFFFFFF
    return hashes
