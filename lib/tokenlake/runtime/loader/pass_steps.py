"""The batches of a pass, as a function of the position; with buckets, every batch is of one of them.

1. A pass is cut into *stretches* of steps that have the same batch sizes (:class:`BucketStretch`).
2. At the start of a stretch, the rows that each bucket still has make a number of batches of its size. These batches
   are dealt like the rows of a mixture: spread evenly over the stretch, and shuffled 16 at a time.
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
from operator import itemgetter
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.runtime.loader.buckets import Bucket, BucketRows
from tokenlake.runtime.loader.steps import BatchStep, Position, RowsOfBatch, walk
from tokenlake.runtime.mixing.mixture import Draws, SourceMixture
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.mixing.schedule import constant
from tokenlake.runtime.mixing.streams import StreamRows

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
        batches: dict[str, int | None] = {}
        shares: dict[str, float] = {}
        for number, (bucket, size) in enumerate(zip(self.buckets, self.sizes, strict=True)):
            name = str(bucket.length)
            batches[name] = None if self.batches is None else self.batches[number]
            shares[name] = bucket.rows / size if self.batches is None else self.batches[number]
        total = sum(shares.values())
        return SourceMixture(
            batches,
            constant({name: share / total for name, share in shares.items()}),
            batch_size=BATCHES_TOGETHER,
            block_size=BATCHES_TOGETHER,
            seed=self.seed,
            stop="restart" if self.batches is None else "all_exhausted",
        )

    def delivered(self, step: int) -> tuple[int, ...]:
        """Return how many rows of each bucket the pass delivered before a step of the stretch, or before its end."""
        if step == self.first:  # also of a stretch without batches, which has no deal
            return self.given
        batches = [step - self.first]
        if len(self.sizes) > 1:
            batches = self.deal.drawn(0, step - self.first).tolist()
        delivered: list[int] = []
        for bucket, size in enumerate(self.sizes):
            rows = batches[bucket] * size
            if self.left is not None:
                rows = min(rows, self.left[bucket])  # the last batch may not be full
            delivered.append(self.given[bucket] + rows)
        return tuple(delivered)

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
        self._stored = stored
        self._changes = tuple(changes)
        self._first_groups = first_groups
        self._seed = seed
        self._drop_last = drop_last
        self._streams = lru_cache(2)(lambda passes: [bucket.stream(passes) for bucket in self.buckets])
        totals = [stream.length for stream in self._streams(0)]
        self._totals = None if None in totals else tuple(total or 0 for total in totals)
        self.rows: Final = None if self._totals is None else sum(self._totals)
        self._stretches = lru_cache(8)(self._stretches_of)
        self.begin = lru_cache(8)(self._begin_of)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(rows, length) of full batches, each once."""
        shapes: dict[tuple[int, int], None] = {}  # in the order in which they first occur
        for _, sizes in self._changes:
            for size, bucket in zip(sizes, self.buckets, strict=True):
                shapes[size, bucket.length] = None
        return tuple(shapes)

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
        bucket = 0
        start = position.rows
        bucket_rows = self.rows  # that the bucket has in the pass; None: no end
        if self.bucketed:
            stretch = self._stretch(position.passes, position.step)
            if stretch.end is not None and position.step >= stretch.end:
                return None
            block, place = divmod(position.step - stretch.first, BATCHES_TOGETHER)
            drawn = stretch.drawn(block)
            bucket = int(drawn.source[place])
            start = stretch.given[bucket] + int(drawn.index[place]) * stretch.sizes[bucket]
            bucket_rows = None if self._totals is None else self._totals[bucket]
        change = bisect_right(self._changes, position.step, key=itemgetter(0)) - 1
        size = self._changes[change][1][bucket]
        rows = size if bucket_rows is None else min(size, bucket_rows - start)
        if rows <= 0 or (rows < size and self._drop_last):
            return None
        return BatchStep(position.step, position.passes, start, size, rows, bucket, position.rows + rows)

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
        stretches = self._stretches(passes, self.begin(passes))
        # Rows of each bucket that the pass delivered before the end of each stretch.
        delivered = [stretch.given for stretch in stretches[1:]]
        delivered.append(stretches[-1].delivered(stretches[-1].end or 0))
        total = 0
        for stretch, ends in zip(stretches, delivered, strict=True):
            for size, begin, end in zip(stretch.sizes, stretch.given, ends, strict=True):
                full_batches, rest = divmod(end - begin, size)
                total += full_batches * len(wanted(size))
                if rest:
                    total += int(np.searchsorted(wanted(size), size if pad_last else rest))
        return total

    def locate(self, steps: Sequence[BatchStep], rows: Sequence[Int64]) -> list[StreamRows]:
        """Return where rows of batches are stored: the inverse of :meth:`places`.

        Args:
            steps: Batches of one pass.
            rows: Rows of each of them, int64[m], ascending.
        """
        located: list[StreamRows] = [StreamRows(*np.empty((4, 0), np.int64))] * len(steps)
        # The batches of a bucket are looked up together, which costs little more than one.
        batches_of_bucket: dict[int, list[int]] = {}
        for number, step in enumerate(steps):
            batches_of_bucket.setdefault(step.bucket, []).append(number)
        for bucket, numbers in batches_of_bucket.items():
            counts = [len(rows[number]) for number in numbers]
            start = np.array([steps[number].start for number in numbers], np.int64)
            size = np.array([steps[number].size for number in numbers], np.int64)
            row_in_batch = np.concatenate([rows[number] for number in numbers])
            stream = self._streams(steps[0].passes)[bucket]
            stored = stream.at(np.repeat(start, counts), np.repeat(size, counts), row_in_batch)
            # The stream numbers sources and rows within the bucket; go back to datasets and their row groups.
            dataset = self.buckets[bucket].sources[stored.source]
            row = stored.row
            if self._stored is not None:
                row = self._stored.rows(bucket, self._first_groups[dataset] + stored.group, row)
            stored = stored._replace(source=dataset, row=row)
            ends = offsets_of(counts).tolist()
            for number, first, last in zip(numbers, ends[:-1], ends[1:], strict=True):
                located[number] = StreamRows(*(column[first:last] for column in stored))
        return located

    def epochs(self, passes: int, end: int, source: int, group: int, row: int) -> range:
        """Return the epochs of a dataset in which a stored row may come before step `end` of a pass."""
        (bucket,), _ = self._numbered(source, np.array([group]), np.array([row]))
        stream_sources = np.flatnonzero(self.buckets[bucket].sources == source)
        stretch = self._stretch(passes, end)
        if not len(stream_sources) or end < stretch.first:
            return range(0)
        last = end if stretch.end is None else min(end, stretch.end)
        return self._streams(passes)[bucket].epochs(int(stream_sources[0]), stretch.delivered(last)[bucket])

    def places(
        self, passes: int, source: int, epoch: int, group: Int64, row: Int64
    ) -> list[tuple[BatchStep, int] | None]:
        """Return the batch, and the row of it, at which each stored row comes in an epoch of its dataset.

        The inverse of :meth:`locate`; None where it does not come in this pass.
        """
        places: list[tuple[BatchStep, int] | None] = [None] * len(group)
        buckets, row_in_bucket = self._numbered(source, group, row)
        for bucket in np.unique(buckets).tolist():
            stream_sources = np.flatnonzero(self.buckets[bucket].sources == source)
            if not len(stream_sources):
                continue
            # 1. The lane and the place in the lane of each row. Rows that never come have place -1.
            stream = self._streams(passes)[bucket]
            index = np.flatnonzero(buckets == bucket)
            lane, place = stream.place_of(int(stream_sources[0]), epoch, group[index], row_in_bucket[index])
            comes = place >= 0
            index = index[comes]
            lane = lane[comes]
            place = place[comes]
            # 2. The batch of each. All lanes are equally far in it, so that any position beside the place will do.
            batches: list[BatchStep | None] = []
            start = np.zeros(len(index), np.int64)
            size = np.full(len(index), stream.layout.lanes, np.int64)
            for number, position in enumerate(stream.layout.beside(lane, place).tolist()):
                batch = self._of_row(passes, bucket, position)
                batches.append(batch)
                if batch is not None:
                    start[number] = batch.start
                    size[number] = batch.size
            # 3. The row in the batch. The cut-off end of a mixture, and a last batch that is dropped, never come.
            row_in_batch = stream.layout.row_in(start, size, lane, place).tolist()
            for number, batch in enumerate(batches):
                if batch is not None and row_in_batch[number] < batch.rows:
                    places[index[number]] = (batch, row_in_batch[number])
        return places

    def _numbered(self, source: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the bucket of rows of row groups of a dataset, and which row of it there each is, int64[n] both."""
        if self._stored is None:
            return np.zeros_like(group), row
        first_group = int(self._first_groups[source])
        buckets = np.empty_like(group)
        numbers = np.empty_like(row)
        for index in range(len(group)):
            bucket, number = self._stored.bucket_of(first_group + int(group[index]), int(row[index]))
            buckets[index] = bucket
            numbers[index] = number
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
        stretches: list[BucketStretch] = []
        given = (0,) * len(self.buckets)
        for number, (change, sizes) in enumerate(self._changes):
            is_last_change = number + 1 == len(self._changes)
            next_change = None if is_last_change else self._changes[number + 1][0]
            if next_change is not None and next_change <= first:
                continue  # the sizes changed again before the pass began
            # The first stretch has the key without a number: passes whose sizes never change keep their order.
            key = key_of(self._seed, _DEALT, passes)
            if stretches:
                key = key_of(self._seed, _DEALT, passes, len(stretches))
            left, batches = self._remaining(given, sizes)
            stretch = BucketStretch(max(first, change), sizes, given, left, batches, key, self.buckets)
            stretches.append(stretch)
            if next_change is None or self._ends_before(stretch, next_change):
                break
            given = stretch.delivered(next_change)
        return stretches

    def _remaining(
        self, given: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Return the rows of each bucket after `given` of them, and the batches that they make; None: no end."""
        if self._totals is None:
            return None, None
        left: list[int] = []
        batches: list[int] = []
        for total, delivered, size in zip(self._totals, given, sizes, strict=True):
            rows = total - delivered
            left.append(rows)
            batches.append(rows // size if self._drop_last else (rows + size - 1) // size)
        return tuple(left), tuple(batches)

    def _ends_before(self, stretch: BucketStretch, next_change: int) -> bool:
        """Return whether nothing is left of the pass when the batch sizes change."""
        if stretch.end is None:
            return False
        if self.bucketed:
            return stretch.end <= next_change
        # Without buckets a pass may end exactly there with rows left that `drop_last` leaves out: a smaller batch of
        # the next size may hold them.
        return stretch.end < next_change

    def _count(self, passes: int, first: int) -> int | None:
        """Return how many batches a pass has that begins at a step."""
        end = self._stretches(passes, first)[-1].end
        return None if end is None else end - first

    def _begin_of(self, passes: int) -> int:
        """Return the step that begins a pass."""
        return walk(self._count, self._changes[-1][0], passes=passes)[0]
