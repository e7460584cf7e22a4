"""What each step holds, as a function: no file is opened to answer.

A *pass* is what one ``for`` loop over a loader delivers: some epochs of a dataset, laid end to end, or a mixture. The
next pass goes on with the next epochs; of a mixture that ends, each source is dealt anew, by another seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.steps import Batch, BatchSizes, Place, Steps, check_switches, whole_seed
from tokenlake.loader.stream import MixedOrder, ShuffledOrder, StoredOrder, Stream
from tokenlake.mixing.stream import StreamRows
from tokenlake.order import ORDER_VERSION, EpochOrder
from tokenlake.order.random import Int64
from tokenlake.reading import StoredRows

MOST_LANES: Final = 64

Wanted = Callable[[int], Int64]
"""Size of a batch -> which of its rows are wanted here, ascending, int64[m]."""


@final
class BatchPlan:
    """Steps -> rows, of a dataset or a mixture.

    Args:
        data: what is read.
        sizes: rows of each batch.
        seed: of the order.
        shuffle: False: rows as they are stored (of a dataset only).
        epochs: of a pass; None: no end. Of a mixture 1 or None: where it ends is its own matter.
        drop_last: leave out the last batch of a pass if it is not full.
        lanes: into how many stretches an epoch is cut; fewer where data without end has fewer rows. None: the largest
            number up to 64 that divides all batch sizes (of a mixture, as many as the flow ``mix`` takes).
        window: row groups whose rows are permuted together.

    Raises:
        ConfigError: any of them cannot be.
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        sizes: BatchSizes,
        *,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = 1,
        drop_last: bool = False,
        lanes: int | None = None,
        window: int = 1,
    ) -> None:
        check_switches(shuffle=shuffle, drop_last=drop_last)
        self.data, self.sizes, self.seed, self.shuffle = data, sizes, whole_seed(seed), shuffle
        self.epochs, self.drop_last = epochs, drop_last
        self.datasets = {data.split: data} if isinstance(data, Dataset) else data.datasets
        self._check(lanes, window)
        self.lanes = self._fitting(lanes) if lanes else self._choose_lanes()
        self._window = window
        self.stream = lru_cache(2)(self._stream)
        if isinstance(data, Dataset) and not len(data):
            raise ConfigError("there are no rows to read")
        self.steps = Steps(sizes, self.stream(0).rows, drop_last)
        if self.steps.batches(0) == 0:
            raise ConfigError(
                f"a pass has {self.steps.rows} rows, fewer than a batch of {sizes.first}, and drop_last leaves them out"
                if self.steps.rows
                else "there are no rows to read"
            )

    @property
    def sources(self) -> list[StoredRows]:
        """The rows of each source, in the order that :class:`StreamRows` numbers them by."""
        return [dataset.rows for dataset in self.datasets.values()]

    @property
    def names(self) -> list[str]:
        """The sources by name: of a mixture its own names, of a dataset that of its split."""
        return list(self.datasets)

    @property
    def window_rows(self) -> int:
        """Rows that are permuted together, in the mean, of the source where they are most; 1 where none are."""
        if not self.shuffle:
            return 1
        stream = self.stream(0)
        orders = stream.stream.orders if isinstance(stream, MixedOrder) else [self._order]
        return max(order.window_rows for order in orders)

    @property
    def window_steps(self) -> int:
        """Steps that a window lasts, about."""
        return -(-self.window_rows // max(1, self.sizes.first // self.lanes))

    def next(self, place: Place) -> Batch | None:
        """Return the batch that comes next in this pass; None at its end."""
        return self.steps.next(place)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, in whichever pass it is."""
        batch = self.next(self.steps.place(step))
        if batch is None:  # steps.place() says the end of a pass is the beginning of the next one
            raise ConfigError(f"there is no step {step}")
        return batch

    def rows(self, batches: Sequence[Batch], wanted: Wanted) -> list[StreamRows]:
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
    ) -> list[tuple[Batch, int] | None]:
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
        found: list[tuple[Batch, int] | None] = [None] * len(group)
        rows = stream.layout.row_in(start, size, lane, place).tolist()
        for index, batch, at in zip(there.tolist(), batches, rows, strict=True):
            # What a mixture is cut off, and a last batch that is left out, never comes.
            found[index] = (batch, at) if batch is not None and at < batch.rows else None
        return found

    def identity(self) -> dict[str, Any]:
        """Return what decides the order, JSON-able; batch sizes and the data apart."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epochs": self.epochs,
            "drop_last": self.drop_last,
            "lanes": self.lanes,
            "window": self._window,
            "order": self.data.order if isinstance(self.data, Mixture) else ORDER_VERSION,
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
        if not self.shuffle:
            return StoredOrder(self.data.rows, epochs=self.epochs, first=first)
        return ShuffledOrder(self._order, epochs=self.epochs, first=first, batch_size=self.sizes.first)

    @cached_property
    def _order(self) -> EpochOrder:
        """Of a single dataset."""
        (rows,) = self.sources
        return EpochOrder(rows.group_rows, lanes=self.lanes, seed=self.seed, window=self._window)

    def _choose_lanes(self) -> int:
        if isinstance(self.data, Mixture):
            return self.data.lanes(self.sizes.common)
        if not self.shuffle:
            return 1
        most = min(MOST_LANES, len(self.data))
        return max((number for number in range(1, most + 1) if self.sizes.common % number == 0), default=1)

    def _fitting(self, lanes: int) -> int:
        """Return so many lanes, or fewer where a lane would be without rows and had to go on for ever."""
        rows = len(self.data) if isinstance(self.data, Dataset) else lanes
        if self.epochs is not None or rows >= lanes:
            return lanes
        return max(number for number in range(1, max(1, rows) + 1) if lanes % number == 0)

    def _check(self, lanes: int | None, window: int) -> None:
        for name, value in (("epochs", self.epochs), ("lanes", lanes), ("window", window)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name}: got {value!r}, must be a whole number from 1 on")
        if lanes is not None and self.sizes.common % lanes:
            raise ConfigError(
                f"lanes: got {lanes}, which does not divide every batch size; expected a divisor of {self.sizes.common}"
            )
        if isinstance(self.data, Mixture):
            self._check_mixture(self.data, window)
        elif not self.shuffle and (lanes or window != 1):
            raise ConfigError("lanes and window are of a shuffled order; leave them out with shuffle=False")

    def _check_mixture(self, mixture: Mixture, window: int) -> None:
        if not self.shuffle:
            raise ConfigError(
                "shuffle=False: a mixture has no stored order; mix with the flow `mix` and read what it wrote"
            )
        if self.epochs not in (1, None) or window != 1:
            raise ConfigError("epochs and window are of single datasets; give the mixture `stop` or `rows`")
        if len(self.sizes.points) > 1 and mixture.scheduler.changes and mixture.step_rows is None:
            raise ConfigError(
                "batch sizes and weights both change along the way: say by step_rows of the mixture how many "
                f"rows a step of the schedule has, e.g. step_rows={self.sizes.first}"
            )
