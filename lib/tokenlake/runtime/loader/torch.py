"""Datasets of PyTorch over stored versions.

They have batches in the loader's order, or rows by their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Unpack, final, get_args

import numpy as np

from tokenlake.base.checks import require_one_of, whole_number
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.loader.batch import reused_array
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.host_batches import ALL, HostBatches, Turn
from tokenlake.runtime.loader.host_reader import HostReader, shared_reader
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.per_process import PerProcess
from tokenlake.runtime.loader.shared_rows import SharedRows
from tokenlake.runtime.loader.state import (
    GIVEN,
    NO_STATE,
    TURN,
    plain_state,
    position_of,
    state_of,
)
from tokenlake.runtime.loader.steps import Position

try:
    import torch
    from torch import distributed
    from torch.utils.data import Dataset as MapDataset
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError(
        "a dataset of PyTorch needs torch: pip install 'tokenlake[torch]'"
    ) from error

Integers = Literal["mixed", "int32", "int64"]
Item = dict[str, torch.Tensor]

_LOSS: Final = ("labels", "targets")
"""Ends of the names of columns that losses take."""


def torch_dataset(
    data: Dataset | Mixture,
    batch_size: int | Mapping[int, int],
    *,
    rows: bool = False,
    integers: Integers = "mixed",
    **options: Unpack[LoaderKeywords],
) -> TorchBatches:
    """Return a ``torch.utils.data.IterableDataset`` of batches.

    Their order is that of :class:`tokenlake.DataLoader`. With ``batch_size=None``,
    PyTorch takes items as batches. With N worker processes, worker w makes the steps w,
    w + N, ... and PyTorch takes from them in turn, so that the order is the same for
    every N. Nearly every batch needs rows of all lanes, so that each worker decodes
    nearly every row group: one worker, or none (threads of this process read ahead
    then, too), is the cheapest; more help if your own ``map`` is slow.

    A loop is one pass: `epochs` epochs one after the other. ``dataset.set_epoch(n)``
    before the loop sets the pass, as with PyTorch's DistributedSampler, also with
    ``persistent_workers``. Without it, every loop is pass 0.

    A ``torchdata.stateful_dataloader.StatefulDataLoader`` saves and resumes exactly,
    with the same number of workers. For another number, or with the plain DataLoader:
    ``dataset.set_state(dataset.state_after(step))``, where `step` counts the batches of
    the run. This is the state of :class:`tokenlake.DataLoader`, and the two are
    interchangeable.

    Args:
        data: Dataset or mixture, as for :class:`tokenlake.DataLoader`.
        batch_size: Rows of the global batch, as for :class:`tokenlake.DataLoader`.
        rows: True for items that are single rows, arrays of shape (L,), in the same
            order. Give PyTorch's loader the same `batch_size`: with another, workers
            change the order.
        integers: Type of integer columns. "mixed": ``labels`` and ``targets`` are
            int64, which PyTorch's losses require, and all others int32, as stored and
            without a copy (embeddings, comparisons and additions take them). "int64":
            for operations that index by ids (``gather``, ``one_hot``). "int32": no
            column is copied. Masks are bool.
        options: All other options of :class:`tokenlake.DataLoader` except `sharding`.
            `prefetch` (1 by default), `workers` and `cache_bytes` apply to each worker
            process. `host` is (rank, number of processes): this process gets the
            rank-th of equal parts of every batch. None: those of ``torch.distributed``
            if it is initialised, otherwise (0, 1). Frameworks that divide batches among
            processes themselves need (0, 1).

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigError: An argument is not allowed; or this is one of several processes
            (``WORLD_SIZE``) and its rank is not known.

    Example:
        >>> import tokenlake as tl
        >>> import torch
        >>> dataset = tl.torch_dataset(tl.open("artifacts/books"), batch_size=8)
        >>> batches = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
        >>> next(iter(batches))["input_ids"].shape
        torch.Size([8, 64])
    """
    # Each worker process prepares batches ahead, so that one per process is enough.
    keywords: LoaderKeywords = {"prefetch": 1, **options}
    # Under torchrun every process reads its own part without an option.
    if keywords.get("host") is None:
        keywords["host"] = process_place()
    loader_options = LoaderOptions.of("torch_dataset", batch_size, keywords)
    if rows and loader_options.batch_layout.flat:
        raise ConfigError(
            "rows: got True, but a flat batch has no rows; leave out rows or layout"
        )
    reader = shared_reader(data, loader_options)
    # PyTorch collates a fixed number of rows, which would mix two batches of other
    # sizes.
    if rows and not reader.get().plan.rows_alike:
        raise ConfigError(
            "rows: got True, but the number of rows per batch differs from batch_size: leave it out, or give "
            "padding with buckets equal_rows=True, and lengths keep_shape=True"
        )
    return TorchBatches(reader, integers=integers, rows=rows)


def torch_rows(
    data: Dataset, *, columns: Sequence[str] | None = None, integers: Integers = "mixed"
) -> TorchRows:
    """Return a map-style ``torch.utils.data.Dataset`` of rows by number.

    A row is a dict of tensors of shape (L,). It is for your own samplers. Reading rows
    in random order decodes a row group for nearly every row; the order of
    :func:`torch_dataset` decodes each row group once.

    Args:
        data: Dataset of any kind. Rows of many lengths each have their own L, as
            stored.
        columns: Names of the columns, as for :class:`tokenlake.DataLoader`; None: the
            default ones.
        integers: Type of integer columns, as for :func:`torch_dataset`.

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigError: An argument is not allowed.

    Example:
        >>> import tokenlake as tl
        >>> import torch
        >>> rows = tl.torch_rows(tl.open("artifacts/books"))
        >>> batches = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
        >>> next(iter(batches))["input_ids"].shape
        torch.Size([8, 64])
    """
    return TorchRows(data, columns, integers)


@final
class TorchBatches(IterableDataset[Item]):
    """Batches, or their rows, in the order of a loader; see :func:`torch_dataset`.

    It can be pickled and has no open files, so that workers may be forked or spawned.

    Args:
        reader: Reader of this host, opened in each process.
        integers: Type of integer columns.
        rows: Whether items are rows.
    """

    def __init__(
        self, reader: PerProcess[HostReader], *, integers: str, rows: bool
    ) -> None:
        super().__init__()
        require_one_of("integers", integers, get_args(Integers))
        self.reader = reader
        self.rows = rows
        self.integers = integers
        # Shared with workers that live from one loop to the next.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._start: Position | None = None

    @property
    def epoch(self) -> int:
        """Number of the pass that the next loop delivers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the pass that the next loop delivers, 0 by default.

        If the pass before it never ends, ConfigError is raised.
        """
        self.reader.get().plan.begin(epoch)
        self._epoch.fill_(epoch)

    def state_after(self, step: int) -> dict[str, Any]:
        """Return the state of the run after `step` batches.

        Batches are counted over all passes. The state is small and JSON-able. It equals
        ``DataLoader.get_state()`` of the same run, with any number of workers and
        hosts.
        """
        # No batch is read: a position is a function of the step.
        plan = self.reader.get().plan
        return state_of(plan, plan.position(step))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the run, with any number of workers.

        It is one of :meth:`state_after` or of a ``DataLoader``.

        Loops over that state's pass (:attr:`epoch` is set to it) begin there, all
        others at the beginning of theirs. Call it before workers are started.

        Raises:
            ConfigError: The state is of other data or of another order, or that of a
                single worker.
        """
        # The state of one worker knows neither the others nor the step of the run.
        state = plain_state(state)
        if TURN in state:
            raise ConfigError(
                "this is the state of one worker; load the whole state into the StatefulDataLoader, "
                "or set one of state_after()"
            )
        # All workers together deliver each batch, or each of its rows, once.
        reader = self.reader.get().replaying(state)
        self._start = position_of(reader.plan, state)
        if reader is not self.reader.get():
            self.reader = shared_reader(
                reader.plan.data, reader.plan.options, reader.plan.forms
            )
        self._epoch.fill_(self._start.passes)

    def __iter__(self) -> TorchIterator:
        """Return an iterator over the pass that was set.

        In a worker process it has the worker's share of the pass.
        """
        # A state applies to its own pass only; later loops begin at the beginning.
        start = self._start
        if start is None or start.passes != self.epoch:
            start = self.reader.get().plan.begin(self.epoch)
        turn = ALL
        worker = get_worker_info()
        if worker is not None:
            # PyTorch takes the first batch from worker 0, whatever the step.
            turn = Turn(
                (start.step + worker.id) % worker.num_workers, worker.num_workers
            )
        return TorchIterator(self, start, turn)

    def __len__(self) -> int:
        """Return the number of items of a pass, of all workers together.

        A pass without end raises TypeError.
        """
        reader = self.reader.get()
        plan = reader.plan
        count = plan.batches_in(self.epoch)
        if self.rows and count is not None:
            pad_last = bool(plan.options.pad_last)
            count = plan.steps.rows_of(self.epoch, reader.wanted, pad_last=pad_last)
        if count is None:
            raise TypeError(
                "an endless run has no length; give epochs, or `rows` of the mixture"
            )
        return count

    def __bool__(self) -> bool:
        return True


@final
class TorchIterator(Iterator[Item]):
    """Iterator of one worker to the end of a pass.

    torchdata's StatefulDataLoader saves its state.

    Args:
        dataset: Dataset that is iterated.
        position: Position of the first batch.
        turn: Steps that this worker makes.
    """

    def __init__(self, dataset: TorchBatches, position: Position, turn: Turn) -> None:
        self._dataset = dataset
        self._reader = dataset.reader.get()
        self._turn = turn
        self._batches = HostBatches(self._reader, position, turn)
        # If items are rows: the batch of which some rows are still to come, the number
        # of its rows that were delivered, and the state before it.
        self._current_batch: Item | None = None
        self._rows_delivered = 0
        self._state_before = self._batches.state()

    def __next__(self) -> Item:
        """Return a batch, or a row."""
        if self._dataset.rows:
            return self._next_row()
        return self._next_batch()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this worker: small, JSON-able."""
        # A batch of which not all rows were delivered is made again.
        state = (
            self._batches.state() if self._current_batch is None else self._state_before
        )
        return {**state, GIVEN: self._rows_delivered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a worker of the same run, with as many workers.

        Raises:
            ConfigError: The state is of other data, of another order or of another
                number of workers.
        """
        # Check the state before the running iterator is closed: a wrong one leaves it
        # as it is.
        batches = HostBatches.resumed(self._reader, state, self._turn, without=ALL)
        most_rows = max(self._reader.plan.batch_sizes)
        rows_delivered = whole_number(
            f"{NO_STATE}: {GIVEN}", state.get(GIVEN, 0), 0, most_rows
        )
        self.close()
        self._batches = batches
        self._rows_delivered = rows_delivered

    def close(self) -> None:
        """End the threads that read ahead."""
        self._current_batch = None
        self._batches.close()

    def _next_row(self) -> Item:
        # Take the next batch with rows left; the first one after a resume begins in its
        # middle.
        while self._current_batch is None:
            self._state_before = self._batches.state()
            batch = self._next_batch()
            if len(next(iter(batch.values()))) > self._rows_delivered:
                self._current_batch = batch
            else:  # the last batch of a pass may have no rows of this host
                self._rows_delivered = 0
        row = {
            name: values[self._rows_delivered]
            for name, values in self._current_batch.items()
        }
        self._rows_delivered += 1
        if self._rows_delivered == len(next(iter(self._current_batch.values()))):
            self._rows_delivered = 0
            self._current_batch = None
        return row

    def _next_batch(self) -> Item:
        return _tensors(next(self._batches), self._dataset.integers)


@final
class TorchRows(MapDataset[Item]):
    """Rows by their number; see :func:`torch_rows`.

    It can be pickled: each process opens its own files.
    """

    def __init__(
        self, data: Dataset, columns: Sequence[str] | None, integers: str
    ) -> None:
        require_one_of("integers", integers, get_args(Integers))
        self._rows = SharedRows(data, columns, "torch_dataset")
        self._integers = integers

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> Item:
        """Return a row: column -> tensor of shape (L,).

        A row that does not exist raises IndexError.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Return several rows. Each row group is decoded once for all of them."""
        return [_tensors(row, self._integers) for row in self._rows.take(indices)]


@final
class TorchRowStream(IterableDataset[dict[str, Any]]):
    """Rows of a source, each once over all processes and their workers.

    Reader r of n (process by process, worker by worker) reads the source's shards r, r
    + n, ... if there are as many shards as readers; otherwise it reads all rows and
    keeps every n-th. With :meth:`state_dict` of a loop in this process, or a
    ``StatefulDataLoader`` over any number of workers, the next loop continues exactly
    after the last row; the number of readers must be the same.

    Args:
        source: Source whose ``positions(after, share)`` yields (position, row).
        host: Pair (rank, number of processes); None: that of :func:`process_place`.
    """

    def __init__(self, source: Any, host: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.source = source
        self._host = process_place() if host is None else host
        self._latest: TorchRowIterator | None = None
        self._start: Mapping[str, Any] | None = None

    def __iter__(self) -> TorchRowIterator:
        """Return an iterator over this reader's share.

        If a state was loaded, the first iterator begins there.
        """
        rank, processes = self._host
        worker = get_worker_info()
        share = (rank, processes)
        if worker is not None:
            workers = worker.num_workers
            share = (rank * workers + worker.id, processes * workers)
        self._latest = TorchRowIterator(self.source, share)
        if self._start is not None:
            self._latest.load_state_dict(self._start)
            self._start = None
        return self._latest

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the latest loop of this process: small, JSON-able."""
        if self._latest is None:
            return dict(self._start or {})
        return self._latest.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next loop continue from the state of another one."""
        self._start = state or None


@final
class TorchRowIterator(Iterator[dict[str, Any]]):
    """Rows of one reader's share. torchdata's StatefulDataLoader saves its state.

    Args:
        source: Source of the rows.
        share: Pair (index, number of readers).
    """

    def __init__(self, source: Any, share: tuple[int, int]) -> None:
        self._source = source
        self._share = share
        self._behind: tuple[int, ...] | None = None  # position after the last row
        self._rows = source.positions((), share)

    def __next__(self) -> dict[str, Any]:
        position, row = next(self._rows)
        self._behind = position.behind
        return {name: _number_tensor(value) for name, value in row.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this reader: small, JSON-able."""
        behind = None if self._behind is None else list(self._behind)
        return {"share": list(self._share), "behind": behind}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a reader of the same share.

        The state of another share raises ConfigError.
        """
        if list(state.get("share", ())) != list(self._share):
            raise ConfigError(
                f"the state is of reader {state.get('share')} (index, number of readers), this is "
                f"{list(self._share)}; resume with the same number of processes and workers"
            )
        if state["behind"] is not None:
            self._behind = tuple(state["behind"])
            self._rows = self._source.positions(self._behind, self._share)


def _number_tensor(value: Any) -> Any:
    """Return a list or array of numbers as a tensor.

    Integers become int64. Any other value is returned as it is.
    """
    is_number_list = isinstance(value, list) and all(
        isinstance(number, int | float) for number in value
    )
    is_number_array = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    if not is_number_list and not is_number_array:
        return value
    array = np.asarray(value) if len(value) else np.zeros(0, np.int64)
    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64))
    return torch.from_numpy(np.array(array))


def _tensors(batch: dict[str, Any], integers: str) -> Item:
    """Return a batch as tensors.

    Columns that keep their type share the memory of the arrays.
    """
    tensors: Item = {}
    for column_name, array in batch.items():
        is_of_loss = column_name.endswith(_LOSS)
        is_wide = integers == "int64" or (integers == "mixed" and is_of_loss)
        if is_wide and array.dtype == np.int32:
            # Not tensor.long(): for such small arrays PyTorch's threads wait longer
            # than they work.
            wide_array = reused_array(array.shape, np.int64)
            np.copyto(wide_array, array)
            array = wide_array
        tensors[column_name] = torch.from_numpy(array)
    return tensors


def process_place() -> tuple[int, int]:
    """Return (rank, number of processes) of this process.

    Raises:
        ConfigError: This is one of several processes, and its rank is not known.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1":
        raise ConfigError(
            f"this is one of {world_size} processes (WORLD_SIZE), and torch.distributed is not initialised: all of "
            "them would read the same rows. Initialise it first, or give host=(rank, world); host=(0, 1) if the "
            "framework divides batches by itself"
        )
    return 0, 1
