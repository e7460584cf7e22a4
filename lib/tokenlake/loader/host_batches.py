"""The batches of one host: planned, read ahead and assembled, in this process or in worker processes."""

from __future__ import annotations

import copy
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast, final

import numpy as np

from tokenlake.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.loader.batch import Assembler, Batch, BatchShape, check_columns
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.length_index import LengthIndex
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.options import WORKER_CACHE_BYTES, LoaderOptions
from tokenlake.loader.padding import BatchPadding
from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.ragged_batch import RaggedAssembler, ragged_columns
from tokenlake.loader.read_ahead import DecodedAhead, DecodedGroup, GroupCache
from tokenlake.loader.state import TURN, plain_state, position_of, state_of, turn_of
from tokenlake.loader.steps import BatchStep, Position, RowsOfBatch, rows_of_host
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.mixing.streams import MixtureStream
from tokenlake.reading.packed import PackedGroup
from tokenlake.reading.version import StoredRows
from tokenlake.store.local import LocalStore
from tokenlake.threads import Prefetched, available_cpus

_LOCAL, _REMOTE = 4, 16  # threads that decode, at most
_FIRST: Final = 2  # steps planned before the first batch: the others wait until that is on its way
_FASTER: Final = 4
_LEAST, _MOST = 8, 256  # steps planned ahead
_EACH: Final = 16  # of each bucket: one that is looked up alone costs several times as much

T = TypeVar("T")
_Made = tuple[BatchStep, Batch]
_Planned = tuple[BatchStep, BatchShape, Int64, Int64]
"""A step, the shape of its batch here, and its rows (numbers of row groups, and the row in each): those wanted here, or
all of them where they are dealt."""
Place = Callable[[Batch, int], dict[str, Any]]
Tell = Callable[["HostBatches", int | None, float], None]
"""Is told of each batch: the iterator, its rows, and the seconds that it was waited for; of None rows at the end."""


class Turn(NamedTuple):
    """Which steps are made: those with ``step % of == first``; of several workers each has its turn."""

    first: int
    of: int


ALL: Final = Turn(0, 1)


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

    @classmethod
    def open(cls, data: Dataset | Mixture, options: LoaderOptions, parts: int | None = None) -> Self:
        """Plan the batches of a run; ConfigError where the options do not fit the data.

        Args:
            data: what is read.
            options: of the run.
            parts: Number of equal parts that every batch is cut into; None: the number of hosts.
        """
        plan = BatchPlan(data, options)
        if parts is None:
            parts = 1 if options.host is None else options.host[1]
        if plan.common_rows % parts and plan.bucket_shapes:
            plan = _plan_in_parts(plan, parts)
            options = plan.options
        wanted = rows_of_host(options.host, plan.common_rows)
        if plan.index is None or plan.padding is None:
            layout = options.batch_layout
            for _, length in plan.batch_shapes or ():
                layout.check_length(length)
            return cls(plan, Assembler(plan.sources, check_columns(options.columns), layout=layout), wanted)
        if options.layout is not None:
            raise ConfigError(
                f"layout: got {options.layout!r}, but rows of {plan.named} are of many lengths; a layout is of packed "
                "rows: pack them, or leave it out"
            )
        columns, padding = ragged_columns(plan.sources[0], options.columns), plan.padding
        return cls(
            plan,
            RaggedAssembler(
                plan.sources, plan.index, columns, padding=padding.side, truncate=padding.truncate
            ),
            wanted,
        )

    def cut(self, wanted: RowsOfBatch, parts: int) -> HostReader:
        """Return what reads the rows of some devices, which have so many parts of each batch."""
        made = self.assembler
        return replace(
            self, wanted=wanted, assembler=made.of_parts(parts) if isinstance(made, Assembler) else made
        )

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
        return self._mixed_as(mixture.reweighted(stream.mixture.step_after(place.rows), weights))

    def replaying(self, state: Mapping[str, Any]) -> HostReader:
        """Return what reads by the weights that a trainer fed back before a state; itself, where there were none."""
        whole = state if isinstance(state, Mapping) else {}  # pyright: ignore[reportUnnecessaryIsInstance]
        mixture, theirs = self.plan.data, whole.get("mixture")
        if not isinstance(mixture, Mixture) or not isinstance(theirs, Mapping) or "schedule" not in theirs:
            return self
        replayed = mixture.replayed(WeightScheduler.from_json(theirs["schedule"]))
        return self if replayed is mixture else self._mixed_as(replayed)

    def _mixed_as(self, mixture: Mixture) -> HostReader:
        """Return what reads the same sources in other parts; the lanes stay, which weights would choose anew."""
        options = replace(self.plan.options, lanes=self.plan.lanes)
        return replace(self, plan=BatchPlan(mixture, options))

    def resumed(self, state: Mapping[str, Any], turn: Turn, *, without: Turn) -> HostBatches:
        """Return the batches behind a state.

        Args:
            state: of one of several workers, or of a loader.
            turn: of this worker; the state must be of one of as many.
            without: the turn that a state means which names none.

        Raises:
            ConfigError: the state is of other data, of another order or of another number of workers.
        """
        state = plain_state(state)
        reader = self.replaying(state)
        position = position_of(reader.plan, state)
        theirs = Turn(*(turn_of(state) or without))
        if theirs.of != turn.of:
            raise ConfigError(
                f"the state is of worker {theirs.first} of {theirs.of}, this is {turn.first} of {turn.of}; "
                "expected as many workers (PyTorch, for another number: dataset.set_state(dataset.state_after(step)))"
            )
        return HostBatches(reader, position, theirs)

    def read_ahead(self) -> DecodedAhead:
        """Return where row groups of the plan are decoded, so far ahead that decoding runs evenly."""
        plan, loss_mask = self.plan, self.assembler.loss_mask
        segments, threads = plan.ranks is not None or self.assembler.segments, plan.options.workers
        if threads is None:
            local = all(isinstance(dataset.store, LocalStore) for dataset in plan.datasets.values())
            threads = max(1, min(_LOCAL, available_cpus() // 2)) if local else _REMOTE

        def decode(rows: StoredRows, group: int) -> DecodedGroup:
            return rows.decoded(group, loss_mask=loss_mask and rows.has_loss_mask, segments=segments)

        return DecodedAhead(
            plan.sources,
            decode,
            times=plan.epochs if isinstance(plan.data, Dataset) else None,
            max_bytes=plan.options.cache_bytes,
            reach=max(_LEAST, plan.window_steps // 4),
            threads=threads,
        )


def _plan_in_parts(plan: BatchPlan, parts: int) -> BatchPlan:
    """Return a plan with buckets whose batches all have a multiple of `parts` rows.

    Batches of a bucket have a multiple of the lanes as rows, so that other lanes make them divide.

    Args:
        plan: With batches that do not divide.
        parts: Number of equal parts: devices that rows are cut over, or hosts.

    Raises:
        ConfigError: the batch size has no such lanes, or other lanes were asked for.
    """
    options = plan.options
    common = options.sizes.common
    sizes = ", ".join(str(size) for _, size in options.sizes.points)
    if common % parts:
        raise ConfigError(
            f"batch_size: got {sizes}, and batches are cut into {parts} equal parts (devices, or hosts); expected a "
            f"multiple of {parts}"
        )
    if options.lanes is None:
        lanes = math.lcm(plan.lanes, parts)
        if common % lanes:
            lanes = parts
        plan = BatchPlan(plan.data, replace(options, lanes=lanes))
        if plan.common_rows % parts == 0:
            return plan
    working = [lanes for lanes in range(parts, common + 1, parts) if common % lanes == 0]
    rows = ", ".join(map(str, plan.batch_sizes))
    raise ConfigError(
        f"padding.buckets: batches of the buckets have {rows} rows, which are multiples of lanes={plan.lanes}, and are "
        f"cut into {parts} equal parts (devices, or hosts); expected lanes={' or '.join(map(str, working))}, or "
        "padding with equal_rows=True"
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
        tell: see :data:`Tell`.

    Attributes:
        position: behind the last batch that was delivered.
        groups: what is decoded ahead; None before the first batch.
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
        self.position, self.groups = position, cast("DecodedAhead | None", None)
        self._reader, self._turn, self._place, self._tell = reader, turn, place, tell
        self._made: Prefetched[Any, _Made] | None = None
        self._closed = False
        self._exhausted = False
        self._superseded: str | None = None

    def __next__(self) -> Batch:
        """Return the next batch; whatever went wrong in making it is raised here, in its place.

        Raises:
            ConfigError: another iterator of the loader took its place.
        """
        if self._superseded is not None:
            raise ConfigError(self._superseded)
        if self._closed:
            raise StopIteration
        asked = time.perf_counter()
        try:
            step, batch = next(self._made or self._begin())
        except BaseException as error:
            self._end()
            if isinstance(error, StopIteration) and not self._closed:
                self._exhausted = True
                if self._tell is not None:
                    self._tell(self, None, 0.0)
            raise
        self.position = step.after
        if self._tell is not None:
            assembler, plan = self._reader.assembler, self._reader.plan
            flat = isinstance(assembler, Assembler) and plan.options.batch_layout.flat
            each = plan.stored_length if flat else plan.parts(step.step)  # entries of a stored row
            self._tell(self, len(next(iter(batch.values()), ())) // each, time.perf_counter() - asked)
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

    def supersede(self, message: str) -> None:
        """End the threads; who asks for another batch gets a ConfigError, unless the pass had come to its end."""
        if not self._closed and not self._exhausted:
            self._superseded = message
        self.close()

    def _begin(self) -> Prefetched[Any, _Made]:
        # Threads know the work alone, not this iterator, which is therefore collected when it is forgotten.
        reader, ahead = self._reader, self._reader.plan.options.prefetch
        self.groups = groups = reader.read_ahead()
        weakref.finalize(self, groups.release)
        planned = _planned(reader, groups, self._turn, self.position)
        made: Prefetched[Any, _Made] = Prefetched(planned, partial(_made, reader, groups), ahead=ahead)
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


def _planned(reader: HostReader, groups: DecodedAhead, turn: Turn, position: Position) -> Iterator[_Planned]:
    """Yield the steps of a turn, planned some at a time: the more, the longer it goes on."""
    plan, pending, ended = reader.plan, deque[_Planned](), False
    # Steps that two windows last: so far ahead it is known what is needed; some of each bucket at least.
    horizon = min(max(_LEAST, 2 * plan.window_steps, _EACH * len(plan.bucket_shapes)), _MOST)
    reach = _FIRST
    while True:
        if not ended and len(pending) < -(-reach // 2):
            steps = list[BatchStep]()
            while len(steps) < reach - len(pending) and not ended:
                step = plan.steps.next(position)
                ended = step is None
                if step is not None:
                    position = step.after
                    if step.step % turn.of == turn.first:
                        steps.append(step)
            if steps:
                pending.extend(_located(reader, groups, steps))
        if not pending:
            return
        yield pending.popleft()
        reach = min(horizon, reach * _FASTER)


def _located(reader: HostReader, groups: DecodedAhead, steps: list[BatchStep]) -> Iterator[_Planned]:
    plan, wanted = reader.plan, reader.wanted

    def read(size: int) -> Int64:  # all rows, where costs decide which of them are wanted here
        here = wanted(size)
        return here if plan.ranks is None or not len(here) else np.arange(size, dtype=np.int64)

    found = plan.rows(steps, read)
    all_here = all(len(wanted(step.size)) == step.size for step in steps)
    lengths = plan.lengths(steps, found if all_here else None)
    for step, rows, length in zip(steps, found, lengths, strict=True):
        number = groups.number(rows.source, rows.group)
        groups.plan(step.step, number)
        here, parts = wanted(step.size), plan.parts(step.step)
        if not plan.options.pad_last:
            here = here[: np.searchsorted(here, step.rows)]
        yield step, BatchShape(len(here) * parts, length // parts), number, rows.row


def _made(reader: HostReader, groups: DecodedAhead, planned: _Planned) -> _Made:
    step, shape, number, row = planned
    plan, assembler, numbers = reader.plan, cast("Any", reader.assembler), number.tolist()
    decoded, within = groups.take(step.step, dict.fromkeys(numbers)), plan.within(step.step)
    if plan.ranks is not None:
        costs = {each: cast("PackedGroup", group).attention(within) for each, group in decoded.items()}
        rows = zip(numbers, row.tolist(), strict=True)
        places = plan.dealt(step, np.array([costs[each][at] for each, at in rows], np.int64))
        wanted = reader.wanted(step.size)
        here = places[wanted[: np.searchsorted(wanted, len(places))]]
        number, row = number[here], row[here]
    cut = {} if within is None else {"within": within}
    return step, assembler.batch(shape, number, row, decoded.__getitem__, **cut)


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
