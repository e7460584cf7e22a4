"""Which documents the fast engine must not see because of their characters.

gigatoken's Unicode tables are newer than those of `tokenizers`: a code point that one of them takes for a
letter and the other for nothing splits words differently. Documents that hold such a code point are encoded
by the reference.

How they were found: `benchmarks/unicode_sweep.py` puts every code point from U+0080 on, assigned or not, into
contexts at the borders of words, numbers, punctuation, white space, contractions and combining marks, and
encodes them with both engines and a tokenizer whose merges show every split. Last run with gigatoken 0.10.0
and tokenizers 0.23.3:

- :data:`SPLITTING`: letters, digits and marks that Unicode 17 added and gigatoken's tables already know. The
  union over the forms of the allow-list; the SentencePiece forms ask nothing of Unicode tables, and a sweep
  of Llama 2 found no difference.
- :data:`COMPOSING`, for tokenizers with NFC: marks younger than Unicode 9, where the normalization tables of
  `tokenizers` end, and the blocks that got new compositions since. With both lists guarded, three million
  random strings of marks and composable characters gave equal ids.

Run the sweep again with every new version of either engine, and extend the lists; never shorten them.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.ragged import Int64
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.files import TokenizerFiles

Ranges = tuple[tuple[int, int], ...]


def _ranges(words: str) -> Ranges:
    """Read code points and ranges of them, in hexadecimal."""
    pairs = (word.partition("-") for word in words.split())
    return tuple((int(first, 16), int(last or first, 16)) for first, _, last in pairs)


SPLITTING: Final = _ranges(
    "88F C5C CDC 1ACF-1ADD 1AE0-1AEB A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 10EFA-10EFB "
    "11B60-11B67 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E "
    "18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)

COMPOSING: Final = _ranges(
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 105C0-105FF 10D24-10D27 "
    "10D69-10D6D 10EAB-10EAC 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11380-113FF 1145E "
    "11839-1183A 11900-1195F 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 16100-1613F "
    "16D40-16D7F 16FF0-16FF1 1E08F 1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF"
)


_NON_ASCII: Final = 0x80
_NO_ROWS: Final = np.empty(0, np.int64)


def is_ascii(text: pa.LargeStringArray) -> bool:
    """Whether every byte of the array is ASCII (30 GB/s)."""
    offsets, data = string_buffers(text)
    used = data[offsets[0] : offsets[-1]]
    return not used.size or int(used.max()) < _NON_ASCII


@final
class UnicodeGuard:
    """Finds the documents that hold a code point on which the engines disagree for a tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        sentencepiece = files.spec["model"].get("byte_fallback")
        composing: Ranges = () if files.spec.get("normalizer") is None else COMPOSING
        self.ranges: Ranges = () if sentencepiece else (*SPLITTING, *composing)
        self._class = "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in self.ranges) + "]"

    def rows(self, text: pa.LargeStringArray) -> Int64:
        """Return the rows (int64[k], ascending) that the fast engine must not see (0.7 GB/s)."""
        if not self.ranges:
            return _NO_ROWS
        non_ascii = np.flatnonzero(~np.asarray(pc.string_is_ascii(text))).astype(np.int64)
        if not non_ascii.size:
            return non_ascii
        # Taking rows copies them: not where all are meant, which a single long document always is.
        chosen = text if len(non_ascii) == len(text) else text.take(pa.array(non_ascii, pa.int64()))
        hit = np.asarray(pc.match_substring_regex(chosen, self._class))
        return non_ascii[hit]
