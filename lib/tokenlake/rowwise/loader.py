"""Rows to batches, prepared ahead by threads, put onto devices where that is asked for; data awaited by index."""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any, Final, Generic, Literal, TypeVar, cast, final

import numpy as np

from tokenlake.config.stages import LoadStageConfig
from tokenlake.config.values import expected, require_one_of, whole_number
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.loader import DataLoader
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.padding import BatchPadding
from tokenlake.loader.read_ahead import Prefetched
from tokenlake.rowwise.batches import Arrays, Filling, RowOrder, RowProgress, batch_of
from tokenlake.rowwise.files import FileBacked
from tokenlake.rowwise.shards import Row, RowMeter, section
from tokenlake.rowwise.source import ShardedDataSource

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
        """Return an item without an event loop of your own; RuntimeError inside of a running one."""
        return asyncio.run(self.aget(index))

    def get_output_sharding(self) -> Any:
        """Return the ``jax.sharding.Sharding`` of items, None where they are on no device."""
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
_ON_DEVICES: Final = 2  # batches that are put onto devices ahead


@final
class AsyncDataLoader(AsyncDataset[Arrays]):
    """Batches of rows: dicts of numpy arrays (see :func:`tokenlake.rowwise.batches.batch_of`), in order.

    ::

        for batch in AsyncDataLoader(source, batch_size=8):
            batch["input_ids"]  # int32 (8, L)

        async for batch in loader: ...

    Of a stored dataset (``tl.open``) or a ``tl.Mixture`` it is a :class:`tokenlake.DataLoader` that can be awaited,
    with all that one promises: a pass is an epoch, a loop goes on behind the last batch that was delivered.

    Of other rows every iteration is an epoch: it reads the source from its beginning, and with a shuffle buffer in
    another order than the last one; which order is a function of `seed` and of how many iterations came before.
    Batches and their order do not depend on prefetching. Threads end with the iteration, also where it is left in the
    middle.

    :meth:`state_dict` counts batches that were delivered; :meth:`load_state_dict` lets the next iteration go on behind
    them, exactly. What that costs is up to the source: without a shuffle buffer, opening one shard at one row, which
    files of blocks and lines seek to, and any other iterable is drawn from its beginning. With a buffer, reading again
    from the oldest row that still waits in it, in the mean ``size * ln(size)`` rows back, and 1 s of draws for every
    few million rows that were delivered.
    """

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
            source: rows; every iteration begins anew, which an iterator that was drawn from cannot. Or rows that are
                stored: a ``Dataset`` or a ``Mixture``.
            batch_size: rows of a batch.
            prefetch_enabled: let threads prepare batches ahead.
            prefetch_workers: number of these threads. One at a time draws rows; they make batches of them in parallel.
            prefetch_buffer_size: batches that are ready or in work at most.
            shuffle_buffer_size: rows of the buffer that rows are drawn from at random; None: rows stay in order. The
                rows of a ``Dataset`` are shuffled over the whole epoch, whatever the number, and those of a ``Mixture``
                always are.
            drop_last: leave out a last batch of fewer rows.
            seed: of the shuffle; None is 0.
            pad_token_id: rows of different lengths are filled up with it to the longest of each batch, and every batch
                has an ``attention_mask``; None: what the manifest of a flat directory of tokens says; where there is
                none, such rows are an error.
            padding_side: where it goes, also for stored rows that are not packed.
            sharding: a ``jax.sharding.Sharding`` of batches (rows, ids): batches are global ``jax.Array``, `batch_size`
                rows over all hosts. Of a ``Dataset`` or a ``Mixture`` each host reads only its rows; other rows have no
                known place before they are read, so every host draws all of them and puts only its own onto devices.
            prefetch_to_device: put batches onto devices ahead; without `sharding` onto the first one of this process.

        Raises:
            ConfigError: an argument is not what is allowed.
            MissingExtraError: batches on devices are asked for, and jax is not installed.
        """
        options = {name: given for name, given in locals().items() if name in LoadStageConfig.model_fields}
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
        self._sharding, self._asked, self._turn = sharding, cast("Iterator[Arrays] | None", None), 0
        if (stored and pad_token_id is not None) or (not stored and sharding is not None and not drop_last):
            raise ConfigError(
                "pad_token_id: stored rows are padded with the id that their version names; leave it out"
                if stored
                else "drop_last: False, but batches on devices are all of one size; leave it out"
            )
        if isinstance(source, Dataset | Mixture):
            self._loader = _stored(source, load, seed, padding_side, sharding)
        else:
            self._loader = RowLoader(
                RowOrder(source, load.batch_size, load.shuffle_buffer_size, drop_last, seed),
                None if pad_token_id is None else Filling(pad_token_id, padding_side),
                None if sharding is None else RowPlacement(sharding, load.batch_size),
                load,
            )

    @property
    def meter(self) -> RowMeter | None:
        """Counts the batches that are delivered; None: nobody asks, or the rows are stored."""
        return self._loader.meter if isinstance(self._loader, RowLoader) else None

    @meter.setter
    def meter(self, meter: RowMeter | None) -> None:
        if isinstance(self._loader, RowLoader):
            self._loader.meter = meter

    def __iter__(self) -> Iterator[Arrays]:
        """Return the batches of the next epoch; whatever a source raises is raised where its batch would be."""
        return iter(self._loader)

    def __aiter__(self) -> AsyncIterator[Arrays]:
        """Return the batches of the next epoch, which a thread prepares while the event loop goes on."""
        return _awaited(self._loader)

    async def aget(self, index: int) -> Arrays:
        """Return batch number `index` of an epoch, which 0 begins; the others follow one by one.

        Raises:
            ConfigError: it is not the next one. IndexError: the epoch has no more.
        """
        if index == 0:
            self._asked, self._turn = _batches(self._loader), 0
        if self._asked is None or index != self._turn:
            next_one = (
                "0, which begins an epoch" if self._asked is None else f"{self._turn}, the next one, or 0"
            )
            raise ConfigError(f"aget: got {index}, must be {next_one}; batches are made in order")
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
        """Whether the latest epoch came to its end; a new one begins with the next iteration."""
        return self._loader.ended

    def __len__(self) -> int:
        """Return how many batches an epoch has; TypeError where the source does not know how many rows it has."""
        return len(self._loader)

    def __bool__(self) -> bool:
        return True  # `if loader:` must not ask for a length that may be unknown

    @property
    def epoch(self) -> int:
        """Number of the latest iteration, over all runs."""
        return self._loader.epoch

    def close(self) -> None:
        """End the latest iteration and its threads."""
        self._loader.close()

    def get_state(self) -> dict[str, Any]:
        """As :meth:`state_dict`, by the name that checkpoints use."""
        return self.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """As :meth:`load_state_dict`, by the name that checkpoints use."""
        self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to go on behind the last batch that was delivered: JSON, small."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader stood, of the same source and order; the next iteration begins there.

        Raises:
            ConfigError: the state is of another source or of another order; says what differs.
        """
        self._loader.load_state_dict(state)


def _stored(
    source: Dataset | Mixture, load: LoadStageConfig, seed: int, side: Literal["left", "right"], sharding: Any
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
@dataclass(frozen=True, slots=True)
class _Made:
    """A batch of so many rows, and how far delivery has come with it."""

    arrays: Arrays
    after: RowProgress
    rows: int


@final
class RowLoader:
    """Epochs of a source of rows, one for each iteration.

    Args:
        order: how rows become batches.
        filling: for rows of different lengths.
        placement: onto devices; None: arrays of numpy.
        load: how batches are prepared ahead.
    """

    def __init__(
        self, order: RowOrder, filling: Filling | None, placement: RowPlacement | None, load: LoadStageConfig
    ) -> None:
        self._order, self._filling, self._placement, self._load = order, filling, placement, load
        self._next = self._now = RowProgress(0)
        self.meter: RowMeter | None = None
        self.ended = False
        self._latest: weakref.ref[RowDelivery] | None = None

    def __iter__(self) -> RowDelivery:
        return self.deliver(prefetch=self._load.prefetch_enabled)

    def deliver(self, *, prefetch: bool) -> RowDelivery:
        """Return the batches of the next epoch."""
        start, self.ended = self._next, False
        self._now = start
        self._next = RowProgress(start.epoch + 1)
        workers, ahead = self._load.prefetch_workers, self._load.prefetch_buffer_size if prefetch else 0
        make = partial(_made, filling=self._filling)
        made: Iterator[_Made] = Prefetched(self._order.batches(start), make, workers=workers, ahead=ahead)
        if self._placement is not None:
            made = Prefetched(made, self._placement.place, workers=1, ahead=_ON_DEVICES if prefetch else 0)
        delivery = RowDelivery(made, self)
        self._latest = weakref.ref(delivery)
        return delivery

    @property
    def epoch(self) -> int:
        return self._now.epoch

    def close(self) -> None:
        delivery = None if self._latest is None else self._latest()
        if delivery is not None:
            delivery.close()

    def __len__(self) -> int:
        rows, size = len(cast("Any", self._order.source)), self._order.size
        return rows // size if self._order.drop_last else -(-rows // size)

    def state_dict(self) -> dict[str, Any]:
        return self._order.state(self._now)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = self._now = self._order.progress(state)
        self._latest = None

    def delivered(self, delivery: RowDelivery, after: RowProgress | None) -> None:
        """The latest iteration delivered a batch; None: it came to its end."""
        if self._latest is not None and self._latest() is delivery:
            self._now, self.ended = (self._next, True) if after is None else (after, False)


@final
class RowDelivery(Iterator[Arrays]):
    """Hands batches out and tells the loader."""

    def __init__(self, made: Iterator[_Made], loader: RowLoader) -> None:
        self._made, self._loader = made, cast("RowLoader | None", loader)

    def __next__(self) -> Arrays:
        meter = None if self._loader is None else self._loader.meter
        made = next(self._made, None) if meter is None else meter.timed(self._made)
        if self._loader is not None:
            self._loader.delivered(self, None if made is None else made.after)
        if meter is not None and made is not None:
            meter.rows += made.rows
            meter.tokens += int(np.size(made.arrays.get("input_ids", ())))
        if made is None:
            self._loader = None
            raise StopIteration
        return made.arrays

    def close(self) -> None:
        """End the threads; nothing more comes."""
        close = getattr(self._made, "close", None)
        if close is not None:
            close()
        self._made, self._loader = iter(()), None  # nor does the source live on


@final
class RowPlacement:
    """Puts batches of `size` rows onto the devices of a sharding, which divides (rows, ids).

    Raises:
        MissingExtraError: jax is not installed.
    """

    def __init__(self, sharding: Any, size: int) -> None:
        from tokenlake.loader.jax import Placement

        self._size = size
        self._of = cache(lambda width: Placement(sharding, (size,), (width,)))
        self._of(_some_width(sharding))  # what is no sharding, or cannot cut the rows, is found now

    def place(self, made: _Made) -> _Made:
        """Return a batch on the devices.

        Raises:
            ConfigError: a field is no array (rows, ids), or the sharding cannot cut it.
        """
        return replace(made, arrays={name: self.array(name, values) for name, values in made.arrays.items()})

    def array(self, name: str, values: Any) -> Any:
        """Return one field (rows, ids) on the devices; errors as :meth:`place`."""
        if getattr(values, "ndim", None) != 2:
            why = f"is a {type(values).__name__}; batches on devices hold only arrays (rows, ids)"
            raise ConfigError(f"the field {name!r} {why}. Leave it out: source.drop_fields([...])")
        placement = self._of(values.shape[1])
        return placement.place({name: values[placement.wanted(self._size)]}, self._size)[name]


def _first_device() -> Any:
    """Return the sharding of arrays that lie on the first device of this process; MissingExtraError without jax."""
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError("batches on devices need jax: pip install 'tokenlake[jax]'") from error
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _some_width(sharding: Any) -> int:
    """A length of rows that any sharding of these devices can cut."""
    try:
        return len(sharding.device_set)
    except (AttributeError, ValueError):
        return 1


def _batches(loader: DataLoader | RowLoader) -> Iterator[Arrays]:
    """Return the batches of the next epoch, which threads prepare: no event loop may wait for rows."""
    return loader.deliver(prefetch=True) if isinstance(loader, RowLoader) else cast("Any", iter(loader))


async def _awaited(loader: DataLoader | RowLoader) -> AsyncIterator[Arrays]:
    batches: Any = _batches(loader)
    try:
        while True:
            batch: Any = await asyncio.to_thread(next, batches, _END)
            if batch is _END:
                return
            yield batch
    finally:
        await asyncio.to_thread(batches.close)


def _made(batch: tuple[list[Row], RowProgress], filling: Filling | None) -> _Made:
    rows, after = batch
    return _Made(batch_of(rows, filling), after, len(rows))
