"""Batches of a dataset or a mixture, in an order that is a function, with a state of a few integers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self, Unpack, final

from tokenlake.base.checks import whole_number
from tokenlake.base.markup import named_facts
from tokenlake.base.metrics import Metric
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.balance import BatchBalance
from tokenlake.runtime.loader.batch import Batch
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.host_batches import HostBatches, Place
from tokenlake.runtime.loader.host_reader import HostReader
from tokenlake.runtime.loader.length_index import TruncationCount
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.read_ahead import DecodedAhead
from tokenlake.runtime.loader.state import plain_state, position_of, require_whole_run, state_of
from tokenlake.runtime.loader.steps import Position
from tokenlake.runtime.reading.group_cache import Decoded


@final
class DataLoader:
    """Batches of rows: dicts of arrays of shape (rows, L), ids int32, masks bool.

    ::

        loader = tl.DataLoader(ds, batch_size=256, seed=0)
        for batch in loader:
            batch["input_ids"]  # int32 (256, 2048)
        state = loader.get_state()  # JSON; loader.set_state(state) goes on exactly there

    Rows of packed datasets are of one length L. Documents (kind tokens) and preferences are padded: `padding` says to
    which lengths, and with buckets rows of like lengths come together, in batches of as many ids.

    One ``for`` loop is a pass: `epochs` epochs laid end to end, every row exactly once in each. The next loop goes on
    with the next epochs. After a loop was left, the next one goes on behind the last batch that was delivered.

    A loader has one iterator at a time. A second ``iter(loader)``, :meth:`iter_from_step` or :meth:`set_state` takes
    the place of the first one, which then raises ConfigError. :meth:`peek` looks at the next batch inside a loop. Two
    streams need two loaders. A loader cannot be pickled; its state can.

    The order is a function of the data, `seed`, `lanes` and `window`, and of nothing else: batch k of the whole run is
    the same with any number of hosts, threads and resumptions.

    Args:
        data: a dataset, or a :class:`Mixture` of some.
        batch_size: rows of the global batch, or step -> rows, as ``{0: 128, 1000: 256}``. With buckets, of the longest.
        seed: of the order, any integer.
        shuffle: False: rows as they are stored.
        epochs: of a pass; None: it never ends.
        drop_last: leave out the last batch of a pass (of each bucket) if it is not full. Nothing else ever leaves out a
            row.
        pad_last: give that batch its full number of rows, the missing ones being padding (segment_ids 0, no loss);
            None: only with `sharding`, where all batches must be alike.
        columns: any of input_ids, segment_ids, positions, loss_mask, labels, targets
            (see :mod:`tokenlake.runtime.loader.columns`); None: the first four. Of documents also
            attention_mask, and lengths of shape (rows,); of preferences all of them for each answer, as
            chosen_input_ids, chosen_attention_mask and chosen_labels (see
            :mod:`tokenlake.runtime.loader.ragged_batch`).
        padding: of rows of many lengths, a :class:`tokenlake.BatchPadding`; None: to the longest row of each batch. The
            lengths of all rows are read first: some 3 us a row, and two bytes of memory for each.
        layout: of the arrays of packed rows, a :class:`tokenlake.BatchLayout`: "flat" for arrays of shape (rows * L,)
            with `cu_seqlens`, or rows cut for context parallelism. The order does not depend on it; None: (rows, L).
        balance: "attention": the rows of each batch of packed rows are dealt to ranks so that all have as many rows and
            their attention costs alike; a :class:`tokenlake.BatchBalance` says how many ranks. Which rows a batch has
            does not depend on it; None: they stay where they come.
        lengths: of what attends to each other, as ``{0: 256, 1000: 512, 3000: 2048}`` or a
            :class:`tokenlake.LengthCurriculum`: rows are cut into rows of the step's length, of which a batch has as
            many more as they are shorter, so that it keeps its ids; `batch_size` counts stored rows. Which ids a step
            has does not depend on it; None: rows stay whole.
        sharding: a ``jax.sharding.Sharding`` of the global batch: batches are global ``jax.Array``.
        host: (index, number of hosts) without `sharding`: only these rows of each batch, the index-th of equal parts.
        lanes: into how many stretches an epoch is cut, part of the order (fewer where data without end has fewer rows);
            None: the largest number up to 64 that divides all batch sizes (of a mixture, as many as the flow ``mix``
            takes).
        window: row groups whose rows are permuted together, part of the order.
        prefetch: batches that are ready ahead; 0: none, and no thread for them.
        workers: threads that decode ahead; 0: none. None: one for two processors, up to 4, or 16 where a store is
            remote and they mostly wait.
        cache_bytes: of decoded row groups that are kept; what a batch needs is decoded however much it is.

    Raises:
        ConfigError: an argument is not what is allowed; or rows are longer than `padding` allows, says which.
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        batch_size: int | Mapping[int, int],
        *,
        sharding: Any | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> None:
        asked = LoaderOptions.of("DataLoader", batch_size, options)
        if sharding is not None and (
            asked.host is not None or (asked.pad_last is False and not asked.drop_last)
        ):
            raise ConfigError(
                "sharding: says which rows a host has, of full batches; leave out host and pad_last"
            )
        if asked.pad_last is None:
            asked = replace(asked, pad_last=sharding is not None)
        if sharding is not None and asked.balance is not None:
            from tokenlake.runtime.loader.jax import row_parts

            balance = BatchBalance.of(asked.balance).over(row_parts(sharding), "sharding")
            asked = replace(asked, balance=balance)
        self._asked = asked
        self._sharding = sharding
        self._reader, self._place = self._opened(data, asked)
        self._position, self._ended = Position(0, 0, 0), False
        # Weak, so that an iterator that is forgotten is collected at once, and its threads end.
        self._running: weakref.ref[HostBatches] | None = None
        self._groups: DecodedAhead | None = None
        self._before, self._batches, self._rows, self._waited = Decoded(), 0, 0, 0.0

    @property
    def plan(self) -> BatchPlan:
        """Which rows each step has, of all hosts."""
        return self._reader.plan

    @property
    def step(self) -> int:
        """Batches delivered so far, over all passes."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """The first epoch of the present pass."""
        return self._position.passes * (self.plan.epochs or 1)

    @property
    def ended(self) -> bool:
        """Whether the present pass came to its end; the next iteration begins another."""
        return self._ended

    @property
    def columns(self) -> tuple[str, ...]:
        """What batches hold."""
        return self._reader.assembler.names

    @property
    def shapes(self) -> tuple[tuple[int, int], ...] | None:
        """(rows, L) of full batches, for a compiler of fixed shapes; None where L is that of the longest row."""
        return self.plan.batch_shapes

    @property
    def truncated(self) -> TruncationCount:
        """What `padding` cuts off the rows of the data."""
        index = self.plan.index
        return TruncationCount() if index is None else index.truncated

    @property
    def decoded(self) -> Decoded:
        """What was decoded since the last iteration began."""
        return Decoded() if self._groups is None else self._groups.decoded

    def metrics(self) -> LoaderMetrics:
        """Return what this loader did since it was made, on this host; see :class:`tokenlake.MetricsExport`."""
        did = self._before + self.decoded
        groups = (did.groups, did.hits, did.rows, did.bytes)
        return LoaderMetrics(self._batches, self._rows, self._waited, did.seconds, *groups)

    def __iter__(self) -> Iterator[Batch]:
        """Go on behind the last batch that was delivered, or with the next pass.

        The iterator takes the place of an earlier one: asked for another batch, that one raises ConfigError.
        """
        return self._iterate("iter(loader)")

    def iter_from_step(self, step: int) -> Iterator[Batch]:
        """Go on as if `step` batches had been delivered; the time it takes does not depend on the step.

        Raises:
            ConfigError: `step` is not a whole number, or is farther than rows can be counted.
        """
        position = self.plan.position(step)
        self._supersede("iter_from_step()")
        self._position = position
        self._ended = False
        return self._iterate("iter_from_step()")

    def peek(self) -> Batch:
        """Return the batch that comes next, of the next pass where this one has ended, without taking it.

        The loader and a running iterator stay where they are. The batch is made for this call alone.
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
        """Return how many batches the present pass has, or the next one where it has ended.

        Raises:
            TypeError: The pass has no end.
        """
        batches = self.plan.batches_in(self._begin().passes)
        if batches is None:
            raise TypeError("a loader without end has no length; give epochs, or the mixture rows")
        return batches

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        sizes = " to ".join(map(str, sorted({min(self.plan.batch_sizes), max(self.plan.batch_sizes)})))
        return f"DataLoader({self.plan.data!r}, batches of {sizes}, at step {self.step:,})"

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
        rows = [(name, dataset.name, f"{len(dataset):,}") for name, dataset in plan.datasets.items()]
        return named_facts("DataLoader", facts, ("source", "dataset", "rows"), rows)

    def get_state(self) -> dict[str, Any]:
        """Return what :meth:`set_state` needs to go on behind the last batch that was delivered: JSON, small."""
        return state_of(self.plan, self._position)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader stood, of the same data and order; the next iteration begins there.

        Raises:
            ConfigError: the state is of other data or of another order; says what differs.
        """
        state = plain_state(state)
        require_whole_run(state)
        reader = self._reader
        place = self._place
        lanes = state.get("lanes")
        if self._asked.lanes is None and self.plan.bucket_shapes and lanes != self.plan.lanes:
            # The lanes were chosen by the number of devices or hosts, and the state is of a run on others.
            with suppress(ConfigError):
                reader, place = self._opened(self.plan.data, replace(self._asked, lanes=lanes))
        reader = reader.replaying(state)
        position = position_of(reader.plan, state)
        self._supersede("set_state()")
        self._reader = reader
        self._place = place
        self._position = position
        self._ended = False

    def set_weights(self, weights: Mapping[str, float], *, at: int | None = None) -> None:
        """Mix by other weights from a step on: those that a trainer found out, on all hosts alike.

        No batch before the step changes. The new weights hold from the batch of that step on; rows that the old weights
        gave are not made up for. They are part of the state from now on: :meth:`set_state` of a loader that was made by
        the first weights takes them over.

        Args:
            weights: of all sources, of rows or tokens as those of the mixture.
            at: the step; None: the next one.

        Raises:
            ConfigError: there is no mixture, the step was passed or is of a later pass, or there are no such weights.
        """
        step = whole_number("at", self.step if at is None else at, self.step)
        reader = self._reader.reweighted(weights, step)
        if (running := None if self._running is None else self._running()) is not None:
            running.go_on_with(reader)
        self._before += self.decoded
        self._reader, self._groups = reader, None

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`get_state`, by the name that torch's loaders use."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`set_state`, by the name that torch's loaders use."""
        self.set_state(state)

    def close(self) -> None:
        """End an iteration that is under way and its threads; the next one goes on behind it."""
        running = None if self._running is None else self._running()
        self._running = None
        if running is not None:
            running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DataLoader cannot be pickled, for it has open files and threads: pickle loader.get_state(), make a "
            "loader of the same data in the other process, and give it the state by set_state(). For worker processes "
            "use tl.torch_dataset, tl.grain_dataset or tl.hf_dataset"
        )

    def _opened(self, data: Dataset | Mixture, asked: LoaderOptions) -> tuple[HostReader, Place | None]:
        """Return what reads the rows of this process, and what puts them onto devices; None without a sharding."""
        if self._sharding is None:
            return HostReader.open(data, asked), None
        from tokenlake.runtime.loader.jax import Placement, row_parts

        reader = HostReader.open(data, asked, row_parts(self._sharding))
        plan = reader.plan
        multiple = 1 if plan.padding is None else plan.padding.multiple
        lengths = sorted({length for _, length in plan.batch_shapes or ((0, multiple),)})
        placement = Placement(self._sharding, plan.batch_sizes, lengths, asked.batch_layout)
        return reader.cut(placement.wanted, placement.parts), placement.place

    def _begin(self) -> Position:
        """Return where the next iteration begins."""
        if self._ended:
            return Position(self.step, self._position.passes + 1, 0)
        return self._position

    def _iterate(self, caller: str) -> HostBatches:
        self._supersede(caller)
        self._position = self._begin()
        self._ended = False
        batches = HostBatches(self._reader, self._position, place=self._place, tell=self._move)
        self._before += self.decoded
        self._groups = None
        self._running = weakref.ref(batches)
        return batches

    def _supersede(self, caller: str) -> None:
        """End the iterator that is under way, so that asking it for more is an error and not the end of a pass."""
        running = None if self._running is None else self._running()
        self._running = None
        if running is not None:
            running.supersede(
                f"this iterator was replaced behind step {self.step}: a DataLoader has one iterator at a time, and "
                f"{caller} began another one. Go on with that one. To look at the next batch without taking it, use "
                "loader.peek(); for two streams, make two loaders"
            )

    def _move(self, batches: HostBatches, rows: int | None, seconds: float) -> None:
        self._position, self._ended, self._groups = batches.position, rows is None, batches.groups
        self._batches, self._rows = self._batches + (rows is not None), self._rows + (rows or 0)
        self._waited += seconds


@final
@dataclass(frozen=True, slots=True)
class LoaderMetrics:
    """Figures of one loader on one host. Iterating gives each as a :class:`tokenlake.base.metrics.Metric`.

    Attributes:
        batches, rows: delivered; with `sharding` the rows are those of the global batches.
        wait_seconds: that the consumer waited for batches; near 0 where the loader keeps up.
        decode_seconds: that threads spent on reading and decoding row groups, summed over the threads.
        groups, group_hits: row groups that were decoded, and those that were there already.
        decoded_rows, decoded_bytes: of the decoded row groups.
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
        for name, help in _HELP.items():
            yield Metric(f"tokenlake_loader_{name}", "counter", help, getattr(self, name))


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
