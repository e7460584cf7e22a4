"""Buckets: rows of like lengths, which come together in batches.

::

    bucket        rows of a length up to the bucket's bound, and above the bound before
    its stream    an order of its own: that of a dataset of these rows alone
    stored row    the n-th row of the bucket in a row group          row groups sorted by bucket, once

Each bucket of a mixture is a mixture of its own: of the rows of each source that it holds, by the source's weight times
the share of the source's rows that it holds.

All buckets permute row groups by one seed, and take an equal share of them. They therefore proceed through a dataset
side by side, and a row group is decoded about once for all of them. No bucket has to fill up: the rows of a batch follow
from its number alone (:mod:`tokenlake.loader.pass_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.arrays import Int64
from tokenlake.loader.length_index import LengthIndex
from tokenlake.mixing.streams import RowStream


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of like lengths.

    Attributes:
        length: of its batches.
        size: rows of its batches.
        rows: of an epoch; of a mixture, of as many rows as its sources have, by their weights.
        stream: the order of its rows in a pass, by the number of the pass.
        sources: index of the dataset that each source of the stream is, int64[sources].
    """

    length: int
    size: int
    rows: float
    stream: Callable[[int], RowStream]
    sources: Int64


@final
class BucketRows:
    """The rows of each bucket, by row group: two bytes a row, four where a row group has more than 65,536.

    Args:
        index: lengths of the rows.
        bounds: the lengths of the buckets, ascending; no row is longer than the last.

    Attributes:
        bounds: of the buckets that have rows.
        group_rows: of each bucket, rows of each row group of all datasets, int64[buckets, G].
    """

    def __init__(self, index: LengthIndex, bounds: Sequence[int]) -> None:
        self._first_rows = index.first_rows
        groups = len(self._first_rows) - 1
        counts = np.zeros((groups, len(bounds)), np.int64)
        kind = np.uint16 if int(np.diff(self._first_rows).max(initial=0)) <= 1 << 16 else np.uint32
        self._sorted: npt.NDArray[Any] = np.empty(int(self._first_rows[-1]), kind)
        for some in index.chunks():
            group = np.searchsorted(self._first_rows, np.arange(some.start, some.stop), side="right") - 1
            cell = group * len(bounds) + np.searchsorted(bounds, index.lengths(some))
            first, last = int(group[0]), int(group[-1]) + 1
            counts[first:last] = np.bincount(
                cell - first * len(bounds), minlength=(last - first) * len(bounds)
            ).reshape(-1, len(bounds))
            # The sort leaves row groups where they are, so that this is the place in the row group.
            self._sorted[some] = np.argsort(cell, kind="stable") + some.start - self._first_rows[group]
        there = counts.sum(axis=0) > 0
        self._begins = (np.cumsum(counts, axis=1) - counts).T[there]
        self.bounds: Final = tuple(np.asarray(bounds)[there].tolist())
        self.group_rows: Final = np.ascontiguousarray(counts.T[there])

    def rows(self, bucket: int, group: Int64, number: Int64) -> Int64:
        """Return which row of its row group the n-th one of a bucket is, int64[n]."""
        return self._sorted[self._first_rows[group] + self._begins[bucket][group] + number].astype(np.int64)

    def bucket_of(self, group: int, row: int) -> tuple[int, int]:
        """Return the bucket of a row of a row group, and which row of it there it is; the inverse of :meth:`rows`."""
        first, last = self._first_rows[group : group + 2].tolist()
        place = int(np.flatnonzero(self._sorted[first:last] == row)[0])
        bucket = int(np.flatnonzero(self._begins[:, group] <= place)[-1])
        return bucket, place - int(self._begins[bucket, group])
