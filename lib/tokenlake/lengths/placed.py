"""Cutting documents that are encoded already, at places that their texts decide.

Only the part of a text that its budget can reach is encoded once more, for the places of its tokens: a document may be
a thousand times longer. That part is exact if its ids are those of the document; where they are not, it is made
longer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.lengths.truncation import Bytes, Cut, Side, Strategy, character_at, truncate
from tokenlake.tokenizers.encoder import Encoder

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

#: Beyond what the budget should take, by the document's own bytes per token.
_SPARE: Final = 1.25
_LEAST_BYTES: Final = 512
_GROWTH: Final = 4


def cut_texts(
    encoder: Encoder,
    text: pa.LargeStringArray,
    ids: Int32,
    offsets: Int64,
    budgets: Int64,
    strategy: Strategy,
    side: Side,
) -> tuple[Int64, Int64]:
    """Return which tokens of n documents are kept: ``first:last`` of each, int64[n] twice.

    Args:
        encoder: what made the ids.
        text: large_string[n].
        ids, offsets: int32[total], int64[n + 1]: the ids of the texts; each has more than its budget.
        budgets: int64[n].
        strategy, side: as for :func:`tokenlake.lengths.truncation.truncate`.
    """
    counts = np.diff(offsets)
    first, last = np.zeros(len(text), np.int64), np.zeros(len(text), np.int64)
    rows = range(len(text))
    spare = _SPARE
    while rows:
        parts = [_Part(text, row, int(counts[row]), int(budgets[row]), side, spare) for row in rows]
        encoded, start, stop = encoder.encode_places(
            pa.array([part.text for part in parts], pa.large_string())
        )
        again: list[int] = []
        for at, (row, part) in enumerate(zip(rows, parts, strict=True)):
            own = slice(int(encoded.offsets[at]), int(encoded.offsets[at + 1]))
            if not part.is_exact(encoded.ids[own], ids[offsets[row] : offsets[row + 1]]):
                again.append(row)
                continue
            cut = part.cut(start[own], stop[own], strategy)
            # Tokens are counted from the side that is kept.
            skipped = 0 if side == "right" else int(counts[row]) - (own.stop - own.start)
            first[row], last[row] = cut.first + skipped, cut.last + skipped
        rows, spare = again, spare * _GROWTH
    return first, last


class _Part:
    """The part of a text that decides where it is cut: with more tokens than the budget, at the side that is kept."""

    def __init__(
        self, text: pa.LargeStringArray, row: int, count: int, budget: int, side: Side, spare: float
    ) -> None:
        buffer: Any = text[row].as_buffer()
        self._data: Bytes = np.frombuffer(buffer, np.uint8)
        self._budget = budget
        self._side: Side = side
        self._needed = min(budget + 1, count)
        whole = len(self._data)
        size = int(self._needed * (whole / count) * spare) + _LEAST_BYTES
        begin, end = (0, min(size, whole)) if side == "right" else (max(0, whole - size), whole)
        self._begin, end = character_at(self._data, begin), character_at(self._data, end)
        self._is_whole = (self._begin, end) == (0, whole)
        self.text = self._data[self._begin : end].tobytes().decode()

    def is_exact(self, ids: Int32, wanted: Int32) -> bool:
        """Whether the tokens that count are those of the document."""
        if self._is_whole:
            return True
        if self._side == "right":
            return np.array_equal(ids[: self._needed], wanted[: self._needed])
        return np.array_equal(ids[-self._needed :], wanted[-self._needed :])

    def cut(self, start: Int64, stop: Int64, strategy: Strategy) -> Cut:
        """Cut by the places of the part's tokens, bytes of the part."""
        return truncate(
            self._data.data, start + self._begin, stop + self._begin, self._budget, strategy, self._side
        )
