"""Runs of values of different lengths, laid end to end: how they are taken out, joined, cut and made rectangular.

Documents in a batch, answers of a pair, pieces of a document: whatever has many lengths is one array and its offsets.
Everything here comes down to :func:`places`, which says where the values of runs lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Self, final

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def offsets_of(lengths: npt.ArrayLike) -> Int64:
    """Return where each of n runs begins, and the last ends: int64[n + 1] from 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def lengths_between(begins: Sequence[Sequence[int]], ends: Sequence[int]) -> Int64:
    """Return the length of each run of n wholes, one whole after the other: int64[runs].

    Args:
        begins: where the runs of each whole begin, ascending.
        ends: where each whole ends.
    """
    edges = chain.from_iterable((*begin, end) for begin, end in zip(begins, ends, strict=True))
    lengths = np.diff(np.fromiter(edges, np.int64))
    last = (
        np.cumsum([len(begin) + 1 for begin in begins], dtype=np.int64) - 1
    )  # from it on another whole begins
    return np.delete(lengths, last[:-1])


def places(start: Int64, lengths: Int64) -> Int64:
    """Return the indices ``start[i], start[i] + 1 ...``, `lengths[i]` of them, for each of n runs: int64[sum]."""
    offsets = offsets_of(lengths)
    return np.repeat(start - offsets[:-1], lengths) + np.arange(offsets[-1])


def cut_runs(lengths: npt.ArrayLike, offsets: Int64, every: int) -> tuple[Int64, Int64, Int64]:
    """Cut the runs of rows at every multiple of `every` in their row.

    Args:
        lengths: of the runs, one row after the other, int[n], at least 1.
        offsets: which are each row's, int64[rows + 1].
        every: at which places of a row runs are cut.

    Returns:
        lengths of the pieces, the row of each, and which stretch of `every` places of it each lies in, int64[m] all.
    """
    ends = offsets_of(lengths)
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    start, stop = (bounds - ends[offsets[row]] for bounds in (ends[:-1], ends[1:]))
    first = start // every
    pieces = (stop - 1) // every - first + 1
    stretch = places(first, pieces)
    begin, end = np.repeat(start, pieces), np.repeat(stop, pieces)
    cut = np.minimum(end, (stretch + 1) * every) - np.maximum(begin, stretch * every)
    return cut, np.repeat(row, pieces), stretch


def grouped(values: Int64) -> tuple[Int64, Int64, Int64]:
    """Bring equal values together.

    As ``np.unique`` with counts, which first imports ``numpy.ma``: a tenth of the time to a first batch.

    Returns:
        an order that sorts the values and leaves equal ones as they came, int64[n]; the k distinct values, ascending;
        and where each begins in that order and the last ends, int64[k + 1].
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    first = np.flatnonzero(np.diff(ascending)) + 1 if len(values) else np.zeros(0, np.int64)
    offsets = np.concatenate([[0], first, [len(values)]]) if len(values) else np.zeros(1, np.int64)
    return order, ascending[offsets[:-1]], offsets.astype(np.int64)


def cells(lengths: Int64, width: int, *, left: bool) -> Bools:
    """Return which cells of n rows of `width` hold a value, padding being on the right or left: bool[n, width]."""
    place = np.arange(width)
    return place >= (width - lengths)[:, None] if left else place < lengths[:, None]


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
        return cls(ids[places(start, lengths)], offsets_of(lengths))

    @classmethod
    def alike(cls, run: npt.ArrayLike, times: Bools | int) -> Self:
        """Return `run` where `times` (bool[n]) is true and nothing elsewhere; a number: so many times."""
        there = np.ones(times, np.bool_) if isinstance(times, int) else times
        values = np.asarray(run, np.int32)
        return cls(np.tile(values, int(there.sum())), offsets_of(there * np.int64(len(values))))

    @classmethod
    def filled(cls, value: int, lengths: Int64) -> Self:
        """Return runs of one value, `lengths` (int64[n])."""
        return cls(np.full(int(lengths.sum()), value, np.int32), offsets_of(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return for each i the i-th runs of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        sizes = np.array([part.lengths for part in parts])
        offsets = offsets_of(sizes.sum(axis=0))
        ids, rest = np.empty(offsets[-1], np.int32), np.ones(offsets[-1], np.bool_)
        begin = offsets[:-1].copy()
        largest = int(np.argmax([len(part.ids) for part in parts]))
        for index, (part, lengths) in enumerate(zip(parts, sizes, strict=True)):
            if index != largest:
                at = places(begin, lengths)
                ids[at], rest[at] = part.ids, False
            begin += lengths
        # A mask costs a third of what places cost.
        ids[rest] = parts[largest].ids
        return cls(ids, offsets)

    def select(self, mask: Bools) -> Self:
        """Return the runs where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        return self.taken(self.ids, self.offsets[:-1][mask], self.offsets[1:][mask])

    def inserted(self, others: Self, at: Int64) -> Self:
        """Return the runs with `others` between them, so that these end up at the places `at` (ascending)."""
        before = at - np.arange(len(at))  # how many of these runs come before each of them
        pieces = np.split(self.ids, self.offsets[before])
        pairs = zip(pieces, [*others.rows(), others.ids[:0]], strict=True)
        lengths = np.insert(self.lengths, before, others.lengths)
        return type(self)(np.concatenate([piece for pair in pairs for piece in pair]), offsets_of(lengths))

    def cut(self, most: Int64) -> Self:
        """Return the first ids of each run, `most` (int64[n]) or fewer."""
        start, lengths = self.offsets[:-1], self.lengths
        return (
            self
            if (lengths <= most).all()
            else self.taken(self.ids, start, start + np.minimum(lengths, most))
        )

    def end(self, most: Int64) -> Self:
        """Return the last ids of each run, `most` (int64[n]) or fewer."""
        stop, lengths = self.offsets[1:], self.lengths
        return (
            self if (lengths <= most).all() else self.taken(self.ids, stop - np.minimum(lengths, most), stop)
        )

    def holds(self, value: int) -> Bools:
        """Return which runs hold a value: bool[n]."""
        return self.counts(self.ids == value) > 0

    def counts(self, mask: Bools) -> Int64:
        """Return how many ids of each run are marked by `mask` (bool[total]): int64[n]."""
        return np.diff(offsets_of(mask)[self.offsets])

    def rows(self) -> list[Int32]:
        """Return each run, a view."""
        return [self.ids[start:stop] for start, stop in pairwise(self.offsets.tolist())]

    def rectangle(self, width: int, fill: int, *, left: bool) -> tuple[Int32, Bools]:
        """Return n rows of `width`, none of which may be longer: int32[n, width], and bool, which cells hold ids."""
        here = cells(self.lengths, width, left=left)
        ids = np.full(here.shape, fill, np.int32)
        ids[here] = self.ids
        return ids, here

    def begins_with(self, run: Sequence[int]) -> Bools:
        """Return which runs begin with `run`: bool[n]."""
        return self._holds_at(self.offsets[:-1], run)

    def ends_with(self, run: Sequence[int]) -> Bools:
        """Return which runs end with `run`: bool[n]."""
        return self._holds_at(self.offsets[1:] - len(run), run)

    def _holds_at(self, start: Int64, run: Sequence[int]) -> Bools:
        same = self.lengths >= len(run)
        for index, value in enumerate(run):
            # Where the run is too short the place is another's, or nobody's: any will do.
            at = np.clip(start + index, 0, max(len(self.ids) - 1, 0))
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
