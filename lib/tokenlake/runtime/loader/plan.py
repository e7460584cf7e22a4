"""Plan of a run: the rows of each step, as a function of the step.

No file is opened to compute them.

One ``for`` loop over a loader delivers a *pass*: some epochs of a dataset, laid end to
end, or a mixture. The next pass has the next epochs. In the next pass of a mixture that
ends, the rows of each source are dealt again, with another seed.

The rows of a step are located in two steps, both functions of the seed and the
position:

1. *Batch to positions* (:mod:`tokenlake.runtime.loader.pass_steps`): the bucket of the
   step's batch, and the positions of its rows in the stream of that bucket. Without
   buckets there is one stream, of all rows.
2. *Position to stored row* (:mod:`tokenlake.runtime.mixing.streams`): source, epoch,
   row group and row. There are three kinds of streams: rows in stored order, shuffled
   rows of one dataset, and rows of a mixture.

Locating many rows in one call costs little more than locating one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from tokenlake.runtime.loader.length_curriculum import LengthCurriculum
from tokenlake.runtime.loader.length_index import LengthIndex
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderOptions
from tokenlake.runtime.loader.padding import BatchPadding
from tokenlake.runtime.loader.pass_steps import PassSteps
from tokenlake.runtime.loader.steps import BatchStep, Position, RowsOfBatch
from tokenlake.runtime.mixing.lane_count import MOST_LANES, most_lanes
from tokenlake.runtime.mixing.order import ORDER_VERSION, StoredOrder
from tokenlake.runtime.mixing.order_form import (
    ONE_BY_ONE,
    OrderForm,
    RowOrder,
    SourceMemory,
    default_forms,
)
from tokenlake.runtime.mixing.streams import (
    EpochStream,
    MixtureStream,
    RowStream,
    StreamRows,
)
from tokenlake.runtime.reading.version import StoredRows

_LANES_BYTES: Final = 512 << 20
"""Memory for the row groups of all lanes, if a run has one host. Each lane keeps one
decoded.
"""

MOST_COUNTED: Final = 1 << 50
"""Largest number of rows, or passes, that a run can count. Numbers computed from
them stay below 2^63.
"""

_LANES_OF_BUCKET: Final = 8
"""Rows of a bucket's batch for each lane, at least. The rows of a batch are rounded
down to a multiple of the lanes, so that the batches of two buckets differ by less than
an eighth in ids.
"""


@final
class BatchPlan:
    """Rows of each step of a dataset or a mixture.

    Args:
        data: Dataset or mixture to read.
        options: Options of the run.
        forms: Form of the order of each dataset, of a run that is resumed. Datasets
            that it does not name have the form of the options.

    Attributes:
        data: Dataset or mixture.
        options: Options of the run.
        sizes: Rows of the global batch of each step.
        epochs: Epochs of a pass; None: a pass never ends.
        seed: Random seed of the order.
        datasets: Datasets by their names: those of a mixture, else the split's.
        named: Names of the datasets, for messages.
        padding: Padding of the batches; None: rows are packed.
        index: Lengths of the rows; None: rows are packed.
        ranks: Number of ranks that the rows of each batch are dealt to; None: rows keep
            their places.
        curriculum: Lengths into which rows are cut; None: rows stay whole.
        lanes: Number of lanes of the order.
        forms: Form of the shuffled order of each dataset, by its name; empty for the
            stored order.
        stream: Function of the number of a pass that returns the order of its rows.
        steps: Batches of each pass.

    Raises:
        ConfigError: The options do not fit the data.
        IntegrityError: Rows have many lengths, and a file that holds some is damaged.
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        options: LoaderOptions,
        forms: Mapping[str, OrderForm] | None = None,
    ) -> None:
        if not isinstance(data, Dataset | Mixture):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"data: got a {type(data).__name__}, must be a Dataset (tl.open) or a Mixture"
            )
        self.data = data
        self.options = options
        self.sizes = options.sizes
        self.epochs = options.epochs
        self.seed = options.seed.__index__()
        self.datasets = (
            {data.split: data} if isinstance(data, Dataset) else data.datasets
        )
        self.named = ", ".join(dataset.name for dataset in self.datasets.values())

        # Check that the options fit the data.
        self.padding = self._padding()
        self.ranks = options.ranks
        self.curriculum = options.curriculum
        self._check_packed_options()
        has_form = options.order_form not in (None, ONE_BY_ONE)
        has_shuffle_option = options.lanes is not None or has_form
        if isinstance(data, Mixture):
            self._check_mixture_options(data)
        elif not options.shuffle and has_shuffle_option:
            raise ConfigError(
                "lanes, window and interleave are of a shuffled order; leave them out with shuffle=False"
            )

        # The order of the rows.
        if options.lanes:
            rows = len(data) if isinstance(data, Dataset) else options.lanes
            self.lanes = self._lanes_for(options.lanes, rows)
        else:
            self.lanes = self._choose_lanes()
        self.stream = lru_cache(2)(self._stream)

        # The batches of a pass.
        if isinstance(data, Dataset) and not len(data):
            raise ConfigError("there are no rows to read")
        self.index = (
            None if self.padding is None else LengthIndex(self.sources, self.padding)
        )
        self.forms = self._forms(forms or {})
        self.steps = self._steps()
        if self.steps.batches(0) == 0:
            if not self.steps.rows:
                raise ConfigError("there are no rows to read")
            raise ConfigError(
                f"a pass has {self.steps.rows} rows, fewer than a batch of {self.sizes.first}, and drop_last leaves "
                "them out"
            )

    @property
    def sources(self) -> list[StoredRows]:
        """Rows of each source, as :class:`StreamRows` numbers the sources."""
        return [dataset.rows for dataset in self.datasets.values()]

    @property
    def window_steps(self) -> int:
        """Number of steps that a shuffle window lasts, about.

        It is the mean number of rows in a window, of the source where it is largest,
        per row of a lane in a batch.
        """
        # A mixture has a window in each source; the largest decides how long row groups
        # are kept.
        stream = self.stream(0)
        if isinstance(stream, MixtureStream):
            window_rows = max(order.window_rows for order in stream.orders)
        else:
            window_rows = self._order.window_rows
        batch_rows: float = self.sizes.first
        if self.steps.bucketed:
            batch_rows = self.steps.mean_rows
        lane_rows = max(1, int(batch_rows) // self.lanes)
        return -(-window_rows // lane_rows)

    @property
    def bucket_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes (rows, length) of the full batches of buckets.

        Without buckets there are none.
        """
        return self.steps.shapes if self.steps.bucketed else ()

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Numbers of rows of full batches, each once, ascending."""
        return tuple(sorted({rows for rows, _ in self.steps.shapes}))

    @property
    def stored_length(self) -> int:
        """Number of ids of each stored row; 0 if rows have many lengths."""
        return 0 if self.padding is not None else self.sources[0].manifest.width

    @property
    def batch_shapes(self) -> tuple[tuple[int, int], ...] | None:
        """Shapes (rows, length) of full batches.

        None if the length is that of the longest row.
        """
        # A batch of a bucket, a batch of cut rows, or a batch of rows of one length.
        if self.bucket_shapes:
            return self.bucket_shapes
        if self.curriculum is not None:
            return self._curriculum_shapes(self.curriculum)
        length = self._constant_length
        if length is None:
            return None
        return tuple((rows, length) for rows in self.batch_sizes)

    def _curriculum_shapes(
        self, curriculum: LengthCurriculum
    ) -> tuple[tuple[int, int], ...]:
        """Return the shapes of full batches if rows are cut."""
        # Rows of a batch and parts of a row, at all steps at which one of them changes.
        changes = {step for step, _ in self.sizes.points}
        changes |= {step for step, _ in curriculum.points}
        rows_and_parts = {(self.sizes.at(step), self.parts(step)) for step in changes}
        shapes: list[tuple[int, int]] = []
        for rows, parts in sorted(rows_and_parts):
            shapes.append((rows * parts, self.stored_length // parts))
        return tuple(shapes)

    @property
    def rows_alike(self) -> bool:
        """Whether full batches of every bucket have the requested number of rows."""
        # Cut rows are more rows of fewer ids.
        if self.curriculum is not None and not self.curriculum.keep_shape:
            return False
        return (
            self.padding is None
            or self.padding.buckets is None
            or self.padding.equal_rows
        )

    @property
    def common_rows(self) -> int:
        """Greatest common divisor of the numbers of rows of all full batches."""
        return math.gcd(*self.batch_sizes)

    @property
    def _constant_length(self) -> int | None:
        """Length of all batches; None: it is not the same for all.

        A batch then has the length of its longest row, or of its bucket.
        """
        return self.stored_length if self.padding is None else self.padding.length

    def batch(self, step: int) -> BatchStep:
        """Return the batch of a step, in whichever pass it is."""
        batch = self.steps.next(self.steps.position(step))
        # position() returns the end of a pass as the beginning of the next one.
        if batch is None:
            raise ConfigError(f"there is no step {step}")
        return batch

    def rows(
        self, batches: Sequence[BatchStep], wanted: RowsOfBatch
    ) -> list[StreamRows]:
        """Return the places of rows of batches, in the order of the stream.

        Rows of padding are left out. If ranks are balanced, :meth:`dealt` returns the
        place in the batch of each row. Many batches at once cost little more than one.

        Args:
            batches: Batches of one pass.
            wanted: Function that returns the rows of a batch to locate.
        """
        present: list[Int64] = []
        for batch in batches:
            wanted_rows = wanted(batch.size)
            present.append(wanted_rows[: np.searchsorted(wanted_rows, batch.rows)])
        return self.steps.locate(batches, present)

    def within(self, step: int) -> int | None:
        """Return the length at whose multiples the segments of a step end.

        It is a number of ids; None: no cuts.
        """
        if self.curriculum is None:
            return None
        # At full length there is no cut, and segments stay as they are stored.
        length = self.curriculum.at(step)
        return None if length == self.stored_length else length

    def parts(self, step: int) -> int:
        """Return the number of rows into which each row of a step is cut."""
        if self.curriculum is None or self.curriculum.keep_shape:
            return 1
        return self.stored_length // self.curriculum.at(step)

    def dealt(self, batch: BatchStep, costs: Int64) -> Int64:
        """Return the row at each place of a delivered batch, int64[n].

        Rows are numbered as :meth:`rows` returns them. A last batch that is not full
        keeps its order.

        Args:
            batch: Batch.
            costs: Cost of each of its rows, int64[n].
        """
        # The rows of a last batch need not divide among the ranks.
        if self.ranks is None or batch.rows < batch.size:
            return np.arange(batch.rows, dtype=np.int64)
        return dealt(costs, self.ranks)

    def lengths(
        self, batches: Sequence[BatchStep], rows: Sequence[StreamRows] | None = None
    ) -> list[int]:
        """Return the length of each of some batches, which is the same on all hosts.

        Args:
            batches: Batches of one pass.
            rows: Places of all of their rows; None: they are located here, if they are
                needed.
        """
        if self.steps.bucketed:
            return [self.steps.length(batch) for batch in batches]
        if self._constant_length is not None:
            return [self._constant_length] * len(batches)
        # The length follows from the longest row of the global batch, so that all hosts
        # agree.
        assert self.index is not None and self.padding is not None
        if rows is None:
            rows = self.rows(batches, lambda size: np.arange(size, dtype=np.int64))
        return [
            self.padding.rounded(self.index.longest_of(batch_rows))
            for batch_rows in rows
        ]

    def position(self, step: int) -> Position:
        """Return the position before a step.

        The end of a pass is the beginning of the next.

        Raises:
            ConfigError: `step` is not a whole number, or is too large to count rows.
        """
        # The largest batch bounds the rows that this many steps can deliver.
        rows = max(size for _, size in self.sizes.points)
        return self.steps.position(whole_number("step", step, 0, MOST_COUNTED // rows))

    def begin(self, passes: int) -> Position:
        """Return the position at which a pass begins.

        If the pass before it never ends, ConfigError is raised.
        """
        # An endless pass has no successor to begin.
        passes = whole_number("epoch", passes, 0, MOST_COUNTED)
        if passes and self.steps.rows is None:
            raise ConfigError(
                f"epoch: got {passes}, but epoch 0 of this run never ends; expected 0"
            )
        return Position(self.steps.begin(passes), passes, 0)

    def batches_in(self, passes: int) -> int | None:
        """Return the number of batches of a pass; None: it never ends."""
        return self.steps.batches(self.steps.begin(passes))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the batches, JSON-able.

        Equal identities have the same batches.
        """
        # Datasets are named by the hash of their manifest: a copy in another place
        # continues, a rebuilt version does not.
        mixture = self.data if isinstance(self.data, Mixture) else None
        sources: dict[str, dict[str, Any]] = {}
        for source_name, dataset in self.datasets.items():
            sources[source_name] = {
                "dataset": dataset.name,
                "manifest": dataset.manifest.sha256,
            }
            form = self.forms.get(source_name, ONE_BY_ONE)
            if mixture is not None and form != ONE_BY_ONE:
                sources[source_name] |= form.to_json()
        identity: dict[str, Any] = {
            "batch_size": self.sizes.to_json(),
            "seed": self.seed,
            "shuffle": self.options.shuffle,
            "epochs": self.options.epochs,
            "drop_last": self.options.drop_last,
            "lanes": self.lanes,
            "window": 1,
            "order": ORDER_VERSION if mixture is None else mixture.order,
            "sources": sources,
            "mixture": None if mixture is None else mixture.to_json(),
        }
        # Facts that not every run has.
        if mixture is None:
            for form in self.forms.values():
                identity |= form.to_json()
        if self.padding is not None:
            identity["padding"] = self.padding.to_json()
        if self.ranks is not None:
            identity["balance"] = {"ranks": self.ranks}
        if self.curriculum is not None:
            identity["lengths"] = self.curriculum.to_json()
        return identity

    # -- order

    def _stream(self, passes: int) -> RowStream:
        """Return the order of a pass (:attr:`stream` caches it)."""
        batch_size = self.sizes.first
        if isinstance(self.data, Mixture):
            return self.data.stream(
                self.forms,
                lanes=self.lanes,
                batch_size=batch_size,
                seed=self.seed,
                passes=passes,
            )
        # A pass of e epochs begins with epoch `passes * e`: no epoch comes twice.
        first_epoch = passes * (self.epochs or 0)
        return EpochStream(
            self._order, epochs=self.epochs, first=first_epoch, batch_size=batch_size
        )

    @cached_property
    def _order(self) -> RowOrder:
        """Order of the epochs of a single dataset."""
        (rows,) = self.sources
        return self._order_of(rows.group_rows, self.lanes)

    def _order_of(self, group_rows: Int64, lanes: int) -> RowOrder:
        """Return the order of the epochs of a dataset, or of its rows in a bucket.

        Args:
            group_rows: Number of rows of each row group, int64[G].
            lanes: Number of lanes.
        """
        for form in self.forms.values():
            return form.order(group_rows, lanes=lanes, seed=self.seed)
        return StoredOrder(group_rows)

    def _forms(self, resumed: Mapping[str, OrderForm]) -> dict[str, OrderForm]:
        """Return the form of each dataset: as requested, resumed, or chosen.

        They are chosen from the memory.

        Args:
            resumed: Forms of a run that is resumed, by the names of its datasets.

        Raises:
            ConfigError: A lane would have more strands than rows.
        """
        if not self.options.shuffle:
            return {}
        # Requested options win over those of a state, which was checked against them
        # before.
        forms = self._default_forms()
        requested = self.options.order_form
        for name in forms:
            if requested is not None:
                forms[name] = self._fitted(requested, name)
            elif name in resumed:
                forms[name] = resumed[name]
                self._check_strands(forms[name], name)
        return forms

    def _default_forms(self) -> dict[str, OrderForm]:
        """Return the forms that keep as many row groups open as fit into memory."""
        # Each bucket is a stream with windows of its own, among which the memory is
        # divided.
        buckets = 1
        if (
            self.padding is not None
            and self.padding.buckets is not None
            and self.index is not None
        ):
            buckets = len(self.padding.chosen(self.index.histogram))
        if isinstance(self.data, Mixture):
            sources = self.data.memory()
        else:
            (rows,) = self.sources
            memory = SourceMemory(rows.rows, len(rows.group_rows), rows.decoded_bytes)
            sources = {self.data.split: memory}
        return default_forms(
            sources,
            lanes=self.lanes,
            streams=buckets,
            max_bytes=self.options.max_bytes,
        )

    def _fitted(self, form: OrderForm, name: str) -> OrderForm:
        """Return a requested form for a dataset, checked.

        A small source of a mixture has as many strands as its lanes have rows.
        """
        if isinstance(self.data, Mixture) and form.interleave is not None:
            most_strands = max(1, self.data.sizes[name].rows // self.lanes)
            return OrderForm(interleave=min(form.interleave, most_strands))
        self._check_strands(form, name)
        return form

    def _check_strands(self, form: OrderForm, name: str) -> None:
        """Raise ConfigError if a lane would have more strands than rows."""
        lane_rows = len(self.datasets[name]) // self.lanes
        most_strands = max(1, lane_rows)
        if form.interleave is not None and form.interleave > most_strands:
            raise ConfigError(
                f"interleave: got {form.interleave}, but a lane has {lane_rows} rows; expected at most "
                f"{most_strands}"
            )

    def _choose_lanes(self) -> int:
        """Return the number of lanes of a run that does not give one.

        It divides every batch size.
        """
        is_bucketed = self.padding is not None and self.padding.buckets is not None
        # A bucket's batch is a multiple of the lanes: few rows a lane would round it
        # far down.
        most_of_buckets = max(1, self.sizes.first // _LANES_OF_BUCKET)
        if isinstance(self.data, Mixture):
            lanes = self.data.lanes(self.sizes.common)
            if is_bucketed:
                return divisor_of(lanes, most_of_buckets)
            return lanes
        if not self.options.shuffle:
            return 1
        # Use more than MOST_LANES if there are many row groups, and those of all lanes
        # fit into memory.
        (rows,) = self.sources
        groups = len(rows.group_rows)
        group_bytes = max(1, 4 * rows.ids // max(1, groups))
        fitting = min(
            most_lanes(self.sizes.common), _LANES_BYTES // group_bytes, groups
        )
        largest_lanes = min(max(MOST_LANES, fitting), len(self.data))
        if is_bucketed:
            largest_lanes = min(largest_lanes, most_of_buckets)
        return divisor_of(self.sizes.common, largest_lanes)

    def _lanes_for(self, lanes: int, rows: int) -> int:
        """Return a number of lanes for some rows.

        It is smaller if the run has no end and a lane would be empty.
        """
        # Without an end every lane must have a row to repeat; an epoch may leave lanes
        # empty.
        if self.epochs is not None or rows >= lanes:
            return lanes
        return divisor_of(lanes, rows)

    # -- batches

    def _steps(self) -> PassSteps:
        """Return the batches of a pass: of all rows in their order, or of buckets."""
        if self.padding is None or self.index is None or self.padding.buckets is None:
            return self._steps_without_buckets()
        return self._steps_of_buckets(self.padding, self.index)

    def _steps_without_buckets(self) -> PassSteps:
        """Return the batches of all rows, as a single bucket."""
        # The single bucket has no bound, and every dataset is a source of its stream.
        sources = np.arange(len(self.datasets))
        all_rows = Bucket(0, self.sizes.first, 1.0, self.stream, sources)
        changes = [(step, (size,)) for step, size in self.sizes.points]
        return PassSteps(
            None,
            [all_rows],
            changes,
            sources,
            seed=self.seed,
            drop_last=self.options.drop_last,
        )

    def _steps_of_buckets(self, padding: BatchPadding, index: LengthIndex) -> PassSteps:
        """Return the batches of buckets.

        1. The lengths of the buckets are given, or chosen from the histogram of
           lengths. Buckets without rows are left out.
        2. A batch of a bucket has as many rows as keep the ids of a batch of the
           longest bucket, rounded down to a multiple of the lanes: ``floor(size *
           longest / length / lanes) * lanes``. With 8 rows of 1,024 ids and 4 lanes, a
           bucket of 400 ids has batches of 20 rows. With `equal_rows` all buckets have
           `size` rows.
        3. Each bucket has its own stream, with its own lanes.
        """
        # 1. The rows of each bucket.
        bounds = padding.chosen(index.histogram)
        rows = BucketRows(index, bounds)
        # 2. The rows of each bucket's batches, at each step at which the batch size
        #    changes.
        changes: list[tuple[int, tuple[int, ...]]] = []
        for step, size in self.sizes.points:
            if padding.equal_rows:
                changes.append((step, (size,) * len(rows.bounds)))
                continue
            sizes = [
                size * bounds[-1] // length // self.lanes * self.lanes
                for length in rows.bounds
            ]
            changes.append((step, tuple(sizes)))
        # 3. The stream of each bucket.
        if isinstance(self.data, Mixture):
            parts = mixture_parts(
                self.data,
                self.forms,
                rows.group_rows,
                index.first_groups,
                lanes=self.lanes,
                seed=self.seed,
            )
        else:
            parts = [self._bucket_part(group_rows) for group_rows in rows.group_rows]
        _, first_sizes = changes[0]
        buckets: list[Bucket] = []
        for length, size, (weight, sources, stream) in zip(
            rows.bounds, first_sizes, parts, strict=True
        ):
            buckets.append(Bucket(length, size, weight, partial(stream, size), sources))
        return PassSteps(
            rows,
            buckets,
            changes,
            index.first_groups,
            seed=self.seed,
            drop_last=self.options.drop_last,
        )

    def _bucket_part(self, group_rows: Int64) -> Part:
        """Return the bucket of a single dataset.

        The result is the number of its rows, its source, and its stream.
        """
        rows = int(group_rows.sum())
        # A bucket is read like a dataset that consists of its rows alone.
        order = self._order_of(group_rows, self._lanes_for(self.lanes, rows))

        def stream(size: int, passes: int) -> EpochStream:
            first_epoch = passes * (self.epochs or 0)
            return EpochStream(
                order, epochs=self.epochs, first=first_epoch, batch_size=size
            )

        return rows, np.zeros(1, np.int64), stream

    # -- checks

    def _padding(self) -> BatchPadding | None:
        """Return the padding of rows of many lengths; None: rows are packed."""
        # Rows of one length are never padded; a padding that was given by mistake is an
        # error.
        if all(dataset.kind != "packed" for dataset in self.datasets.values()):
            return self.options.batch_padding
        padding = self.options.padding
        if padding is not None:
            raise ConfigError(
                f"padding: got {padding!r}, but {self.named} has packed rows, which are of one length; leave it out"
            )
        return None

    def _check_packed_options(self) -> None:
        """Raise ConfigError where `balance` or `lengths` does not fit the data.

        Both need packed rows. The ranks must divide every batch size.
        """
        # Both options cut or reorder rows by their segments, which only packed rows
        # have.
        instead_of = {
            "balance": "padding with buckets batches rows of similar length together",
            "lengths": "padding with a max_length and `truncate` makes them shorter",
        }
        for option, instead in instead_of.items():
            option_value = getattr(self.options, option)
            if self.padding is not None and option_value is not None:
                raise ConfigError(
                    f"{option}: got {option_value!r}, which needs packed rows, and those of {self.named} have many "
                    f"lengths; leave it out: {instead}"
                )
        if self.ranks is not None and self.sizes.common % self.ranks:
            raise ConfigError(
                f"balance.ranks: got {self.ranks}, which does not divide every batch size; expected a divisor of "
                f"{self.sizes.common}"
            )
        if self.curriculum is not None:
            self.curriculum.check(self.stored_length, self.named)

    def _check_mixture_options(self, mixture: Mixture) -> None:
        """Raise ConfigError where options do not fit a mixture."""
        # A mixture is dealt while it is read: it exists in no stored order.
        if not self.options.shuffle:
            raise ConfigError(
                "shuffle=False: a mixture has no stored order; mix with the flow `mix` and read the version that it "
                "wrote"
            )
        if self.epochs not in (1, None):
            raise ConfigError(
                f"epochs: got {self.epochs}, but a mixture has its own end; give it `stop`, `rows` or `epochs`"
            )
        # The step of a schedule would last a different number of rows before and after
        # the change.
        are_both_changing = len(self.sizes.points) > 1 and mixture.scheduler.changes
        if are_both_changing and mixture.step_rows is None:
            raise ConfigError(
                "batch sizes and weights both change during the run: set step_rows of the mixture, the number of rows "
                f"of a step of its schedule, e.g. step_rows={self.sizes.first}"
            )
