"""Batches of a pass, as a function of the position.

With buckets, every batch is of one of them.

1. A pass is divided into *stretches* of steps with the same batch sizes
   (:class:`BucketStretch`).
2. At the start of a stretch, the rows that each bucket still has make a number of
   batches of its size. These batches are dealt like the rows of a mixture: spread
   evenly over the stretch, and shuffled 16 at a time.
3. The n-th batch of a bucket in a stretch has the rows ``before + n * size`` to
   ``before + (n + 1) * size - 1`` of the bucket's stream, where ``before`` is the
   number of rows of the bucket before the stretch.

Without buckets all rows are one bucket, whose batches come one after the other.

Example: 40 rows of up to 8 ids in batches of 8, and 12 rows of up to 16 ids in batches
of 4. The stretch has 5 and 3 batches, dealt for example as 0 1 0 0 1 0 1 0. Step 4 is
the second batch of bucket 1: rows 4 to 7 of its stream.
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

_DEAL_KEY: Final = 0xB0C
"""First word of the keys by which batches are dealt."""

BATCHES_TOGETHER: Final = 16
"""Batches whose buckets are shuffled together: a block of the deal."""


@final
@dataclass(frozen=True)
class BucketStretch:
    """Steps of a pass whose batches have the same sizes.

    Attributes:
        first: First step.
        sizes: Rows of a full batch of each bucket.
        rows_before: Rows of each bucket that the pass delivers before the stretch.
        rows_left: Rows of each bucket that are left where the stretch begins; None: the
            pass never ends.
        batches: Number of batches that these make; None: the pass never ends.
        seed: Random seed of the order of the batches.
        buckets: All buckets.
    """

    first: int
    sizes: tuple[int, ...]
    rows_before: tuple[int, ...]
    rows_left: tuple[int, ...] | None
    batches: tuple[int, ...] | None
    seed: int
    buckets: tuple[Bucket, ...]

    @property
    def end(self) -> int | None:
        """Step after the last batch, if the sizes did not change before.

        None: the pass never ends.
        """
        if self.batches is None:
            return None
        return self.first + sum(self.batches)

    @cached_property
    def deal(self) -> SourceMixture:
        """Order of the buckets' batches, as a mixture.

        Its sources are the buckets, and its rows are batches. The weight of a bucket is
        its number of batches, so that these are spread evenly over the stretch.
        """
        # In an endless pass a bucket has as many batches as its rows fill, relative to
        # the others.
        batches: dict[str, int | None] = {}
        shares: dict[str, float] = {}
        for number, (bucket, batch_size) in enumerate(
            zip(self.buckets, self.sizes, strict=True)
        ):
            bucket_name = str(bucket.length)
            if self.batches is None:
                batches[bucket_name] = None
                shares[bucket_name] = bucket.rows / batch_size
            else:
                batches[bucket_name] = self.batches[number]
                shares[bucket_name] = self.batches[number]
        total_share = sum(shares.values())
        return SourceMixture(
            batches,
            constant({name: share / total_share for name, share in shares.items()}),
            batch_size=BATCHES_TOGETHER,
            block_size=BATCHES_TOGETHER,
            seed=self.seed,
            stop="restart" if self.batches is None else "all_exhausted",
        )

    def delivered(self, step: int) -> tuple[int, ...]:
        """Return the rows of each bucket that come before a step.

        They are counted from the beginning of the pass; the step is one of the stretch,
        or its end.
        """
        if step == self.first:  # a stretch without batches has no deal
            return self.rows_before
        batches_dealt = [step - self.first]
        # A single bucket has all batches, and needs no deal.
        if len(self.sizes) > 1:
            batches_dealt = self.deal.drawn(0, step - self.first).tolist()
        delivered: list[int] = []
        for bucket, batch_size in enumerate(self.sizes):
            rows = batches_dealt[bucket] * batch_size
            if self.rows_left is not None:
                # The last batch may not be full.
                rows = min(rows, self.rows_left[bucket])
            delivered.append(self.rows_before[bucket] + rows)
        return tuple(delivered)

    @cached_property
    def block(self) -> Callable[[int], Draws]:
        """Function of the number of a block of the deal that returns its batches.

        The source of a batch is its bucket, and its index the number among the bucket's
        batches of the stretch.
        """

        @lru_cache(8)
        def batches_of_block(block: int) -> Draws:
            # The last block may be shorter; later ones do not exist.
            first = block * BATCHES_TOGETHER
            end = first + BATCHES_TOGETHER
            if self.end is not None:
                end = min(end, self.end - self.first)
            return self.deal.lane(0, first, end)

        return batches_of_block


@final
class PassSteps:
    """Batches of each pass.

    Without buckets, all rows are one bucket, in the order of their stream.

    Args:
        stored: Rows of the buckets in each row group; None: there is one bucket, of all
            rows.
        buckets: Buckets, with their batch sizes at step 0.
        changes: Points (first step, rows of a batch of each bucket), ascending from
            step 0.
        first_groups: Number of the first row group of each dataset, and of all row
            groups, int64[datasets + 1].
        seed: Random seed of the order of the batches.
        drop_last: Whether the last batch of each bucket is left out if it is not full.

    Attributes:
        buckets: The buckets.
        bucketed: Whether rows are in buckets.
        rows: Number of rows of a pass; None: it never ends.
        begin: Function of the number of a pass that returns its first step.
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
        # A host reads one pass, and looks into the next one at its end.
        self._streams = lru_cache(2)(
            lambda passes: [bucket.stream(passes) for bucket in self.buckets]
        )
        # Rows of each bucket in a pass; None: it never ends.
        lengths = [stream.length for stream in self._streams(0)]
        self._totals: tuple[int, ...] | None = None
        if None not in lengths:
            self._totals = tuple(length or 0 for length in lengths)
        self.rows: Final = None if self._totals is None else sum(self._totals)
        self._stretches = lru_cache(8)(self._stretches_of)
        self.begin = lru_cache(8)(self._begin_of)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes (rows, length) of full batches, each once."""
        # In the order in which they first occur.
        shapes: dict[tuple[int, int], None] = {}
        for _, sizes in self._changes:
            for size, bucket in zip(sizes, self.buckets, strict=True):
                shapes[size, bucket.length] = None
        return tuple(shapes)

    @property
    def mean_rows(self) -> float:
        """Mean number of rows of a batch at the sizes of step 0."""
        # Rows divided by batches: buckets of long rows have smaller batches.
        rows = sum(bucket.rows for bucket in self.buckets)
        return rows / sum(bucket.rows / bucket.size for bucket in self.buckets)

    def length(self, step: BatchStep) -> int:
        """Return the length of a batch's bucket."""
        return self.buckets[step.bucket].length

    def next(self, position: Position) -> BatchStep | None:
        """Return the next batch of this pass; None at its end."""
        # 1. The bucket of the batch, and the rows of the bucket before it.
        bucket = 0
        start = position.rows
        bucket_rows = self.rows  # rows of the bucket in the pass; None: no end
        if self.bucketed:
            stretch = self._stretch(position.passes, position.step)
            if stretch.end is not None and position.step >= stretch.end:
                return None
            block, place = divmod(position.step - stretch.first, BATCHES_TOGETHER)
            batches = stretch.block(block)
            bucket = int(batches.source[place])
            start = (
                stretch.rows_before[bucket]
                + int(batches.index[place]) * stretch.sizes[bucket]
            )
            bucket_rows = None if self._totals is None else self._totals[bucket]
        # 2. Its rows: fewer than a full batch only at the end of the bucket.
        change = bisect_right(self._changes, position.step, key=itemgetter(0)) - 1
        size = self._changes[change][1][bucket]
        rows = size if bucket_rows is None else min(size, bucket_rows - start)
        if rows <= 0 or (rows < size and self._drop_last):
            return None
        return BatchStep(
            position.step,
            position.passes,
            start,
            size,
            rows,
            bucket,
            position.rows + rows,
        )

    def batches(self, first: int) -> int | None:
        """Return the number of batches of a pass; None: it never ends.

        The pass begins at step `first`.
        """
        return self._count(
            walk(self._count, self._changes[-1][0], step=first)[1], first
        )

    def position(self, step: int) -> Position:
        """Return the position before a step.

        The end of a pass is the beginning of the next.
        """
        passes = walk(self._count, self._changes[-1][0], step=step)[1]
        return Position(step, passes, sum(self._stretch(passes, step).delivered(step)))

    def end(self, passes: int) -> Position:
        """Return the position at the end of a pass that ends.

        It lies before the next one begins.
        """
        # Only the last stretch reaches the end of the pass.
        last_stretch = self._stretches(passes, self.begin(passes))[-1]
        step = last_stretch.first if last_stretch.end is None else last_stretch.end
        return Position(step, passes, sum(last_stretch.delivered(step)))

    def rows_of(
        self, passes: int, wanted: RowsOfBatch, *, pad_last: bool
    ) -> int | None:
        """Return the number of rows of a pass that a host has.

        None: the pass never ends.

        Args:
            passes: Number of the pass.
            wanted: Function that returns the host's rows of a batch.
            pad_last: Whether the last batch of each bucket is filled with rows of
                padding, which are counted.
        """
        if self._totals is None:
            return None
        stretches = self._stretches(passes, self.begin(passes))
        # Rows of each bucket that the pass delivers before the end of each stretch.
        delivered = [stretch.rows_before for stretch in stretches[1:]]
        delivered.append(stretches[-1].delivered(stretches[-1].end or 0))
        total = 0
        for stretch, ends in zip(stretches, delivered, strict=True):
            for batch_size, first_step, end_step in zip(
                stretch.sizes, stretch.rows_before, ends, strict=True
            ):
                full_batches, rest = divmod(end_step - first_step, batch_size)
                total += full_batches * len(wanted(batch_size))
                if rest:
                    total += int(
                        np.searchsorted(
                            wanted(batch_size), batch_size if pad_last else rest
                        )
                    )
        return total

    def locate(
        self, steps: Sequence[BatchStep], rows: Sequence[Int64]
    ) -> list[StreamRows]:
        """Return the places at which rows of batches are stored.

        The inverse of :meth:`places`.

        Args:
            steps: Batches of one pass.
            rows: Rows to locate of each of them, ascending, int64[m] each.
        """
        located: list[StreamRows] = [StreamRows(*np.empty((4, 0), np.int64))] * len(
            steps
        )
        # Locate all batches of a bucket in one call, which costs little more than for
        # one batch.
        batches_of_bucket: dict[int, list[int]] = {}
        for number, step in enumerate(steps):
            batches_of_bucket.setdefault(step.bucket, []).append(number)
        for bucket, numbers in batches_of_bucket.items():
            counts = [len(rows[number]) for number in numbers]
            start = np.array([steps[number].start for number in numbers], np.int64)
            size = np.array([steps[number].size for number in numbers], np.int64)
            row_in_batch = np.concatenate([rows[number] for number in numbers])
            stream = self._streams(steps[0].passes)[bucket]
            stored = stream.at(
                np.repeat(start, counts), np.repeat(size, counts), row_in_batch
            )
            # The stream numbers sources and rows within the bucket. Convert them to
            # datasets and stored rows.
            dataset = self.buckets[bucket].sources[stored.source]
            row = stored.row
            if self._stored is not None:
                row = self._stored.rows(
                    bucket, self._first_groups[dataset] + stored.group, row
                )
            stored = stored._replace(source=dataset, row=row)
            ends = offsets_of(counts).tolist()
            for number, first, last in zip(numbers, ends[:-1], ends[1:], strict=True):
                located[number] = StreamRows(*(column[first:last] for column in stored))
        return located

    def epochs(self, passes: int, end: int, source: int, group: int, row: int) -> range:
        """Return the epochs of a dataset in which a stored row may come before a step.

        Args:
            passes: Number of the pass.
            end: Step before which to search.
            source: Index of the dataset.
            group: Row group of the row.
            row: Row in the row group.
        """
        # The row comes in one bucket only; how far the stream of that bucket has got
        # decides its epochs.
        (bucket,), _ = self._numbered(source, np.array([group]), np.array([row]))
        stream_sources = np.flatnonzero(self.buckets[bucket].sources == source)
        stretch = self._stretch(passes, end)
        if not len(stream_sources) or end < stretch.first:
            return range(0)
        last = end if stretch.end is None else min(end, stretch.end)
        return self._streams(passes)[bucket].epochs(
            int(stream_sources[0]), stretch.delivered(last)[bucket]
        )

    def places(
        self, passes: int, source: int, epoch: int, group: Int64, row: Int64
    ) -> list[tuple[BatchStep, int] | None]:
        """Return the place at which each stored row comes in an epoch.

        A place is (batch, row of the batch), and the epoch is one of the row's dataset.
        The inverse of :meth:`locate`. None: the row does not come in this pass.

        Args:
            passes: Number of the pass.
            source: Index of the dataset.
            epoch: Epoch of the dataset.
            group: Row group of each row, int64[n].
            row: Row in its row group, int64[n].
        """
        places: list[tuple[BatchStep, int] | None] = [None] * len(group)
        buckets, row_in_bucket = self._numbered(source, group, row)
        for bucket in np.unique(buckets).tolist():
            stream_sources = np.flatnonzero(self.buckets[bucket].sources == source)
            if not len(stream_sources):
                continue
            # 1. The lane and the place in the lane of each row. Rows that never come
            #    have place -1.
            stream = self._streams(passes)[bucket]
            index = np.flatnonzero(buckets == bucket)
            lane, place = stream.place_of(
                int(stream_sources[0]), epoch, group[index], row_in_bucket[index]
            )
            comes = place >= 0
            index = index[comes]
            lane = lane[comes]
            place = place[comes]
            # 2. The batch of each. A batch has the same places of all lanes, so that
            #    the position of any lane will do.
            batches: list[BatchStep | None] = []
            start = np.zeros(len(index), np.int64)
            size = np.full(len(index), stream.layout.lanes, np.int64)
            for number, position in enumerate(
                stream.layout.beside(lane, place).tolist()
            ):
                batch = self._of_row(passes, bucket, position)
                batches.append(batch)
                if batch is not None:
                    start[number] = batch.start
                    size[number] = batch.size
            # 3. The row in the batch. Rows after the end of a mixture, and in a last
            #    batch that is dropped, never come.
            row_in_batch = stream.layout.row_in(start, size, lane, place).tolist()
            for number, batch in enumerate(batches):
                if batch is not None and row_in_batch[number] < batch.rows:
                    places[index[number]] = (batch, row_in_batch[number])
        return places

    def _numbered(self, source: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the bucket of each row of a dataset, and its number there.

        Both are int64[n]. Rows of a bucket are counted in their row group.
        """
        if self._stored is None:
            return np.zeros_like(group), row
        first_group = int(self._first_groups[source])
        # One by one: this serves the search for single rows (`explain`), not reading.
        buckets = np.empty_like(group)
        numbers = np.empty_like(row)
        for index in range(len(group)):
            bucket, number = self._stored.bucket_of(
                first_group + int(group[index]), int(row[index])
            )
            buckets[index] = bucket
            numbers[index] = number
        return buckets, numbers

    def _of_row(self, passes: int, bucket: int, row: int) -> BatchStep | None:
        """Return the batch with a row of a bucket; None if the row never comes.

        Args:
            passes: Number of the pass.
            bucket: Index of the bucket.
            row: Position of the row in the bucket's stream.
        """
        # 1. The last stretch that begins before the row, and the number of the bucket's
        #    batch in it.
        # Stretches are few: one for each change of the batch sizes.
        stretches = self._stretches(passes, self.begin(passes))
        number = len(stretches) - 1
        while stretches[number].rows_before[bucket] > row:
            number -= 1
        stretch = stretches[number]
        batch = (row - stretch.rows_before[bucket]) // stretch.sizes[bucket]
        if stretch.batches is not None and batch >= stretch.batches[bucket]:
            return None
        # 2. The step of this batch in the deal.
        index: int | None = batch
        if self.bucketed:
            index = stretch.deal.place_of(0, bucket, batch)
        if index is None:
            return None
        step = stretch.first + index
        return self.next(Position(step, passes, sum(stretch.delivered(step))))

    def _stretch(self, passes: int, step: int) -> BucketStretch:
        """Return the stretch of a pass that contains a step.

        For later steps it is the last one.
        """
        stretches = self._stretches(passes, self.begin(passes))
        for stretch in reversed(stretches):
            if stretch.first <= step:
                return stretch
        return stretches[0]

    def _stretches_of(self, passes: int, first: int) -> list[BucketStretch]:
        """Return the stretches of a pass that begins at a step.

        The rows that a stretch leaves go to the next one, until none are left or sizes
        do not change any more.
        """
        stretches: list[BucketStretch] = []
        rows_before = (0,) * len(self.buckets)
        for number, (change, sizes) in enumerate(self._changes):
            is_last_change = number + 1 == len(self._changes)
            next_change = None
            if not is_last_change:
                next_change = self._changes[number + 1][0]
            if next_change is not None and next_change <= first:
                continue  # the sizes changed again before the pass began
            # The key of the first stretch has no number, so that passes whose sizes
            # never change keep their order.
            key = key_of(self._seed, _DEAL_KEY, passes)
            if stretches:
                key = key_of(self._seed, _DEAL_KEY, passes, len(stretches))
            rows_left, batches = self._remaining(rows_before, sizes)
            stretch = BucketStretch(
                first=max(first, change),
                sizes=sizes,
                rows_before=rows_before,
                rows_left=rows_left,
                batches=batches,
                seed=key,
                buckets=self.buckets,
            )
            stretches.append(stretch)
            if next_change is None or self._ends_before(stretch, next_change):
                break
            rows_before = stretch.delivered(next_change)
        return stretches

    def _remaining(
        self, rows_before: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Return the rows of each bucket that are left, and their batches.

        None: the pass never ends.

        Args:
            rows_before: Rows of each bucket that were delivered.
            sizes: Rows of a full batch of each bucket.
        """
        if self._totals is None:
            return None, None
        # Rows that do not fill a last batch make a smaller one, or are left out by
        # `drop_last`.
        rows_left: list[int] = []
        batches: list[int] = []
        for total, delivered, batch_size in zip(
            self._totals, rows_before, sizes, strict=True
        ):
            rows = total - delivered
            full_batches, rest = divmod(rows, batch_size)
            has_last_batch = rest > 0 and not self._drop_last
            rows_left.append(rows)
            batches.append(full_batches + int(has_last_batch))
        return tuple(rows_left), tuple(batches)

    def _ends_before(self, stretch: BucketStretch, next_change: int) -> bool:
        """Return whether a pass ends before the batch sizes change."""
        if stretch.end is None:
            return False
        if self.bucketed:
            return stretch.end <= next_change
        # Without buckets a pass may end exactly at the change, with rows left that
        # `drop_last` leaves out: a smaller batch of the next size may hold them.
        return stretch.end < next_change

    def _count(self, passes: int, first: int) -> int | None:
        """Return the number of batches of a pass that begins at a step.

        None: it never ends.
        """
        end_step = self._stretches(passes, first)[-1].end
        if end_step is None:
            return None
        return end_step - first

    def _begin_of(self, passes: int) -> int:
        """Return the step that begins a pass."""
        return walk(self._count, self._changes[-1][0], passes=passes)[0]
