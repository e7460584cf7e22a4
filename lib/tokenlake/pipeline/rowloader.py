"""Delivering the batches of a source of rows, and counting what was delivered."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, cast, final

from tokenlake.pipeline.batches import Batch, Filling, batch_of
from tokenlake.pipeline.devices import Made, RowPlacement
from tokenlake.pipeline.rowbatches import Chunk, RowOrder, Stand
from tokenlake.prefetching import Prefetched

_ON_DEVICES: Final = 2  # batches that are put onto devices ahead


@final
class RowLoader:
    """Epochs of a source of rows, one for each iteration.

    Args:
        order: how rows become batches.
        filling: for rows of different lengths.
        placement: onto devices; None: arrays of numpy.
        prefetch: let threads prepare batches ahead, `workers` of them, at most `ahead` batches.
    """

    def __init__(
        self,
        order: RowOrder,
        filling: Filling | None,
        placement: RowPlacement | None,
        *,
        prefetch: bool,
        workers: int,
        ahead: int,
    ) -> None:
        self._order, self._placement = order, placement
        self._make = partial(_made, filling=filling)
        self._prefetch, self._workers, self._ahead = prefetch, workers, ahead
        self._next = self._now = Stand(0)
        self._latest: weakref.ref[RowDelivery] | None = None

    def __iter__(self) -> RowDelivery:
        return self.deliver(prefetch=self._prefetch)

    def deliver(self, *, prefetch: bool) -> RowDelivery:
        """Return the batches of the next epoch."""
        start = self._now = self._next
        self._next = Stand(start.epoch + 1)
        chunks = self._order.chunks(start)
        made: Iterator[Made] = (
            Prefetched(chunks, self._make, workers=self._workers, ahead=self._ahead)
            if prefetch
            else (self._make(chunk) for chunk in chunks)
        )
        if self._placement is not None:
            made = self._placement.ahead(made, _ON_DEVICES if prefetch else 0)
        delivery = RowDelivery(made, self)
        self._latest = weakref.ref(delivery)
        return delivery

    def __len__(self) -> int:
        rows, size = len(cast("Any", self._order.source)), self._order.size
        return rows // size if self._order.drop_last else -(-rows // size)

    def state_dict(self) -> dict[str, Any]:
        return self._order.state(self._now)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = self._now = self._order.stand(state)
        self._latest = None

    def moved(self, delivery: RowDelivery, after: Stand | None) -> None:
        """The latest iteration delivered a batch; None: it came to its end."""
        if self._latest is not None and self._latest() is delivery:
            self._now = self._next if after is None else after


@final
class RowDelivery(Iterator[Batch]):
    """Hands batches out and tells the loader."""

    def __init__(self, made: Iterator[Made], loader: RowLoader) -> None:
        self._made, self._loader = made, cast("RowLoader | None", loader)

    def __next__(self) -> Batch:
        try:
            made = next(self._made)
        except StopIteration:
            self._tell(None)
            self._loader = None
            raise
        self._tell(made.after)
        return made.columns

    def close(self) -> None:
        """End the threads; nothing more comes."""
        close = getattr(self._made, "close", None)
        if close is not None:
            close()
        self._made, self._loader = iter(()), None  # nor does the source live on

    def _tell(self, after: Stand | None) -> None:
        if self._loader is not None:
            self._loader.moved(self, after)


def _made(chunk: Chunk, filling: Filling | None) -> Made:
    return Made(batch_of(chunk.rows, filling), chunk.after)
