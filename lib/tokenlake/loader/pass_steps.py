"""The batches of a pass, as a function of the position; with buckets, every batch is of one of them.

1. A pass is cut into *stretches* of steps that have the same batch sizes (:class:`BucketStretch`).
2. At the start of a stretch, the rows that each bucket still has make a number of batches of its size. These batches are
   dealt like the rows of a mixture: spread evenly over the stretch, and shuffled 16 at a time.
3. The n-th batch of a bucket has the rows ``given + n size`` to ``given + (n + 1) size`` of the bucket's stream, where
   ``given`` is the number of rows of the bucket before the stretch.

Without buckets all rows are one bucket, whose batches come one after the other.

Example: 40 rows of up to 8 ids in batches of 8, and 12 rows of up to 16 ids in batches of 4. The stretch has 5 and 3
batches, dealt for example as 0 1 0 0 1 0 1 0. Step 4 is the second batch of bucket 1: rows 4 to 7 of its stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Final, final

import numpy as np

from tokenlake.arrays import Int64, offsets_of
from tokenlake.loader.buckets import Bucket, BucketRows
from tokenlake.loader.steps import BatchStep, Position, RowsOfBatch, walk
from tokenlake.mixing.mixture import Draws, SourceMixture
from tokenlake.mixing.random import key_of
from tokenlake.mixing.schedule import constant
from tokenlake.mixing.streams import StreamRows

_DEALT: Final = 0xB0C  # the first word of the keys by which batches are dealt
BATCHES_TOGETHER: Final = 16  # batches whose buckets are shuffled


@final
@dataclass(frozen=True)
class BucketStretch:
    """Steps of a pass whose batches have the same sizes.

    Attributes:
        first: its first step.
        sizes: rows of a full batch of each bucket.
        given: rows of each bucket that the pass delivered before.
        left: rows of each bucket that are still to come; None: there is no end to them.
        batches: that these make of each bucket; None: no end.
        seed: of the order of the batches.
        buckets: all of them.
    """

    first: int
    sizes: tuple[int, ...]
    given: tuple[int, ...]
    left: tuple[int, ...] | None
    batches: tuple[int, ...] | None
    seed: int
    buckets: tuple[Bucket, ...]

    @property
    def end(self) -> int | None:
        """The step before which all rows were delivered; None: there is none."""
        return None if self.batches is None else self.first + sum(self.batches)

    @cached_property
    def deal(self) -> SourceMixture:
        """Batches of the buckets as rows of a mixture, as many of each as it has: spread evenly over the stretch."""
        names = [str(bucket.length) for bucket in self.buckets]
        batches = self.batches or [None] * len(names)
        shares = self.batches or [
            bucket.rows / size for bucket, size in zip(self.buckets, self.sizes, strict=True)
        ]
        return SourceMixture(
            dict(zip(names, batches, strict=True)),
            constant({name: share / sum(shares) for name, share in zip(names, shares, strict=True)}),
            batch_size=BATCHES_TOGETHER,
            block_size=BATCHES_TOGETHER,
            seed=self.seed,
            stop="restart" if self.batches is None else "all_exhausted",
        )

    def delivered(self, step: int) -> tuple[int, ...]:
        """Return how many rows of each bucket the pass delivered before a step of the stretch, or before its end."""
        if step == self.first:  # also of a stretch without batches, which has no deal
            return self.given
        alone = len(self.sizes) == 1
        drawn = [step - self.first] if alone else self.deal.drawn(0, step - self.first).tolist()
        each = [count * size for count, size in zip(drawn, self.sizes, strict=True)]
        if self.left is not None:
            each = [min(rows, left) for rows, left in zip(each, self.left, strict=True)]
        return tuple(before + rows for before, rows in zip(self.given, each, strict=True))

    @cached_property
    def drawn(self) -> Callable[[int], Draws]:
        """Which bucket each batch of a block is of (its source), and which batch of the bucket, from 0 (its index)."""

        @lru_cache(8)
        def drawn(block: int) -> Draws:
            first, last = block * BATCHES_TOGETHER, (block + 1) * BATCHES_TOGETHER
            return self.deal.lane(0, first, last if self.end is None else min(last, self.end - self.first))

        return drawn


@final
class PassSteps:
    """Which batches a pass has, each of one bucket; rows that are not put into any are one bucket as they come.

    Args:
        stored: the rows of the buckets; None where there is one, of all rows.
        buckets: with the sizes of step 0.
        changes: rows of each bucket's batches from a step on, step 0 included, ascending.
        first_groups: where the row groups of each dataset begin among all, int64[datasets + 1].
        seed: of the order of the batches.
        drop_last: leave out the last batch of each bucket if it is not full.
    """

    def __init__(
        self,
        stored: BucketRows | None,
        buckets: Sequence[Bucket],
        changes: Sequence[tuple[int, tuple[int, ...]]],
        first_groups: Int64,
        *,
        seed: int,
        drop_last: bool,
    ) -> None:
        self.buckets: Final = tuple(buckets)
        self.bucketed: Final = stored is not None
        self._stored, self._changes, self._first_groups = stored, tuple(changes), first_groups
        self._seed, self._drop_last = seed, drop_last
        self._streams = lru_cache(2)(lambda passes: [bucket.stream(passes) for bucket in self.buckets])
        totals = [stream.length for stream in self._streams(0)]
        self._totals = None if None in totals else tuple(total or 0 for total in totals)
        self.rows: Final = None if self._totals is None else sum(self._totals)
        self._stretches, self.begin = lru_cache(8)(self._stretches_of), lru_cache(8)(self._begin_of)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(rows, length) of full batches, each once."""
        each = [zip(sizes, self.buckets, strict=True) for _, sizes in self._changes]
        return tuple(dict.fromkeys((size, bucket.length) for pairs in each for size, bucket in pairs))

    @property
    def mean_rows(self) -> float:
        """Rows of a batch of step 0, in the mean."""
        rows = sum(bucket.rows for bucket in self.buckets)
        return rows / sum(bucket.rows / bucket.size for bucket in self.buckets)

    def length(self, step: BatchStep) -> int:
        """Return how long a batch is."""
        return self.buckets[step.bucket].length

    def next(self, position: Position) -> BatchStep | None:
        """Return the batch that comes next in this pass; None at its end."""
        bucket, start, rows = 0, position.rows, self.rows
        if self.bucketed:
            stretch = self._stretch(position.passes, position.step)
            if stretch.end is not None and position.step >= stretch.end:
                return None
            block, place = divmod(position.step - stretch.first, BATCHES_TOGETHER)
            drawn = stretch.drawn(block)
            bucket = int(drawn.source[place])
            start = stretch.given[bucket] + int(drawn.index[place]) * stretch.sizes[bucket]
            rows = None if self._totals is None else self._totals[bucket]
        size = self._changes[bisect_right(self._changes, position.step, key=itemgetter(0)) - 1][1][bucket]
        left = size if rows is None else min(size, rows - start)
        if left <= 0 or (left < size and self._drop_last):
            return None
        return BatchStep(position.step, position.passes, start, size, left, bucket, position.rows + left)

    def batches(self, first: int) -> int | None:
        """Return how many batches a pass has that begins at step `first`; None: no end."""
        return self._count(walk(self._count, self._changes[-1][0], step=first)[1], first)

    def position(self, step: int) -> Position:
        """Return where delivery stands before a step; the end of a pass is the beginning of the next."""
        passes = walk(self._count, self._changes[-1][0], step=step)[1]
        return Position(step, passes, sum(self._stretch(passes, step).delivered(step)))

    def end(self, passes: int) -> Position:
        """Return where delivery stands when a pass that ends has come to its end, before the next one begins."""
        last = self._stretches(passes, self.begin(passes))[-1]
        step = last.first if last.end is None else last.end
        return Position(step, passes, sum(last.delivered(step)))

    def rows_of(self, passes: int, wanted: RowsOfBatch, *, pad_last: bool) -> int | None:
        """Return how many rows of a pass a host has that wants these of each batch; None: no end."""
        if self._totals is None:
            return None
        stretches, found = self._stretches(passes, self.begin(passes)), 0
        after = [each.given for each in stretches[1:]]
        after.append(stretches[-1].delivered(stretches[-1].end or 0))
        for stretch, rows in zip(stretches, after, strict=True):
            for size, first, last in zip(stretch.sizes, stretch.given, rows, strict=True):
                full, rest = divmod(last - first, size)
                found += full * len(wanted(size))
                if rest:
                    found += int(np.searchsorted(wanted(size), size if pad_last else rest))
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
            source = self.buckets[bucket].sources[at.source]
            row = at.row
            if self._stored is not None:
                row = self._stored.rows(bucket, self._first_groups[source] + at.group, row)
            stored = at._replace(source=source, row=row)
            ends = offsets_of(counts)
            for number, first, last in zip(numbers, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
                found[number] = StreamRows(*(column[first:last] for column in stored))
        return found

    def epochs(self, passes: int, end: int, source: int, group: int, row: int) -> range:
        """Return the epochs of a dataset in which a stored row may come before step `end` of a pass."""
        (bucket,), _ = self._numbered(source, np.array([group]), np.array([row]))
        there = np.flatnonzero(self.buckets[bucket].sources == source)
        stretch = self._stretch(passes, end)
        if not len(there) or end < stretch.first:
            return range(0)
        last = end if stretch.end is None else min(end, stretch.end)
        return self._streams(passes)[bucket].epochs(int(there[0]), stretch.delivered(last)[bucket])

    def places(
        self, passes: int, source: int, epoch: int, group: Int64, row: Int64
    ) -> list[tuple[BatchStep, int] | None]:
        """Return the batch, and the row of it, at which each stored row comes in an epoch of its dataset.

        The inverse of :meth:`locate`; None where it does not come in this pass.
        """
        found: list[tuple[BatchStep, int] | None] = [None] * len(group)
        buckets, numbers = self._numbered(source, group, row)
        for bucket in np.unique(buckets).tolist():
            index = np.flatnonzero(self.buckets[bucket].sources == source)
            if not len(index):
                continue
            there, stream = np.flatnonzero(buckets == bucket), self._streams(passes)[bucket]
            lane, place = stream.place_of(int(index[0]), epoch, group[there], numbers[there])
            there, lane, place = there[place >= 0], lane[place >= 0], place[place >= 0]
            positions = stream.layout.beside(lane, place).tolist()
            batches = [self._of_row(passes, bucket, position) for position in positions]
            start = np.array([0 if batch is None else batch.start for batch in batches], np.int64)
            size = [stream.layout.lanes if batch is None else batch.size for batch in batches]
            rows = stream.layout.row_in(start, np.array(size, np.int64), lane, place).tolist()
            for at, batch, number in zip(there.tolist(), batches, rows, strict=True):
                # What a mixture is cut off, and a last batch that is left out, never comes.
                found[at] = (batch, number) if batch is not None and number < batch.rows else None
        return found

    def _numbered(self, source: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the bucket of rows of row groups of a dataset, and which row of it there each is, int64[n] both."""
        if self._stored is None:
            return np.zeros_like(group), row
        first = int(self._first_groups[source])
        each = [
            self._stored.bucket_of(first + at, one)
            for at, one in zip(group.tolist(), row.tolist(), strict=True)
        ]
        buckets, numbers = np.array(each, np.int64).reshape(-1, 2).T
        return buckets, numbers

    def _of_row(self, passes: int, bucket: int, row: int) -> BatchStep | None:
        """Return the batch that has a row of a bucket; None if it never comes."""
        stretches = reversed(self._stretches(passes, self.begin(passes)))
        stretch = next(each for each in stretches if each.given[bucket] <= row)
        turn = (row - stretch.given[bucket]) // stretch.sizes[bucket]
        if stretch.batches is not None and turn >= stretch.batches[bucket]:
            return None
        index = stretch.deal.place_of(0, bucket, turn) if self.bucketed else turn
        if index is None:
            return None
        step = stretch.first + index
        return self.next(Position(step, passes, sum(stretch.delivered(step))))

    def _stretch(self, passes: int, step: int) -> BucketStretch:
        """Return the stretch of a pass that a step is in; the last one for those behind it."""
        stretches = self._stretches(passes, self.begin(passes))
        return next((each for each in reversed(stretches) if each.first <= step), stretches[0])

    def _stretches_of(self, passes: int, first: int) -> list[BucketStretch]:
        """Deal what each stretch leaves to the next, until nothing is left or sizes change no more."""
        found, given = list[BucketStretch](), (0,) * len(self.buckets)
        for (change, sizes), (after, _) in pairwise([*self._changes, (-1, ())]):
            if -1 < after <= first:
                continue
            key = key_of(self._seed, _DEALT, passes, *([len(found)] if found else []))
            left = batches = None
            if self._totals is not None:
                left = tuple(total - rows for total, rows in zip(self._totals, given, strict=True))
                batches = tuple(
                    rows // size if self._drop_last else -(-rows // size)
                    for rows, size in zip(left, sizes, strict=True)
                )
            stretch = BucketStretch(max(first, change), sizes, given, left, batches, key, self.buckets)
            found.append(stretch)
            # Rows in no buckets that end with a stretch may leave some that a smaller batch of the next one holds.
            if after < 0 or (stretch.end is not None and stretch.end < after + self.bucketed):
                break
            given = stretch.delivered(after)
        return found

    def _count(self, passes: int, first: int) -> int | None:
        """Return how many batches a pass has that begins at a step."""
        end = self._stretches(passes, first)[-1].end
        return None if end is None else end - first

    def _begin_of(self, passes: int) -> int:
        """Return the step that begins a pass."""
        return walk(self._count, self._changes[-1][0], passes=passes)[0]
