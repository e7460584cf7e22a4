"""DataLoader: batches of a dataset or a mixture in a reproducible order.

Its state is a few integers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self, Unpack, final

from tokenlake.base.checks import whole_number
from tokenlake.base.markup import named_facts
from tokenlake.base.metrics import Metric
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.balance import BatchBalance
from tokenlake.runtime.loader.batch import Assembler, Batch
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.host_batches import HostBatches, Place
from tokenlake.runtime.loader.host_reader import HostReader
from tokenlake.runtime.loader.length_index import TruncationCount
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.read_ahead import DecodedAhead
from tokenlake.runtime.loader.state import (
    plain_state,
    position_of,
    require_whole_run,
    state_of,
)
from tokenlake.runtime.loader.steps import Position
from tokenlake.runtime.reading.group_cache import Decoded


@final
class DataLoader:
    """Batches of rows: dicts of arrays of shape (rows, L), ids int32, masks bool.

    Rows of packed datasets have one length L. Documents (kind tokens) and preferences
    are padded to the lengths that `padding` sets. With buckets, rows of similar length
    are batched together, and all batches have about the same number of ids.

    One ``for`` loop is a pass: `epochs` epochs one after the other, with every row
    exactly once in each. The next loop delivers the next epochs. If a loop was left
    early, the next one continues after the last batch that was delivered.

    A loader has one iterator at a time. A second ``iter(loader)``,
    :meth:`iter_from_step` or :meth:`set_state` replaces the first one, which then
    raises ConfigError. :meth:`peek` returns the next batch inside a loop. Two streams
    need two loaders. A loader cannot be pickled; its state can.

    The order is a function of the data, `seed`, `lanes`, and `window` or `interleave`,
    and of nothing else: batch k of the whole run is the same with any number of hosts,
    threads and resumptions. Without `window` and `interleave` it also depends on
    `cache_bytes`: the order keeps as many row groups open as fit into three quarters of
    them. A dataset that fits is shuffled as a whole. The sources of a mixture divide
    the memory, and `window` and `interleave` hold for each of them. A state names its
    order, and a loader of the default order resumes in it.

    Args:
        data: Dataset, or :class:`Mixture` of datasets.
        batch_size: Rows of the global batch, or step -> rows, as ``{0: 128, 1000:
            256}``. With buckets, those of the longest one.
        seed: Random seed of the order, any integer.
        shuffle: True to shuffle rows; False: rows in stored order.
        epochs: Epochs of a pass; None: the pass never ends.
        drop_last: True to leave out the last batch of a pass (of each bucket) if it is
            not full. Rows are left out in no other case.
        pad_last: True to fill that batch by rows of padding (segment_ids 0, no loss);
            None: only with `sharding`, which needs batches of one shape.
        columns: Names of the columns; None: the first four of these:

            - ``input_ids``, int32;
            - ``segment_ids``, int32: 1, 2, 3, ... for the documents of a row, 0 for
              padding;
            - ``positions``, int32: from 0 in each segment;
            - ``loss_mask``, bool: true for ids that count toward the loss;
            - ``labels``, int32: the id where ``loss_mask`` is true, otherwise -100;
            - ``targets``, int32: the next id, which each place predicts, or -100.

            Documents also have ``attention_mask``, and ``lengths`` of shape (rows,).
            Preferences have all of them for each answer, as ``chosen_input_ids``,
            ``chosen_attention_mask`` and ``chosen_labels``.
        padding: Padding of rows of many lengths, a :class:`tokenlake.BatchPadding`;
            None: padding to the longest row of each batch. The lengths of all rows are
            read first: about 3 us a row, and two bytes of memory for each.
        layout: Layout of the arrays of packed rows, a :class:`tokenlake.BatchLayout`:
            "flat" for arrays of shape (rows * L,) with `cu_seqlens`, or rows cut for
            context parallelism; None: (rows, L). The order does not depend on it.
        balance: Balance of packed rows among ranks: "attention" deals the rows of each
            batch so that all ranks have the same number of rows and about the same
            attention cost; a :class:`tokenlake.BatchBalance` sets the number of ranks;
            None: rows stay in place. The rows of a batch do not depend on it.
        lengths: Lengths of the ids that attend to each other, as ``{0: 256, 1000: 512,
            3000: 2048}`` or a :class:`tokenlake.LengthCurriculum`: rows are cut into
            rows of the step's length. A batch keeps its ids and has proportionally more
            of the shorter rows; `batch_size` counts stored rows. None: rows stay whole.
            The ids of a step do not depend on it.
        sharding: ``jax.sharding.Sharding`` of the global batch: batches are global
            ``jax.Array``.
        host: Pair (index, number of hosts), only without `sharding`: batches have the
            index-th of equal parts of the global batch's rows; None: all rows.
        lanes: Number of equal, contiguous parts of an epoch, each of which contributes
            rows to every batch. It is part of the order, and smaller if data without
            end has fewer rows. None: the largest number up to 64 that divides all batch
            sizes; for a mixture, the number that the flow ``mix`` uses.
        window: Number of row groups whose rows are permuted together, part of the
            order; "all" for all of an epoch, which every host then decodes and holds.
            None: the default order.
        interleave: Number of parts of each lane that are read side by side, part of the
            order: so many row groups of each lane are open at a time. None: the default
            order.
        prefetch: Number of batches prepared ahead; 0: none, and no thread for them.
        workers: Number of threads that decode ahead; 0: none. None: half the number of
            processors, up to 4; or 16 for a remote store, where they mostly wait.
        cache_bytes: Memory for decoded row groups, the same on all hosts. The row
            groups of one batch are decoded even if they need more.

    Raises:
        ConfigError: An argument is not allowed; or rows are longer than `padding`
            allows, with a list of some.

    Example:
        >>> import tokenlake as tl
        >>> loader = tl.DataLoader(tl.open("artifacts/books"), batch_size=8, seed=0, epochs=2)
        >>> for batch in loader:
        ...     loss = batch["input_ids"].mean()  # a training step
        ...     if loader.step == 10:
        ...         state = loader.get_state()  # JSON
        ...         break
        >>> batch["input_ids"].shape, batch["input_ids"].dtype, batch["loss_mask"].dtype
        ((8, 64), dtype('int32'), dtype('bool'))
        >>> resumed = tl.DataLoader(tl.open("artifacts/books"), batch_size=8, seed=0, epochs=2)
        >>> resumed.set_state(state)
        >>> resumed.step
        10
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        batch_size: int | Mapping[int, int],
        *,
        sharding: Any | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> None:
        loader_options = LoaderOptions.of("DataLoader", batch_size, options)
        if sharding is not None:
            loader_options = _with_sharding(loader_options, sharding)
        elif loader_options.pad_last is None:
            loader_options = replace(loader_options, pad_last=False)
        self._options = loader_options
        self._sharding = sharding
        self._reader, self._place = self._opened(data, loader_options)
        self._position = Position(0, 0, 0)
        self._ended = False
        # A weak reference: an iterator that is forgotten is collected at once, and its
        # threads end.
        self._running: weakref.ref[HostBatches] | None = None
        self._groups: DecodedAhead | None = None
        # Totals for the metrics. Row groups are those decoded before the current
        # iteration.
        self._decoded_before = Decoded()
        self._batches_delivered = 0
        self._rows_delivered = 0
        self._wait_seconds = 0.0

    @property
    def plan(self) -> BatchPlan:
        """Plan of the rows of each step, for all hosts."""
        return self._reader.plan

    @property
    def step(self) -> int:
        """Number of batches delivered so far, over all passes."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """First epoch of the current pass."""
        return self._position.passes * (self.plan.epochs or 1)

    @property
    def ended(self) -> bool:
        """Whether the current pass has ended; the next iteration begins another."""
        return self._ended

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a batch."""
        return self._reader.assembler.names

    @property
    def shapes(self) -> tuple[tuple[int, int], ...] | None:
        """Shapes (rows, L) of full batches, for a compiler of fixed shapes.

        None if L is that of the longest row.
        """
        return self.plan.batch_shapes

    @property
    def truncated(self) -> TruncationCount:
        """Number of rows and ids of the data that `padding` cuts."""
        index = self.plan.index
        if index is None:
            return TruncationCount()
        return index.truncated

    @property
    def decoded(self) -> Decoded:
        """Counts of the row groups decoded since the last iteration began."""
        if self._groups is None:
            return Decoded()
        return self._groups.decoded

    def metrics(self) -> LoaderMetrics:
        """Return the figures of this loader on this host.

        They are counted since it was created; :class:`tokenlake.MetricsExport` exports
        them.
        """
        decoded = self._decoded_before + self.decoded
        return LoaderMetrics(
            batches=self._batches_delivered,
            rows=self._rows_delivered,
            wait_seconds=self._wait_seconds,
            decode_seconds=decoded.seconds,
            groups=decoded.groups,
            group_hits=decoded.hits,
            decoded_rows=decoded.rows,
            decoded_bytes=decoded.bytes,
        )

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator from after the last delivered batch.

        If the pass has ended, it iterates over the next one.

        It replaces an earlier iterator, which raises ConfigError at its next batch.
        """
        return self._iterate("iter(loader)")

    def iter_from_step(self, step: int) -> Iterator[Batch]:
        """Return an iterator from a step on; any step takes the same time.

        It continues as if `step` batches had been delivered.

        Raises:
            ConfigError: `step` is not a whole number, or is too large to count rows.
        """
        position = self.plan.position(step)
        self._supersede("iter_from_step()")
        self._position = position
        self._ended = False
        return self._iterate("iter_from_step()")

    def peek(self) -> Batch:
        """Return the next batch without delivering it.

        If the pass has ended, it is the first of the next pass.

        The loader and a running iterator keep their position. The batch is made for
        this call alone.
        """
        position = self._begin()
        if self.plan.steps.next(position) is None:
            position = Position(position.step, position.passes + 1, 0)
        batches = HostBatches(self._reader, position, place=self._place)
        try:
            return next(batches)
        finally:
            batches.close()

    def __len__(self) -> int:
        """Return the number of batches of the current pass.

        If that has ended, it is the number of the next one.

        Raises:
            TypeError: The pass has no end.
        """
        batches = self.plan.batches_in(self._begin().passes)
        if batches is None:
            raise TypeError(
                "an endless loader has no length; give epochs, or `rows` of the mixture"
            )
        return batches

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        smallest = self.plan.batch_sizes[0]
        largest = self.plan.batch_sizes[-1]
        sizes = str(smallest) if smallest == largest else f"{smallest} to {largest}"
        return (
            f"DataLoader({self.plan.data!r}, batches of {sizes}, at step {self.step:,})"
        )

    def _repr_html_(self) -> str:
        plan = self.plan
        batches = plan.batches_in(self._position.passes)
        facts = {
            "batch sizes": ", ".join(map(str, plan.batch_sizes)),
            "batches of a pass": "without end" if batches is None else batches,
            "step": self.step,
            "epoch": self.epoch,
            "seed": plan.seed,
            "lanes": plan.lanes,
            "columns": ", ".join(self.columns),
        }
        rows: list[tuple[str, ...]] = []
        for name, dataset in plan.datasets.items():
            order = "as stored"
            if name in plan.forms:
                order = plan.forms[name].description
            rows.append((name, dataset.name, f"{len(dataset):,}", order))
        return named_facts(
            "DataLoader", facts, ("source", "dataset", "rows", "order"), rows
        )

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last batch that was delivered.

        It is small and JSON-able, and :meth:`set_state` continues from it.
        """
        return state_of(self.plan, self._position)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a loader of the same data and order.

        The next iteration begins there.

        Raises:
            ConfigError: The state is of other data or of another order, with a list of
                the differences.
        """
        state = plain_state(state)
        require_whole_run(state)
        reader = self._reader
        place = self._place
        lanes = state.get("lanes")
        is_lanes_chosen = bool(self.plan.bucket_shapes) or isinstance(
            self.plan.data, Mixture
        )
        lanes_error: ConfigError | None = None
        if self._options.lanes is None and is_lanes_chosen and lanes != self.plan.lanes:
            # The lanes were chosen by facts that may change during a run: the number of
            # devices or hosts with buckets, and the sources of a mixture, to which one
            # may be added.
            try:
                reader, place = self._opened(
                    self.plan.data, replace(self._options, lanes=lanes)
                )
            except ConfigError as error:
                lanes_error = error
        reader = reader.replaying(state)
        try:
            position = position_of(reader.plan, state)
        except ConfigError as error:
            if lanes_error is None:
                raise
            message = f"{error}; {lanes} lanes are not possible here: {lanes_error}"
            raise ConfigError(message, **error.details) from lanes_error
        self._supersede("set_state()")
        self._reader = reader
        self._place = place
        self._position = position
        self._ended = False

    def set_weights(
        self, weights: Mapping[str, float], *, at: int | None = None
    ) -> None:
        """Change the weights of a mixture from a step on.

        All hosts must set the same weights at the same step. Batches before the step do
        not change. The new weights apply from the batch of that step on, and do not
        compensate for rows drawn by the old ones. They become part of the state:
        :meth:`set_state` of a loader with the original weights applies them, too.

        Args:
            weights: Weight of every source, by rows or tokens as in the mixture.
            at: Step of the change; None: the next one.

        Raises:
            ConfigError: The data is not a mixture, the step is over or of a later pass,
                or the weights are not possible.
        """
        if at is None:
            at = self.step
        step = whole_number("at", at, self.step)
        reader = self._reader.reweighted(weights, step)
        running = self._running_iterator()
        if running is not None:
            running.go_on_with(reader)
        self._decoded_before += self.decoded
        self._reader = reader
        self._groups = None

    def state_dict(self) -> dict[str, Any]:
        """Return :meth:`get_state`, under the name that loaders of PyTorch use."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Call :meth:`set_state`, under the name that loaders of PyTorch use."""
        self.set_state(state)

    def close(self) -> None:
        """End the current iteration and its threads.

        The next one continues after it.
        """
        running = self._running_iterator()
        self._running = None
        if running is not None:
            running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DataLoader cannot be pickled, because it has open files and threads: pickle loader.get_state(), make a "
            "loader of the same data in the other process, and pass the state to set_state(). For worker processes "
            "use tl.torch_dataset, tl.grain_dataset or tl.hf_dataset"
        )

    def _opened(
        self, data: Dataset | Mixture, options: LoaderOptions
    ) -> tuple[HostReader, Place | None]:
        """Return the reader of this process, and its placement on devices.

        The placement is a function that moves batches; without a sharding it is None.
        """
        if self._sharding is None:
            return HostReader.open(data, options), None
        from tokenlake.runtime.loader.jax import Placement, row_parts

        reader = HostReader.open(data, options, row_parts(self._sharding))
        plan = reader.plan
        multiple = 1
        if plan.padding is not None:
            multiple = plan.padding.multiple
        # Lengths that vary from batch to batch are multiples of the padding's.
        shapes = plan.batch_shapes or ((0, multiple),)
        lengths = sorted({length for _, length in shapes})
        placement = Placement(
            self._sharding, plan.batch_sizes, lengths, options.batch_layout
        )
        reader = reader.cut(placement.wanted, placement.parts)
        assembler = reader.assembler
        if (
            isinstance(assembler, Assembler)
            and assembler.can_transfer
            and placement.computes_columns
        ):
            reader = replace(reader, assembler=assembler.for_transfer())
            return reader, partial(placement.place_computed, names=assembler.names)
        return reader, placement.place

    def _begin(self) -> Position:
        """Return the position at which the next iteration begins."""
        if self._ended:
            return Position(self.step, self._position.passes + 1, 0)
        return self._position

    def _iterate(self, caller: str) -> HostBatches:
        """Return a new iterator, which replaces a running one."""
        self._supersede(caller)
        self._position = self._begin()
        self._ended = False
        batches = HostBatches(
            self._reader, self._position, place=self._place, tell=self._delivered
        )
        self._decoded_before += self.decoded
        self._groups = None
        self._running = weakref.ref(batches)
        return batches

    def _running_iterator(self) -> HostBatches | None:
        """Return the iterator that was begun last.

        None if there is none, or it was forgotten.
        """
        if self._running is None:
            return None
        return self._running()

    def _supersede(self, caller: str) -> None:
        """End a running iterator, whose next batch is an error.

        Otherwise its loop would end as at the end of the pass.
        """
        running = self._running_iterator()
        self._running = None
        if running is not None:
            running.supersede(
                f"this iterator was replaced after step {self.step}: a DataLoader has one iterator at a time, and "
                f"{caller} began another one. Continue with that one. To look at the next batch without taking it, "
                "use loader.peek(); for two streams, create two loaders"
            )

    def _delivered(
        self, batches: HostBatches, rows: int | None, seconds: float
    ) -> None:
        """Record a batch that was delivered, or the end of the pass.

        :data:`host_batches.Tell` explains the arguments.
        """
        self._position = batches.position
        self._groups = batches.groups
        self._ended = rows is None
        self._wait_seconds += seconds
        if rows is not None:
            self._batches_delivered += 1
            self._rows_delivered += rows


def _with_sharding(options: LoaderOptions, sharding: Any) -> LoaderOptions:
    """Return the options of a loader with a sharding.

    Batches are padded, and balanced over the sharding's parts.

    Raises:
        ConfigError: An option contradicts the sharding.
    """
    from tokenlake.runtime.loader.jax import row_parts

    is_padding_refused = options.pad_last is False and not options.drop_last
    if options.host is not None or is_padding_refused:
        raise ConfigError(
            "sharding: it decides the rows of each host, of full batches; leave out host and pad_last"
        )
    if options.pad_last is None:
        options = replace(options, pad_last=True)
    if options.balance is not None:
        balance = BatchBalance.of(options.balance).over(row_parts(sharding), "sharding")
        options = replace(options, balance=balance)
    return options


@final
@dataclass(frozen=True, slots=True)
class LoaderMetrics:
    """Figures of one loader on one host.

    Iterating yields each as a :class:`tokenlake.base.metrics.Metric`.

    Attributes:
        batches: Number of batches delivered.
        rows: Number of their rows; with `sharding`, of the global batches.
        wait_seconds: Seconds that the consumer waited for batches; near 0 if the loader
            keeps up.
        decode_seconds: Seconds spent on reading and decoding row groups, summed over
            the threads.
        groups: Number of row groups decoded.
        group_hits: Number of row groups that were already decoded when they were
            needed.
        decoded_rows: Number of rows of the decoded row groups.
        decoded_bytes: Bytes of the decoded row groups in memory.

    Example:
        >>> import tokenlake as tl
        >>> loader = tl.DataLoader(tl.open("artifacts/books"), batch_size=8)
        >>> batch = next(iter(loader))
        >>> loader.metrics().batches, loader.metrics().rows
        (1, 8)
    """

    batches: int
    rows: int
    wait_seconds: float
    decode_seconds: float
    groups: int
    group_hits: int
    decoded_rows: int
    decoded_bytes: int

    def __iter__(self) -> Iterator[Metric]:
        for metric_name, help in _HELP.items():
            yield Metric(
                f"tokenlake_loader_{metric_name}",
                "counter",
                help,
                getattr(self, metric_name),
            )


_HELP: Final = {
    "batches": "Batches delivered.",
    "rows": "Rows of these batches.",
    "wait_seconds": "Seconds that the consumer waited for batches.",
    "decode_seconds": "Seconds that threads spent on reading and decoding row groups.",
    "groups": "Row groups decoded.",
    "group_hits": "Row groups that were in the cache.",
    "decoded_rows": "Rows of the decoded row groups.",
    "decoded_bytes": "Bytes of the decoded row groups in memory.",
}
