"""Data that can be awaited by index: the contract of :class:`tokenlake.AsyncDataLoader`, and of your own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Generic, TypeVar

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
