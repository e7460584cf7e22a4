"""Which documents the fast engine must not see because of their characters.

gigatoken's Unicode tables are newer than those of `tokenizers` (Oniguruma's): a code point that one of them
takes for a letter and the other for nothing splits words differently. Documents that hold such a code point
are encoded by the reference; :mod:`tokenlake.tokenizers.unicode_ranges` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.unicode_ranges import RANGES

if TYPE_CHECKING:
    import numpy.typing as npt

_CLASS: Final = "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in RANGES) + "]"
_NON_ASCII: Final = 0x80


def is_ascii(text: pa.LargeStringArray) -> bool:
    """Whether every byte of the array is ASCII (30 GB/s)."""
    offsets, data = string_buffers(text)
    used = data[offsets[0] : offsets[-1]]
    return not used.size or int(used.max()) < _NON_ASCII


def guarded_rows(text: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return the rows (int64[k], ascending) that hold a code point on which the engines disagree."""
    non_ascii = np.flatnonzero(~np.asarray(pc.string_is_ascii(text)))
    if not non_ascii.size:
        return non_ascii.astype(np.int64)
    hit = np.asarray(pc.match_substring_regex(text.take(pa.array(non_ascii, pa.int64())), _CLASS))
    return non_ascii[hit].astype(np.int64)


def is_guarded(text: str) -> bool:
    """Whether one text holds such a code point."""
    return any(first <= ord(char) <= last for char in text if char > "\x7f" for first, last in RANGES)
