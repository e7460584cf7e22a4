"""Deal of a mixture's rows to its lanes, with a closed form for each lane.

The counts are exact for the whole stream.

The counts of :mod:`tokenlake.runtime.mixing.counts` say how many rows of each source come before a position of the
whole stream. A row belongs to one lane, because a lane reads only its own part of each source; and each lane needs one
row for each of its slots. The stream is dealt in three sizes::

    cell    slots of each lane. At its ends, all lanes together have the rows that the counts say.
    group   cells that are dealt together. At its ends, the rows that a lane has taken are a closed form.
    span    groups that one version of the weights deals. Each change of the weights begins a span.

The rows that a lane has taken before a cell follow in three steps:

1. Find the span of the cell, and the rows that lanes have taken before it
   (:class:`Deal`).
2. Find the group in the span, and the rows taken before it
   (:mod:`tokenlake.runtime.mixing.span`).
3. Spread the rows of the group over its cells (:mod:`tokenlake.runtime.mixing.spread`).

Example: 4 lanes, batches of 4 rows, weights 0.5, 0.3 and 0.2, seed 0. A cell has one slot, a group 128 cells. The
counts before batches 0, 1, 2 are ``0 0 0``, ``2 1 1``, ``4 2 2``. Lanes 0 to 3 have taken of each source::

    before cell     source 0      source 1      source 2
    0               0 0 0 0       0 0 0 0       0 0 0 0
    1               0 1 1 0       0 0 0 1       1 0 0 0
    2               1 1 2 0       0 1 0 1       1 0 0 1
    ...
    128             64 64 65 63   38 39 38 39   26 25 25 26
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.bisection import first_true
from tokenlake.runtime.mixing.counts import Tallies, counts_of
from tokenlake.runtime.mixing.eras import eras_of
from tokenlake.runtime.mixing.schedule import WeightScheduler
from tokenlake.runtime.mixing.slot_deal import MOST_BORDERS, SlotDeal, clamped
from tokenlake.runtime.mixing.span import DealtGroup, Span

# Slots of a lane: enough for 8 sources whose weights change, or 11 whose weights do not.
_LEAST_GROUP: Final = 128
_MOST_GROUPS: Final = 4  # groups whose cells are remembered
_MOST_NUMBERS: Final = 1 << 25  # of a group (cells * lanes * sources): 256 MiB


@final
class Deal(SlotDeal):
    """Rows that each lane has taken of each source, at the ends of cells.

    Args:
        scheduler: Weights of the sources.
        lanes: Number of lanes.
        batch_size: Number of rows of a global batch, divisible by `lanes`.
        block_size: Number of slots of a lane that are dealt together.
        step_rows: Number of rows of the whole stream per step of the schedule.
        seed: Seed of the shuffles and ranks.
        scatters_lanes: True to permute the lanes of each group. False in the third
            version of the order, where lanes side by side mostly take the same source.

    Attributes:
        counts: Counts of the whole stream.

    Raises:
        ConfigError: Groups are too large to remember.
    """

    def __init__(
        self,
        scheduler: WeightScheduler,
        *,
        lanes: int,
        batch_size: int,
        block_size: int,
        step_rows: int,
        seed: int,
        scatters_lanes: bool = True,
    ) -> None:
        # A cell is the largest part of a batch that divides it and fits a block.
        batch_slots = batch_size // lanes
        cell_sizes = range(1, min(batch_slots, block_size) + 1)
        self.cell = max(size for size in cell_sizes if batch_slots % size == 0)
        group_slots = self.cell
        if lanes > 1:
            group_slots = max(block_size, _LEAST_GROUP)
        self.cells = -(-group_slots // self.cell)
        self.seed = seed
        self._scatters_lanes = scatters_lanes
        self._lanes = lanes
        # Counts of the stream, and the spans of groups that each version of the weights
        # deals.
        self.counts = counts_of(scheduler, step_rows=step_rows, batch_rows=batch_size)
        self._draws_before = lru_cache(MOST_BORDERS)(self.counts.draws_before)
        self._spans = self._spans_of(scheduler, step_rows)
        self.cells = self._spans[0].cells
        if lanes > 1:
            for span in self._spans:
                self._check(span, block_size)
        self._first_cells = [span.first for span in self._spans]
        self._group = lru_cache(_MOST_GROUPS)(self._dealt_group)

    def before(self, lane: int, cell: int) -> Tallies:
        if self._lanes == 1:
            return self._draws_before(cell * self.cell)
        number = self._span_number(cell)
        span = self._span_with_base(number)
        group, cell_of_group = divmod(cell - span.first, span.cells)
        if cell_of_group == 0:
            rows_taken = span.taken_before_group(group)[:, lane]
        else:
            cells = range(cell, cell + 1)
            rows_taken = self._group(number, group).taken_before(lane, cells)[0]
        return tuple(rows_taken.tolist())

    def bounds(self, lane: int, cells: range) -> Int64:
        if self._lanes == 1:
            return clamped(
                [self.before(lane, cell) for cell in range(cells.start, cells.stop + 1)]
            )
        parts: list[Int64] = []
        cell = cells.start
        while cell <= cells.stop:
            number = self._span_number(cell)
            span = self._span_with_base(number)
            # All cells that lie in one group, before the next span.
            group, cell_of_group = divmod(cell - span.first, span.cells)
            group_end = cell - cell_of_group + span.cells
            if number + 1 < len(self._spans):
                group_end = min(group_end, self._first_cells[number + 1])
            end_cell = min(cells.stop + 1, group_end)
            if cell_of_group == 0 and end_cell == cell + 1:
                parts.append(span.taken_before_group(group)[None, :, lane])
            else:
                cells_of_group = range(cell, end_cell)
                parts.append(
                    self._group(number, group).taken_before(lane, cells_of_group)
                )
            cell = end_cell
        return np.concatenate(parts)

    def ceiling(self, source: int) -> int | None:
        most_rows = self.counts.ceiling(source)
        if most_rows is None or self._lanes == 1:
            return most_rows
        # The last run never ends: lanes share the rows that the counts still give.
        last_run = self._span_with_base(len(self._spans) - 1).runs[-1]
        rows_of_lanes = int(last_run.base[source].min())
        return rows_of_lanes + (most_rows - last_run.counts[source]) // self._lanes

    def first_cell(self, holds: Callable[[int], bool]) -> int:
        # First the span, then the group in it, then the cell.
        last = len(self._spans) - 1
        number = first_true(
            0,
            lambda candidate: (
                candidate == last or holds(self._first_cells[candidate + 1])
            ),
            last,
        )
        span = self._spans[number]
        group = first_true(
            0, lambda candidate: holds(span.first + candidate * span.cells)
        )
        if group == 0:
            return span.first
        group_start = span.first + (group - 1) * span.cells
        return first_true(group_start, holds, group_start + span.cells)

    def _spans_of(self, scheduler: WeightScheduler, step_rows: int) -> list[Span]:
        """Return the spans in order, the first from cell 0 on."""
        # Counts refer to the version before them; spans are made from the first version
        # on.
        newest_first = [self.counts]
        while newest_first[-1].before is not None:
            newest_first.append(newest_first[-1].before)
        cell_rows = self.cell * self._lanes
        spans: list[Span] = []
        for counts, version in zip(
            reversed(newest_first), scheduler.versions(), strict=True
        ):
            first = counts.start // cell_rows
            # A change that takes effect before an earlier change replaces it.
            while spans and spans[-1].first > first:
                spans.pop()
            eras = tuple(eras_of(version, counts, step_rows))
            # A group has so many slots that the heaviest source can take those that the
            # others leave (Era.group_slots).
            needed_slots = _LEAST_GROUP
            for era in eras:
                needed_slots = max(needed_slots, era.group_slots)
            cells = -(-needed_slots // self.cell)
            if self._lanes == 1:
                cells = self.cells
            elif version.before is None:
                # After a change groups stay as small as possible: the rows that lanes
                # have taken are known at the end of a group, and each change has to
                # deal the group that it comes in.
                cells = max(cells, self.cells)
            span = Span(
                first=first,
                cells=cells,
                cell=self.cell,
                lanes=self._lanes,
                seed=self.seed,
                names=version.names,
                counts=counts,
                eras=eras,
                scatters_lanes=self._scatters_lanes,
            )
            spans.append(span)
        return spans

    def _span_number(self, cell: int) -> int:
        """Return the number of the span that contains a cell."""
        return bisect_right(self._first_cells, cell) - 1

    def _span_with_base(self, number: int) -> Span:
        """Return a span after the rows that lanes have taken before it are known."""
        # Oldest first: no recursion, of which thousands of changes would be too many.
        for index in range(1, number + 1):
            span = self._spans[index]
            if span.base is None:
                earlier = self._spans[index - 1]
                span.base = earlier.taken_before(span.first)
                # Thousands of counts, of which few are needed again.
                earlier.draws_before.cache_clear()
        return self._spans[number]

    def _dealt_group(self, number: int, group: int) -> DealtGroup:
        """Return the rows of the lanes inside a group of a span."""
        return self._span_with_base(number).group(group)

    def _check(self, span: Span, block_size: int) -> None:
        """Raise ConfigError where groups of a span are too large to remember."""
        sources = len(span.names)
        if span.cells * self._lanes * sources > _MOST_NUMBERS:
            raise ConfigError(
                f"block_size {block_size}: {self._lanes} lanes and {sources} sources need blocks of "
                f"{span.cells * span.cell} rows, which are too large; expected a smaller block_size, fewer lanes, or "
                "weights of which one is larger"
            )
