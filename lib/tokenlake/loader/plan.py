"""What each step holds, as a function: no file is opened to answer.

A *pass* is what one ``for`` loop over a loader delivers: some epochs of a dataset, laid end to end, or a mixture. The
next pass goes on with the next epochs; of a mixture that ends, each source is dealt anew, by another seed.

Which stored row comes at which place of which batch has three answers (stored, shuffled, mixed), all functions of the
seed and the place; asking for many rows at once is what makes them cheap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.options import LoaderOptions
from tokenlake.loader.steps import BatchSizes, BatchStep, PassSteps, Position, check_counts, whole_seed
from tokenlake.mixing.lanes import LaneLayout
from tokenlake.mixing.shuffle import ORDER_VERSION, EpochOrder
from tokenlake.mixing.stream import MixtureStream, StreamRows
from tokenlake.ragged import Int64
from tokenlake.reading.version import StoredRows


class Stream(ABC):
    """The rows of a pass.

    Attributes:
        rows: how many; None: without end.
        layout: how its lanes make batches, whose sizes the number of lanes must divide.
    """

    rows: int | None
    layout: LaneLayout

    @property
    def lanes(self) -> int:
        """Every batch size must be divisible by it."""
        return self.layout.lanes

    @abstractmethod
    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        """Return where rows of batches are stored.

        Args:
            start: rows of the pass before the batch, int64[n].
            size: rows of the full batch, int64[n].
            row: in the batch, int64[n].

        Returns:
            int64[n] each, in the order asked for.

        Raises:
            ConfigError: there is no such row.
        """

    @abstractmethod
    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place at which each stored row comes in an epoch of its source, int64[n] both.

        A place of -1: it never does. With the layout, the inverse of :meth:`at`.
        """

    @abstractmethod
    def epochs(self, source: int, rows: int) -> range:
        """Return the epochs of a source that may come in the first `rows` rows of the pass, full batches."""


@final
class StoredOrder(Stream):
    """Rows as they are stored, epoch after epoch.

    Args:
        stored: the rows.
        epochs: of the pass; None: without end.
        first: number of its first epoch.
    """

    def __init__(self, stored: StoredRows, *, epochs: int | None, first: int = 0) -> None:
        self._stored, self._first = stored, first
        self.rows = None if epochs is None else epochs * stored.rows
        self.layout = LaneLayout(None if self.rows is None else np.array([self.rows]), 1, 1)

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        epoch, index = np.divmod(start + row, self._stored.rows)
        group, inside = self._stored.group_of(index)
        return StreamRows(np.zeros_like(epoch), self._first + epoch, group, inside)

    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        first = np.array([self._stored.row_of(int(each)) for each in group], np.int64)
        place = (epoch - self._first) * self._stored.rows + first + row
        return np.zeros_like(place), _inside(place, self.rows)

    def epochs(self, source: int, rows: int) -> range:
        last = -(-rows // self._stored.rows) if self.rows is None else self.rows // self._stored.rows
        return range(self._first, self._first + last)


@final
class ShuffledOrder(Stream):
    """Rows of one dataset by :class:`EpochOrder`; each lane goes through its epochs by itself.

    Args:
        order: of the dataset.
        epochs: of the pass; None: without end.
        first: number of its first epoch.
        batch_size: for :meth:`positions_of`.
    """

    def __init__(self, order: EpochOrder, *, epochs: int | None, first: int = 0, batch_size: int) -> None:
        self._order, self._first, self._each = order, first, order.lengths
        self._epochs = epochs
        self.rows = None if epochs is None else epochs * order.rows
        lengths = None if epochs is None else epochs * self._each
        self.layout = LaneLayout(lengths, order.lanes, batch_size)

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        lane, place = self.layout.locate_in(start, size, row)
        each = self._each[lane]
        turn = place // each
        epoch = self._first + turn
        group, inside = self._order.at(epoch, lane, place - turn * each)
        return StreamRows(np.zeros_like(group), epoch, group, inside)

    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        lane, place = self._order.place_of(epoch, group, row)
        place = place + (epoch - self._first) * self._each[lane]
        lengths = self.layout.lengths
        return lane, _inside(place, None if lengths is None else lengths[lane])

    def epochs(self, source: int, rows: int) -> range:
        shortest = max(1, int(self._each.min()))
        last = -(-rows // (shortest * self.lanes)) if self._epochs is None else self._epochs
        return range(self._first, self._first + last)


@final
class MixedOrder(Stream):
    """Rows of a mixture.

    Args:
        stream: its order, uncut.
        rows: where it is cut; None: not.
    """

    def __init__(self, stream: MixtureStream, *, rows: int | None = None) -> None:
        self._stream, self.layout = stream, stream.mixture.layout
        self.rows = stream.mixture.rows if rows is None else rows

    @property
    def stream(self) -> MixtureStream:
        """Where rows of the mixture lie."""
        return self._stream

    def at(self, start: Int64, size: Int64, row: Int64) -> StreamRows:
        lane, place = self.layout.locate_in(start, size, row)
        return self._stream.places(lane, place)

    def places_of(self, source: int, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        return self._stream.place_of(source, epoch, group, row)

    def epochs(self, source: int, rows: int) -> range:
        mixture, order = self._stream.mixture, self._stream.orders[source]
        most = 0
        for lane in range(self.lanes):
            end = mixture.lane_rows(lane)
            place = -(-rows // self.lanes)
            drawn = int(mixture.drawn(lane, place if end is None else min(place, end))[source])
            most = max(most, -(-drawn // max(1, order.lane_rows(lane))))
        return range(most)


def _inside(place: Int64, end: Int64 | int | None) -> Int64:
    outside = place < 0 if end is None else (place < 0) | (place >= end)
    return np.where(outside, -1, place)


MOST_LANES: Final = 64

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
        self.steps = PassSteps(self.sizes, self.stream(0).rows, options.drop_last)
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
        if not self.options.shuffle:
            return 1
        stream = self.stream(0)
        orders = stream.stream.orders if isinstance(stream, MixedOrder) else [self._order]
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
        lane, place = stream.places_of(source, epoch, group, row)
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

    def _stream(self, passes: int) -> Stream:
        """The order of a pass (as :attr:`stream`, which remembers)."""
        if isinstance(self.data, Mixture):
            return MixedOrder(
                self.data.stream(
                    lanes=self.lanes, batch_size=self.sizes.first, seed=self.seed, passes=passes
                ),
                rows=self.data.rows,
            )
        first = passes * (self.epochs or 0)
        if not self.options.shuffle:
            return StoredOrder(self.data.rows, epochs=self.epochs, first=first)
        return ShuffledOrder(self._order, epochs=self.epochs, first=first, batch_size=self.sizes.first)

    @cached_property
    def _order(self) -> EpochOrder:
        """Of a single dataset."""
        (rows,) = self.sources
        return EpochOrder(rows.group_rows, lanes=self.lanes, seed=self.seed, window=self.options.window)

    def _choose_lanes(self) -> int:
        if isinstance(self.data, Mixture):
            return self.data.lanes(self.sizes.common)
        if not self.options.shuffle:
            return 1
        most = min(MOST_LANES, len(self.data))
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
