"""Buckets: rows of similar length, which are batched together.

::

    bucket        rows whose length is at most the bucket's bound, and greater than the previous bound
    stream        order of a bucket's rows: that of a dataset of these rows alone
    stored row    n-th row of the bucket in a row group; row groups are sorted by bucket, once

Each bucket of a mixture is a mixture by itself
(:mod:`tokenlake.runtime.loader.bucketed_mixture`).

All buckets permute row groups by the same seed, and each holds about an equal share of
every row group. They therefore proceed through a dataset side by side, and a row group
is decoded about once for all of them. No bucket has to fill up: the rows of a batch
follow from its number alone (:mod:`tokenlake.runtime.loader.pass_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64
from tokenlake.runtime.loader.length_index import LengthIndex
from tokenlake.runtime.mixing.streams import RowStream


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of similar length.

    Attributes:
        length: Length of its batches, in ids.
        size: Rows of its batches at step 0.
        rows: Rows of an epoch; for a mixture, the expected number if as many rows are
            drawn as all sources have.
        stream: Function of the number of a pass that returns the order of its rows.
        sources: Index of the dataset of each source of the stream, int64[sources].
    """

    length: int
    size: int
    rows: float
    stream: Callable[[int], RowStream]
    sources: Int64


@final
class BucketRows:
    """Rows of each bucket in each row group.

    They take two bytes for each row, or four if a row group has more than 65,536 rows.

    Each row group is sorted by bucket: first its rows of bucket 0, then those of bucket
    1, and so on. Of a row group with rows of lengths 3, 9, 2 and 12, and bounds 4 and
    16, the sorted rows are ``0 2 1 3``; bucket 1 begins at place 2.

    Args:
        index: Lengths of the rows.
        bounds: Lengths of the buckets, ascending; no row is longer than the last.

    Attributes:
        bounds: Lengths of the buckets that have rows.
        group_rows: Rows of each bucket in each row group of all datasets,
            int64[buckets, G].
    """

    def __init__(self, index: LengthIndex, bounds: Sequence[int]) -> None:
        self._first_rows = index.first_rows
        groups = len(self._first_rows) - 1
        counts = np.zeros((groups, len(bounds)), np.int64)
        # Rows of a row group are numbered from 0: with 65,536 rows the last number is
        # 65,535, which fits 16 bits.
        most_rows = int(np.diff(self._first_rows).max(initial=0))
        kind = np.uint16 if most_rows <= 1 << 16 else np.uint32
        self._sorted: npt.NDArray[Any] = np.empty(int(self._first_rows[-1]), kind)
        for chunk in index.chunks():  # of whole row groups
            group = (
                np.searchsorted(
                    self._first_rows, np.arange(chunk.start, chunk.stop), side="right"
                )
                - 1
            )
            bucket = np.searchsorted(bounds, index.lengths(chunk))
            cell = group * len(bounds) + bucket
            first_group = int(group[0])
            chunk_groups = int(group[-1]) + 1 - first_group
            cell_counts = np.bincount(
                cell - first_group * len(bounds), minlength=chunk_groups * len(bounds)
            )
            counts[first_group : first_group + chunk_groups] = cell_counts.reshape(
                -1, len(bounds)
            )
            # The sort leaves row groups where they are, so that this is the place in
            # the row group.
            self._sorted[chunk] = (
                np.argsort(cell, kind="stable") + chunk.start - self._first_rows[group]
            )
        has_rows = counts.sum(axis=0) > 0
        self._begins = (np.cumsum(counts, axis=1) - counts).T[has_rows]
        self.bounds: Final = tuple(np.asarray(bounds)[has_rows].tolist())
        self.group_rows: Final = np.ascontiguousarray(counts.T[has_rows])

    def rows(self, bucket: int, group: Int64, number: Int64) -> Int64:
        """Return the row in its row group of the n-th row of a bucket, int64[n].

        Args:
            bucket: Index of the bucket.
            group: Row group of each row, counted over all datasets, int64[n].
            number: Number of the row among those of the bucket in the row group,
                int64[n].
        """
        return self._sorted[
            self._first_rows[group] + self._begins[bucket][group] + number
        ].astype(np.int64)

    def bucket_of(self, group: int, row: int) -> tuple[int, int]:
        """Return the bucket of a row, and its number among the bucket's rows.

        Rows of a bucket are counted in their row group. The inverse of :meth:`rows`.
        """
        first_row, last_row = self._first_rows[group : group + 2].tolist()
        place = int(np.flatnonzero(self._sorted[first_row:last_row] == row)[0])
        bucket = int(np.flatnonzero(self._begins[:, group] <= place)[-1])
        return bucket, place - int(self._begins[bucket, group])
