"""Runs of ids of different lengths, laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True)
class Ragged:
    """n runs.

    Attributes:
        ids: int32[total].
        offsets: int64[n + 1] from 0; run i is ``ids[offsets[i]:offsets[i + 1]]``.
    """

    ids: Int32
    offsets: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """int64[n]."""
        return np.diff(self.offsets)

    @classmethod
    def taken(cls, ids: Int32, start: Int64, stop: Int64) -> Self:
        """Return the runs ``ids[start[i]:stop[i]]``, both int64[n]."""
        lengths = stop - start
        offsets = _offsets(lengths)
        return cls(ids[np.repeat(start - offsets[:-1], lengths) + np.arange(offsets[-1])], offsets)

    @classmethod
    def alike(cls, run: Sequence[int], times: Bools | int) -> Self:
        """Return `run` where `times` (bool[n]) is true and nothing elsewhere; a number: so many times."""
        there = np.ones(times, np.bool_) if isinstance(times, int) else times
        lengths = there * np.int64(len(run))
        return cls(np.tile(np.array(run, np.int32), int(there.sum())), _offsets(lengths))

    @classmethod
    def filled(cls, value: int, lengths: Int64) -> Self:
        """Return runs of one value, `lengths` (int64[n])."""
        return cls(np.full(int(lengths.sum()), value, np.int32), _offsets(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return for each i the i-th runs of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        sizes = np.array([part.lengths for part in parts])
        offsets = _offsets(sizes.sum(axis=0))
        ids = np.empty(offsets[-1], np.int32)
        begin = offsets[:-1].copy()
        for part, lengths in zip(parts, sizes, strict=True):
            ids[np.repeat(begin - part.offsets[:-1], lengths) + np.arange(len(part.ids))] = part.ids
            begin += lengths
        return cls(ids, offsets)

    def select(self, mask: Bools) -> Self:
        """Return the runs where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        return self.taken(self.ids, self.offsets[:-1][mask], self.offsets[1:][mask])

    def cut(self, most: Int64) -> Self:
        """Return the first ids of each run, `most` (int64[n]) or fewer."""
        start = self.offsets[:-1]
        return self.taken(self.ids, start, start + np.minimum(self.lengths, most))

    def holds(self, value: int) -> Bools:
        """Return which runs hold a value: bool[n]."""
        return self.counts(self.ids == value) > 0

    def counts(self, mask: Bools) -> Int64:
        """Return how many ids of each run are marked by `mask` (bool[total]): int64[n]."""
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)])
        return np.diff(sums[self.offsets])

    def begins_with(self, run: Sequence[int]) -> Bools:
        """Return which runs begin with `run`: bool[n]."""
        same = self.lengths >= len(run)
        for index, value in enumerate(run):
            at = np.minimum(self.offsets[:-1] + index, max(len(self.ids) - 1, 0))
            same = same & (self.ids[at] == value if len(self.ids) else False)
        return same


def common_prefix(left: Ragged, right: Ragged) -> Int64:
    """Return how many ids two runs begin with alike, for each pair: int64[n]."""
    lengths = np.minimum(left.lengths, right.lengths)
    a = Ragged.taken(left.ids, left.offsets[:-1], left.offsets[:-1] + lengths)
    b = Ragged.taken(right.ids, right.offsets[:-1], right.offsets[:-1] + lengths)
    differs = np.flatnonzero(a.ids != b.ids)
    row = np.searchsorted(a.offsets, differs, side="right") - 1
    rows, first = np.unique(row, return_index=True)
    lengths[rows] = differs[first] - a.offsets[rows]
    return lengths


def total_lengths(parts: Sequence[Ragged]) -> Int64:
    """Return the lengths of the i-th runs of all parts together: int64[n]."""
    total = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        total += part.lengths
    return total


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
