"""Batches of one host: planned, read ahead and assembled.

The work is done in this process or in worker processes. A batch goes through three
stages, each some steps ahead of the trainer:

1. *Plan* (:func:`_plan_batches`): the rows of this host are located, as (row group, row
   in the row group). Many steps are planned in one call, which is cheaper. The row
   groups are announced to the threads that decode them.
2. *Assemble* (:func:`_assemble`): the decoded row groups are taken, and the rows are
   gathered into arrays.
3. *Place* (if the trainer has devices): the arrays are moved to them.

Example: of batches of 8 rows, host 1 of 2 has rows 4 to 7. Step 10 is planned as row
groups ``3 3 9 12`` and rows ``0 5 2 7``; row groups 3, 9 and 12 are decoded once each,
and a batch of shape (4, L) is assembled. If ranks are balanced, all 8 rows are planned
and their row groups decoded, because the costs of all rows decide which four of them
are this host's.
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
from tokenlake.runtime.loader.state import (
    TURN,
    plain_state,
    position_of,
    state_of,
    turn_of,
)
from tokenlake.runtime.loader.steps import BatchStep, Position
from tokenlake.runtime.reading.packed import PackedGroup

_FIRST_STEPS: Final = 2
"""Steps planned before the first batch, which should not wait for more."""

_GROWTH: Final = 4
"""Factor by which the number of steps planned ahead grows, up to the horizon."""

_LEAST_HORIZON: Final = 8
_MOST_HORIZON: Final = 256
"""Bounds of the horizon, the number of steps planned ahead."""

_STEPS_OF_BUCKET: Final = 16
"""Steps planned ahead of each bucket. Locating the rows of a single step takes
several times as long per step.
"""

Place = Callable[[Batch, int], dict[str, Any]]
"""(columns of a batch, rows of the global batch) -> columns on devices."""

Tell = Callable[["HostBatches", int | None, float], None]
"""Function that is called after each batch with (iterator, rows of the batch, seconds
waited for it).

At the end of the pass it is called with None rows.
"""


class Turn(NamedTuple):
    """Steps that one of several workers makes: those with ``step % of == first``.

    Attributes:
        first: Index of the worker.
        of: Number of workers.
    """

    first: int
    of: int


ALL: Final = Turn(0, 1)
"""Turn of a single worker, which makes all steps."""


class _PlannedBatch(NamedTuple):
    """A batch before its rows are read.

    Attributes:
        step: Step of the batch.
        shape: Shape of its arrays on this host.
        group_numbers: Number of each row's row group, int64[n].
        rows_in_group: Row in its row group, int64[n]. The n rows are those of this
            host. If ranks are balanced, they are all rows of the global batch, because
            the costs of all decide which are this host's.
    """

    step: BatchStep
    shape: BatchShape
    group_numbers: Int64
    rows_in_group: Int64


_AssembledBatch = tuple[BatchStep, Batch]


@final
class HostBatches(Iterator[Batch]):
    """Batches of a turn to the end of a pass: column -> array of shape (rows, L).

    Threads start with the first batch that is requested. They end with the pass, with
    an error, when the iterator is closed, and when it is forgotten. After an error the
    iterator continues at the same position, if it is used again.

    Args:
        reader: Reader of this host.
        position: Position of the first batch.
        turn: Steps to make.
        place: Function that moves a batch to devices; None: batches stay in memory.
        tell: Function that is called after each batch, see :data:`Tell`.

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
        # None while no threads run.
        self._batches: Prefetched[Any, _AssembledBatch] | None = None
        self._is_closed = False
        self._is_exhausted = False
        self._superseded: str | None = (
            None  # message of the error, once another iterator has replaced this one
        )

    @classmethod
    def resumed(
        cls, reader: HostReader, state: Mapping[str, Any], turn: Turn, *, without: Turn
    ) -> Self:
        """Return the batches after a state.

        Args:
            reader: Reader of this host.
            state: State of one of several workers, or of a loader.
            turn: Turn of this worker. The state must be that of a worker of the same
                number of workers.
            without: Turn of a state that has none.

        Raises:
            ConfigError: The state is of other data, of another order or of another
                number of workers.
        """
        # A state may come from JSON, from Orbax or from a PyTorch worker.
        state = plain_state(state)
        reader = reader.replaying(state)
        position = position_of(reader.plan, state)
        stored_turn = Turn(*(turn_of(state) or without))
        if stored_turn.of != turn.of:
            raise ConfigError(
                f"the state is of worker {stored_turn.first} of {stored_turn.of}, this is {turn.first} of {turn.of}; "
                "expected the same number of workers (PyTorch, for another number: "
                "dataset.set_state(dataset.state_after(step)))"
            )
        return cls(reader, position, stored_turn)

    def __next__(self) -> Batch:
        """Return the next batch.

        An error that occurs while it is made ahead is raised here.

        Raises:
            ConfigError: Another iterator of the loader has replaced this one.
        """
        if self._superseded is not None:
            raise ConfigError(self._superseded)
        if self._is_closed:
            raise StopIteration
        # The time that the trainer waits here is the loader's share of a step.
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
            # The threads end, and the position stays: the next call begins again with
            # the same batch.
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
        """Continue with another reader of the same rows.

        Batches made ahead are dropped.
        """
        self._end()
        self._reader = reader

    def close(self) -> None:
        """End the threads and wait for them. No further batch is delivered."""
        self._is_closed = True
        self._end()

    def supersede(self, message: str) -> None:
        """End the threads; the next batch is an error.

        It raises ConfigError with a message, unless the pass has ended.
        """
        if not self._is_closed and not self._is_exhausted:
            self._superseded = message
        self.close()

    def _rows_of(self, step: BatchStep, batch: Batch) -> int:
        """Return the number of stored rows of a batch of this host."""
        # Rows are counted as stored, whatever shape they are delivered in.
        plan = self._reader.plan
        assembler = self._reader.assembler
        first_column = next(iter(batch.values()), ())
        if isinstance(assembler, Assembler) and plan.options.batch_layout.flat:
            return len(first_column) // plan.stored_length  # one entry for each id
        return len(first_column) // plan.parts(step.step)

    def _begin(self) -> Prefetched[Any, _AssembledBatch]:
        """Start the threads, and return the batches that they make."""
        # Threads refer to their work and not to this iterator, which is therefore
        # collected when it is forgotten.
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
        """End the threads, if they run."""
        # Forget the batches first, because closing them may raise.
        batches = self._batches
        self._batches = None
        if batches is not None:
            batches.close()
        if self.groups is not None:
            self.groups.close()


def _plan_batches(
    reader: HostReader, groups: DecodedAhead, turn: Turn, position: Position
) -> Iterator[_PlannedBatch]:
    """Yield the planned batches of a turn.

    Some steps are planned in one call: 2 at first, then 4 times as many each time, up
    to the horizon.

    Args:
        reader: Reader of this host.
        groups: Row groups that are decoded ahead, to which those of each step are
            announced.
        turn: Steps to make.
        position: Position of the first batch.
    """
    plan = reader.plan
    # The horizon is two windows, so that the next uses of row groups are known. With
    # buckets it has some steps of each.
    horizon = max(
        _LEAST_HORIZON,
        2 * plan.window_steps,
        _STEPS_OF_BUCKET * len(plan.bucket_shapes),
    )
    horizon = min(horizon, _MOST_HORIZON)
    reach = _FIRST_STEPS
    pending: deque[_PlannedBatch] = deque()
    is_ended = False
    while True:
        # Plan more steps once half of the reach, rounded up, is used. Locating many in
        # one call is cheaper per step, but the first batch should not wait for them.
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


def _locate(
    reader: HostReader, groups: DecodedAhead, steps: list[BatchStep]
) -> Iterator[_PlannedBatch]:
    """Yield the planned batches of steps, and announce their row groups.

    The row groups are announced to the threads that decode.
    """
    plan = reader.plan

    def rows_to_read(size: int) -> Int64:
        """Return the rows of a batch of `size` rows that are read here, ascending."""
        rows_of_host = reader.wanted(size)
        if plan.ranks is None or not len(rows_of_host):
            return rows_of_host
        return np.arange(size, dtype=np.int64)

    # Locate the rows. The lengths of batches need the rows of all hosts, which this one
    # may have located already.
    located = plan.rows(steps, rows_to_read)
    is_only_host = all(len(reader.wanted(step.size)) == step.size for step in steps)
    lengths = plan.lengths(steps, located if is_only_host else None)
    for step, rows, length in zip(steps, located, lengths, strict=True):
        group_numbers = groups.number(rows.source, rows.group)
        groups.plan(step.step, group_numbers)
        # The shape of the batch on this host, rows of padding included if they are
        # requested.
        rows_of_host = reader.wanted(step.size)
        if not plan.options.pad_last:
            rows_of_host = _present(rows_of_host, step.rows)
        parts = plan.parts(step.step)
        shape = BatchShape(len(rows_of_host) * parts, length // parts)
        yield _PlannedBatch(step, shape, group_numbers, rows.row)


def _assemble(
    reader: HostReader, groups: DecodedAhead, planned: _PlannedBatch
) -> _AssembledBatch:
    """Return the batch of this host, gathered from decoded row groups.

    The row groups of the planned batch are taken here.
    """
    plan = reader.plan
    step = planned.step
    group_numbers = planned.group_numbers
    rows_in_group = planned.rows_in_group
    decoded = groups.take(step.step, dict.fromkeys(group_numbers.tolist()))
    within = plan.within(step.step)
    if plan.ranks is not None:
        # Deal all rows to ranks, and keep those at the places of this host.
        row_at_place = _deal(plan, step, decoded, planned, within)
        rows_of_host = row_at_place[
            _present(reader.wanted(step.size), len(row_at_place))
        ]
        group_numbers = group_numbers[rows_of_host]
        rows_in_group = rows_in_group[rows_of_host]
    assembler = cast("Any", reader.assembler)
    if within is None:
        return step, assembler.batch(
            planned.shape, group_numbers, rows_in_group, decoded.__getitem__
        )
    return step, assembler.batch(
        planned.shape, group_numbers, rows_in_group, decoded.__getitem__, within=within
    )


def _deal(
    plan: BatchPlan,
    step: BatchStep,
    decoded: Mapping[int, Any],
    planned: _PlannedBatch,
    within: int | None,
) -> Int64:
    """Return the row at each place of a global batch, dealt by cost, int64[n].

    All ranks get about the same cost.

    Args:
        plan: Plan of all hosts.
        step: Step of the batch.
        decoded: Decoded row groups by their numbers.
        planned: All rows of the global batch.
        within: Number of ids at each multiple of which segments end; None: they stay as
            stored.
    """
    costs_of_group: dict[int, Any] = {}
    for number, row_group in decoded.items():
        costs_of_group[number] = cast("PackedGroup", row_group).attention(within)
    places = zip(
        planned.group_numbers.tolist(), planned.rows_in_group.tolist(), strict=True
    )
    costs = [costs_of_group[number][row] for number, row in places]
    return plan.dealt(step, np.array(costs, np.int64))


def _present(rows: Int64, count: int) -> Int64:
    """Return those of some rows, ascending, that a batch with `count` rows has.

    The others are padding.
    """
    return rows[: np.searchsorted(rows, count)]


def _place(place: Place, assembled: _AssembledBatch) -> tuple[BatchStep, Any]:
    """Move an assembled batch to devices."""
    step, batch = assembled
    return step, place(batch, step.size)
