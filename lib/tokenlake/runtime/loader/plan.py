"""What each step holds, as a function: no file is opened to answer.

A *pass* is what one ``for`` loop over a loader delivers: some epochs of a dataset, laid end to end, or a mixture. The
next pass goes on with the next epochs; of a mixture that ends, each source is dealt anew, by another seed.

Which stored row comes at which place of which batch has three answers (stored, shuffled, mixed), all functions of the
seed and the place; asking for many rows at once is what makes them cheap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.checks import whole_number
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.balance import dealt
from tokenlake.runtime.loader.bucketed_mixture import Part, divisor_of, mixture_parts
from tokenlake.runtime.loader.buckets import Bucket, BucketRows
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.length_index import LengthIndex
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderOptions
from tokenlake.runtime.loader.padding import BatchPadding
from tokenlake.runtime.loader.pass_steps import PassSteps
from tokenlake.runtime.loader.steps import BatchStep, Position, RowsOfBatch
from tokenlake.runtime.mixing.lane_count import MOST_LANES, most_lanes
from tokenlake.runtime.mixing.order import ORDER_VERSION, EpochOrder, StoredOrder
from tokenlake.runtime.mixing.streams import EpochStream, MixtureStream, RowStream, StreamRows
from tokenlake.runtime.reading.version import StoredRows

_LANES_BYTES: Final = 512 << 20  # that all lanes of a run on one host hold
MOST_COUNTED: Final = 1 << 50
"""Rows, or passes, up to which a run can be counted. The numbers that are made of them stay below 2^63."""
_FINENESS: Final = 8
"""Of buckets: their batches differ by less than an eighth in ids where lanes are so many fewer than rows."""


@final
class BatchPlan:
    """Steps -> rows, of a dataset or a mixture.

    Args:
        data: what is read.
        options: of the run.

    Attributes:
        padding: Padding of the batches; None where rows are packed.
        index: Lengths of the rows; None where rows are packed.
        ranks: Number of ranks that the rows of each batch are dealt to; None: rows keep their places.
        curriculum: Lengths into which rows are cut; None: rows stay whole.
        named: Names of the datasets, for messages.

    Raises:
        ConfigError: the options do not fit the data.
        IntegrityError: rows are of many lengths, and a file that holds some is damaged.
    """

    def __init__(self, data: Dataset | Mixture, options: LoaderOptions) -> None:
        if not isinstance(data, Dataset | Mixture):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"data: got a {type(data).__name__}, must be a Dataset (tl.open) or a Mixture")
        self.data = data
        self.options = options
        self.sizes = options.sizes
        self.epochs = options.epochs
        self.seed = options.seed.__index__()
        self.datasets = {data.split: data} if isinstance(data, Dataset) else data.datasets
        self.named = ", ".join(dataset.name for dataset in self.datasets.values())
        self.padding = self._padding()
        self.ranks = options.ranks
        self.curriculum = options.curriculum
        self._check()
        if options.lanes:
            rows = len(data) if isinstance(data, Dataset) else options.lanes
            self.lanes = self._lanes_for(options.lanes, rows)
        else:
            self.lanes = self._choose_lanes()
        self.stream = lru_cache(2)(self._stream)
        if isinstance(data, Dataset) and not len(data):
            raise ConfigError("there are no rows to read")
        self.index = None if self.padding is None else LengthIndex(self.sources, self.padding)
        self.steps = self._steps()
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
    def window_steps(self) -> int:
        """Steps that a window lasts, about: its rows in the mean, of the source where they are most, are permuted."""
        stream = self.stream(0)
        orders = stream.orders if isinstance(stream, MixtureStream) else [self._order]
        rows = self.steps.mean_rows if self.steps.bucketed else self.sizes.first
        return -(-max(order.window_rows for order in orders) // max(1, int(rows) // self.lanes))

    @property
    def bucket_shapes(self) -> tuple[tuple[int, int], ...]:
        """(rows, length) of the full batches of buckets; none where rows are not put into any."""
        return self.steps.shapes if self.steps.bucketed else ()

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """How many rows full batches have, each number once, ascending."""
        return tuple(sorted({rows for rows, _ in self.steps.shapes}))

    @property
    def stored_length(self) -> int:
        """Ids of each stored row; 0 where they are of many lengths."""
        return 0 if self.padding is not None else self.sources[0].manifest.width

    @property
    def batch_shapes(self) -> tuple[tuple[int, int], ...] | None:
        """(rows, ids of each) of full batches; None where that is the length of the longest row."""
        if self.bucket_shapes:
            return self.bucket_shapes
        if self.curriculum is not None:
            changes = {step for points in (self.sizes.points, self.curriculum.points) for step, _ in points}
            parts = {(self.sizes.at(step), self.parts(step)) for step in changes}
            return tuple((rows * each, self.stored_length // each) for rows, each in sorted(parts))
        length = self._length
        return None if length is None else tuple((size, length) for size in self.batch_sizes)

    @property
    def rows_alike(self) -> bool:
        """Whether the full batches of a step have the rows that are asked for, whichever bucket they are of."""
        if self.curriculum is not None and not self.curriculum.keep_shape:
            return False
        return self.padding is None or self.padding.buckets is None or self.padding.equal_rows

    @property
    def common_rows(self) -> int:
        """The largest number that divides the rows of all full batches."""
        return math.gcd(*self.batch_sizes)

    @property
    def _length(self) -> int | None:
        """How long all batches are; None: as long as their longest row, or bucket."""
        return self.stored_length if self.padding is None else self.padding.length

    def batch(self, step: int) -> BatchStep:
        """Return the batch of a step, in whichever pass it is."""
        batch = self.steps.next(self.steps.position(step))
        if batch is None:  # position() says the end of a pass is the beginning of the next one
            raise ConfigError(f"there is no step {step}")
        return batch

    def rows(self, batches: Sequence[BatchStep], wanted: RowsOfBatch) -> list[StreamRows]:
        """Return where the wanted rows of batches of one pass are stored; padding rows are left out.

        In the order of the stream: where ranks are balanced, :meth:`dealt` says where in the batch each comes.
        Many batches at once cost little more than one.
        """
        present: list[Int64] = []
        for batch in batches:
            wanted_rows = wanted(batch.size)
            present.append(wanted_rows[: np.searchsorted(wanted_rows, batch.rows)])
        return self.steps.locate(batches, present)

    def within(self, step: int) -> int | None:
        """Return at which multiples of ids segments of a step's rows are cut; None: they are not."""
        if self.curriculum is None:
            return None
        length = self.curriculum.at(step)
        return None if length == self.stored_length else length

    def parts(self, step: int) -> int:
        """Return into how many rows each row of a step is cut."""
        if self.curriculum is None or self.curriculum.keep_shape:
            return 1
        return self.stored_length // self.curriculum.at(step)

    def dealt(self, batch: BatchStep, costs: Int64) -> Int64:
        """Return which of its rows, as :meth:`rows` has them, is at each place of a batch that is delivered, int64[n].

        A last batch that is not full stays as it is.

        Args:
            batch: which one.
            costs: of all its rows, int64[n].
        """
        if self.ranks is None or batch.rows < batch.size:
            return np.arange(batch.rows, dtype=np.int64)
        return dealt(costs, self.ranks)

    def lengths(self, batches: Sequence[BatchStep], rows: Sequence[StreamRows] | None = None) -> list[int]:
        """Return how long batches of one pass are, on all hosts alike.

        Args:
            batches: of one pass.
            rows: all of their rows, where they are known.
        """
        if self.steps.bucketed:
            return [self.steps.length(batch) for batch in batches]
        if (length := self._length) is not None:
            return [length] * len(batches)
        assert self.index is not None and self.padding is not None
        if rows is None:
            rows = self.rows(batches, lambda size: np.arange(size, dtype=np.int64))
        return [self.padding.rounded(self.index.longest_of(each)) for each in rows]

    def position(self, step: int) -> Position:
        """Return where delivery stands before a step; the end of a pass is the beginning of the next.

        Raises:
            ConfigError: `step` is not a whole number, or is farther than rows can be counted.
        """
        rows = max(size for _, size in self.sizes.points)
        return self.steps.position(whole_number("step", step, 0, MOST_COUNTED // rows))

    def begin(self, passes: int) -> Position:
        """Return where a pass begins; ConfigError if the one before never ends."""
        passes = whole_number("epoch", passes, 0, MOST_COUNTED)
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
            **({} if self.padding is None else {"padding": self.padding.to_json()}),
            **({} if self.ranks is None else {"balance": {"ranks": self.ranks}}),
            **({} if self.curriculum is None else {"lengths": self.curriculum.to_json()}),
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
        return self._order_of(rows.group_rows, self.lanes)

    def _order_of(self, group_rows: Int64, lanes: int) -> EpochOrder | StoredOrder:
        if not self.options.shuffle:
            return StoredOrder(group_rows)
        return EpochOrder(group_rows, lanes=lanes, seed=self.seed, window=self.options.window)

    def _padding(self) -> BatchPadding | None:
        """How rows of many lengths are padded; None where they are packed."""
        if all(dataset.kind != "packed" for dataset in self.datasets.values()):
            return self.options.batch_padding
        if (asked := self.options.padding) is not None:
            raise ConfigError(
                f"padding: got {asked!r}, but {self.named} has packed rows, which are of one length; leave it out"
            )
        return None

    def _steps(self) -> PassSteps:
        """Return the batches of a pass: of rows as they come, or of buckets."""
        if self.padding is None or self.index is None or self.padding.buckets is None:
            return self._steps_without_buckets()
        return self._steps_of_buckets(self.padding, self.index)

    def _steps_without_buckets(self) -> PassSteps:
        sources = np.arange(len(self.datasets))
        all_rows = Bucket(0, self.sizes.first, 1.0, self.stream, sources)
        changes = [(step, (size,)) for step, size in self.sizes.points]
        return PassSteps(None, [all_rows], changes, sources, seed=self.seed, drop_last=self.options.drop_last)

    def _steps_of_buckets(self, padding: BatchPadding, index: LengthIndex) -> PassSteps:
        """Return the batches of buckets.

        1. The bounds are given, or chosen by the histogram of lengths. Buckets without rows are left out.
        2. A batch of a bucket has as many rows as keep the ids of a batch of the longest bucket, rounded down to a
           multiple of the lanes: ``floor(size * longest / length / lanes) * lanes``. With 8 rows of 1,024 ids and 4
           lanes, a bucket of 400 ids has batches of 20 rows. With `equal_rows` all buckets have `size` rows.
        3. Each bucket has a stream of its own, with lanes of its own.
        """
        bounds = padding.chosen(index.histogram)
        rows = BucketRows(index, bounds)
        changes: list[tuple[int, tuple[int, ...]]] = []
        for step, size in self.sizes.points:
            if padding.equal_rows:
                changes.append((step, (size,) * len(rows.bounds)))
                continue
            sizes = [size * bounds[-1] // length // self.lanes * self.lanes for length in rows.bounds]
            changes.append((step, tuple(sizes)))
        if isinstance(self.data, Mixture):
            parts = mixture_parts(
                self.data, rows.group_rows, index.first_groups, lanes=self.lanes, seed=self.seed
            )
        else:
            parts = [self._bucket(group_rows) for group_rows in rows.group_rows]
        _, first_sizes = changes[0]
        buckets: list[Bucket] = []
        for length, size, (weight, sources, stream) in zip(rows.bounds, first_sizes, parts, strict=True):
            buckets.append(Bucket(length, size, weight, partial(stream, size), sources))
        return PassSteps(
            rows, buckets, changes, index.first_groups, seed=self.seed, drop_last=self.options.drop_last
        )

    def _bucket(self, group_rows: Int64) -> Part:
        """Return the rows of a bucket of a single dataset: their number, its source, and its stream."""
        rows = int(group_rows.sum())
        order = self._order_of(group_rows, self._lanes_for(self.lanes, rows))

        def stream(size: int, passes: int) -> EpochStream:
            first = passes * (self.epochs or 0)
            return EpochStream(order, epochs=self.epochs, first=first, batch_size=size)

        return rows, np.zeros(1, np.int64), stream

    def _choose_lanes(self) -> int:
        """Return the number of lanes of a run that does not give one: a divisor of every batch size."""
        is_bucketed = self.padding is not None and self.padding.buckets is not None
        most_of_buckets = max(1, self.sizes.first // _FINENESS)
        if isinstance(self.data, Mixture):
            lanes = self.data.lanes(self.sizes.common)
            return divisor_of(lanes, most_of_buckets) if is_bucketed else lanes
        if not self.options.shuffle:
            return 1
        # More than MOST_LANES where there are many row groups, and those of all lanes fit into memory.
        (rows,) = self.sources
        groups = len(rows.group_rows)
        group_bytes = max(1, 4 * rows.ids // max(1, groups))
        fitting = min(most_lanes(self.sizes.common), _LANES_BYTES // group_bytes, groups)
        most = min(max(MOST_LANES, fitting), len(self.data))
        if is_bucketed:
            most = min(most, most_of_buckets)
        return divisor_of(self.sizes.common, most)

    def _lanes_for(self, lanes: int, rows: int) -> int:
        """Return so many lanes, or fewer where a lane would be without rows and had to go on for ever."""
        return lanes if self.epochs is not None or rows >= lanes else divisor_of(lanes, rows)

    def _check(self) -> None:
        """Raise ConfigError where options do not fit the data, or each other."""
        options, data = self.options, self.data
        packed_only = {
            "balance": "padding with buckets brings rows of like lengths together",
            "lengths": "padding with a max_length and `truncate` makes them shorter",
        }
        for option, instead in packed_only.items() if self.padding is not None else ():
            if (asked := getattr(options, option)) is not None:
                raise ConfigError(
                    f"{option}: got {asked!r}, which is of packed rows, and those of {self.named} are of many "
                    f"lengths; leave it out: {instead}"
                )
        if self.ranks is not None and self.sizes.common % self.ranks:
            raise ConfigError(
                f"balance.ranks: got {self.ranks}, which does not divide every batch size; expected a divisor of "
                f"{self.sizes.common}"
            )
        if self.curriculum is not None:
            self.curriculum.check(self.stored_length, self.named)
        if isinstance(data, Dataset):
            if not options.shuffle and (options.lanes or options.window != 1):
                raise ConfigError(
                    "lanes and window are of a shuffled order; leave them out with shuffle=False"
                )
            return
        if not options.shuffle:
            raise ConfigError(
                "shuffle=False: a mixture has no stored order; mix with the flow `mix` and read what it wrote"
            )
        if self.epochs not in (1, None) or options.window != 1:
            raise ConfigError("epochs and window are of single datasets; give the mixture `stop` or `rows`")
        if len(self.sizes.points) > 1 and data.scheduler.changes and data.step_rows is None:
            raise ConfigError(
                "batch sizes and weights both change along the way: say by step_rows of the mixture how many "
                f"rows a step of the schedule has, e.g. step_rows={self.sizes.first}"
            )
