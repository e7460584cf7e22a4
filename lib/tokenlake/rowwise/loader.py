"""The loader of rows, whose batches are awaited or put onto devices where that is
asked for; data awaited by index.
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
    """Items by index: define :meth:`aget`, and all else follows."""

    @abstractmethod
    async def aget(self, index: int) -> Item:
        """Return item number `index`; IndexError behind the last one."""

    async def abatch(self, indices: Sequence[int]) -> list[Item]:
        """Return several items, awaited one after the other."""
        return [await self.aget(index) for index in indices]

    def get(self, index: int) -> Item:
        """Return an item without an event loop of your own; RuntimeError inside of a
        running one.
        """
        return asyncio.run(self.aget(index))

    def get_output_sharding(self) -> Any:
        """Return the ``jax.sharding.Sharding`` of items, None where they are on no
        device.
        """
        return None

    @property
    def is_exhausted(self) -> bool:
        """Whether somebody has come to the end."""
        return False

    def __iter__(self) -> Iterator[Item]:
        """Yield items from the first one on."""
        for index in count():
            try:
                item = self.get(index)
            except IndexError:
                return
            yield item


_END: Final = object()
_SHUFFLED: Final = 10_000  # rows of a buffer whose size nobody says


@final
class AsyncDataLoader(AsyncDataset[Arrays]):
    """Batches of rows: dicts of numpy arrays (see
    :func:`tokenlake.rowwise.batches.batch_of`), in order.

    ::

        for batch in AsyncDataLoader(source, batch_size=8):
            batch["input_ids"]  # int32 (8, L)

        async for batch in loader: ...

    Of a stored dataset (``tl.open``) or a ``tl.Mixture`` it is a
    :class:`tokenlake.DataLoader` that can be awaited, with all that one promises: a
    pass is an epoch, a loop goes on behind the last batch that was delivered.

    Of other rows every iteration is an epoch: it reads the source from its beginning,
    and with a shuffle buffer in another order than the last one; which order is a
    function of `seed` and of how many iterations came before. A loader has one iterator
    at a time: the next iteration takes the place of one that is under way, which then
    raises ConfigError. Batches and their order do not depend on prefetching. Threads
    end with the iteration, also where it is left in the middle.

    :meth:`state_dict` counts batches that were delivered; :meth:`load_state_dict` lets
    the next iteration go on behind them, exactly. What that costs is up to the source:
    without a shuffle buffer, opening one shard at one row, which files of blocks and
    lines seek to, and any other iterable is drawn from its beginning. With a buffer,
    reading again from the oldest row that still waits in it, in the mean ``size *
    ln(size)`` rows back, and 1 s of draws for every few million rows that were
    delivered.
    """

    meter: RowMeter | None = None
    """Counts the batches of rows that are delivered; None: nobody asks."""

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
        if pad_token_id is None and isinstance(source, FileBacked):
            pad_token_id = source.pad_token_id
        if prefetch_to_device and sharding is None:
            sharding = _first_device()
        self._sharding, self._asked, self._turn = (
            sharding,
            cast("Iterator[Arrays] | None", None),
            0,
        )
        self._source: Final = source
        self._load: Final = load
        if (stored and pad_token_id is not None) or (
            not stored and sharding is not None and not drop_last
        ):
            padded = "pad_token_id: stored rows are padded with the id that their version records"
            sized = "drop_last: False, but all batches on devices have one size"
            raise ConfigError(f"{padded if stored else sized}; leave it out")
        if isinstance(source, Dataset | Mixture):
            self._loader = _stored(source, load, seed, padding_side, sharding)
        else:
            filling = (
                None if pad_token_id is None else Filling(pad_token_id, padding_side)
            )
            placed = (
                None
                if sharding is None
                else RowPlacement(sharding, load.batch_size).placed
            )
            self._loader = RowLoader(source, load, seed, filling, placed)

    def __iter__(self) -> Iterator[Arrays]:
        """Return the batches of the next epoch; whatever a source raises is raised
        where its batch would be.
        """
        return self._epoch()

    async def __aiter__(self) -> AsyncIterator[Arrays]:
        """Yield the batches of the next epoch, which a thread prepares while the
        event loop goes on.
        """
        batches: Any = self._epoch(prefetch=True)
        try:
            while (
                batch := cast("Any", await asyncio.to_thread(next, batches, _END))
            ) is not _END:
                yield batch
        finally:
            await asyncio.to_thread(batches.close)

    def _epoch(self, *, prefetch: bool | None = None) -> Iterator[Arrays]:
        """Return the batches of the next epoch; where they are awaited, threads
        prepare them in any case.
        """
        if isinstance(self._loader, RowLoader):
            return self._loader.deliver(self.meter, prefetch=prefetch)
        return cast("Any", iter(self._loader))

    async def aget(self, index: int) -> Arrays:
        """Return batch number `index` of an epoch, which 0 begins; the others follow
        one by one.

        Raises:
            ConfigError: it is not the next one. IndexError: the epoch has no more.
        """
        if index == 0:
            self._asked, self._turn = self._epoch(prefetch=True), 0
        if self._asked is None or index != self._turn:
            begins = self._asked is None
            next_one = (
                "0, which begins an epoch"
                if begins
                else f"{self._turn}, the next one, or 0"
            )
            raise ConfigError(
                f"aget: got {index}, must be {next_one}; batches are made in order"
            )
        self._turn += 1
        batch: Any = await asyncio.to_thread(next, self._asked, _END)
        if batch is _END:
            self._asked = None
            raise IndexError(f"batch {index}: the epoch has {index} batches")
        return batch

    def get_output_sharding(self) -> Any:
        """Return the sharding of batches, None where they are arrays of numpy."""
        return self._sharding

    @property
    def is_exhausted(self) -> bool:
        """Whether the latest epoch came to its end; a new one begins with the next
        iteration.
        """
        return self._loader.ended

    def __len__(self) -> int:
        """Return how many batches an epoch has; TypeError where the source does not
        know how many rows it has.
        """
        return len(self._loader)

    def __bool__(self) -> bool:
        return True  # `if loader:` must not ask for a length that may be unknown

    @property
    def plan(self) -> BatchPlan | None:
        """Which rows each step has, of stored rows; None for other rows."""
        return self._loader.plan if isinstance(self._loader, DataLoader) else None

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
        """Rows of an epoch; None where the source does not know it."""
        try:
            return len(cast("Any", self._source))
        except TypeError:
            return None

    @property
    def endless(self) -> bool:
        """Whether an epoch is known to have no end, as that of a mixture that
        restarts its sources.
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
        """Return what :meth:`load_state_dict` needs to go on behind the last batch
        that was delivered: JSON, small.
        """
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader stood, of the same source and order; the next
        iteration begins there.

        Raises:
            ConfigError: the state is of another source or of another order; says what
                differs.
        """
        self._loader.load_state_dict(state)

    def __reduce__(self) -> Any:
        raise TypeError(
            "an AsyncDataLoader cannot be pickled, because it has open files and threads: pickle "
            "loader.state_dict(), make a loader of the same source in the other process, and give it the state by "
            "load_state_dict()"
        )

    get_state, set_state = state_dict, load_state_dict
    """The names that checkpoints use."""


def _stored(
    source: Dataset | Mixture,
    load: LoadStageConfig,
    seed: int,
    side: Literal["left", "right"],
    sharding: Any,
) -> DataLoader:
    """Return the loader of rows that are stored."""
    datasets = source.datasets.values() if isinstance(source, Mixture) else [source]
    ragged = all(dataset.kind != "packed" for dataset in datasets)
    ahead = load.prefetch_enabled
    return DataLoader(
        source,
        load.batch_size,
        seed=seed,
        shuffle=load.shuffle_buffer_size is not None or isinstance(source, Mixture),
        drop_last=load.drop_last,
        padding=BatchPadding(side=side) if ragged else None,
        sharding=sharding,
        prefetch=load.prefetch_buffer_size if ahead else 0,
        workers=load.prefetch_workers if ahead else 0,
    )


@final
class RowPlacement:
    """Puts batches of `size` rows onto the devices of a sharding, which divides (rows,
    ids).

    Raises:
        MissingExtraError: jax is not installed.
    """

    def __init__(self, sharding: Any, size: int) -> None:
        from tokenlake.runtime.loader.jax import Placement

        self._size = size
        self._of = cache(lambda width: Placement(sharding, (size,), (width,)))
        try:
            # Any sharding of these devices can cut that.
            width = len(sharding.device_set)
        except (AttributeError, ValueError):
            width = 1
        self._of(width)  # what is no sharding, or cannot cut the rows, is found now

    def placed(self, batch: Arrays) -> Arrays:
        """Return a batch on the devices.

        Raises:
            ConfigError: a field is no array (rows, ids), or the sharding cannot cut it.
        """
        return {name: self.array(name, values) for name, values in batch.items()}

    def array(self, name: str, values: Any) -> Any:
        """Return one field (rows, ids) on the devices; errors as :meth:`placed`."""
        if getattr(values, "ndim", None) != 2:
            raise ConfigError(
                f"the field {name!r} is a {type(values).__name__}; batches on devices hold only arrays (rows, ids). "
                "Leave it out: source.drop_fields([...])"
            )
        placement = self._of(values.shape[1])
        return placement.place(
            {name: values[placement.wanted(self._size)]}, self._size
        )[name]


def _first_device() -> Any:
    """Return the sharding of arrays that lie on the first device of this process;
    MissingExtraError without jax.
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
    """The items of an iterable, which threads run ahead of; they end with it, and
    when it is closed or forgotten.
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
        """Return the next item; whatever a thread raised is raised here, in its
        place.
        """
        return next(self._items)

    def close(self) -> None:
        """End the threads; nothing more comes."""
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
    """Return one epoch of batches; :class:`tokenlake.AsyncDataLoader` has more, such as
    a state to go on from.

    Args:
        dataset: whatever an AsyncDataLoader takes.
        shuffle: draw rows at random from a buffer of `shuffle_buffer` rows; None:
            10,000.
        prefetch, prefetch_workers, prefetch_buffer: whether threads prepare batches,
            how many, and how far ahead.
        padding: `pad_token_id`, `padding_side`, `sharding` and the other keywords of an
            AsyncDataLoader.
    """
    if shuffle_buffer is not None and not shuffle:
        raise ConfigError(
            "shuffle_buffer: set, but shuffle is False; leave one of them out"
        )
    buffer = (shuffle_buffer or _SHUFFLED) if shuffle else None
    ahead = (prefetch, prefetch_workers, prefetch_buffer)
    return iter(
        AsyncDataLoader(dataset, batch_size, *ahead, buffer, drop_last, seed, **padding)
    )


def preshard_batch(batch: Arrays, sharding_map: Mapping[str, Any] | None) -> Arrays:
    """Return a batch with some of its fields on devices.

    Args:
        batch: the same on every host; fields on devices are arrays (rows, ids).
        sharding_map: field to its ``jax.sharding.Sharding``; other fields stay as they
            are. None: all do.

    Raises:
        ConfigError: a field is missing or is no such array, or its sharding cannot cut
            it.
        MissingExtraError: jax is not installed.
    """
    placed = dict(batch)
    for name, sharding in (sharding_map or {}).items():
        if name not in batch:
            raise ConfigError(
                f"sharding_map: the batch has no field {name!r}; it has {', '.join(batch)}"
            )
        placed[name] = RowPlacement(sharding, len(batch[name])).array(name, batch[name])
    return placed


@final
@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """Where the fields of batches go on a mesh.

    Attributes:
        mesh: a ``jax.sharding.Mesh``; None: nowhere.
        partition_specs: field to its ``PartitionSpec``; other fields stay arrays of
            numpy.
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
        """Return a batch with its fields in their places; errors as
        :func:`preshard_batch`.
        """
        if self.mesh is None:
            return dict(batch)
        try:
            from jax.sharding import NamedSharding
        except ImportError as error:
            raise MissingExtraError(
                "arrays on a mesh need jax: pip install 'tokenlake[jax]'"
            ) from error
        named = {
            name: NamedSharding(self.mesh, spec)
            for name, spec in self.partition_specs.items()
        }
        return preshard_batch(batch, named)
