"""The batches of one host: planned, read ahead and assembled, in this process or in worker processes.

A batch goes through three stages, each some steps ahead of the trainer:

1. *Plan* (:func:`_plan_batches`): the rows that this host needs of a step, as (row group, row in the row group). Many
   steps are planned at once, which is cheaper. The row groups are announced to the threads that decode them.
2. *Assemble* (:func:`_assemble`): the decoded row groups are taken, and the rows are gathered into arrays.
3. *Place* (where a trainer has devices): the arrays are moved to them.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Self, cast, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.threads import Prefetched
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch import Assembler, Batch, BatchShape
from tokenlake.runtime.loader.host_reader import HostReader
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.read_ahead import DecodedAhead
from tokenlake.runtime.loader.state import TURN, plain_state, position_of, state_of, turn_of
from tokenlake.runtime.loader.steps import BatchStep, Position
from tokenlake.runtime.reading.packed import PackedGroup

_FIRST_STEPS: Final = 2  # planned before the first batch: the others wait until that is on its way
_GROWTH: Final = 4  # by which more steps are planned each time, up to the horizon
_LEAST_HORIZON: Final = 8  # steps planned ahead
_MOST_HORIZON: Final = 256
_STEPS_OF_BUCKET: Final = (
    16  # planned of each bucket: one that is looked up alone costs several times as much
)

Place = Callable[[Batch, int], dict[str, Any]]
"""(columns of a batch, rows of the global batch) -> the columns on devices."""
Tell = Callable[["HostBatches", int | None, float], None]
"""Called after each batch with (iterator, rows of the batch, seconds that it was waited for).

At the end of the pass it is called with None rows."""


class Turn(NamedTuple):
    """The steps that one of several workers makes: those with ``step % of == first``."""

    first: int
    of: int


ALL: Final = Turn(0, 1)


class _PlannedBatch(NamedTuple):
    """A batch before its rows are read.

    Attributes:
        step: Step that it is of.
        shape: Shape of its arrays on this host.
        group: Number of the row group of each row, int64[n].
        row: Row in that row group, int64[n]. The n rows are those of this host. Where rows are dealt to ranks, they are
            all rows of the global batch, because the costs of all decide which are this host's.
    """

    step: BatchStep
    shape: BatchShape
    group: Int64
    row: Int64


_AssembledBatch = tuple[BatchStep, Batch]


@final
class HostBatches(Iterator[Batch]):
    """The steps of a turn to the end of a pass: column -> array of shape (rows, L).

    Threads start with the first batch that is asked for. They end with the pass, with an error, when the iterator is
    closed, and when it is forgotten. After an error the iterator continues where it stood, if it is asked again.

    Args:
        reader: Reader of this host.
        position: Position of the first batch.
        turn: Steps to make.
        place: Moves a batch to devices; None: batches stay in memory.
        tell: Called after each batch, see :data:`Tell`.

    Attributes:
        position: Position after the last batch that was delivered.
        groups: Row groups that are decoded ahead; None before the first batch.
    """

    def __init__(
        self,
        reader: HostReader,
        position: Position,
        turn: Turn = ALL,
        *,
        place: Place | None = None,
        tell: Tell | None = None,
    ) -> None:
        self.position = position
        self.groups: DecodedAhead | None = None
        self._reader = reader
        self._turn = turn
        self._place = place
        self._tell = tell
        self._batches: Prefetched[Any, _AssembledBatch] | None = None  # None while no threads run
        self._is_closed = False
        self._is_exhausted = False
        self._superseded: str | None = None  # the message of the error, once another iterator has taken over

    @classmethod
    def resumed(cls, reader: HostReader, state: Mapping[str, Any], turn: Turn, *, without: Turn) -> Self:
        """Return the batches after a state.

        Args:
            reader: Reader of this host.
            state: State of one of several workers, or of a loader.
            turn: Turn of this worker. The state must be that of one of as many workers.
            without: Turn of a state that names none.

        Raises:
            ConfigError: the state is of other data, of another order or of another number of workers.
        """
        state = plain_state(state)
        reader = reader.replaying(state)
        position = position_of(reader.plan, state)
        stored_turn = Turn(*(turn_of(state) or without))
        if stored_turn.of != turn.of:
            raise ConfigError(
                f"the state is of worker {stored_turn.first} of {stored_turn.of}, this is {turn.first} of {turn.of}; "
                "expected as many workers (PyTorch, for another number: dataset.set_state(dataset.state_after(step)))"
            )
        return cls(reader, position, stored_turn)

    def __next__(self) -> Batch:
        """Return the next batch; an error in making it is raised here, in its place.

        Raises:
            ConfigError: another iterator of the loader took its place.
        """
        if self._superseded is not None:
            raise ConfigError(self._superseded)
        if self._is_closed:
            raise StopIteration
        began = time.perf_counter()
        try:
            step, batch = next(self._batches or self._begin())
        except StopIteration:
            self._end()
            if not self._is_closed:
                self._is_exhausted = True
                if self._tell is not None:
                    self._tell(self, None, 0.0)
            raise
        except BaseException:
            self._end()
            raise
        self.position = step.after
        if self._tell is not None:
            self._tell(self, self._rows_of(step, batch), time.perf_counter() - began)
        return batch

    def state(self) -> dict[str, Any]:
        """Return the state of this worker: JSON, small; see :meth:`resumed`."""
        return {**state_of(self._reader.plan, self.position), TURN: list(self._turn)}

    def go_on_with(self, reader: HostReader) -> None:
        """Have all further batches read by another reader of the same rows; those made ahead are dropped."""
        self._end()
        self._reader = reader

    def close(self) -> None:
        """End the threads and wait for them; no further batch is delivered."""
        self._is_closed = True
        self._end()

    def supersede(self, message: str) -> None:
        """End the threads. A further request raises ConfigError, unless the pass had come to its end."""
        if not self._is_closed and not self._is_exhausted:
            self._superseded = message
        self.close()

    def _rows_of(self, step: BatchStep, batch: Batch) -> int:
        """Return how many stored rows a batch of this host has."""
        plan = self._reader.plan
        assembler = self._reader.assembler
        entries = len(next(iter(batch.values()), ()))
        if isinstance(assembler, Assembler) and plan.options.batch_layout.flat:
            return entries // plan.stored_length
        return entries // plan.parts(step.step)

    def _begin(self) -> Prefetched[Any, _AssembledBatch]:
        # Threads know the work alone and not this iterator, which is therefore collected when it is forgotten.
        reader = self._reader
        ahead = reader.plan.options.prefetch
        groups = reader.read_ahead()
        self.groups = groups
        weakref.finalize(self, groups.release)
        planned = _plan_batches(reader, groups, self._turn, self.position)
        batches: Prefetched[Any, _AssembledBatch]
        batches = Prefetched(planned, partial(_assemble, reader, groups), ahead=ahead)
        if self._place is not None:
            batches = Prefetched(batches, partial(_place, self._place), ahead=ahead)
        self._batches = batches
        return batches

    def _end(self) -> None:
        # Forget the batches first: closing them may raise.
        batches = self._batches
        self._batches = None
        if batches is not None:
            batches.close()
        if self.groups is not None:
            self.groups.close()


def _plan_batches(
    reader: HostReader, groups: DecodedAhead, turn: Turn, position: Position
) -> Iterator[_PlannedBatch]:
    """Yield the batches of a turn.

    They are planned some steps at a time: 2 at first, then 4 times as many each time, up to the horizon.
    """
    plan = reader.plan
    # The horizon is the steps of two windows, so that the need for row groups is known that far ahead. In buckets it is
    # at least some steps of each.
    horizon = max(_LEAST_HORIZON, 2 * plan.window_steps, _STEPS_OF_BUCKET * len(plan.bucket_shapes))
    horizon = min(horizon, _MOST_HORIZON)
    reach = _FIRST_STEPS
    pending: deque[_PlannedBatch] = deque()
    is_ended = False
    while True:
        # Plan again once half of the reach, rounded up, is used.
        if not is_ended and len(pending) < (reach + 1) // 2:
            steps: list[BatchStep] = []
            while len(steps) < reach - len(pending):
                step = plan.steps.next(position)
                if step is None:
                    is_ended = True
                    break
                position = step.after
                if step.step % turn.of == turn.first:
                    steps.append(step)
            if steps:
                pending.extend(_locate(reader, groups, steps))
        if not pending:
            return
        yield pending.popleft()
        reach = min(horizon, reach * _GROWTH)


def _locate(reader: HostReader, groups: DecodedAhead, steps: list[BatchStep]) -> Iterator[_PlannedBatch]:
    """Look up where the rows of steps are stored, and announce their row groups to the threads that decode."""
    plan = reader.plan

    def rows_to_read(size: int) -> Int64:
        """Return which rows of a batch of `size` rows are read here, ascending."""
        rows_of_host = reader.wanted(size)
        if plan.ranks is None or not len(rows_of_host):
            return rows_of_host
        return np.arange(size, dtype=np.int64)

    located = plan.rows(steps, rows_to_read)
    is_only_host = all(len(reader.wanted(step.size)) == step.size for step in steps)
    lengths = plan.lengths(steps, located if is_only_host else None)
    for step, rows, length in zip(steps, located, lengths, strict=True):
        group = groups.number(rows.source, rows.group)
        groups.plan(step.step, group)
        rows_of_host = reader.wanted(step.size)
        if not plan.options.pad_last:
            rows_of_host = _present(rows_of_host, step.rows)
        parts = plan.parts(step.step)
        shape = BatchShape(len(rows_of_host) * parts, length // parts)
        yield _PlannedBatch(step, shape, group, rows.row)


def _assemble(reader: HostReader, groups: DecodedAhead, planned: _PlannedBatch) -> _AssembledBatch:
    """Take the decoded row groups of a batch, and gather its rows."""
    plan = reader.plan
    step = planned.step
    group = planned.group
    row = planned.row
    decoded = groups.take(step.step, dict.fromkeys(group.tolist()))
    within = plan.within(step.step)
    if plan.ranks is not None:
        dealt = _deal(plan, step, decoded, group, row, within)
        own = dealt[_present(reader.wanted(step.size), len(dealt))]
        group = group[own]
        row = row[own]
    assembler = cast("Any", reader.assembler)
    if within is None:
        return step, assembler.batch(planned.shape, group, row, decoded.__getitem__)
    return step, assembler.batch(planned.shape, group, row, decoded.__getitem__, within=within)


def _deal(
    plan: BatchPlan, step: BatchStep, decoded: Mapping[int, Any], group: Int64, row: Int64, within: int | None
) -> Int64:
    """Return which row of a global batch is at each of its places, so that all ranks cost about the same: int64[n]."""
    costs_of_group: dict[int, Any] = {}
    for number, rows in decoded.items():
        costs_of_group[number] = cast("PackedGroup", rows).attention(within)
    costs: list[int] = []
    for number, row_in_group in zip(group.tolist(), row.tolist(), strict=True):
        costs.append(costs_of_group[number][row_in_group])
    return plan.dealt(step, np.array(costs, np.int64))


def _present(rows: Int64, count: int) -> Int64:
    """Return those of `rows` (ascending) that a batch with `count` rows has; the others are padding."""
    return rows[: np.searchsorted(rows, count)]


def _place(place: Place, assembled: _AssembledBatch) -> tuple[BatchStep, Any]:
    step, batch = assembled
    return step, place(batch, step.size)
