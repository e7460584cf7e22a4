"""What adapters of other libraries read: the batches of a run, in any process, all of them or every n-th.

Other libraries start worker processes: they pickle a dataset or fork with it, and give each worker every n-th item. A
:class:`Run` is what travels, a description; files, threads and caches are made in the process that reads.

What each process has of its own: open files, caches, threads.

Never shared with a process that was forked: two processes with one open file read at each other's positions, and a lock
that a thread held when its process was forked is held for ever.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.batch import Assembler, check_columns
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.host_batches import ALL, HostBatches, Turn, open_groups
from tokenlake.loader.loader import CACHE_BYTES, workers_for
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.plan import BatchPlan, Wanted, rows_of_host
from tokenlake.loader.state import place_of, state_of
from tokenlake.loader.steps import BatchSizes, Place, check_counts, check_switches

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


@final
@dataclass(frozen=True)
class _Opened:
    plan: BatchPlan
    assembler: Assembler
    wanted: Wanted


@final
@dataclass(frozen=True, kw_only=True)
class _Options:
    """As of :class:`tokenlake.loader.loader.DataLoader`."""

    batch_size: int | Mapping[int, int]
    seed: int
    shuffle: bool
    epochs: int | None
    drop_last: bool
    columns: Sequence[str] | None
    host: tuple[int, int]
    lanes: int | None
    window: int


@final
class Run:
    """Batches of a dataset or a mixture as a description: picklable, safe to fork, nothing open.

    Args: as of :class:`tokenlake.loader.loader.DataLoader`.

    Raises:
        ConfigError: an argument is not what is allowed.
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        batch_size: int | Mapping[int, int],
        *,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = 1,
        drop_last: bool = False,
        pad_last: bool = False,
        columns: Sequence[str] | None = None,
        host: tuple[int, int] = (0, 1),
        lanes: int | None = None,
        window: int = 1,
        prefetch: int = 2,
        workers: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if not isinstance(data, Dataset | Mixture):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"data: got a {type(data).__name__}, must be a Dataset (tl.open) or a Mixture")
        workers = workers_for(data) if workers is None else workers
        check_counts(prefetch=prefetch, workers=workers, cache_bytes=cache_bytes)
        check_switches(pad_last=pad_last)
        self.data = data
        options = _Options(
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            epochs=epochs,
            drop_last=drop_last,
            columns=check_columns(columns),
            host=host,
            lanes=lanes,
            window=window,
        )
        self._pad, self._prefetch, self._workers = pad_last, prefetch, workers
        self._cache_bytes = cache_bytes
        self._opened = PerProcess(partial(_open, data, options))
        self._fixed = state_of(self.plan, Place(0, 0, 0))

    @property
    def plan(self) -> BatchPlan:
        """What each step holds; of this process."""
        return self._opened.get().plan

    @property
    def columns(self) -> tuple[str, ...]:
        """What batches hold."""
        return self._opened.get().assembler.names

    def begin(self, passes: int) -> Place:
        """Return where a pass begins; ConfigError if the one before never ends."""
        steps = self.plan.steps
        check_counts(epoch=passes)
        if passes and steps.rows is None:
            raise ConfigError(f"epoch: got {passes}, but epoch 0 of this run never ends; expected 0")
        return Place(steps.begin(passes), passes, 0)

    def batches_in(self, passes: int) -> int | None:
        """Return how many batches a pass has; None: no end."""
        return self.plan.steps.batches(self.begin(passes).step)

    def rows_in(self, passes: int) -> int | None:
        """Return how many rows of a pass this host has; None: no end."""
        steps, wanted = self.plan.steps, self._opened.get().wanted
        batches = self.batches_in(passes)
        if batches is None or steps.rows is None:
            return None
        first = self.begin(passes).step
        before = steps.sizes.rows_before(first + batches - 1) - steps.sizes.rows_before(first)
        size = steps.sizes.at(first + batches - 1)
        last = size if self._pad else min(size, steps.rows - before)
        share = len(wanted(steps.sizes.common))
        return before // steps.sizes.common * share + int(np.searchsorted(wanted(size), last))

    def state(self, place: Place) -> dict[str, Any]:
        """Return the state of a loader that stands at a place; as of ``DataLoader.get_state()``."""
        return {
            **self._fixed,
            "step": place.step,
            "epoch": place.passes * (self.plan.epochs or 1),
            "rows": place.rows,
        }

    def place(self, state: Mapping[str, Any]) -> Place:
        """Return where a loader stood; ConfigError if it was one of another run."""
        return place_of(self.plan, state)

    def batches(self, place: Place, turn: Turn = ALL) -> HostBatches:
        """Return an iterator over the steps of a turn, to the end of the pass; close it when it is left."""
        opened = self._opened.get()
        groups = open_groups(
            opened.plan, opened.assembler, max_bytes=self._cache_bytes, threads=self._workers
        )
        return HostBatches(
            opened.plan,
            place,
            opened.wanted,
            opened.assembler,
            groups,
            prefetch=self._prefetch,
            pad=self._pad,
            turn=turn,
        )


def _open(data: Dataset | Mixture, options: _Options) -> _Opened:
    mine, sizes = own(data), BatchSizes.of(options.batch_size)
    plan = BatchPlan(
        mine,
        sizes,
        seed=options.seed,
        shuffle=options.shuffle,
        epochs=options.epochs,
        drop_last=options.drop_last,
        lanes=options.lanes,
        window=options.window,
    )
    return _Opened(
        plan, Assembler(plan.sources, check_columns(options.columns)), rows_of_host(options.host, sizes)
    )
