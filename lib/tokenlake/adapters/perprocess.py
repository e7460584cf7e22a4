"""What each process has of its own: open files, caches, threads.

Never shared with a process that was forked: two processes with one open file read at each other's positions, and a lock
that a thread held when its process was forked is held for ever.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, final

from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture

T = TypeVar("T")


@final
class PerProcess(Generic[T]):
    """Something that is made once in each process that asks for it, also in forked ones; pickled without it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._made = make, cast("tuple[int, T] | None", None)

    def get(self) -> T:
        """Return this process's own."""
        made = self._made
        if made is None or made[0] != os.getpid():
            self._made = made = os.getpid(), self._make()
        return made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_made": None}


def own(data: Dataset | Mixture) -> Dataset | Mixture:
    """Return the same data with files and caches of its own."""
    mine = copy.copy(data)
    if isinstance(mine, Mixture):
        mine.datasets = {name: own_dataset(dataset) for name, dataset in mine.datasets.items()}
    return mine


def own_dataset(data: Dataset) -> Dataset:
    """Return the same dataset with files and a cache of its own."""
    return copy.copy(data)
