"""What a unit of a mixture takes from its parents, step by step, and when it is done with a row group.

Neighbouring positions come from all lanes of all sources, so that many row groups are open at a time. Each is decoded
when the first of its rows is needed and let go after the last one: what is held is the windows of the lanes, however
large the parents are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.mixing.stream import MixtureStream, StreamRows

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_LOOKED_AT: Final = 1 << 18  # positions worked out at a time


@final
@dataclass(frozen=True, slots=True)
class Step:
    """Some neighbouring positions of a unit.

    Attributes:
        source, group, row: of each, int64[n].
        done: (source, row group) that no later step needs soon.
    """

    source: Int64
    group: Int64
    row: Int64
    done: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.source)


@final
class Agenda:
    """The steps of a unit.

    Holds some bytes for each row of the unit: where its rows lie is worked out once, and what is needed last can only
    be known when all of it is.

    Args:
        stream: the order.
        start, stop: positions of the unit.
        step_rows: positions of a step; the last may have fewer.
    """

    def __init__(self, stream: MixtureStream, start: int, stop: int, step_rows: int) -> None:
        size = stop - start
        self._step_rows = step_rows
        self._source = np.empty(size, np.int16)
        self._group, self._row = np.empty((2, size), np.int32)
        uses: list[_Uses] = []
        at_once = -(-_LOOKED_AT // step_rows) * step_rows
        for first in range(0, size, at_once):
            last = min(first + at_once, size)
            found = stream.rows(start + first, start + last)
            own = slice(first, last)
            self._source[own], self._group[own], self._row[own] = found.source, found.group, found.row
            lane = stream.lanes(start + first, start + last)
            step = np.arange(first, last) // step_rows
            uses.append(_Uses.of(found, lane, step))
        self._done = _ends(_Uses.joined(uses)) if uses else {}

    def __iter__(self) -> Iterator[Step]:
        for number, first in enumerate(range(0, len(self._source), self._step_rows)):
            own = slice(first, first + self._step_rows)
            columns = (column[own].astype(np.int64) for column in (self._source, self._group, self._row))
            yield Step(*columns, done=self._done.get(number, ()))


@final
@dataclass(frozen=True, slots=True)
class _Uses:
    """From which step to which a lane needs a row group in an epoch.

    A row group on the border of two lanes is needed at the beginning of one and at the end of the other, and a small
    source comes again in every epoch: each such use is one of its own, so that nothing is held between them.

    Attributes:
        source, group, epoch, lane: of each, int64[n].
        first, last: steps, int64[n].
    """

    source: Int64
    group: Int64
    epoch: Int64
    lane: Int64
    first: Int64
    last: Int64

    @classmethod
    def of(cls, rows: StreamRows, lane: Int64, step: Int64) -> _Uses:
        """Return the uses of neighbouring rows; the step of each ascends."""
        columns = (rows.source, rows.group, rows.epoch, lane, step)
        lows = [int(column.min()) for column in columns]
        sizes = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
        # Fits: so many rows have at most so many lanes, epochs and steps.
        distinct = np.unique(
            np.ravel_multi_index([c - low for c, low in zip(columns, lows, strict=True)], sizes)
        )
        found = np.unravel_index(distinct, sizes)
        source, group, epoch, lanes, steps = (index + low for index, low in zip(found, lows, strict=True))
        return cls(source, group, epoch, lanes, steps, steps)

    @classmethod
    def joined(cls, parts: list[_Uses]) -> _Uses:
        """Return all of them, those of one lane, row group and epoch as one."""
        source, group, epoch, lane, first, last = (
            np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__
        )
        order = np.lexsort((lane, epoch, group, source))
        keys = np.stack([source, group, epoch, lane])[:, order]
        begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
        source, group, epoch, lane = keys[:, begins]
        begin, end = np.minimum.reduceat(first[order], begins), np.maximum.reduceat(last[order], begins)
        return cls(source, group, epoch, lane, begin, end)


def _ends(uses: _Uses) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return step -> the row groups to let go after it: those that neither it nor the next step is in a use of."""
    found: dict[int, list[tuple[int, int]]] = {}
    order = np.lexsort((uses.first, uses.group, uses.source))
    source, group, first, last = (
        column[order] for column in (uses.source, uses.group, uses.first, uses.last)
    )
    begins = np.flatnonzero(np.append(True, (np.diff(source) != 0) | (np.diff(group) != 0)))
    for begin, end in pairwise([*begins.tolist(), len(order)]):
        # Until which step any use so far goes on; where the next begins only later, the row group is let go.
        until = np.maximum.accumulate(last[begin:end])
        gaps = np.flatnonzero(first[begin + 1 : end] > until[:-1] + 1)
        for step in (*until[gaps].tolist(), int(until[-1])):
            found.setdefault(step, []).append((int(source[begin]), int(group[begin])))
    return {step: tuple(places) for step, places in found.items()}
