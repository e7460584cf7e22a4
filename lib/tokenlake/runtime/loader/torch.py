"""Datasets of PyTorch over stored versions: batches in the loader's order, or rows by number."""

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
from tokenlake.runtime.loader.options import WORKER_CACHE_BYTES, LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.per_process import PerProcess
from tokenlake.runtime.loader.shared_rows import SharedRows
from tokenlake.runtime.loader.state import GIVEN, NO_STATE, TURN, plain_state, position_of, state_of
from tokenlake.runtime.loader.steps import Position

try:
    import torch
    from torch import distributed
    from torch.utils.data import Dataset as MapDataset
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError("a dataset of PyTorch needs torch: pip install 'tokenlake[torch]'") from error

Integers = Literal["mixed", "int32", "int64"]
Item = dict[str, torch.Tensor]

_LOSS: Final = ("labels", "targets")


def torch_dataset(
    data: Dataset | Mixture,
    batch_size: int | Mapping[int, int],
    *,
    rows: bool = False,
    integers: Integers = "mixed",
    **options: Unpack[LoaderKeywords],
) -> TorchBatches:
    """Return a ``torch.utils.data.IterableDataset`` of batches in the order of :class:`tokenlake.DataLoader`.

    ::

        dataset = tl.torch_dataset(ds, batch_size=256, epochs=None)
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1):
            batch["input_ids"]  # torch.int32 (256, 2048)

    ``batch_size=None`` says to PyTorch that items are batches already. With N worker processes, worker w makes the
    steps w, w + N, ... and PyTorch takes from them in turn, so that the order is the same for every N. Nearly every
    batch needs rows of all lanes, so each worker decodes nearly every row group: one worker, or none (threads of this
    process read ahead then, too), is the cheapest way; more help where a ``map`` of one's own is slow.

    A loop is one pass: `epochs` epochs laid end to end. Which pass is said by ``dataset.set_epoch(n)`` before the loop,
    as with PyTorch's DistributedSampler, also with ``persistent_workers``; without it every loop is pass 0 again.

    A ``torchdata.stateful_dataloader.StatefulDataLoader`` saves and resumes exactly, with the same number of workers.
    For another number, or with the plain DataLoader: ``dataset.set_state(dataset.state_after(step))``, where `step`
    counts the batches of the run; it is the state of :class:`tokenlake.DataLoader`, which takes it and gives it, too.

    Args:
        data, batch_size: as of :class:`tokenlake.DataLoader`.
        rows: items are single rows, arrays of shape (L,), in the same order; give `batch_size` of PyTorch's loader the
            same number as here, or workers make other batches.
        integers: type of integer columns. "mixed": ``labels`` and ``targets`` int64, which PyTorch's losses insist on,
            all others int32, as they are stored (embeddings, comparisons and additions take them) and not copied;
            "int64" for what indexes by ids (``gather``, ``one_hot``); "int32" copies nothing. Masks are bool.
        options: all others of :class:`tokenlake.DataLoader` but `sharding`. `prefetch` (1 by default), `workers` and
            `cache_bytes` (256 MiB by default) are of each worker process. `host` is (rank, number of processes): this
            process gets these rows of every batch, the rank-th of equal parts; None: those of ``torch.distributed``
            where it is initialised, else (0, 1). Frameworks that divide batches among processes themselves want (0, 1).

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigError: an argument is not what is allowed; or this is one of several processes (``WORLD_SIZE``) and
            it is not said which.
    """
    chosen: LoaderKeywords = {"prefetch": 1, "cache_bytes": WORKER_CACHE_BYTES, **options}
    if chosen.get("host") is None:
        chosen["host"] = process_place()
    asked = LoaderOptions.of("torch_dataset", batch_size, chosen)
    if rows and asked.batch_layout.flat:
        raise ConfigError("rows: got True, but a flat batch has no rows; leave out rows or layout")
    reader = shared_reader(data, asked)
    if rows and not reader.get().plan.rows_alike:
        raise ConfigError(
            "rows: got True, but batches have other numbers of rows than batch_size: leave it out, or give padding "
            "with buckets equal_rows=True, and lengths keep_shape=True"
        )
    return TorchBatches(reader, integers=integers, rows=rows)


def torch_rows(
    data: Dataset, *, columns: Sequence[str] | None = None, integers: Integers = "mixed"
) -> TorchRows:
    """Return a map-style ``torch.utils.data.Dataset``: row number -> dict of tensors of shape (L,).

    For samplers of one's own. Rows in random order decode a row group for nearly every row; the order of
    :func:`torch_dataset` decodes each once.

    Args:
        data: a dataset of any kind; rows of many lengths come each with its own L, as they are stored.
        columns: as of :class:`tokenlake.DataLoader`.
        integers: as of :func:`torch_dataset`.

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigError: an argument is not what is allowed.
    """
    return TorchRows(data, columns, integers)


@final
class TorchBatches(IterableDataset[Item]):
    """See :func:`torch_dataset`. Picklable; nothing is open in it, so that workers may be forked or spawned."""

    def __init__(self, reader: PerProcess[HostReader], *, integers: str, rows: bool) -> None:
        super().__init__()
        require_one_of("integers", integers, get_args(Integers))
        self.reader, self.rows, self.integers = reader, rows, integers
        # Shared with workers that live on from one loop to the next.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._start: Position | None = None

    @property
    def epoch(self) -> int:
        """The pass that the next loop delivers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Say which pass the next loop delivers, 0 at first; ConfigError if the one before never ends."""
        self.reader.get().plan.begin(epoch)
        self._epoch.fill_(epoch)

    def state_after(self, step: int) -> dict[str, Any]:
        """Return the state of the run when `step` batches were delivered, over all passes: JSON, small.

        The same as ``DataLoader.get_state()`` of the same run, with any number of workers and hosts.
        """
        plan = self.reader.get().plan
        return state_of(plan, plan.position(step))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_after` or of a ``DataLoader``, with any number of workers.

        Loops of that state's pass (:attr:`epoch` becomes it) begin there, all others at the beginning of theirs.
        Set it before workers are started.

        Raises:
            ConfigError: the state is of other data or of another order, or is a worker's.
        """
        state = plain_state(state)
        if TURN in state:
            raise ConfigError(
                "this is the state of one worker; load the whole state into the StatefulDataLoader, "
                "or set one of state_after()"
            )
        reader = self.reader.get().replaying(state)
        self._start = position_of(reader.plan, state)
        if reader is not self.reader.get():
            self.reader = shared_reader(reader.plan.data, reader.plan.options)
        self._epoch.fill_(self._start.passes)

    def __iter__(self) -> TorchIterator:
        """Begin the pass that was set, in a worker process its share of it."""
        worker, start = get_worker_info(), self._start
        if start is None or start.passes != self.epoch:
            start = self.reader.get().plan.begin(self.epoch)
        turn = ALL
        if worker is not None:
            turn = Turn((start.step + worker.id) % worker.num_workers, worker.num_workers)
        return TorchIterator(self, start, turn)

    def __len__(self) -> int:
        """Return how many items a pass has, of all workers together; TypeError where it has no end."""
        reader = self.reader.get()
        plan = reader.plan
        count = plan.batches_in(self.epoch)
        if self.rows and count is not None:
            pad_last = bool(plan.options.pad_last)
            count = plan.steps.rows_of(self.epoch, reader.wanted, pad_last=pad_last)
        if count is None:
            raise TypeError("a run without end has no length; give epochs, or the mixture rows")
        return count

    def __bool__(self) -> bool:
        return True


@final
class TorchIterator(Iterator[Item]):
    """The rest of a pass, of one worker; its state is what torchdata's StatefulDataLoader keeps."""

    def __init__(self, dataset: TorchBatches, position: Position, turn: Turn) -> None:
        self._dataset, self._reader, self._turn = dataset, dataset.reader.get(), turn
        self._batches = HostBatches(self._reader, position, turn)
        self._at_hand: Item | None = None
        self._given, self._before = 0, self._batches.state()

    def __next__(self) -> Item:
        """Return a batch, or a row."""
        return self._next_row() if self._dataset.rows else self._next_batch()

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands: JSON, small."""
        # A batch of which not all rows were delivered is made again.
        state = self._batches.state() if self._at_hand is None else self._before
        return {**state, GIVEN: self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a worker of the same run stood, one of as many.

        Raises:
            ConfigError: the state is of other data, of another order or of another number of workers.
        """
        batches = HostBatches.resumed(self._reader, state, self._turn, without=ALL)
        most = max(self._reader.plan.batch_sizes)
        given = whole_number(f"{NO_STATE}: {GIVEN}", state.get(GIVEN, 0), 0, most)
        self.close()
        self._batches = batches
        self._given = given

    def close(self) -> None:
        """End the threads that read ahead."""
        self._at_hand = None
        self._batches.close()

    def _next_row(self) -> Item:
        while self._at_hand is None:
            self._before, batch = self._batches.state(), self._next_batch()
            if len(next(iter(batch.values()))) > self._given:
                self._at_hand = batch
            else:  # the last batch of a pass may have no rows of this host
                self._given = 0
        row = {name: values[self._given] for name, values in self._at_hand.items()}
        self._given += 1
        if self._given == len(next(iter(self._at_hand.values()))):
            self._given, self._at_hand = 0, None
        return row

    def _next_batch(self) -> Item:
        return _tensors(next(self._batches), self._dataset.integers)


@final
class TorchRows(MapDataset[Item]):
    """See :func:`torch_rows`; picklable, and every process opens files of its own."""

    def __init__(self, data: Dataset, columns: Sequence[str] | None, integers: str) -> None:
        require_one_of("integers", integers, get_args(Integers))
        self._rows, self._integers = SharedRows(data, columns, "torch_dataset"), integers

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> Item:
        """Return a row: column -> tensor of shape (L,); IndexError where there is none."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Return several rows, each row group decoded once for all of them."""
        return [_tensors(row, self._integers) for row in self._rows.take(indices)]


@final
class TorchRowStream(IterableDataset[dict[str, Any]]):
    """The rows of a source, each once over all processes and their workers.

    Reader r of n (process by process, worker by worker) has the source's shards r, r + n, ... where there are as many
    shards as readers; else it draws all rows and has every n-th. With :meth:`state_dict` of a loop in this process, or
    a ``StatefulDataLoader`` over any number of workers, the next loop goes on behind the last row exactly; the number
    of readers must be the same.
    """

    def __init__(self, source: Any, host: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.source, self._host = source, process_place() if host is None else host
        self._latest: TorchRowIterator | None = None
        self._start: Mapping[str, Any] | None = None

    def __iter__(self) -> TorchRowIterator:
        """Begin at the first row of this reader's share, or where the state says that was loaded, once."""
        worker, (rank, world) = get_worker_info(), self._host
        own, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._latest = TorchRowIterator(self.source, (rank * workers + own, world * workers))
        if self._start is not None:
            self._latest.load_state_dict(self._start)
            self._start = None
        return self._latest

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest loop of this process stands: JSON, small."""
        return dict(self._start or {}) if self._latest is None else self._latest.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next loop go on where another one stood."""
        self._start = state or None


@final
class TorchRowIterator(Iterator[dict[str, Any]]):
    """The rows of one reader's share; its state is what torchdata's StatefulDataLoader keeps."""

    def __init__(self, source: Any, share: tuple[int, int]) -> None:
        self._source, self._share = source, share
        self._behind: tuple[int, ...] | None = None
        self._rows = source.positions((), share)

    def __next__(self) -> dict[str, Any]:
        position, row = next(self._rows)
        self._behind = position.behind
        return {name: _number_tensor(value) for name, value in row.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return where this reader stands: JSON, small."""
        return {"share": list(self._share), "behind": None if self._behind is None else list(self._behind)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a reader of the same share stood; ConfigError if it was of another one."""
        if list(state.get("share", ())) != list(self._share):
            raise ConfigError(
                f"the state is of reader {state.get('share')} (index, number of readers), this is {list(self._share)}; "
                "resume with as many processes and workers"
            )
        if state["behind"] is not None:
            self._behind = tuple(state["behind"])
            self._rows = self._source.positions(self._behind, self._share)


def _number_tensor(value: Any) -> Any:
    """Return a list or array of numbers as a tensor, whole numbers as int64; anything else as it is."""
    plain = isinstance(value, list) and all(isinstance(each, int | float) for each in value)
    if not plain and not (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):
        return value
    array = np.asarray(value) if len(value) else np.zeros(0, np.int64)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else np.array(array))


def _tensors(batch: dict[str, Any], integers: str) -> Item:
    """Return a batch as tensors; those that keep their type share the arrays' memory."""
    made = Item()
    for name, array in batch.items():
        wide = integers == "int64" or (integers == "mixed" and name.endswith(_LOSS))
        if wide and array.dtype == np.int32:
            # Not tensor.long(): for so little work PyTorch's threads spend more time waiting than working.
            wider = reused_array(array.shape, np.int64)
            np.copyto(wider, array)
            array = wider
        made[name] = torch.from_numpy(array)
    return made


def process_place() -> tuple[int, int]:
    """Return (rank, number) of this process; ConfigError if it is one of several and it is not said which."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if (world := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ConfigError(
            f"this is one of {world} processes (WORLD_SIZE), and torch.distributed is not initialised: all of them "
            "would read the same rows. Initialise it first, or give host=(rank, world); host=(0, 1) where the "
            "framework divides batches by itself"
        )
    return 0, 1
