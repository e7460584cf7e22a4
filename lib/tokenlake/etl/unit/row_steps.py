"""Steps of a mixed unit: neighbouring positions, and the row groups that each needs.

Neighbouring positions come from all lanes of all sources, so that many row groups are
open at a time. A row group is decoded when the first of its rows is needed, and let go
after the last one.

1. The rows at all positions of the unit are looked up, some hundred thousand at a time.
2. A use is a row group that one lane needs in one epoch, from the first to the last of
   its steps. A row group on the border of two lanes is needed at the beginning of one
   and at the end of the other, and a small source comes again in every epoch: each is a
   use by itself, so that nothing is held between them.
3. A row group is let go after a step if no use of it covers that step or the next one.

Example: steps 0 to 9. One lane uses a row group in steps 0 to 2, and another one in
steps 3 to 4 and 8 to 9. The first two uses follow each other, and the row group is let
go after step 4 and after step 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.runtime.mixing.streams import MixtureStream

_LOOKUP_ROWS: Final = 1 << 18
"""Positions that are looked up at a time, about."""


@final
@dataclass(frozen=True, slots=True)
class MixStep:
    """Some neighbouring positions of a unit.

    Attributes:
        source: Index of the source of each position, int64[n].
        group: Row group of each position, in its source, int64[n].
        row: Row of each position, in its row group, int64[n].
        done: Source and row group of each group that no later step needs soon.
    """

    source: Int64
    group: Int64
    row: Int64
    done: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.source)


def mix_steps(
    stream: MixtureStream, start: int, stop: int, step_rows: int
) -> Iterator[MixStep]:
    """Yield the steps of a unit.

    Holds some bytes for each row of the unit: its rows are looked up once, and the last
    use of a row group is known only when all of them are.

    Args:
        stream: Order of the mixture.
        start: First position of the unit.
        stop: Position after the last one.
        step_rows: Positions of a step; the last step may have fewer.
    """
    # 1. Look up the rows of all positions, whole steps at a time.
    row_count = stop - start
    sources = np.empty(row_count, np.int16)
    groups = np.empty(row_count, np.int32)
    rows = np.empty(row_count, np.int32)
    group_uses: list[Int64] = []
    lookup_rows = -(-_LOOKUP_ROWS // step_rows) * step_rows
    for first_row in range(0, row_count, lookup_rows):
        end_row = min(first_row + lookup_rows, row_count)
        looked_up = stream.rows(start + first_row, start + end_row)
        sources[first_row:end_row] = looked_up.source
        groups[first_row:end_row] = looked_up.group
        rows[first_row:end_row] = looked_up.row
        lanes = stream.lanes(start + first_row, start + end_row)
        steps = np.arange(first_row, end_row) // step_rows
        group_uses.append(
            _distinct(looked_up.source, looked_up.group, looked_up.epoch, lanes, steps)
        )
    # 2. Find the step after which each row group is let go.
    done_groups: dict[int, list[tuple[int, int]]] = {}
    if group_uses:
        done_groups = _last_steps(np.concatenate(group_uses, axis=1))
    # 3. Yield the steps.
    for step_number, first_row in enumerate(range(0, row_count, step_rows)):
        end_row = first_row + step_rows
        yield MixStep(
            source=sources[first_row:end_row].astype(np.int64),
            group=groups[first_row:end_row].astype(np.int64),
            row=rows[first_row:end_row].astype(np.int64),
            done=tuple(done_groups.get(step_number, ())),
        )


def _distinct(*columns: Int64) -> Int64:
    """Return the distinct tuples of some columns (int64[n] each), int64[columns, m]."""
    # Each tuple becomes one number, which fits: this many rows have at most as many
    # lanes, epochs and steps.
    smallest: list[int] = []
    value_counts: list[int] = []
    shifted: list[Int64] = []
    for column in columns:
        column_min = int(column.min())
        smallest.append(column_min)
        value_counts.append(int(column.max()) - column_min + 1)
        shifted.append(column - column_min)
    numbers = np.unique(np.ravel_multi_index(shifted, value_counts))
    # Back to tuples.
    distinct_columns: list[Int64] = []
    indices = np.unravel_index(numbers, value_counts)
    for column_min, column_indices in zip(smallest, indices, strict=True):
        distinct_columns.append(column_indices + column_min)
    return np.stack(distinct_columns)


def _last_steps(needs: Int64) -> dict[int, list[tuple[int, int]]]:
    """Return step -> source and row group of each group to let go after it.

    Args:
        needs: Source, group, epoch, lane and step of all rows, each combination once or
            more, int64[5, n].
    """
    # 1. Uses: the first and the last step of each source, group, epoch and lane.
    sorted_needs = needs[:, np.lexsort(needs[3::-1])]
    is_next_use = (np.diff(sorted_needs[:4]) != 0).any(axis=0)
    use_begins = np.flatnonzero(np.append(True, is_next_use))
    first_steps = np.minimum.reduceat(sorted_needs[4], use_begins)
    last_steps = np.maximum.reduceat(sorted_needs[4], use_begins)
    # 2. Uses of each row group in the order of their first steps.
    use_sources = sorted_needs[0, use_begins]
    use_groups = sorted_needs[1, use_begins]
    use_order = np.lexsort((first_steps, use_groups, use_sources))
    use_sources = use_sources[use_order]
    use_groups = use_groups[use_order]
    first_steps = first_steps[use_order]
    last_steps = last_steps[use_order]
    # 3. Gaps between the uses of a row group, and the end of the last one.
    done_groups: dict[int, list[tuple[int, int]]] = {}
    is_next_group = (np.diff(use_sources) != 0) | (np.diff(use_groups) != 0)
    group_begins = np.flatnonzero(np.append(True, is_next_group)).tolist()
    for begin, end in pairwise([*group_begins, len(use_order)]):
        row_group = (int(use_sources[begin]), int(use_groups[begin]))
        last_step_so_far = np.maximum.accumulate(last_steps[begin:end])
        next_first_steps = first_steps[begin + 1 : end]
        gap_indices = np.flatnonzero(next_first_steps > last_step_so_far[:-1] + 1)
        steps_before_gaps = last_step_so_far[gap_indices].tolist()
        for step_number in (*steps_before_gaps, int(last_step_so_far[-1])):
            done_groups.setdefault(step_number, []).append(row_group)
    return done_groups
