"""Rows in another order, by a buffer from which they are drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import numpy as np

from tokenlake.order.random import splitmix64

Item = TypeVar("Item")

_DRAWS: Final = 1024


def shuffled_by_buffer(items: Iterable[Item], size: int, key: int) -> Iterator[Item]:
    """Yield `items` in an order that `key` decides, holding `size` of them.

    The buffer is filled; then each new item takes the place of one drawn from it, and in the end those that are left
    are drawn. An item comes out at most `size` places early, and any number of places late.
    """
    draws = _draws(key)
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        place = next(draws) % size
        drawn, buffer[place] = buffer[place], item
        yield drawn
    while buffer:
        place = next(draws) % len(buffer)
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        yield buffer.pop()


def _draws(key: int) -> Iterator[int]:
    """Yield the numbers of the stream that `key` names: ``splitmix64(key + 0), splitmix64(key + 1) ...``."""
    counter = np.arange(_DRAWS, dtype=np.uint64) + np.uint64(key)
    while True:
        yield from splitmix64(counter).tolist()
        counter = counter + np.uint64(_DRAWS)
