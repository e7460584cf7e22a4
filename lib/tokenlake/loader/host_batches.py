"""The batches of one host: planned, read ahead and assembled, in this process or in worker processes."""

from __future__ import annotations

import copy
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.batch import Assembler, Batch, BatchShape, check_columns
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.length_index import LengthIndex
from tokenlake.loader.metrics import Spent
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.options import WORKER_CACHE_BYTES, LoaderOptions
from tokenlake.loader.padding import BatchPadding
from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.ragged_batch import RaggedAssembler, ragged_columns
from tokenlake.loader.read_ahead import DecodedAhead, DecodedGroup, Prefetched
from tokenlake.loader.state import position_of, state_of
from tokenlake.loader.steps import BatchStep, Position, RowsOfBatch, rows_of_host
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.mixing.stream import MixtureStream
from tokenlake.ragged import Int64
from tokenlake.reading.cache import GroupCache
from tokenlake.reading.version import StoredRows
from tokenlake.store.local import LocalStore
from tokenlake.threads import available_cpus

_LOCAL, _REMOTE = 4, 16  # threads that decode, at most
_FIRST: Final = 2  # steps planned before the first batch: the others wait until that is on its way
_FASTER: Final = 4
_LEAST, _MOST = 8, 256  # steps planned ahead
_EACH: Final = 16  # of each bucket: one that is looked up alone costs several times as much

T = TypeVar("T")
_Made = tuple[BatchStep, Batch]
Place = Callable[[Batch, int], dict[str, Any]]


class Turn(NamedTuple):
    """Which steps are made: those with ``step % of == first``; of several workers each has its turn."""

    first: int
    of: int


ALL: Final = Turn(0, 1)


TURN: Final = "turn"
"""The key of a worker's turn in its state."""


@final
@dataclass(frozen=True, eq=False)
class HostReader:
    """What one host reads: the plan of all hosts, the rows that this one needs, and how they become batches.

    Attributes:
        plan: of all hosts.
        assembler: makes batches.
        wanted: the rows of each batch that this host needs.
    """

    plan: BatchPlan
    assembler: Assembler | RaggedAssembler
    wanted: RowsOfBatch
    options: LoaderOptions

    @classmethod
    def open(cls, data: Dataset | Mixture, options: LoaderOptions) -> Self:
        """Plan the batches of a run; ConfigError where the options do not fit the data."""
        plan = BatchPlan(data, options)
        wanted = rows_of_host(options.host, plan.common_rows)
        return cls(plan, _assembler(plan), wanted, options)

    def cut(self, wanted: RowsOfBatch, parts: int) -> HostReader:
        """Return what reads the rows of some devices, which have so many parts of each batch."""
        assembler = (
            self.assembler.of_parts(parts) if isinstance(self.assembler, Assembler) else self.assembler
        )
        return replace(self, wanted=wanted, assembler=assembler)

    def mixed_as(self, mixture: Mixture) -> HostReader:
        """Return what reads the same sources in other parts; the lanes stay, which weights would choose anew."""
        options = replace(self.options, lanes=self.plan.lanes)
        return replace(self, plan=BatchPlan(mixture, options), options=options)

    def reweighted(self, weights: Mapping[str, float], step: int) -> HostReader:
        """Return what reads by other weights from a step of the run on; ConfigError where it cannot be."""
        mixture, place = self.plan.data, self.plan.steps.position(step)
        if not isinstance(mixture, Mixture):
            raise ConfigError(f"weights: {mixture.name} is a single dataset; weights are of a mixture")
        if self.plan.steps.rows is not None and (place.passes or place.rows >= self.plan.steps.rows):
            raise ConfigError(
                f"weights: step {step} is behind the first pass, and what a pass holds does not change any more; "
                "expected a step before its end (a mixture without rows that begins its sources again has no end)"
            )
        stream = self.plan.stream(0)
        assert isinstance(stream, MixtureStream)
        return self.mixed_as(mixture.reweighted(stream.mixture.step_after(place.rows), weights))

    def replaying(self, state: Mapping[str, Any]) -> HostReader:
        """Return what reads by the weights that a trainer fed back before a state; itself, where there were none."""
        whole = state if isinstance(state, Mapping) else {}  # pyright: ignore[reportUnnecessaryIsInstance]
        mixture, theirs = self.plan.data, whole.get("mixture")
        if not isinstance(mixture, Mixture) or not isinstance(theirs, Mapping) or "schedule" not in theirs:
            return self
        replayed = mixture.replayed(WeightScheduler.from_json(theirs["schedule"]))
        return self if replayed is mixture else self.mixed_as(replayed)

    def resumed(self, state: Mapping[str, Any], turn: Turn, *, without: Turn) -> HostBatches:
        """Return the batches behind a state.

        Args:
            state: of one of several workers, or of a loader.
            turn: of this worker; the state must be of one of as many.
            without: the turn that a state means which names none.

        Raises:
            ConfigError: the state is of other data, of another order or of another number of workers.
        """
        reader = self.replaying(state)
        position, theirs = position_of(reader.plan, state), Turn(*state.get(TURN, without))
        if theirs.of != turn.of:
            raise ConfigError(
                f"the state is of worker {theirs.first} of {theirs.of}, this is {turn.first} of {turn.of}; "
                "expected as many workers (PyTorch, for another number: dataset.set_state(dataset.state_after(step)))"
            )
        return HostBatches(reader, position, theirs)

    def read(self, size: int) -> Int64:
        """Return the rows of a batch that must be read for those wanted: all, where costs decide which these are."""
        wanted = self.wanted(size)
        return wanted if self.plan.ranks is None or not len(wanted) else np.arange(size, dtype=np.int64)

    def stride(self, step: int) -> int:
        """Return how many entries a stored row has on the first axis of a step's columns: its ids where flat."""
        if isinstance(self.assembler, Assembler) and self.options.batch_layout.flat:
            return self.assembler.length
        return self.plan.parts(step)

    def rows_in(self, passes: int) -> int | None:
        """Return how many rows of a pass this host has; None: no end."""
        self.plan.begin(passes)  # raises where an earlier pass has no end
        return self.plan.steps.rows_of(passes, self.wanted, pad_last=bool(self.options.pad_last))

    def read_ahead(self) -> DecodedAhead:
        """Return where row groups of the plan are decoded, so far ahead that decoding runs evenly."""
        workers, loss_mask = self.options.workers, self.assembler.loss_mask
        segments = self.plan.ranks is not None or self.assembler.segments

        def decode(rows: StoredRows, group: int) -> DecodedGroup:
            return rows.decoded(group, loss_mask=loss_mask and rows.has_loss_mask, segments=segments)

        return DecodedAhead(
            self.plan.sources,
            decode,
            times=self.plan.epochs if isinstance(self.plan.data, Dataset) else None,
            max_bytes=self.options.cache_bytes,
            reach=max(_LEAST, self.plan.window_steps // 4),
            threads=_threads(self.plan.data) if workers is None else workers,
        )


@final
class HostBatches(Iterator[Batch]):
    """The steps of a turn to the end of a pass: column -> array of shape (rows, L).

    Threads run from the first batch that is asked for on. They end with the pass, with an error (after which it goes on
    where it stood, if it is asked to), when it is closed and nothing more comes, or when it is forgotten.

    Args:
        reader: of the run.
        position: where to begin.
        turn: which steps.
        place: (columns, rows of the global batch) -> these columns on devices.
        tell: is called after each batch, and at the end of the pass: (this iterator, whether it is the end).
        spent: counts on.

    Attributes:
        position: behind the last batch that was delivered.
        groups: what is decoded ahead; None before the first batch.
        spent: on the batches so far.
    """

    def __init__(
        self,
        reader: HostReader,
        position: Position,
        turn: Turn = ALL,
        *,
        place: Place | None = None,
        tell: Callable[[HostBatches, bool], None] | None = None,
        spent: Spent | None = None,
    ) -> None:
        self.position, self.groups = position, cast("DecodedAhead | None", None)
        self._reader, self._turn, self._place, self._tell = reader, turn, place, tell
        self._made: Prefetched[Any, _Made] | None = None
        self._closed = False
        self.spent = spent or Spent()

    def __next__(self) -> Batch:
        """Return the next batch; whatever went wrong in making it is raised here, in its place."""
        if self._closed:
            raise StopIteration
        asked = time.perf_counter()
        try:
            step, batch = next(self._made or self._begin())
        except BaseException as error:
            self._end()
            if isinstance(error, StopIteration) and self._tell is not None and not self._closed:
                self._tell(self, True)
            raise
        self.position = step.after
        self.spent.add(
            len(next(iter(batch.values()), ())) // self._reader.stride(step.step),
            time.perf_counter() - asked,
        )
        if self._tell is not None:
            self._tell(self, False)
        return batch

    def state(self) -> dict[str, Any]:
        """Return where this worker stands: JSON, small; see :meth:`HostReader.resumed`."""
        return {**state_of(self._reader.plan, self.position), TURN: list(self._turn)}

    def go_on_with(self, reader: HostReader) -> None:
        """Have all further batches read by another reader, of the same rows so far; those made ahead are dropped."""
        self._end()
        self._reader = reader

    def close(self) -> None:
        """End the threads and wait for them; nothing more comes."""
        self._closed = True
        self._end()

    def _begin(self) -> Prefetched[Any, _Made]:
        # Threads know the work alone, not this iterator, which is therefore collected when it is forgotten.
        self.groups = self._reader.read_ahead()
        weakref.finalize(self, self.groups.release)
        work, ahead = _Work(self._reader, self.groups, self._turn), self._reader.options.prefetch
        made: Prefetched[Any, _Made] = Prefetched(work.planned(self.position), work.make, ahead=ahead)
        if (place := self._place) is not None:
            made = Prefetched(made, lambda one: (one[0], place(one[1], one[0].size)), ahead=ahead)
        self._made = made
        return made

    def _end(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()
        if self.groups is not None:
            self.groups.close()


@final
@dataclass(frozen=True, slots=True)
class _Planned:
    """A step, the shape of its batch here, and its rows: those wanted here, or all of them where they are dealt."""

    step: BatchStep
    shape: BatchShape
    number: Int64
    row: Int64


@final
@dataclass(frozen=True)
class _Work:
    """Planning and making batches."""

    reader: HostReader
    groups: DecodedAhead
    turn: Turn

    def planned(self, position: Position) -> Iterator[_Planned]:
        pending: deque[_Planned] = deque()
        horizon, reach, ended = self._horizon(), _FIRST, False
        while True:
            if not ended and len(pending) < -(-reach // 2):
                chunk = self._next_steps(position, reach - len(pending))
                ended = len(chunk) < reach - len(pending)
                pending.extend(self._located(chunk))
                position = chunk[-1].after if chunk else position
            if not pending:
                return
            yield pending.popleft()
            reach = min(horizon, reach * _FASTER)

    def make(self, planned: _Planned) -> _Made:
        numbers = list(dict.fromkeys(planned.number.tolist()))
        decoded = self.groups.take(planned.step.step, numbers)
        assembler: Any = self.reader.assembler
        if self.reader.plan.curriculum is not None:
            assembler = assembler.cut(self.reader.plan.within(planned.step.step))
        number, row = planned.number, planned.row
        if self.reader.plan.ranks is not None:
            here = self._dealt(planned, decoded)
            number, row = number[here], row[here]
        return planned.step, assembler.batch(planned.shape, number, row, decoded.__getitem__)

    def _dealt(self, planned: _Planned, decoded: Mapping[int, Any]) -> Int64:
        """Which of the rows of a step come to the places that are wanted here, int64[m]."""
        within = self.reader.plan.within(planned.step.step)
        costs = {number: group.attention(within) for number, group in decoded.items()}
        each = zip(planned.number.tolist(), planned.row.tolist(), strict=True)
        costs = np.array([costs[number][row] for number, row in each], np.int64)
        places = self.reader.plan.dealt(planned.step, costs)
        wanted = self.reader.wanted(planned.step.size)
        return places[wanted[: np.searchsorted(wanted, len(places))]]

    def _next_steps(self, position: Position, count: int) -> list[BatchStep]:
        found: list[BatchStep] = []
        while len(found) < count and (step := self.reader.plan.next(position)) is not None:
            if step.step % self.turn.of == self.turn.first:
                found.append(step)
            position = step.after
        return found

    def _located(self, steps: list[BatchStep]) -> Iterator[_Planned]:
        if not steps:
            return
        wanted_of, plan = self.reader.wanted, self.reader.plan
        found = plan.rows(steps, self.reader.read)
        all_here = all(len(wanted_of(step.size)) == step.size for step in steps)
        lengths = plan.lengths(steps, found if all_here else None)
        for step, rows, length in zip(steps, found, lengths, strict=True):
            number = self.groups.number(rows.source, rows.group)
            self.groups.plan(step.step, number)
            here = wanted_of(step.size)
            if not self.reader.options.pad_last:
                here = here[: np.searchsorted(here, step.rows)]
            parts = plan.parts(step.step)
            yield _Planned(step, BatchShape(len(here) * parts, length // parts), number, rows.row)

    def _horizon(self) -> int:
        """Steps that two windows last: so far ahead it is known what is needed; some of each bucket at least."""
        plan = self.reader.plan
        return min(max(_LEAST, 2 * plan.window_steps, _EACH * len(plan.bucket_shapes)), _MOST)


def _assembler(plan: BatchPlan) -> Assembler | RaggedAssembler:
    if plan.index is None or plan.padding is None:
        layout = plan.options.batch_layout
        for _, length in plan.batch_shapes or ():
            layout.check_length(length)
        return Assembler(plan.sources, check_columns(plan.options.columns), layout=layout)
    if plan.options.layout is not None:
        names = ", ".join(dataset.name for dataset in plan.datasets.values())
        raise ConfigError(
            f"layout: got {plan.options.layout!r}, but rows of {names} are of many lengths; a layout is of packed "
            "rows: pack them, or leave it out"
        )
    columns = ragged_columns(plan.sources[0], plan.options.columns)
    padding = plan.padding
    return RaggedAssembler(plan.sources, plan.index, columns, padding=padding.side, truncate=padding.truncate)


@final
class PerProcess(Generic[T]):
    """Something that is made once in each process that asks for it, also in forked ones; pickled without it.

    Open files and threads are never shared with a process that was forked: two processes with one open file read at
    each other's positions, and a lock that a thread held when its process was forked is held for ever.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._made = make, cast("tuple[int, T] | None", None)

    def get(self) -> T:
        """Return this process's own."""
        made = self._made
        if made is None or made[0] != os.getpid():
            self._made = made = os.getpid(), self._make()
        return made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_made": None}


def shared_reader(data: Dataset | Mixture, options: LoaderOptions) -> PerProcess[HostReader]:
    """Return what worker processes read by: a description, safe to pickle and to fork; every process opens its own.

    Raises:
        ConfigError: the options do not fit the data.
    """
    reader = PerProcess(partial(_open_own, data, options))
    reader.get()
    return reader


def _open_own(data: Dataset | Mixture, options: LoaderOptions) -> HostReader:
    mine = copy.copy(data)  # a copied dataset has files and a cache of its own
    if isinstance(mine, Mixture):
        mine.datasets = {name: copy.copy(dataset) for name, dataset in mine.datasets.items()}
    return HostReader.open(mine, options)


@final
class SharedRows:
    """The rows of a dataset by number, for processes that each open files of their own.

    Raises:
        ConfigError: it is no dataset, or has no such column.
    """

    def __init__(self, data: Dataset, columns: Sequence[str] | None, instead: str) -> None:
        if not isinstance(data, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"data: got a {type(data).__name__}, must be a Dataset (tl.open); "
                f"the rows of a mixture have no numbers, {instead} gives them in their order"
            )
        packed = data.kind == "packed"
        self.columns = check_columns(columns) if packed else ragged_columns(data.rows, columns)
        self.name, self.manifest, self._length = data.name, data.manifest.sha256, len(data)
        self._opened: PerProcess[_Taken] = PerProcess(
            partial(_packed_rows if packed else _ragged_rows, data, self.columns)
        )

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows, each a dict of arrays of shape (L,); a row group is decoded once for all that lie in it.

        L is the length of the longest run of a row, where they are of many lengths; what has one value is of shape ().

        Raises:
            IndexError: there is no such row.
        """
        wanted = [int(row) for row in rows]
        for at in wanted:
            if not -self._length <= at < self._length:
                raise IndexError(f"{self.name} has rows 0 to {self._length - 1}; there is no row {at}")
        return self._opened.get()(np.array([at % self._length for at in wanted], np.int64))


_Taken = Callable[[Int64], list[dict[str, Any]]]


def _packed_rows(data: Dataset, columns: Sequence[str]) -> _Taken:
    own = copy.copy(data)

    def take(rows: Int64) -> list[dict[str, Any]]:
        found = own.take(rows, columns)
        return [{name: values[place] for name, values in found.items()} for place in range(len(rows))]

    return take


def _ragged_rows(data: Dataset, columns: Sequence[str]) -> _Taken:
    """Each row is a batch of its own, of its own length."""
    stored = copy.copy(data).rows
    index = LengthIndex([stored], BatchPadding())
    assembler = RaggedAssembler([stored], index, columns, padding="right", truncate=None)
    decode = partial(stored.decoded, loss_mask=assembler.loss_mask)
    cache: GroupCache[int, DecodedGroup] = GroupCache(WORKER_CACHE_BYTES, decode)

    def take(rows: Int64) -> list[dict[str, Any]]:
        group, row = stored.group_of(rows)
        found = list[dict[str, Any]]()
        for at, length in enumerate(index.lengths(rows).tolist()):
            one = slice(at, at + 1)
            made = assembler.batch(BatchShape(1, length), group[one], row[one], cast("Any", cache.read))
            found.append({name: values.reshape(values.shape[1:]) for name, values in made.items()})
        return found

    return take


def _threads(data: Dataset | Mixture) -> int:
    """Return how many threads decode by default."""
    datasets = [data] if isinstance(data, Dataset) else data.datasets.values()
    if all(isinstance(dataset.store, LocalStore) for dataset in datasets):
        return max(1, min(_LOCAL, available_cpus() // 2))
    return _REMOTE
