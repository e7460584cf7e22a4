"""Rows of like lengths together: buckets, and which of them each step is of, as functions of the position.

::

    step          which bucket, and the how manieth batch of it      the deal of a mixture, of batches
    its rows      start .. start + rows of the bucket's stream       its own order: as of a dataset of these rows alone
    stored row    the n-th row of the bucket in a row group          row groups sorted by bucket, once

All buckets permute row groups by one seed and take as large a share of them, so that they go through a dataset side by
side, and a row group is decoded about once for all of them. Nothing waits for a bucket to fill: which rows a batch has
follows from its number, whatever came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.loader.length_index import LengthIndex
from tokenlake.loader.steps import BatchStep, Position, RowsOfBatch
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.mixing.random import key_of
from tokenlake.mixing.schedule import constant
from tokenlake.mixing.shuffle import EpochOrder, StoredOrder
from tokenlake.mixing.stream import EpochStream, StreamRows
from tokenlake.ragged import Int64, offsets_of

_DEALT: Final = 0xB0C  # the first word of the keys by which batches are dealt
_TOGETHER: Final = 16  # batches whose buckets are shuffled


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of like lengths.

    Attributes:
        length: of its batches.
        size: rows of its batches.
        rows: of an epoch.
    """

    length: int
    size: int
    rows: int


@final
class BucketRows:
    """The rows of each bucket, by row group: two bytes a row, four where a row group has more than 65,536.

    Args:
        index: lengths of the rows of one dataset.
        bounds: the lengths of the buckets, ascending; no row is longer than the last.

    Attributes:
        bounds: of the buckets that have rows.
        group_rows: of each bucket, rows of each row group, int64[buckets, G].
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


@final
class BucketSteps:
    """Which batches a pass has, where each is of one bucket; as :class:`tokenlake.loader.steps.PassSteps`.

    Args:
        rows: of the buckets.
        buckets: one for each of them.
        orders: of the rows of each bucket.
        epochs: of a pass; None: it has no end.
        seed: of the order of the batches.
        drop_last: leave out the last batch of each bucket if it is not full.
    """

    def __init__(
        self,
        rows: BucketRows,
        buckets: Sequence[Bucket],
        orders: Sequence[EpochOrder | StoredOrder],
        *,
        epochs: int | None,
        seed: int,
        drop_last: bool,
    ) -> None:
        self.buckets: Final = tuple(buckets)
        self._stored, self._orders, self._epochs, self._seed = rows, orders, epochs, seed
        self._totals = [None if epochs is None else epochs * bucket.rows for bucket in buckets]
        self._batches = [
            None if total is None else total // bucket.size if drop_last else -(-total // bucket.size)
            for bucket, total in zip(buckets, self._totals, strict=True)
        ]
        self.rows: Final = None if epochs is None else epochs * sum(bucket.rows for bucket in buckets)
        self._count = None if epochs is None else sum(each or 0 for each in self._batches)
        self._deal, self._streams = lru_cache(2)(self._dealt), lru_cache(2)(self._streams_of)
        self._ahead = lru_cache(8)(self._drawn)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of full batches."""
        return tuple(bucket.size for bucket in self.buckets)

    @property
    def mean_rows(self) -> float:
        """Rows of a batch, in the mean."""
        rows = sum(bucket.rows for bucket in self.buckets)
        return rows / sum(bucket.rows / bucket.size for bucket in self.buckets)

    def length(self, step: BatchStep) -> int:
        """Return how long a batch is."""
        return self.buckets[step.bucket].length

    def next(self, position: Position) -> BatchStep | None:
        """Return the batch that comes next in this pass; None at its end."""
        index = position.step - self.begin(position.passes)
        if self._count is not None and index >= self._count:
            return None
        bucket, number = self._at(position.passes, index)
        size, total = self.buckets[bucket].size, self._totals[bucket]
        left = size if total is None else min(size, total - number * size)
        delivered = position.rows + left
        return BatchStep(position.step, position.passes, number * size, size, left, bucket, delivered)

    def batches(self, first: int) -> int | None:
        """Return how many batches a pass has; None: no end."""
        return self._count

    def begin(self, passes: int) -> int:
        """Return the step that begins a pass."""
        return passes * (self._count or 0)

    def position(self, step: int) -> Position:
        """Return where delivery stands before a step; the end of a pass is the beginning of the next."""
        passes, index = (0, step) if self._count is None else divmod(step, self._count)
        drawn = self._deal(passes).drawn(0, index).tolist()
        rows = [
            count * bucket.size if total is None else min(count * bucket.size, total)
            for count, bucket, total in zip(drawn, self.buckets, self._totals, strict=True)
        ]
        return Position(step, passes, sum(rows))

    def rows_of(self, passes: int, wanted: RowsOfBatch, *, pad_last: bool) -> int | None:
        """Return how many rows of a pass a host has that wants these of each batch; None: no end."""
        if self._count is None:
            return None
        found = 0
        for bucket, total, batches in zip(self.buckets, self._totals, self._batches, strict=True):
            full = min((total or 0) // bucket.size, batches or 0)
            found += full * len(wanted(bucket.size))
            if (batches or 0) > full:
                last = bucket.size if pad_last else (total or 0) - full * bucket.size
                found += int(np.searchsorted(wanted(bucket.size), last))
        return found

    def locate(self, steps: Sequence[BatchStep], rows: Sequence[Int64]) -> list[StreamRows]:
        """Return where these rows of batches are stored."""
        found: list[StreamRows] = [StreamRows(*np.empty((4, 0), np.int64))] * len(steps)
        by_bucket: dict[int, list[int]] = {}
        for number, step in enumerate(steps):
            by_bucket.setdefault(step.bucket, []).append(number)
        for bucket, numbers in by_bucket.items():
            counts = [len(rows[number]) for number in numbers]
            start, size = (
                np.repeat(np.array([getattr(steps[number], name) for number in numbers], np.int64), counts)
                for name in ("start", "size")
            )
            stream = self._streams(steps[0].passes)[bucket]
            at = stream.at(start, size, np.concatenate([rows[number] for number in numbers]))
            stored = at._replace(row=self._stored.rows(bucket, at.group, at.row))
            ends = offsets_of(counts)
            for number, first, last in zip(numbers, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
                found[number] = StreamRows(*(column[first:last] for column in stored))
        return found

    def _at(self, passes: int, index: int) -> tuple[int, int]:
        """Which bucket a batch of a pass is of, and the how manieth of it, from 0."""
        block, place = divmod(index, _TOGETHER)
        source, number = self._ahead(passes, block)
        return int(source[place]), int(number[place])

    def _drawn(self, passes: int, block: int) -> tuple[Int64, Int64]:
        first, last = block * _TOGETHER, (block + 1) * _TOGETHER
        draws = self._deal(passes).lane(0, first, last if self._count is None else min(last, self._count))
        return draws.source, draws.index

    def _dealt(self, passes: int) -> SourceMixture:
        """Batches of the buckets as rows of a mixture, as many of each as it has: spread evenly over the pass."""
        names = [str(bucket.length) for bucket in self.buckets]
        shares = [
            bucket.rows / bucket.size if batches is None else batches
            for bucket, batches in zip(self.buckets, self._batches, strict=True)
        ]
        return SourceMixture(
            dict(zip(names, self._batches, strict=True)),
            constant({name: share / sum(shares) for name, share in zip(names, shares, strict=True)}),
            batch_size=_TOGETHER,
            block_size=_TOGETHER,
            seed=key_of(self._seed, _DEALT, passes),
            stop="restart" if self._count is None else "all_exhausted",
        )

    def _streams_of(self, passes: int) -> list[EpochStream]:
        first = passes * (self._epochs or 0)
        return [
            EpochStream(order, epochs=self._epochs, first=first, batch_size=bucket.size)
            for order, bucket in zip(self._orders, self.buckets, strict=True)
        ]


def bucket_size(ids: int, length: int, multiple: int) -> int:
    """Return the rows of a bucket's batches: as many as keep a batch at `ids` ids or a little less.

    Args:
        ids: of a batch of the longest bucket.
        length: of the bucket.
        multiple: the rows are a multiple of it.
    """
    return ids // length // multiple * multiple
