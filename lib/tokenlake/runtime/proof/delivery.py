"""The rows that some steps of a run delivered, found without going through the steps.

A lane delivers the rows of a dataset epoch by epoch. The number of rows that it delivered before a step therefore
determines which they are: whole epochs, and the first places of one more. Of these, whole windows need no permutation
(:meth:`EpochOrder.taken`). The time depends on the number of row groups, and not on the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.mixing.order import EpochOrder, StoredOrder


@final
@dataclass(frozen=True, eq=False, slots=True)
class Delivery:
    """What some steps took of one dataset, lane by lane.

    Attributes:
        source: number of the dataset in the plan.
        order: of its rows.
        passes: of the plan, in which lanes begin to count.
        epoch: of the dataset, likewise.
        begin, end: rows that each lane gave since then, before the steps and after them, int64[lanes] both.
    """

    source: int
    order: EpochOrder | StoredOrder
    passes: int
    epoch: int
    begin: Int64
    end: Int64

    @property
    def rows(self) -> int:
        """How many were delivered."""
        return int((self.end - self.begin).sum())

    def total(self, sums: Int64) -> int:
        """Add up what each row weighs, as often as it was delivered.

        Args:
            sums: what the rows before each row weigh, and what all weigh, int64[rows + 1].
        """
        found = 0
        for counts, sign in ((self.end, 1), (self.begin, -1)):
            whole, parts = self._epochs(counts)
            found += sign * whole * int(sums[-1])
            for begin, end in parts:
                found += sign * int((sums[end] - sums[begin]).sum())
        return found

    def times(self) -> Int64:
        """Return how often each of the dataset's rows was delivered, int64[rows]."""
        changes = np.zeros(self.order.rows + 1, np.int64)
        for counts, sign in ((self.end, 1), (self.begin, -1)):
            whole, parts = self._epochs(counts)
            changes[0] += sign * whole
            for begin, end in parts:
                np.add.at(changes, begin, sign)
                np.add.at(changes, end, -sign)
        return np.cumsum(changes[:-1])

    def seen(self, group: Int64, row: Int64) -> Int64:
        """Return which of some rows, int64[n] both, are delivered in these steps, in no order.

        Returns:
            of each delivery the number in its lane, the epoch, and the index among the rows, int64[3, m].
        """
        each, found = self.order.lengths, [np.empty((3, 0), np.int64)]
        lanes = zip(self.begin.tolist(), self.end.tolist(), each.tolist(), strict=True)
        spans = [range(begin // rows, -(-end // rows)) for begin, end, rows in lanes if begin < end]
        for epoch in sorted(set[int]().union(*spans)):
            lane, place = self.order.place_of(self.epoch + epoch, group, row)
            number = epoch * each[lane] + place
            there = np.flatnonzero((number >= self.begin[lane]) & (number < self.end[lane]))
            found.append(np.stack([number[there], np.full(len(there), self.epoch + epoch), there]))
        return np.concatenate(found, axis=1)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what a verifier computes the rows from."""
        seed = self.order.seed if isinstance(self.order, EpochOrder) else None
        counts = {"begin": self.begin.tolist(), "end": self.end.tolist()}
        return {"source": names[self.source], "seed": seed, "epoch": self.epoch, **counts}

    def _epochs(self, counts: Int64) -> tuple[int, Iterator[tuple[Int64, Int64]]]:
        """Return how many epochs all lanes gave whole, and the stored rows, as ranges, of each that some did not."""
        each = self.order.lengths
        there, of = counts[each > 0], each[each > 0]  # lanes without rows have no say
        whole = int((there // of).min(initial=np.iinfo(np.int64).max))
        last = int((-(-there // of)).max(initial=0))
        parts = (
            self.order.taken(self.epoch + epoch, np.clip(counts - epoch * each, 0, each))
            for epoch in range(whole, last)
        )
        return whole, parts


def deliveries_of(plan: BatchPlan, first: int, end: int) -> list[Delivery]:
    """Return what the steps from `first` to before `end` took of the datasets of a plan.

    Raises:
        ConfigError: there are no such steps, batches are made by length, or sources are shortened.
    """
    if not 0 <= first <= end:
        raise ConfigError(
            f"steps {first} to {end}: expected a first step from 0 on, and an end that is not before it"
        )
    if plan.steps.bucketed:
        raise ConfigError(
            "the loader puts rows into buckets by their length, whose order a statement does not count; "
            "pad to `multiple` or `length` instead"
        )
    orders = plan.stream(0).orders
    for name, order, stored in zip(plan.datasets, orders, plan.sources, strict=True):
        if order.rows != stored.rows:
            raise ConfigError(
                f"the mixture uses {order.rows:,} of the {stored.rows:,} rows of {name} (max_fraction, budgets), and a "
                "statement counts whole sources; expected a mixture that shortens none"
            )
    passes = range(plan.steps.position(first).passes, plan.steps.position(end).passes + 1)
    if isinstance(plan.data, Dataset) and (len(passes) == 1 or not plan.options.drop_last):
        passes = passes[:1]  # they leave out nothing, so that they follow each other in the epochs, too
        return list(_since(plan, passes[0], first, end))
    edges = [first, *(plan.steps.begin(number) for number in passes[1:]), end]
    return [
        each
        for number, span in zip(passes, pairwise(edges), strict=True)
        for each in _since(plan, number, *span)
    ]


def steps_of_rows(plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64) -> tuple[int, int] | None:
    """Return the first and the last step of a delivery that delivers any of some rows, int64[n] both; None: none."""
    first = _edge(plan, delivery, group, row, last=False)
    last = _edge(plan, delivery, group, row, last=True)
    return None if first is None or last is None else (first, last)


def _edge(plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64, *, last: bool) -> int | None:
    """Return the first step that delivers any of the rows, or the last one; None: none does."""
    each, found = delivery.order.lengths, None
    if not len(row):
        return None
    # Every row comes in every epoch: two of each lane nearly always hold one of them, and tell where to look further.
    if last:
        part = replace(delivery, begin=np.maximum(delivery.begin, delivery.end - 2 * each))
    else:
        part = replace(delivery, end=np.minimum(delivery.end, delivery.begin + 2 * each))
    for some in (part, delivery):
        # Lanes keep pace, so that the highest number is nearly always the last; what may come later is looked at again.
        while (seen := some.seen(group, row)).shape[1]:
            chosen = np.argmax(seen[0]) if last else np.argmin(seen[0])
            _, epoch, index = seen[:, chosen].tolist()
            passes = delivery.passes
            if not isinstance(plan.data, Mixture) and plan.epochs is not None:
                passes = epoch // plan.epochs
            (at,) = plan.steps.places(passes, delivery.source, epoch, group[[index]], row[[index]])
            assert at is not None
            found = at[0].step
            counts = _given(plan, delivery.passes, found + last)[delivery.source]
            some = replace(delivery, begin=counts) if last else replace(delivery, end=counts)
        if found is not None:
            break
    return found


def _since(plan: BatchPlan, passes: int, first: int, end: int) -> Iterator[Delivery]:
    """Yield what some steps took of each dataset, counted from a pass on."""
    if first == end:
        return
    epoch = 0 if isinstance(plan.data, Mixture) else passes * (plan.epochs or 0)
    for source, counts in enumerate(zip(_given(plan, passes, first), _given(plan, passes, end), strict=True)):
        yield Delivery(source, plan.stream(passes).orders[source], passes, epoch, *counts)


def _given(plan: BatchPlan, since: int, step: int) -> Int64:
    """Return how many rows of each dataset each lane gave since a pass began, before a step, int64[datasets, lanes]."""
    if step == plan.steps.begin(since):
        stream = plan.stream(since)
        return np.zeros((len(stream.orders), stream.layout.lanes), np.int64)
    batch = plan.batch(step - 1)
    stream = plan.stream(batch.passes)
    passed = [(batch.passes - since) * (plan.epochs or 0) * order.lengths for order in stream.orders]
    return stream.drawn(batch.start, batch.size, batch.rows) + passed
