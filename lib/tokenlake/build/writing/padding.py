"""Rows of documents made equally long: ids, and the mask that says which of them are the document's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from tokenlake.ragged import places

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Padding:
    """How documents are padded.

    Attributes:
        kind: ``none``; ``max_length``: to `length`, longer ones stay as they are; ``longest``: to the longest of
            their row group.
        length: tokens of a row, for ``max_length``.
        side: where the padding goes.
        pad_id: what it is made of.
    """

    kind: Literal["none", "max_length", "longest"]
    length: int
    side: Literal["left", "right"]
    pad_id: int

    def sizes(self, lengths: Int64) -> Int64:
        """Return how many ids each of the n rows of a row group has, its documents having `lengths` (int64[n])."""
        if self.kind == "none" or not len(lengths):
            return lengths
        return np.maximum(lengths, self.length if self.kind == "max_length" else lengths.max())

    def apply(self, ids: Int32, lengths: Int64, sizes: Int64) -> tuple[Int32, Int32]:
        """Lay documents (ids int32[sum of lengths]) into rows of `sizes`; return ids and mask, int32[sum of sizes]."""
        starts = np.cumsum(sizes) - sizes
        begin = starts if self.side == "right" else starts + sizes - lengths
        at = places(begin, lengths)
        out = np.full(int(sizes.sum()), self.pad_id, np.int32)
        mask = np.zeros(len(out), np.int32)
        out[at], mask[at] = ids, 1
        return out, mask


@final
class RowGroups:
    """Where row groups of documents end: each has at most about `tokens` ids, padding included.

    Args:
        tokens: of a full row group; one document alone may have more.
    """

    def __init__(self, padding: Padding, tokens: int) -> None:
        self._padding, self._tokens = padding, tokens
        self._held = self._longest = self._count = 0

    def take(self, lengths: Int64) -> tuple[int, bool]:
        """Return how many of the next documents (int64[n], n > 0) go into the open group, and whether it is full."""
        if self._padding.kind == "longest":
            return self._take_longest(lengths)
        ends = np.cumsum(self._padding.sizes(lengths))
        # Without padding a document goes into the open group that it comes to, fits or not: released bytes are so.
        least = int(self._padding.kind == "none" or not self._held)
        taken = max(least, int(np.searchsorted(ends, self._tokens - self._held, side="right")))
        if not taken:
            return 0, True
        self._held += int(ends[taken - 1])
        return taken, self._held >= self._tokens or taken < len(lengths)

    def _take_longest(self, lengths: Int64) -> tuple[int, bool]:
        widths = np.maximum.accumulate(np.maximum(lengths[: self._tokens], self._longest))
        areas: Any = widths * np.arange(self._count + 1, self._count + 1 + len(widths))
        taken = int(np.searchsorted(areas, self._tokens, side="right"))
        if not taken and self._count:
            return 0, True
        taken = max(1, taken)
        self._count, self._longest = self._count + taken, int(widths[taken - 1])
        return taken, taken < len(lengths) or int(areas[taken - 1]) >= self._tokens

    def clear(self) -> None:
        """Begin a new group."""
        self._held = self._longest = self._count = 0
