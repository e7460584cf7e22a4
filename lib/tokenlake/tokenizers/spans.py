"""Spans of texts: which of their bytes bear loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self, final

import numpy as np

from tokenlake.ragged import Bools, Int64, offsets_of, places

Span = tuple[int, int]
"""UTF-8 bytes of a text: first, and last exclusive."""


@final
@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of n texts, ragged.

    Attributes:
        offsets: int64[n + 1] from 0; text i has spans ``offsets[i]:offsets[i + 1]``.
        start, stop: int64[k], UTF-8 bytes from the beginning of the own text; ascending, disjoint, none
            empty.
    """

    offsets: Int64
    start: Int64
    stop: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, rows: Sequence[Sequence[Span]]) -> Self:
        """Return the spans of texts, a list of (start, stop) for each."""
        flat = np.array(list(chain.from_iterable(rows)), np.int64).reshape(-1, 2)
        return cls(offsets_of([len(row) for row in rows]), flat[:, 0].copy(), flat[:, 1].copy())

    def slice(self, first: int, last: int) -> Self:
        """Return the spans of texts ``first`` to ``last`` (exclusive)."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        return type(self)(self.offsets[first : last + 1] - begin, self.start[begin:end], self.stop[begin:end])

    def select(self, mask: Bools) -> Self:
        """Return the spans of the texts where `mask` (bool[n]) is true."""
        return self.take(np.flatnonzero(mask))

    def take(self, order: Int64) -> Self:
        """Return the spans of the texts `order` (int64[m]), in that order."""
        counts = np.diff(self.offsets)[order]
        offsets = offsets_of(counts)
        inside = places(self.offsets[:-1][order], counts)
        return type(self)(offsets, self.start[inside], self.stop[inside])

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the spans of all texts of `parts`, in order."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(
            offsets_of(counts),
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.stop for part in parts]),
        )


def byte_spans(text: str, spans: Sequence[Span]) -> list[Span]:
    """Turn spans of characters into spans of UTF-8 bytes, leaving empty ones out."""
    full = [(start, stop) for start, stop in spans if start < stop]
    if text.isascii():
        return full
    found: list[Span] = []
    place = size = 0
    for start, stop in full:
        begin = size + len(text[place:start].encode())
        place, size = stop, begin + len(text[start:stop].encode())
        found.append((begin, size))
    return found
