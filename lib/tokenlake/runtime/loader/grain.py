"""Sources and datasets of Grain over stored versions: rows by number, or batches in the loader's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, final

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.loader.batch import Batch
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.host_batches import ALL, HostBatches, Turn
from tokenlake.runtime.loader.host_reader import HostReader, shared_reader
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import WORKER_CACHE_BYTES, LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.per_process import PerProcess
from tokenlake.runtime.loader.shared_rows import SharedRows

try:
    import grain
except ModuleNotFoundError as error:
    if error.name != "grain":
        raise
    raise MissingExtraError("a dataset of Grain needs grain: pip install 'tokenlake[grain]'") from error


def grain_dataset(
    data: Dataset | Mixture, batch_size: int | Mapping[int, int], **options: Unpack[LoaderKeywords]
) -> GrainBatches:
    """Return a ``grain.IterDataset`` of batches in the order of :class:`tokenlake.DataLoader`.

    ::

        dataset = tl.grain_dataset(ds, batch_size=256, epochs=None).map(mine)
        iterator = iter(dataset)
        next(iterator)["input_ids"]  # int32 (256, 2048)
        iterator.get_state()  # Grain's checkpoints take it as it is

    Seeking to a state takes as long at any step. ``mp_prefetch`` works: of N worker processes worker w makes the steps
    w, w + N, ..., and batches come in the same order; as each decodes nearly every row group, it pays where a ``map``
    after it is slow, and never for reading alone (threads of this process read ahead anyway).

    Args:
        data, batch_size: as of :class:`tokenlake.DataLoader`.
        options: all others of :class:`tokenlake.DataLoader` but `sharding`; `prefetch`, `workers` and `cache_bytes`
            (256 MiB by default) of each worker process. `epochs` are laid end to end; Grain's ``repeat`` would give
            the same ones again.

    Raises:
        MissingExtraError: Grain is not installed.
        ConfigError: an argument is not what is allowed.
    """
    asked: LoaderKeywords = {"cache_bytes": WORKER_CACHE_BYTES, **options}
    return GrainBatches(shared_reader(data, LoaderOptions.of("grain_dataset", batch_size, asked)))


def grain_source(data: Dataset, *, columns: Sequence[str] | None = None) -> GrainRows:
    """Return a ``grain.sources.RandomAccessDataSource``: row number -> dict of numpy arrays of shape (L,).

    ::

        grain.MapDataset.source(tl.grain_source(ds)).shuffle(seed=0).batch(256)

    For pipelines and samplers of Grain's own. Rows in random order decode a row group for nearly every row; the order
    of :func:`grain_dataset` decodes each once.

    Args:
        data: a dataset of any kind; rows of many lengths come each with its own L, as they are stored.
        columns: as of :class:`tokenlake.DataLoader`.

    Raises:
        ConfigError: an argument is not what is allowed.
    """
    return GrainRows(data, columns)


@final
class GrainBatches(grain.IterDataset[Batch]):
    """See :func:`grain_dataset`; picklable, nothing is open in it."""

    def __init__(self, reader: PerProcess[HostReader]) -> None:
        super().__init__()
        self._reader, self._turn = reader, ALL

    def __iter__(self) -> GrainIterator:
        """Return an iterator that begins at the first batch; its ``set_state`` goes on elsewhere."""
        return GrainIterator(self._reader.get(), self._turn)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep every n-th batch: what Grain asks for in a worker process of ``mp_prefetch``."""
        if sequential_slice:
            raise ConfigError(
                "sequential_slice: each worker would read a stretch of its own, and batches come in another order; "
                "leave it out, workers then take turns"
            )
        first, step = sl.start or 0, sl.step or 1
        if sl.stop is not None or first < 0 or step < 1:
            raise ConfigError(
                f"slice: got {sl}, must be every n-th batch from one on, as mp_prefetch asks for it"
            )
        self._turn = Turn(self._turn.first + first * self._turn.of, self._turn.of * step)

    def __str__(self) -> str:
        return f"GrainBatches({self._reader.get().plan.named})"


@final
class GrainIterator(grain.DatasetIterator[Batch]):
    """The rest of a pass. Threads that read ahead end with it, by :meth:`close`, or when it is forgotten."""

    def __init__(self, reader: HostReader, turn: Turn) -> None:
        super().__init__()
        self._reader, self._turn = reader, turn
        self._batches, self._over = HostBatches(reader, reader.plan.begin(0), turn), False

    def __next__(self) -> Batch:
        """Return column -> numpy array of shape (rows, L)."""
        if self._over:
            raise ValueError("this iterator is closed; make another one from its dataset")
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return where the iterator stands: JSON, small, of one shape; as of ``DataLoader.get_state()``."""
        return self._batches.state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of this iterator or of a ``DataLoader`` of the same run.

        Raises:
            ConfigError: the state is of other data, of another order or of another number of workers.
        """
        batches = HostBatches.resumed(self._reader, state, self._turn, without=self._turn)
        self._batches.close()
        self._batches = batches

    def close(self) -> None:
        """End the threads; nothing more comes."""
        self._over = True
        self._batches.close()
        super().close()

    def __str__(self) -> str:
        return f"GrainIterator({self._reader.plan.named})"


@final
class GrainRows:
    """See :func:`grain_source`. May be used by several threads; picklable, every process opens files of its own."""

    def __init__(self, data: Dataset, columns: Sequence[str] | None = None) -> None:
        self._rows = SharedRows(data, columns, "grain_dataset")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row: column -> array of shape (L,); IndexError where there is none."""
        return self._rows.take([index])[0]

    def __repr__(self) -> str:
        # Grain's checkpoints compare it: equal for the same rows and columns, in any process.
        rows = self._rows
        return f"GrainRows({rows.name}, manifest={rows.manifest}, columns={', '.join(rows.columns)})"
