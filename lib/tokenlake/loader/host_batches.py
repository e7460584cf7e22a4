"""The batches of one host: planned, read ahead, assembled."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from tokenlake.loader.batch import Assembler
from tokenlake.loader.batch import Batch as Columns
from tokenlake.loader.plan import BatchPlan, Wanted
from tokenlake.loader.prefetch import Prefetched
from tokenlake.loader.row_groups import Groups
from tokenlake.loader.steps import Batch, Place
from tokenlake.mixing.random import Int64

_FIRST: Final = 2  # steps planned before the first batch: the others wait until that is on its way
_FASTER: Final = 4
_LEAST, _MOST = 8, 256  # steps planned ahead


class Turn(NamedTuple):
    """Which steps are made: those with ``step % of == first``; of several workers each has its turn."""

    first: int
    of: int


ALL: Final = Turn(0, 1)


@final
@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch as one host has it.

    Attributes:
        step: which one it is.
        wanted: which rows of the global batch, ascending, int64[m].
        columns: column -> array of shape (m, L).
    """

    step: Batch
    wanted: Int64
    columns: Columns


@final
@dataclass(frozen=True, slots=True)
class _Planned:
    step: Batch
    wanted: Int64
    number: Int64
    row: Int64


def open_groups(plan: BatchPlan, assembler: Assembler, *, max_bytes: int, threads: int) -> Groups:
    """Return where row groups of a plan are decoded, so far ahead that decoding runs evenly."""
    return Groups(
        plan.sources,
        loss_mask=assembler.loss_mask,
        max_bytes=max_bytes,
        reach=max(_LEAST, plan.window_steps // 4),
        threads=threads,
    )


@final
class HostBatches:
    """An iterator over the rest of a pass; threads end with it, also when it is forgotten.

    Args:
        plan: of all hosts.
        place: where to begin.
        wanted: the rows of each batch that this host needs.
        assembler: makes batches.
        groups: where row groups are decoded; closed with the iterator.
        prefetch: batches made ahead by a thread; 0: none, and no thread.
        pad: give the last batch of a pass its full number of rows.
        turn: which steps come.
    """

    def __init__(
        self,
        plan: BatchPlan,
        place: Place,
        wanted: Wanted,
        assembler: Assembler,
        groups: Groups,
        *,
        prefetch: int,
        pad: bool,
        turn: Turn = ALL,
    ) -> None:
        # The thread knows the work alone, not this iterator, which is therefore collected when it is forgotten.
        work = _Work(plan, wanted, assembler, groups, pad, turn)
        planned = work.planned(place)
        self._groups = groups
        weakref.finalize(self, groups.release)
        self._made: Iterator[HostBatch] = (
            Prefetched(planned, work.make, workers=1, ahead=prefetch) if prefetch else map(work.make, planned)
        )

    def __iter__(self) -> HostBatches:
        return self

    def __next__(self) -> HostBatch:
        return next(self._made)

    def close(self) -> None:
        """End the threads and wait for them."""
        if isinstance(self._made, Prefetched):
            self._made.close()
        self._groups.close()


@final
@dataclass(frozen=True)
class _Work:
    """Planning and making batches."""

    plan: BatchPlan
    wanted: Wanted
    assembler: Assembler
    groups: Groups
    pad: bool
    turn: Turn

    def planned(self, place: Place) -> Iterator[_Planned]:
        pending: deque[_Planned] = deque()
        horizon, reach, ended = self._horizon(), _FIRST, False
        while True:
            if not ended and len(pending) < -(-reach // 2):
                chunk = self._next_steps(place, reach - len(pending))
                ended = len(chunk) < reach - len(pending)
                pending.extend(self._places(chunk))
                place = chunk[-1].after if chunk else place
            if not pending:
                return
            yield pending.popleft()
            reach = min(horizon, reach * _FASTER)

    def make(self, planned: _Planned) -> HostBatch:
        numbers = list(dict.fromkeys(planned.number.tolist()))
        decoded = self.groups.take(planned.step.step, numbers)
        columns = self.assembler.batch(len(planned.wanted), planned.number, planned.row, decoded.__getitem__)
        return HostBatch(planned.step, planned.wanted, columns)

    def _next_steps(self, place: Place, count: int) -> list[Batch]:
        found: list[Batch] = []
        while len(found) < count and (step := self.plan.next(place)) is not None:
            if step.step % self.turn.of == self.turn.first:
                found.append(step)
            place = step.after
        return found

    def _places(self, steps: list[Batch]) -> Iterator[_Planned]:
        if not steps:
            return
        for step, rows in zip(steps, self.plan.rows(steps, self.wanted), strict=True):
            number = self.groups.number(rows.source, rows.group)
            self.groups.plan(step.step, set(number.tolist()))
            wanted = self.wanted(step.size)
            if not self.pad:
                wanted = wanted[: len(number)]
            yield _Planned(step, wanted, number, rows.row)

    def _horizon(self) -> int:
        """Steps that two windows last: so far ahead it is known what is needed."""
        return min(max(_LEAST, 2 * self.plan.window_steps), _MOST)
