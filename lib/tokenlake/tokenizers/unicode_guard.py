"""Which documents the fast engine must not see because of their characters.

gigatoken's Unicode tables are newer than those of `tokenizers`: a code point that one of them takes for a
letter and the other for nothing splits words differently. Documents that hold such a code point are encoded
by the reference; :mod:`tokenlake.tokenizers.unicode_guard` lists them.

Code points on which gigatoken and `tokenizers` disagree.

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

import re
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.files import TokenizerFiles

if TYPE_CHECKING:
    import numpy.typing as npt

Ranges = tuple[tuple[int, int], ...]

SPLITTING: Final[Ranges] = (
    (0x88F, 0x88F),
    (0xC5C, 0xC5C),
    (0xCDC, 0xCDC),
    (0x1ACF, 0x1ADD),
    (0x1AE0, 0x1AEB),
    (0xA7CE, 0xA7CF),
    (0xA7D2, 0xA7D2),
    (0xA7D4, 0xA7D4),
    (0xA7F1, 0xA7F1),
    (0x10940, 0x10959),
    (0x10EC5, 0x10EC7),
    (0x10EFA, 0x10EFB),
    (0x11B60, 0x11B67),
    (0x11DB0, 0x11DDB),
    (0x11DE0, 0x11DE9),
    (0x16EA0, 0x16EB8),
    (0x16EBB, 0x16ED3),
    (0x16FF2, 0x16FF6),
    (0x187F8, 0x187FF),
    (0x18D09, 0x18D1E),
    (0x18D80, 0x18DF2),
    (0x1E6C0, 0x1E6DE),
    (0x1E6E0, 0x1E6F5),
    (0x1E6FE, 0x1E6FF),
    (0x2B73A, 0x2B73F),
    (0x2CEA2, 0x2CEAD),
    (0x323B0, 0x33479),
)

COMPOSING: Final[Ranges] = (
    (0x7FD, 0x7FD),
    (0x897, 0x89F),
    (0x8CA, 0x8D3),
    (0x9FE, 0x9FE),
    (0xC3C, 0xC3C),
    (0xD3B, 0xD3C),
    (0xEBA, 0xEBA),
    (0x1715, 0x1715),
    (0x1ABF, 0x1ACE),
    (0x1DF6, 0x1DFA),
    (0xA82C, 0xA82C),
    (0x105C0, 0x105FF),
    (0x10D24, 0x10D27),
    (0x10D69, 0x10D6D),
    (0x10EAB, 0x10EAC),
    (0x10EFD, 0x10EFF),
    (0x10F46, 0x10F50),
    (0x10F82, 0x10F85),
    (0x11070, 0x11070),
    (0x1133B, 0x1133B),
    (0x11380, 0x113FF),
    (0x1145E, 0x1145E),
    (0x11839, 0x1183A),
    (0x11900, 0x1195F),
    (0x119E0, 0x119E0),
    (0x11A34, 0x11A34),
    (0x11A47, 0x11A47),
    (0x11A99, 0x11A99),
    (0x11D42, 0x11D42),
    (0x11D44, 0x11D45),
    (0x11D97, 0x11D97),
    (0x11F41, 0x11F42),
    (0x16100, 0x1613F),
    (0x16D40, 0x16D7F),
    (0x16FF0, 0x16FF1),
    (0x1E08F, 0x1E08F),
    (0x1E130, 0x1E136),
    (0x1E2AE, 0x1E2AE),
    (0x1E2EC, 0x1E2EF),
    (0x1E4EC, 0x1E4EF),
    (0x1E5EE, 0x1E5EF),
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
        in_python = "".join(f"{chr(first)}-{chr(last)}" for first, last in self.ranges)
        self._search = re.compile(f"[{in_python}]").search if in_python else None

    def rows(self, text: pa.LargeStringArray) -> npt.NDArray[np.int64]:
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

    def holds(self, text: str) -> bool:
        """Whether one text is to be kept from the fast engine."""
        return self._search is not None and self._search(text) is not None
