"""Loader of rows, whose batches may be awaited or put onto devices.

It also has data that is awaited by index.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, Final, Generic, Literal, TypeVar, cast, final

from tokenlake.base.checks import expected, require_one_of, whole_number
from tokenlake.base.threads import Prefetched
from tokenlake.config.stages import LoadStageConfig
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.rowwise.batches import Arrays, Filling, RowLoader
from tokenlake.rowwise.files import FileBacked
from tokenlake.rowwise.shards import Row, RowMeter, section
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.loader import DataLoader
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.padding import BatchPadding
from tokenlake.runtime.loader.plan import BatchPlan

Item = TypeVar("Item")


class AsyncDataset(ABC, Generic[Item]):
    """Items by index.

    A subclass defines :meth:`aget`; everything else follows from it.
    """

    @abstractmethod
    async def aget(self, index: int) -> Item:
        """Return item number `index`; IndexError after the last one."""

    async def abatch(self, indices: Sequence[int]) -> list[Item]:
        """Return several items, awaited one after the other."""
        return [await self.aget(index) for index in indices]

    def get(self, index: int) -> Item:
        """Return an item without an event loop of the caller.

        Inside a running event loop it raises RuntimeError.
        """
        return asyncio.run(self.aget(index))

    def get_output_sharding(self) -> Any:
        """Return the ``jax.sharding.Sharding`` of items; None without devices."""
        return None

    @property
    def is_exhausted(self) -> bool:
        """Whether an iteration has reached the end."""
        return False

    def __iter__(self) -> Iterator[Item]:
        """Yield items from the first one on."""
        for index in count():
            try:
                item = self.get(index)
            except IndexError:
                return
            yield item


_END: Final = object()  # stands for the end of an iterator in a thread
_SHUFFLED: Final = 10_000  # rows of a shuffle buffer if no size is set


@final
class AsyncDataLoader(AsyncDataset[Arrays]):
    """Batches of rows: dicts of numpy arrays, in order.

    :func:`tokenlake.rowwise.batches.batch_of` describes the arrays.

    ::

        for batch in AsyncDataLoader(source, batch_size=8):
            batch["input_ids"]  # int32 (8, L)

        async for batch in loader: ...

    For a stored dataset (``tl.open``) or a ``tl.Mixture`` it is a
    :class:`tokenlake.DataLoader` that can be awaited, with the same guarantees: a pass
    is an epoch, and a loop continues after the last batch that was delivered.

    For other rows every iteration is an epoch: it reads the source from its beginning,
    and with a shuffle buffer in a new order. The order is a function of `seed` and of
    the number of iterations before it. A loader has one iterator at a time: the next
    iteration takes the place of one that is under way, which then raises ConfigError.
    Batches and their order do not depend on prefetching. Threads end with the
    iteration, also if it is left in the middle.

    :meth:`state_dict` counts batches that were delivered; :meth:`load_state_dict` lets
    the next iteration continue after them, exactly. The cost depends on the source.
    Without a shuffle buffer it is opening one shard at one row, which files of blocks
    and lines seek to; any other iterable is drawn from its beginning. With a buffer it
    is reading again from the oldest row that still waits in it, on average ``size *
    ln(size)`` rows back, and 1 s of draws for every few million rows that were
    delivered.
    """

    meter: RowMeter | None = None
    """Counter of the batches of rows that are delivered; None for no counter."""

    def __init__(
        self,
        source: ShardedDataSource | Iterable[Row] | Dataset | Mixture,
        batch_size: int = 8,
        prefetch_enabled: bool = True,
        prefetch_workers: int = 2,
        prefetch_buffer_size: int = 4,
        shuffle_buffer_size: int | None = None,
        drop_last: bool = True,
        seed: int | None = None,
        *,
        pad_token_id: int | None = None,
        padding_side: Literal["left", "right"] = "right",
        sharding: Any = None,
        prefetch_to_device: bool = False,
    ) -> None:
        """Read nothing yet.

        Args:
            source: Rows, which every iteration reads from the beginning, so an iterator
                is not enough; or stored rows: a ``Dataset`` or a ``Mixture``.
            batch_size: Number of rows per batch.
            prefetch_enabled: Whether threads prepare batches ahead.
            prefetch_workers: Number of these threads. One at a time draws rows; batches
                are made in parallel.
            prefetch_buffer_size: Maximum number of batches that are ready or in
                progress.
            shuffle_buffer_size: Number of rows in the buffer from which rows are drawn
                at random. None for rows in order. With any number, rows of a
                ``Dataset`` are shuffled over the whole epoch; those of a ``Mixture``
                always are.
            drop_last: Whether a last batch of fewer rows is left out.
            seed: Random seed of the shuffle. None is 0.
            pad_token_id: Token that pads rows to the longest of each batch, which then
                has an ``attention_mask``. None for the padding token in the manifest of
                a flat directory of tokens; without one, rows of different lengths are
                an error.
            padding_side: Side of the padding, also for stored rows that are not packed.
            sharding: ``jax.sharding.Sharding`` of batches (rows, ids). Batches are then
                global ``jax.Array`` with `batch_size` rows over all hosts. Each host
                reads only its rows of a ``Dataset`` or a ``Mixture``. Other rows have
                no known place before they are read, so every host draws all of them and
                puts only its own onto devices.
            prefetch_to_device: Whether batches are put onto devices ahead; without
                `sharding`, onto the first device of this process.

        Raises:
            ConfigError: An argument is not allowed.
            MissingExtraError: Batches on devices are configured, and jax is not
                installed.
        """
        # The keywords that are settings of the section `load` are checked as such.
        options = {
            name: value
            for name, value in locals().items()
            if name in LoadStageConfig.model_fields
        }
        stored = isinstance(source, Dataset | Mixture)
        if not stored and not isinstance(source, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("source", source, "a source of rows")
        require_one_of("padding_side", padding_side, ("left", "right"))
        load = section(LoadStageConfig, options, "AsyncDataLoader")
        seed = 0 if seed is None else whole_number("seed", seed)
        # A flat directory of tokens states its padding token in its manifest.
        if pad_token_id is None and isinstance(source, FileBacked):
            pad_token_id = source.pad_token_id
        if prefetch_to_device and sharding is None:
            sharding = _first_device()
        self._sharding = sharding
        # Iteration of `aget`, and the index of its next batch.
        self._awaited_batches: Iterator[Arrays] | None = None
        self._next_index = 0
        self._source: Final = source
        self._load: Final = load
        if stored and pad_token_id is not None:
            raise ConfigError(
                "pad_token_id: stored rows are padded with the id that their version records; leave it out"
            )
        if not stored and sharding is not None and not drop_last:
            raise ConfigError(
                "drop_last: False, but all batches on devices have one size; leave it out"
            )
        if isinstance(source, Dataset | Mixture):
            self._loader = _stored(source, load, seed, padding_side, sharding)
        else:
            filling: Filling | None = None
            if pad_token_id is not None:
                filling = Filling(pad_token_id, padding_side)
            placed: Callable[[Arrays], Arrays] | None = None
            if sharding is not None:
                placed = RowPlacement(sharding, load.batch_size).placed
            self._loader = RowLoader(source, load, seed, filling, placed)

    def __iter__(self) -> Iterator[Arrays]:
        """Return the batches of the next epoch.

        An error of a source is raised in the place of its batch.
        """
        return self._epoch()

    async def __aiter__(self) -> AsyncIterator[Arrays]:
        """Yield the batches of the next epoch.

        A thread prepares them while the event loop continues.
        """
        batches: Any = self._epoch(prefetch=True)
        try:
            while True:
                batch: Any = await asyncio.to_thread(next, batches, _END)
                if batch is _END:
                    return
                yield batch
        finally:
            await asyncio.to_thread(batches.close)

    def _epoch(self, *, prefetch: bool | None = None) -> Iterator[Arrays]:
        """Return the batches of the next epoch.

        If they are awaited, threads prepare them in any case.
        """
        if isinstance(self._loader, RowLoader):
            return self._loader.deliver(self.meter, prefetch=prefetch)
        return cast("Any", iter(self._loader))

    async def aget(self, index: int) -> Arrays:
        """Return batch number `index` of an epoch.

        Batch 0 begins an epoch; the others follow one by one.

        Raises:
            ConfigError: It is not the next one.
            IndexError: The epoch has no more batches.
        """
        # Batches are made in order: only the next one, or a new epoch, can be given.
        if index == 0:
            self._awaited_batches = self._epoch(prefetch=True)
            self._next_index = 0
        if self._awaited_batches is None or index != self._next_index:
            allowed = "0, which begins an epoch"
            if self._awaited_batches is not None:
                allowed = f"{self._next_index}, the next one, or 0"
            raise ConfigError(
                f"aget: got {index}, must be {allowed}; batches are made in order"
            )
        self._next_index += 1
        batch: Any = await asyncio.to_thread(next, self._awaited_batches, _END)
        if batch is _END:
            self._awaited_batches = None
            raise IndexError(f"batch {index}: the epoch has {index} batches")
        return batch

    def get_output_sharding(self) -> Any:
        """Return the sharding of batches; None if they are arrays of numpy."""
        return self._sharding

    @property
    def is_exhausted(self) -> bool:
        """Whether the latest epoch came to its end.

        A new one begins with the next iteration.
        """
        return self._loader.ended

    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            TypeError: The source does not know its number of rows.
        """
        return len(self._loader)

    def __bool__(self) -> bool:
        return True  # `if loader:` must not ask for a length that may be unknown

    @property
    def plan(self) -> BatchPlan | None:
        """Rows of each step, for stored rows; None for other rows."""
        if not isinstance(self._loader, DataLoader):
            return None
        return self._loader.plan

    @property
    def batch_size(self) -> int:
        """Rows of a full batch."""
        return self._load.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch of fewer rows is left out."""
        return self._load.drop_last

    @property
    def rows(self) -> int | None:
        """Rows of an epoch; None if the source does not know the number."""
        try:
            return len(cast("Any", self._source))
        except TypeError:
            return None

    @property
    def endless(self) -> bool:
        """Whether an epoch is known to have no end.

        A mixture that restarts its sources has none, for example.
        """
        if isinstance(self._loader, DataLoader):
            return self._loader.plan.batches_in(0) is None
        return bool(getattr(self._source, "endless", False))

    @property
    def epoch(self) -> int:
        """Number of the latest iteration, over all runs."""
        return self._loader.epoch

    def close(self) -> None:
        """End the latest iteration and its threads."""
        self._loader.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was delivered.

        It is small and JSON-able. :meth:`load_state_dict` continues from it.
        """
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another loader of the same source and order stopped.

        The next iteration begins there.

        Raises:
            ConfigError: The state is of another source or of another order; the message
                states the difference.
        """
        self._loader.load_state_dict(state)

    def __reduce__(self) -> Any:
        raise TypeError(
            "an AsyncDataLoader cannot be pickled, because it has open files and threads: pickle "
            "loader.state_dict(), make a loader of the same source in the other process, and give it the state by "
            "load_state_dict()"
        )

    get_state = state_dict
    set_state = load_state_dict
    """Names that checkpoints use."""


def _stored(
    source: Dataset | Mixture,
    load: LoadStageConfig,
    seed: int,
    side: Literal["left", "right"],
    sharding: Any,
) -> DataLoader:
    """Return the loader of stored rows."""
    if isinstance(source, Mixture):
        datasets = list(source.datasets.values())
    else:
        datasets = [source]
    # Only rows of different lengths are padded.
    padding: BatchPadding | None = None
    if all(dataset.kind != "packed" for dataset in datasets):
        padding = BatchPadding(side=side)
    # The loader has no switch for prefetching: 0 batches ahead mean none.
    batches_ahead = 0
    threads = 0
    if load.prefetch_enabled:
        batches_ahead = load.prefetch_buffer_size
        threads = load.prefetch_workers
    return DataLoader(
        source,
        load.batch_size,
        seed=seed,
        shuffle=load.shuffle_buffer_size is not None or isinstance(source, Mixture),
        drop_last=load.drop_last,
        padding=padding,
        sharding=sharding,
        prefetch=batches_ahead,
        workers=threads,
    )


@final
class RowPlacement:
    """Function that puts batches onto the devices of a sharding.

    The sharding divides (rows, ids).

    Args:
        sharding: ``jax.sharding.Sharding``.
        size: Number of rows of a batch.

    Raises:
        MissingExtraError: jax is not installed.
    """

    def __init__(self, sharding: Any, size: int) -> None:
        from tokenlake.runtime.loader.jax import Placement

        self._size = size
        self._of = cache(lambda width: Placement(sharding, (size,), (width,)))
        # Placements are cached by the width of rows. One is made now, so that an object
        # that is no sharding, or cannot cut the rows, is an error at once. Any sharding
        # of these devices can cut rows of as many ids as it has devices.
        try:
            width = len(sharding.device_set)
        except (AttributeError, ValueError):
            width = 1
        self._of(width)

    def placed(self, batch: Arrays) -> Arrays:
        """Return a batch on the devices.

        Raises:
            ConfigError: A field is not an array (rows, ids), or the sharding cannot cut
                it.
        """
        return {
            field_name: self.array(field_name, values)
            for field_name, values in batch.items()
        }

    def array(self, name: str, values: Any) -> Any:
        """Return one field (rows, ids) on the devices; errors as :meth:`placed`."""
        if getattr(values, "ndim", None) != 2:
            raise ConfigError(
                f"the field {name!r} is a {type(values).__name__}; batches on devices hold only arrays (rows, ids). "
                "Leave it out: source.drop_fields([...])"
            )
        # Each host puts its own rows onto its devices.
        placement = self._of(values.shape[1])
        own_rows = {name: values[placement.wanted(self._size)]}
        return placement.place(own_rows, self._size)[name]


def _first_device() -> Any:
    """Return the sharding of arrays on the first device of this process.

    Raises:
        MissingExtraError: jax is not installed.
    """
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError(
            "batches on devices need jax: pip install 'tokenlake[jax]'"
        ) from error
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


@final
class PrefetchIterator(Generic[Item]):
    """Items of an iterable, which threads prepare ahead.

    The threads end with it, and when it is closed or forgotten.
    """

    def __init__(
        self,
        source: Iterable[Any],
        buffer_size: int = 4,
        num_workers: int = 2,
        make: Callable[[Any], Item] | None = None,
    ) -> None:
        """Start no thread yet.

        Args:
            source: Items, drawn by one thread at a time.
            buffer_size: Maximum number of items that are ready ahead.
            num_workers: Number of threads, which run `make` in parallel.
            make: Function from an item to the item that replaces it. None for the items
                themselves.
        """
        whole_number("num_workers", num_workers, 1)
        whole_number("buffer_size", buffer_size, 1)
        function: Callable[[Any], Any] = make or (lambda item: item)
        self._items = Prefetched(
            iter(source), function, workers=num_workers, ahead=buffer_size
        )

    def __iter__(self) -> PrefetchIterator[Item]:
        return self

    def __next__(self) -> Item:
        """Return the next item.

        An error of a thread is raised in its place.
        """
        return next(self._items)

    def close(self) -> None:
        """End the threads; no more items follow."""
        self._items.close()


def create_data_iterator(
    dataset: Any,
    batch_size: int,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch: bool = True,
    prefetch_workers: int = 2,
    prefetch_buffer: int = 4,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    **padding: Any,
) -> Iterator[Arrays]:
    """Return one epoch of batches.

    :class:`tokenlake.AsyncDataLoader` has more, such as a state to resume from.

    Args:
        dataset: Rows, as an AsyncDataLoader takes them.
        batch_size: Number of rows per batch.
        shuffle: Whether rows are drawn at random from a buffer.
        drop_last: Whether a last batch of fewer rows is left out.
        prefetch: Whether threads prepare batches.
        prefetch_workers: Number of these threads.
        prefetch_buffer: Number of batches that are prepared ahead.
        shuffle_buffer: Number of rows in the buffer; None for 10,000.
        seed: Random seed of the shuffle; None is 0.
        padding: `pad_token_id`, `padding_side`, `sharding` and the other keywords of an
            AsyncDataLoader.
    """
    if shuffle_buffer is not None and not shuffle:
        raise ConfigError(
            "shuffle_buffer: set, but shuffle is False; leave one of them out"
        )
    shuffle_rows: int | None = None
    if shuffle:
        shuffle_rows = shuffle_buffer or _SHUFFLED
    loader = AsyncDataLoader(
        dataset,
        batch_size,
        prefetch,
        prefetch_workers,
        prefetch_buffer,
        shuffle_rows,
        drop_last,
        seed,
        **padding,
    )
    return iter(loader)


def preshard_batch(batch: Arrays, sharding_map: Mapping[str, Any] | None) -> Arrays:
    """Return a batch with some of its fields on devices.

    Args:
        batch: Batch, the same on every host; fields on devices are arrays (rows, ids).
        sharding_map: ``jax.sharding.Sharding`` of each field that goes onto devices;
            other fields stay as they are. None: all fields stay.

    Raises:
        ConfigError: A field is missing or not an array (rows, ids), or its sharding
            cannot cut it.
        MissingExtraError: jax is not installed.
    """
    placed = dict(batch)
    for field_name, sharding in (sharding_map or {}).items():
        if field_name not in batch:
            raise ConfigError(
                f"sharding_map: the batch has no field {field_name!r}; it has {', '.join(batch)}"
            )
        placed[field_name] = RowPlacement(sharding, len(batch[field_name])).array(
            field_name, batch[field_name]
        )
    return placed


@final
@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """Places of the fields of batches on a mesh.

    Attributes:
        mesh: A ``jax.sharding.Mesh``; None for no mesh.
        partition_specs: ``PartitionSpec`` of each field that goes onto the mesh; other
            fields stay arrays of numpy.
    """

    mesh: Any = None
    partition_specs: Mapping[str, Any] = field(
        default_factory=cast("Callable[[], dict[str, Any]]", dict)
    )

    def __post_init__(self) -> None:
        if self.mesh is None and self.partition_specs:
            raise expected(
                "mesh", None, "a jax.sharding.Mesh, where there are partition_specs"
            )

    def apply(self, batch: Arrays) -> Arrays:
        """Return a batch with its fields in their places.

        Errors are those of :func:`preshard_batch`.
        """
        # Without a mesh every field stays on the host, and jax is not needed.
        if self.mesh is None:
            return dict(batch)
        try:
            from jax.sharding import NamedSharding
        except ImportError as error:
            raise MissingExtraError(
                "arrays on a mesh need jax: pip install 'tokenlake[jax]'"
            ) from error
        shardings: dict[str, Any] = {}
        for field_name, spec in self.partition_specs.items():
            shardings[field_name] = NamedSharding(self.mesh, spec)
        return preshard_batch(batch, shardings)
