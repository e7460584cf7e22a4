"""Steps of a mixed unit: neighbouring positions of the mixture, and the row groups that
each step needs.

Neighbouring positions come from all lanes of all sources, so that many row groups are
open at a time. A row group is decoded when the first of its rows is needed, and let go
after the last one.

1. The rows at all positions of the unit are looked up, some thousand at a time.
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
    size = stop - start
    sources = np.empty(size, np.int16)
    groups = np.empty(size, np.int32)
    rows = np.empty(size, np.int32)
    uses: list[Int64] = []
    lookup_rows = -(-_LOOKUP_ROWS // step_rows) * step_rows
    for first in range(0, size, lookup_rows):
        last = min(first + lookup_rows, size)
        looked_up = stream.rows(start + first, start + last)
        sources[first:last] = looked_up.source
        groups[first:last] = looked_up.group
        rows[first:last] = looked_up.row
        lane = stream.lanes(start + first, start + last)
        step = np.arange(first, last) // step_rows
        uses.append(
            _distinct(looked_up.source, looked_up.group, looked_up.epoch, lane, step)
        )
    # 2. Find the step after which each row group is let go.
    done: dict[int, list[tuple[int, int]]] = {}
    if uses:
        done = _last_steps(np.concatenate(uses, axis=1))
    # 3. Yield the steps.
    for number, first in enumerate(range(0, size, step_rows)):
        last = first + step_rows
        yield MixStep(
            source=sources[first:last].astype(np.int64),
            group=groups[first:last].astype(np.int64),
            row=rows[first:last].astype(np.int64),
            done=tuple(done.get(number, ())),
        )


def _distinct(*columns: Int64) -> Int64:
    """Return the distinct tuples of some columns (int64[n] each), int64[columns, m]."""
    # Each tuple becomes one number, which fits: this many rows have at most as many
    # lanes, epochs and steps.
    lows: list[int] = []
    sizes: list[int] = []
    shifted: list[Int64] = []
    for column in columns:
        low = int(column.min())
        lows.append(low)
        sizes.append(int(column.max()) - low + 1)
        shifted.append(column - low)
    numbers = np.unique(np.ravel_multi_index(shifted, sizes))
    indices = np.unravel_index(numbers, sizes)
    return np.stack([index + low for index, low in zip(indices, lows, strict=True)])


def _last_steps(needs: Int64) -> dict[int, list[tuple[int, int]]]:
    """Return step -> source and row group of each group to let go after it.

    Args:
        needs: Source, group, epoch, lane and step of all rows, each combination once or
            more, int64[5, n].
    """
    # 1. Uses: the first and the last step of each source, group, epoch and lane.
    needs = needs[:, np.lexsort(needs[3::-1])]
    is_next_use = (np.diff(needs[:4]) != 0).any(axis=0)
    use_begins = np.flatnonzero(np.append(True, is_next_use))
    first_steps = np.minimum.reduceat(needs[4], use_begins)
    last_steps = np.maximum.reduceat(needs[4], use_begins)
    # 2. Uses of each row group in the order of their first steps.
    source = needs[0, use_begins]
    group = needs[1, use_begins]
    order = np.lexsort((first_steps, group, source))
    source = source[order]
    group = group[order]
    first_steps = first_steps[order]
    last_steps = last_steps[order]
    # 3. Gaps between the uses of a row group, and the end of the last one.
    done: dict[int, list[tuple[int, int]]] = {}
    is_next_group = (np.diff(source) != 0) | (np.diff(group) != 0)
    group_begins = np.flatnonzero(np.append(True, is_next_group)).tolist()
    for begin, end in pairwise([*group_begins, len(order)]):
        last_step_so_far = np.maximum.accumulate(last_steps[begin:end])
        gaps = np.flatnonzero(first_steps[begin + 1 : end] > last_step_so_far[:-1] + 1)
        for step in (*last_step_so_far[gaps].tolist(), int(last_step_so_far[-1])):
            done.setdefault(step, []).append((int(source[begin]), int(group[begin])))
    return done
