"""What adapters of other libraries read: the batches of a run, in any process, all of them or every n-th.

Other libraries start worker processes: they pickle a dataset or fork with it, and give each worker every n-th item. A
:class:`Run` is what travels, a description; files, threads and caches are made in the process that reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, cast, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.assemble import Assembler, check_columns
from tokenlake.loader.batchplan import BatchPlan, Wanted
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.groups import Groups
from tokenlake.loader.hostbatches import HostBatches
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.perprocess import PerProcess, own
from tokenlake.loader.state import place_of, state_of
from tokenlake.loader.steps import Batch, BatchSizes, Place
from tokenlake.order.random import Int64

CACHE_BYTES: Final = 512 << 20


class Turn(NamedTuple):
    """Which steps a worker makes: those with ``step % of == first``."""

    first: int
    of: int


ALL: Final = Turn(0, 1)


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
    window: int | None


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
        window: int | None = None,
        prefetch: int = 2,
        workers: int = 2,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if not isinstance(data, Dataset | Mixture):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"data: got a {type(data).__name__}, must be a Dataset (tl.open) or a Mixture")
        for name, value in (("prefetch", prefetch), ("workers", workers), ("cache_bytes", cache_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name}: got {value!r}, must be a whole number from 0 on")
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
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"epoch: got {passes!r}, must be a whole number from 0 on")
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
        groups = Groups(
            opened.plan.sources,
            loss_mask=opened.assembler.loss_mask,
            max_bytes=self._cache_bytes,
            threads=self._workers,
        )
        plan = opened.plan if turn.of == 1 else cast("BatchPlan", _Turns(opened.plan, turn))
        return HostBatches(
            plan, place, opened.wanted, opened.assembler, groups, prefetch=self._prefetch, pad=self._pad
        )


@final
class _Turns:
    """A plan of which the steps of one turn alone come."""

    def __init__(self, plan: BatchPlan, turn: Turn) -> None:
        self._plan, self._turn = plan, turn

    def next(self, place: Place) -> Batch | None:
        """Return the batch of this turn that comes next in the pass; None at its end."""
        batch = self._plan.next(place)
        while batch is not None and batch.step % self._turn.of != self._turn.first:
            batch = self._plan.next(batch.after)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


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
        plan, Assembler(plan.sources, check_columns(options.columns)), _rows_of(options.host, sizes)
    )


def _rows_of(host: tuple[int, int], sizes: BatchSizes) -> Wanted:
    index, hosts = host
    if not 0 <= index < hosts or sizes.common % hosts:
        raise ConfigError(
            f"host: got {host}, must be (index, number of hosts) with a number that divides {sizes.common}"
        )

    @lru_cache(8)
    def rows(size: int) -> Int64:
        return np.arange(size // hosts * index, size // hosts * (index + 1), dtype=np.int64)

    return rows
