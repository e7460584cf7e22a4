"""What encoding gives: ids of many texts laid end to end, and how such ragged arrays are put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import TokenizerError
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.unicode_guard import is_ascii

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The ids of a batch of texts.

    Attributes:
        offsets: int64[n + 1] from 0; row i has ids[offsets[i]:offsets[i + 1]].
        ids: int32[total], contiguous; never holds BOS or EOS that were not in the text.
        special_docs: int64[k], ascending: the rows whose text holds a special token's string.
        special_counts: int64[k]: how many each of them holds.
        sampled: documents compared between the engines.
        guarded: documents given to the reference because of their characters.
    """

    offsets: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    special_docs: npt.NDArray[np.int64]
    special_counts: npt.NDArray[np.int64]
    sampled: int = 0
    guarded: int = 0

    @property
    def special_tokens(self) -> int:
        """Occurrences of special tokens' strings in all texts."""
        return int(self.special_counts.sum())

    def __len__(self) -> int:
        return len(self.offsets) - 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LongEncoded:
    """The ids of one long document.

    Attributes:
        special_tokens: occurrences of special tokens' strings in the text.
        pieces: int32 arrays whose concatenation is the document's ids; drawn once.
    """

    special_tokens: int
    pieces: Iterator[npt.NDArray[np.int32]]


def checked(text: pa.LargeStringArray, name: str) -> bool:
    """Return whether all text is ASCII; raise unless it is valid large_string without nulls."""
    if text.type != pa.large_string() or text.null_count:
        raise TokenizerError(
            f"tokenizer {name!r}: got {text.type} with {text.null_count} nulls, "
            "expected large_string without nulls"
        )
    offsets, data = string_buffers(text)
    if offsets[0] < 0 or offsets[-1] > data.size or np.any(offsets[1:] < offsets[:-1]):
        raise TokenizerError(
            f"tokenizer {name!r}: the text's offsets are broken; expected them to ascend inside the data"
        )
    if is_ascii(text):
        return True
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise TokenizerError(f"tokenizer {name!r}: the text is not valid UTF-8: {error}") from error
    return False


def joined(rows: Sequence[npt.NDArray[np.int32]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.concatenate(rows) if rows else np.empty(0, np.int32)


def merged(
    offsets: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int32],
    at: npt.NDArray[np.int64],
    rows: Sequence[npt.NDArray[np.int32]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Put `rows` into a ragged array so that they end up at the positions `at` (ascending)."""
    before = at - np.arange(len(at))  # how many of the other rows come before each of them
    lengths = np.insert(np.diff(offsets), before, [len(row) for row in rows])
    cuts = np.split(ids, offsets[before])
    pieces = [piece for pair in zip(cuts, [*rows, np.empty(0, np.int32)], strict=True) for piece in pair]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), np.concatenate(pieces)
