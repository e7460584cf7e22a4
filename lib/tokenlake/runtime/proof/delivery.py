"""Rows that some steps of a run delivered, counted without a walk over the steps.

A lane delivers the rows of a dataset epoch by epoch. The number of rows that it
delivered before a step therefore determines which rows they are: whole epochs, and the
first places of one more epoch. Whole windows of that epoch need no permutation
(:meth:`EpochOrder.taken`). The time depends on the number of row groups, not on the
number of steps.

Example: a lane has 5 rows and delivered 12 of them. Each of its rows came twice (epochs
0 and 1), and the rows in the first 2 places of epoch 2 came once more. The rows of a
span of steps are the count at its end minus the count at its begin.
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
from tokenlake.runtime.mixing.order_form import RowOrder

_NO_BOUND = np.iinfo(np.int64).max  # minimum over no lanes


@final
@dataclass(frozen=True, eq=False, slots=True)
class Delivery:
    """Rows of one dataset that some steps delivered, lane by lane.

    Attributes:
        source: Number of the dataset in the plan.
        order: Order of its rows.
        passes: Pass of the plan from which lanes count.
        epoch: Epoch of the dataset from which lanes count.
        begin: Rows that each lane delivered since then before the steps, int64[lanes].
        end: Rows that each lane delivered since then when the steps are over,
            int64[lanes].
    """

    source: int
    order: RowOrder
    passes: int
    epoch: int
    begin: Int64
    end: Int64

    @property
    def rows(self) -> int:
        """Number of rows delivered; a row counts once for each delivery."""
        return int((self.end - self.begin).sum())

    def total(self, sums: Int64) -> int:
        """Add up the weights of the delivered rows, each as often as it was delivered.

        Args:
            sums: Sum of the weights of the rows before each row, and of all rows,
                int64[rows + 1].
        """
        return self._total_before(self.end, sums) - self._total_before(self.begin, sums)

    def times(self) -> Int64:
        """Return the number of deliveries of each row of the dataset, int64[rows]."""
        # A range of rows that was delivered once more changes the count at its first
        # row, and back behind its last.
        changes = np.zeros(self.order.rows + 1, np.int64)
        for counts, sign in ((self.end, 1), (self.begin, -1)):
            whole_epochs, partial_ranges = self._epochs_before(counts)
            changes[0] += sign * whole_epochs
            for first_rows, last_rows in partial_ranges:
                np.add.at(changes, first_rows, sign)
                np.add.at(changes, last_rows, -sign)
        return np.cumsum(changes[:-1])

    def seen(self, group: Int64, row: Int64) -> Int64:
        """Return the deliveries of some rows in these steps, in no order.

        Args:
            group: Row group of each row, int64[n].
            row: Index of each row in its row group, int64[n].

        Returns:
            For each delivery its number in its lane, its epoch, and the index of its
            row among those given, int64[3, deliveries].
        """
        # Each epoch that the steps touched has the row in one place of one lane. That
        # place makes the number of the delivery.
        lane_rows = self.order.lengths
        deliveries = [np.empty((3, 0), np.int64)]
        for epoch in self._touched_epochs():
            lane, place = self.order.place_of(self.epoch + epoch, group, row)
            number = epoch * lane_rows[lane] + place
            is_delivered = (number >= self.begin[lane]) & (number < self.end[lane])
            index = np.flatnonzero(is_delivered)
            epochs = np.full(len(index), self.epoch + epoch)
            deliveries.append(np.stack([number[index], epochs, index]))
        return np.concatenate(deliveries, axis=1)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the integers from which a verifier computes the rows.

        Args:
            names: Names of the plan's datasets, by number.
        """
        return {
            "source": names[self.source],
            "seed": self.order.seed,
            "epoch": self.epoch,
            "begin": self.begin.tolist(),
            "end": self.end.tolist(),
        }

    def _touched_epochs(self) -> list[int]:
        """Return the epochs in which any lane delivered a row in these steps.

        They are counted from `epoch`.
        """
        epochs: set[int] = set()
        lane_ranges = zip(
            self.begin.tolist(),
            self.end.tolist(),
            self.order.lengths.tolist(),
            strict=True,
        )
        for first_delivery, end_delivery, lane_rows in lane_ranges:
            if first_delivery < end_delivery:
                # The last epoch is the one of delivery number end - 1.
                epochs.update(
                    range(
                        first_delivery // lane_rows, (end_delivery - 1) // lane_rows + 1
                    )
                )
        return sorted(epochs)

    def _total_before(self, counts: Int64, sums: Int64) -> int:
        """Add up the weights of the first rows that each lane delivered."""
        whole_epochs, partial_ranges = self._epochs_before(counts)
        total = whole_epochs * int(sums[-1])
        for first_rows, last_rows in partial_ranges:
            total += int((sums[last_rows] - sums[first_rows]).sum())
        return total

    def _epochs_before(
        self, counts: Int64
    ) -> tuple[int, Iterator[tuple[Int64, Int64]]]:
        """Split the first rows that each lane delivered into epochs.

        Args:
            counts: Rows that each lane delivered, int64[lanes].

        Returns:
            The number of epochs that all lanes delivered whole, and for each later
            epoch the ranges of stored rows that some lanes delivered: first rows and
            the rows behind the last ones.
        """
        lane_rows = self.order.lengths
        # A lane without rows never delivers any, and says nothing about epochs.
        has_rows = lane_rows > 0
        lane_counts = counts[has_rows]
        used_rows = lane_rows[has_rows]
        # Whole epochs are those that every lane has finished; others are begun by some
        # lanes only.
        whole_epochs = int((lane_counts // used_rows).min(initial=_NO_BOUND))
        begun_epochs = int((-(-lane_counts // used_rows)).max(initial=0))

        def partial_ranges() -> Iterator[tuple[Int64, Int64]]:
            for epoch in range(whole_epochs, begun_epochs):
                delivered = np.clip(counts - epoch * lane_rows, 0, lane_rows)
                yield self.order.taken(self.epoch + epoch, delivered)

        return whole_epochs, partial_ranges()


def deliveries_of(plan: BatchPlan, first: int, end: int) -> list[Delivery]:
    """Return the rows of each dataset of a plan that a span of steps delivered.

    Args:
        plan: Plan of the batches.
        first: First step of the span.
        end: Step behind the last one of the span.

    Raises:
        ConfigError: The span is none, batches are grouped by length, or the mixture
            shortens a source.
    """
    if not 0 <= first <= end:
        raise ConfigError(
            f"steps {first} to {end}: expected a first step from 0 on, and an end that is not before it"
        )
    _require_countable(plan)
    # Passes that the span touches: the first and the last may be partial.
    passes = range(
        plan.steps.position(first).passes, plan.steps.position(end).passes + 1
    )
    drops_nothing = len(passes) == 1 or not plan.options.drop_last
    if isinstance(plan.data, Dataset) and drops_nothing:
        # The passes of one dataset that drop no rows continue one another's epochs: one
        # count covers them all.
        return list(_deliveries_since(plan, passes[0], first, end))
    # Each pass counts from its own begin.
    edges = [first, *(plan.steps.begin(pass_number) for pass_number in passes[1:]), end]
    deliveries: list[Delivery] = []
    for pass_number, (span_first, span_end) in zip(
        passes, pairwise(edges), strict=True
    ):
        deliveries += _deliveries_since(plan, pass_number, span_first, span_end)
    return deliveries


def _require_countable(plan: BatchPlan) -> None:
    """Raise ConfigError for a plan whose deliveries cannot be counted."""
    # Batches of a bucketed loader depend on the lengths of rows.
    if plan.steps.bucketed:
        raise ConfigError(
            "the loader puts rows into buckets by length, which statements do not support; pad to `multiple` or "
            "`length` instead"
        )
    # A part of a source has an order of its own, which the counts of whole epochs do
    # not fit.
    orders = plan.stream(0).orders
    for dataset_name, order, stored_source in zip(
        plan.datasets, orders, plan.sources, strict=True
    ):
        if order.rows != stored_source.rows:
            raise ConfigError(
                f"the mixture uses {order.rows:,} of the {stored_source.rows:,} rows of {dataset_name} (max_fraction, "
                "budgets), but a statement counts whole sources; expected a mixture with whole sources"
            )


def steps_of_rows(
    plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64
) -> tuple[int, int] | None:
    """Return the first and the last step of a delivery that delivers any of some rows.

    Args:
        plan: Plan of the delivery.
        delivery: Rows that a span of steps delivered.
        group: Row group of each row, int64[n].
        row: Index of each row in its row group, int64[n].

    Returns:
        None if no step delivers any of them.
    """
    first_step = _edge_step(plan, delivery, group, row, is_last=False)
    last_step = _edge_step(plan, delivery, group, row, is_last=True)
    if first_step is None or last_step is None:
        return None
    return first_step, last_step


def _edge_step(
    plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64, *, is_last: bool
) -> int | None:
    """Return the first or the last step that delivers any of the rows.

    The result is None if no step does.

    1. Look at the two epochs of each lane at the edge. Every row comes in every epoch,
       so that they nearly always hold one of the rows.
    2. Take the delivery with the lowest (highest) number in its lane, and its step.
       Lanes keep pace, so that this is nearly always the right step.
    3. Shorten the delivery to the steps beyond that step, and repeat from 2 until
       nothing is left.
    4. If nothing was found, repeat from 2 with the whole delivery.
    """
    if not len(row):
        return None
    # 1. The two epochs of each lane at the edge.
    lane_rows = delivery.order.lengths
    if is_last:
        edge_begin = np.maximum(delivery.begin, delivery.end - 2 * lane_rows)
        edge = replace(delivery, begin=edge_begin)
    else:
        edge_end = np.minimum(delivery.end, delivery.begin + 2 * lane_rows)
        edge = replace(delivery, end=edge_end)
    step: int | None = None
    for remaining in (edge, delivery):
        # 2. The delivery with the lowest (highest) number in its lane.
        while (seen := remaining.seen(group, row)).shape[1]:
            column = np.argmax(seen[0]) if is_last else np.argmin(seen[0])
            _, epoch, index = seen[:, column].tolist()
            step = _step_of(plan, delivery, epoch, group[[index]], row[[index]])
            # 3. Look only behind the last step found, or only before the first one.
            if is_last:
                counts = _rows_given(plan, delivery.passes, step + 1)
                remaining = replace(delivery, begin=counts[delivery.source])
            else:
                counts = _rows_given(plan, delivery.passes, step)
                remaining = replace(delivery, end=counts[delivery.source])
        # 4. The whole delivery is needed only if the edge held none of the rows.
        if step is not None:
            break
    return step


def _step_of(
    plan: BatchPlan, delivery: Delivery, epoch: int, group: Int64, row: Int64
) -> int:
    """Return the step that delivers one row in an epoch."""
    passes = delivery.passes
    if not isinstance(plan.data, Mixture) and plan.epochs is not None:
        passes = epoch // plan.epochs
    (places,) = plan.steps.places(passes, delivery.source, epoch, group, row)
    assert places is not None
    return places[0].step


def _deliveries_since(
    plan: BatchPlan, passes: int, first: int, end: int
) -> Iterator[Delivery]:
    """Yield the rows of each dataset that a span of steps delivered.

    They are counted from the begin of a pass.
    """
    # A mixture counts from the begin of its pass, and a dataset from the epoch of that
    # pass.
    if first == end:
        return
    epoch = 0 if isinstance(plan.data, Mixture) else passes * (plan.epochs or 0)
    begins = _rows_given(plan, passes, first)
    ends = _rows_given(plan, passes, end)
    orders = plan.stream(passes).orders
    for source, (begin_counts, end_counts) in enumerate(zip(begins, ends, strict=True)):
        yield Delivery(source, orders[source], passes, epoch, begin_counts, end_counts)


def _rows_given(plan: BatchPlan, passes: int, step: int) -> Int64:
    """Return the rows that each lane delivered between the begin of a pass and a step.

    The result is int64[datasets, lanes].
    """
    # Before the first step of a pass nothing of it was delivered.
    if step == plan.steps.begin(passes):
        stream = plan.stream(passes)
        return np.zeros((len(stream.orders), stream.layout.lanes), np.int64)
    batch = plan.batch(step - 1)
    stream = plan.stream(batch.passes)
    # Passes between the two are whole epochs of every lane.
    whole_epochs = (batch.passes - passes) * (plan.epochs or 0)
    rows_before = [whole_epochs * order.lengths for order in stream.orders]
    return stream.drawn(batch.start, batch.size, batch.rows) + rows_before
