"""Which documents the fast engine must not see because of their characters.

gigatoken's Unicode tables are newer than those of `tokenizers`: a code point that one of them takes for a
letter and the other for nothing splits words differently. Documents that hold such a code point are encoded
by the reference; :mod:`tokenlake.tokenizers.unicode_ranges` lists them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.unicode_ranges import COMPOSING, SPLITTING, Ranges

if TYPE_CHECKING:
    import numpy.typing as npt

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
