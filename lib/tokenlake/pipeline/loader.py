"""Rows to batches, prepared ahead by threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, final

from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.order.random import key_of
from tokenlake.pipeline.batches import Batch, Filling, batch_of
from tokenlake.pipeline.shuffling import shuffled_by_buffer
from tokenlake.prefetching import Prefetched
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.fields import Row

_END: Final = object()


@final
class AsyncDataLoader:
    """Batches of rows: dicts of numpy arrays (see :func:`tokenlake.pipeline.batches.batch_of`), in order.

    ::

        for batch in AsyncDataLoader(source, batch_size=8):
            batch["input_ids"]  # int32 (8, L)

        async for batch in loader: ...

    Every iteration is an epoch: it reads the source from its beginning, and with a shuffle buffer in another order than
    the last one; which order is a function of `seed` and of how many iterations came before. Batches and their order
    do not depend on prefetching. Threads end with the iteration, also where it is left in the middle.
    """

    def __init__(
        self,
        source: ShardedDataSource | Iterable[Row],
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
        sharding: object = None,
    ) -> None:
        """Read nothing yet.

        Args:
            source: rows; every iteration begins anew, which an iterator that was drawn from cannot.
            batch_size: rows of a batch.
            prefetch_enabled: let threads prepare batches ahead.
            prefetch_workers: so many of them. One at a time draws rows, which are then made a batch side by side.
            prefetch_buffer_size: batches that are ready or in work at most.
            shuffle_buffer_size: rows of the buffer that rows are drawn from at random; None: rows stay in order.
            drop_last: leave out a last batch of fewer rows.
            seed: of the shuffle; None is 0.
            pad_token_id: rows of different lengths are filled up with it to the longest of each batch, and every batch
                has an ``attention_mask``; None: such rows are an error.
            padding_side: where it goes.
            sharding: for devices; not available yet.

        Raises:
            ConfigError: an argument is not what is allowed.
            NotAvailableError: `sharding` is given.
        """
        if sharding is not None:
            raise NotAvailableError(
                "sharding: batches on devices come with the loader of JAX arrays; today batches are numpy arrays, "
                "which jax.device_put(batch, sharding) takes"
            )
        if not isinstance(source, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"source: got a {type(source).__name__}, must be a source of rows")
        if padding_side not in ("left", "right"):
            raise ConfigError(f"padding_side: got {padding_side!r}, must be 'left' or 'right'")
        self._source = source
        self._size = _count("batch_size", batch_size)
        self._prefetch = prefetch_enabled
        self._workers = _count("prefetch_workers", prefetch_workers)
        self._ahead = _count("prefetch_buffer_size", prefetch_buffer_size)
        self._buffer = (
            None if shuffle_buffer_size is None else _count("shuffle_buffer_size", shuffle_buffer_size)
        )
        self._drop_last, self._seed = drop_last, seed or 0
        filling = None if pad_token_id is None else Filling(pad_token_id, padding_side)
        self._make = partial(batch_of, filling=filling)
        self._epoch = 0

    def __iter__(self) -> Iterator[Batch]:
        """Return the batches of the next epoch; whatever a source raises is raised where its batch would be."""
        return self._prefetched() if self._prefetch else map(self._make, self._chunks())

    def __aiter__(self) -> AsyncIterator[Batch]:
        """Return the batches of the next epoch, which a thread prepares while the event loop goes on."""
        return self._awaited(self._prefetched())

    def __len__(self) -> int:
        """Return how many batches an epoch has; TypeError where the source does not know how many rows it has."""
        rows = len(self._source)  # pyright: ignore[reportArgumentType]
        return rows // self._size if self._drop_last else -(-rows // self._size)

    def __bool__(self) -> bool:
        return True  # `if loader:` must not ask for a length that may be unknown

    def _prefetched(self) -> Prefetched[list[Row], Batch]:
        return Prefetched(self._chunks(), self._make, workers=self._workers, ahead=self._ahead)

    async def _awaited(self, batches: Prefetched[list[Row], Batch]) -> AsyncIterator[Batch]:
        try:
            while True:
                batch: Any = await asyncio.to_thread(next, batches, _END)
                if batch is _END:
                    return
                yield batch
        finally:
            await asyncio.to_thread(batches.close)

    def _chunks(self) -> Iterator[list[Row]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._chunks_of(epoch)

    def _chunks_of(self, epoch: int) -> Iterator[list[Row]]:
        rows = iter(self._source)
        if self._buffer is not None:
            rows = shuffled_by_buffer(rows, self._buffer, key_of(self._seed, epoch))
        while chunk := list(islice(rows, self._size)):
            if len(chunk) < self._size and self._drop_last:
                return
            yield chunk


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: got {value!r}, must be a whole number from 1 on")
    return value
