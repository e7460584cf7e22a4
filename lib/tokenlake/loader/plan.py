"""What each step holds, as a function: no file is opened to answer.

A *pass* is what one ``for`` loop over a loader delivers: some epochs of a dataset, laid end to end, or a mixture. The
next pass goes on with the next epochs; of a mixture that ends, each source is dealt anew, by another seed.

Which stored row comes at which place of which batch has three answers (stored, shuffled, mixed), all functions of the
seed and the place; asking for many rows at once is what makes them cheap.

A *step* is a batch that was delivered, counted from 0 over everything. The size of a batch is a function of its step
(batch-size warm-up); the place in the data is counted in rows, so that another size from some step on loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.options import BatchSizes, LoaderOptions, check_counts, whole_seed
from tokenlake.mixing.lanes import MOST_LANES, most_lanes
from tokenlake.mixing.shuffle import ORDER_VERSION, EpochOrder, StoredOrder
from tokenlake.mixing.stream import EpochStream, MixtureStream, RowStream, StreamRows
from tokenlake.ragged import Int64
from tokenlake.reading.version import StoredRows


@final
@dataclass(frozen=True, slots=True)
class Position:
    """Between two batches: how far delivery has come.

    Attributes:
        step: batches delivered, over everything.
        passes: passes over the data that ended.
        rows: rows delivered in this pass.
    """

    step: int
    passes: int
    rows: int


@final
@dataclass(frozen=True, slots=True)
class BatchStep:
    """One step.

    Attributes:
        step: its number.
        passes: of which pass over the data, from 0.
        start: rows of the pass before it.
        size: rows of a full batch of this step.
        rows: rows that it has: fewer than `size` only at the end of a pass.
    """

    step: int
    passes: int
    start: int
    size: int
    rows: int

    @property
    def after(self) -> Position:
        """Where delivery stands when it is delivered."""
        return Position(self.step + 1, self.passes, self.start + self.rows)


@final
@dataclass(frozen=True)
class PassSteps:
    """Which batches a pass has.

    Attributes:
        sizes: rows of each batch.
        rows: of a pass; None: it has no end.
        drop_last: leave out the last batch of a pass if it is not full.
    """

    sizes: BatchSizes
    rows: int | None
    drop_last: bool

    def next(self, position: Position) -> BatchStep | None:
        """Return the batch that comes next in this pass; None at its end."""
        size = self.sizes.at(position.step)
        left = size if self.rows is None else min(size, self.rows - position.rows)
        if left <= 0 or (left < size and self.drop_last):
            return None
        return BatchStep(position.step, position.passes, position.rows, size, left)

    def of_row(self, passes: int, first: int, row: int) -> BatchStep | None:
        """Return the batch that has a row of a pass that begins at step `first`; None if it never comes."""
        step = first + self.sizes.steps_in(first, row)
        start = self.sizes.rows_before(step) - self.sizes.rows_before(first)
        return self.next(Position(step, passes, start))

    def batches(self, first: int) -> int | None:
        """Return how many batches a pass has that begins at step `first`; None: no end."""
        if self.rows is None:
            return None
        full = self.sizes.steps_in(first, self.rows)
        taken = self.sizes.rows_before(first + full) - self.sizes.rows_before(first)
        return full + (taken < self.rows and not self.drop_last)

    def begin(self, passes: int) -> int:
        """Return the step that begins a pass; the end of the one before, if that never ends, is an error."""
        return self._walk(passes, None)[0]

    def position(self, step: int) -> Position:
        """Return where delivery stands before a step; the end of a pass is the beginning of the next."""
        first, passes = self._walk(None, step)
        return Position(step, passes, self.sizes.rows_before(step) - self.sizes.rows_before(first))

    def _walk(self, passes: int | None, step: int | None) -> tuple[int, int]:
        """The step that begins a pass, and its number: of that pass, or of the one that a step is in.

        Passes are gone through one by one until the sizes have stopped changing, then counted.
        """
        first = number = 0
        while batches := self.batches(first):
            left = (step - first) // batches if step is not None else (passes or 0) - number
            if left <= 0:
                break
            skipped = left if first >= self.sizes.points[-1][0] else 1
            first, number = first + skipped * batches, number + skipped
        return first, number


_LANES_BYTES: Final = 512 << 20  # that all lanes of a run on one host hold

RowsOfBatch = Callable[[int], Int64]
"""Size of a batch -> which of its rows are wanted here, ascending, int64[m]."""


@final
class BatchPlan:
    """Steps -> rows, of a dataset or a mixture.

    Args:
        data: what is read.
        options: of the run.

    Raises:
        ConfigError: the options do not fit the data.
    """

    def __init__(self, data: Dataset | Mixture, options: LoaderOptions) -> None:
        if not isinstance(data, Dataset | Mixture):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"data: got a {type(data).__name__}, must be a Dataset (tl.open) or a Mixture")
        self.data, self.options, self.sizes = data, options, options.sizes
        self.epochs, self.seed = options.epochs, whole_seed(options.seed)
        self.datasets = {data.split: data} if isinstance(data, Dataset) else data.datasets
        self._check()
        self.lanes = self._fitting(options.lanes) if options.lanes else self._choose_lanes()
        self.stream = lru_cache(2)(self._stream)
        if isinstance(data, Dataset) and not len(data):
            raise ConfigError("there are no rows to read")
        self.steps = PassSteps(self.sizes, self.stream(0).length, options.drop_last)
        if self.steps.batches(0) == 0:
            raise ConfigError(
                f"a pass has {self.steps.rows} rows, fewer than a batch of {self.sizes.first}, and drop_last leaves "
                "them out"
                if self.steps.rows
                else "there are no rows to read"
            )

    @property
    def sources(self) -> list[StoredRows]:
        """The rows of each source, in the order that :class:`StreamRows` numbers them by."""
        return [dataset.rows for dataset in self.datasets.values()]

    @property
    def window_rows(self) -> int:
        """Rows that are permuted together, in the mean, of the source where they are most; 1 where none are."""
        stream = self.stream(0)
        orders = stream.orders if isinstance(stream, MixtureStream) else [self._order]
        return max(order.window_rows for order in orders)

    @property
    def window_steps(self) -> int:
        """Steps that a window lasts, about."""
        return -(-self.window_rows // max(1, self.sizes.first // self.lanes))

    def next(self, position: Position) -> BatchStep | None:
        """Return the batch that comes next in this pass; None at its end."""
        return self.steps.next(position)

    def batch(self, step: int) -> BatchStep:
        """Return the batch of a step, in whichever pass it is."""
        batch = self.next(self.steps.position(step))
        if batch is None:  # position() says the end of a pass is the beginning of the next one
            raise ConfigError(f"there is no step {step}")
        return batch

    def rows(self, batches: Sequence[BatchStep], wanted: RowsOfBatch) -> list[StreamRows]:
        """Return where the wanted rows of batches of one pass are stored; padding rows are left out.

        Many batches at once cost little more than one.
        """
        each = [wanted(batch.size) for batch in batches]
        each = [rows[: np.searchsorted(rows, batch.rows)] for rows, batch in zip(each, batches, strict=True)]
        counts = [len(rows) for rows in each]
        start = np.repeat(np.array([batch.start for batch in batches], np.int64), counts)
        size = np.repeat(np.array([batch.size for batch in batches], np.int64), counts)
        found = self.stream(batches[0].passes).at(start, size, np.concatenate(each))
        ends = np.cumsum(counts)[:-1]
        parts = [np.split(column, ends) for column in found]
        return [StreamRows(*columns) for columns in zip(*parts, strict=True)]

    def places(
        self, passes: int, source: int, epoch: int, group: Int64, row: Int64
    ) -> list[tuple[BatchStep, int] | None]:
        """Return the batch, and the row of it, at which each stored row comes in an epoch of its source.

        The inverse of :meth:`rows`; None where it does not come in this pass.
        """
        stream, first = self.stream(passes), self.steps.begin(passes)
        lane, place = stream.place_of(source, epoch, group, row)
        there = np.flatnonzero(place >= 0)
        lane, place = lane[there], place[there]
        batches = [
            self.steps.of_row(passes, first, position)
            for position in stream.layout.beside(lane, place).tolist()
        ]
        start = np.array([0 if batch is None else batch.start for batch in batches], np.int64)
        size = np.array([self.lanes if batch is None else batch.size for batch in batches], np.int64)
        found: list[tuple[BatchStep, int] | None] = [None] * len(group)
        rows = stream.layout.row_in(start, size, lane, place).tolist()
        for index, batch, at in zip(there.tolist(), batches, rows, strict=True):
            # What a mixture is cut off, and a last batch that is left out, never comes.
            found[index] = (batch, at) if batch is not None and at < batch.rows else None
        return found

    def begin(self, passes: int) -> Position:
        """Return where a pass begins; ConfigError if the one before never ends."""
        check_counts(epoch=passes)
        if passes and self.steps.rows is None:
            raise ConfigError(f"epoch: got {passes}, but epoch 0 of this run never ends; expected 0")
        return Position(self.steps.begin(passes), passes, 0)

    def batches_in(self, passes: int) -> int | None:
        """Return how many batches a pass has; None: no end."""
        return self.steps.batches(self.steps.begin(passes))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What decides the batches, JSON-able."""
        options, mixture = self.options, self.data if isinstance(self.data, Mixture) else None
        return {
            "batch_size": self.sizes.to_json(),
            "seed": self.seed,
            "shuffle": options.shuffle,
            "epochs": options.epochs,
            "drop_last": options.drop_last,
            "lanes": self.lanes,
            "window": options.window,
            "order": ORDER_VERSION if mixture is None else mixture.order,
            "sources": {
                name: {"dataset": dataset.name, "manifest": dataset.manifest.sha256}
                for name, dataset in self.datasets.items()
            },
            "mixture": None if mixture is None else mixture.to_json(),
        }

    def _stream(self, passes: int) -> RowStream:
        """The order of a pass (as :attr:`stream`, which remembers)."""
        batch_size = self.sizes.first
        if isinstance(self.data, Mixture):
            return self.data.stream(lanes=self.lanes, batch_size=batch_size, seed=self.seed, passes=passes)
        first = passes * (self.epochs or 0)
        return EpochStream(self._order, epochs=self.epochs, first=first, batch_size=batch_size)

    @cached_property
    def _order(self) -> EpochOrder | StoredOrder:
        """Of a single dataset."""
        (rows,) = self.sources
        if not self.options.shuffle:
            return StoredOrder(rows.group_rows)
        return EpochOrder(rows.group_rows, lanes=self.lanes, seed=self.seed, window=self.options.window)

    def _choose_lanes(self) -> int:
        if isinstance(self.data, Mixture):
            return self.data.lanes(self.sizes.common)
        if not self.options.shuffle:
            return 1
        (rows,) = self.sources
        groups = np.array(rows.group_rows)
        held = 4 * int(groups.max(initial=1)) * (rows.manifest.seq_length or 1)
        most = max(MOST_LANES, min(most_lanes(self.sizes.common), _LANES_BYTES // held, len(groups)))
        most = min(most, len(self.data))
        return max((number for number in range(1, most + 1) if self.sizes.common % number == 0), default=1)

    def _fitting(self, lanes: int) -> int:
        """Return so many lanes, or fewer where a lane would be without rows and had to go on for ever."""
        rows = len(self.data) if isinstance(self.data, Dataset) else lanes
        if self.epochs is not None or rows >= lanes:
            return lanes
        return max(number for number in range(1, max(1, rows) + 1) if lanes % number == 0)

    def _check(self) -> None:
        options = self.options
        if isinstance(self.data, Mixture):
            self._check_mixture(self.data)
        elif not options.shuffle and (options.lanes or options.window != 1):
            raise ConfigError("lanes and window are of a shuffled order; leave them out with shuffle=False")

    def _check_mixture(self, mixture: Mixture) -> None:
        if not self.options.shuffle:
            raise ConfigError(
                "shuffle=False: a mixture has no stored order; mix with the flow `mix` and read what it wrote"
            )
        if self.epochs not in (1, None) or self.options.window != 1:
            raise ConfigError("epochs and window are of single datasets; give the mixture `stop` or `rows`")
        if len(self.sizes.points) > 1 and mixture.scheduler.changes and mixture.step_rows is None:
            raise ConfigError(
                "batch sizes and weights both change along the way: say by step_rows of the mixture how many "
                f"rows a step of the schedule has, e.g. step_rows={self.sizes.first}"
            )


def rows_of_host(host: tuple[int, int] | None, sizes: BatchSizes) -> RowsOfBatch:
    """Return which rows of a batch one of several hosts has: the index-th of equal parts.

    Args:
        host: (index, number of hosts); None: there is one.

    Raises:
        ConfigError: it is no such pair, or batches cannot be cut into so many parts.
    """
    pair: object = (0, 1) if host is None else host
    match pair:
        case (int(index), int(hosts)) if 0 <= index < hosts and not sizes.common % hosts:
            pass
        case _:
            raise ConfigError(
                f"host: got {host!r}, must be (index, number of hosts), with a number that divides {sizes.common}"
            )

    @lru_cache(8)
    def rows(size: int) -> Int64:
        return np.arange(size // hosts * index, size // hosts * (index + 1), dtype=np.int64)

    return rows
