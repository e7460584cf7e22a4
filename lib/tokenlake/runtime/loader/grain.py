"""Grain over stored versions: rows by number, or batches in the loader's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, final

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.loader.batch import Batch
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.host_batches import ALL, HostBatches, Turn
from tokenlake.runtime.loader.host_reader import HostReader, shared_reader
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.per_process import PerProcess
from tokenlake.runtime.loader.shared_rows import SharedRows

try:
    import grain
except ModuleNotFoundError as error:
    if error.name != "grain":
        raise
    raise MissingExtraError(
        "a dataset of Grain needs grain: pip install 'tokenlake[grain]'"
    ) from error


def grain_dataset(
    data: Dataset | Mixture,
    batch_size: int | Mapping[int, int],
    **options: Unpack[LoaderKeywords],
) -> GrainBatches:
    """Return a ``grain.IterDataset`` of batches in the loader's order.

    The order is that of :class:`tokenlake.DataLoader`. Seeking to a state takes the
    same time at any step. ``mp_prefetch`` works: of N worker processes, worker w makes
    the steps w, w + N, ..., and the order of batches is the same. Each of them decodes
    nearly every row group, so that worker processes help if a ``map`` after the dataset
    is slow, but not for reading alone (threads read ahead anyway).

    Args:
        data: Dataset or mixture, as for :class:`tokenlake.DataLoader`.
        batch_size: Rows of the global batch, as for :class:`tokenlake.DataLoader`.
        options: All other options of :class:`tokenlake.DataLoader` except `sharding`.
            `prefetch`, `workers` and `cache_bytes` apply to each worker process.
            `epochs` follow one after the other; Grain's ``repeat`` would repeat the
            same ones.

    Raises:
        MissingExtraError: Grain is not installed.
        ConfigError: An argument is not allowed.

    Example:
        >>> import tokenlake as tl
        >>> dataset = tl.grain_dataset(tl.open("artifacts/books"), batch_size=8, epochs=None)
        >>> iterator = iter(dataset.map(lambda batch: batch["input_ids"]))
        >>> next(iterator).shape
        (8, 64)
        >>> state = iterator.get_state()
    """
    return GrainBatches(
        shared_reader(data, LoaderOptions.of("grain_dataset", batch_size, options))
    )


def grain_source(data: Dataset, *, columns: Sequence[str] | None = None) -> GrainRows:
    """Return a ``grain.sources.RandomAccessDataSource`` of rows by number.

    A row is a dict of numpy arrays of shape (L,). It is for Grain's own pipelines and
    samplers. Reading rows in random order decodes a row group for nearly every row; the
    order of :func:`grain_dataset` decodes each row group once.

    Args:
        data: Dataset of any kind. Rows of many lengths each have their own L, as
            stored.
        columns: Names of the columns, as for :class:`tokenlake.DataLoader`; None: the
            default ones.

    Raises:
        ConfigError: An argument is not allowed.

    Example:
        >>> import grain
        >>> import tokenlake as tl
        >>> source = tl.grain_source(tl.open("artifacts/books"))
        >>> batches = grain.MapDataset.source(source).shuffle(seed=0).batch(8)
        >>> batches[0]["input_ids"].shape
        (8, 64)
    """
    return GrainRows(data, columns)


@final
class GrainBatches(grain.IterDataset[Batch]):
    """Batches in the order of a loader; see :func:`grain_dataset`.

    It can be pickled: it has no open files.
    """

    def __init__(self, reader: PerProcess[HostReader]) -> None:
        super().__init__()
        self._reader = reader
        self._turn = ALL

    def __iter__(self) -> GrainIterator:
        """Return an iterator from the first batch on.

        Its ``set_state`` continues elsewhere.
        """
        return GrainIterator(self._reader.get(), self._turn)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep every n-th batch.

        Grain calls this in a worker process of ``mp_prefetch``.

        Args:
            sl: First batch, and the number n of workers.
            sequential_slice: Whether each worker reads consecutive batches; not
                supported.

        Raises:
            ConfigError: The slice has another form.
        """
        if sequential_slice:
            raise ConfigError(
                "sequential_slice: each worker would read consecutive batches, which changes the order; leave it "
                "out, so that workers take turns"
            )
        first = sl.start or 0
        step = sl.step or 1
        if sl.stop is not None or first < 0 or step < 1:
            raise ConfigError(
                f"slice: got {sl}, must be every n-th batch from a first one on, as mp_prefetch sets it"
            )
        self._turn = Turn(
            self._turn.first + first * self._turn.of, self._turn.of * step
        )

    def __str__(self) -> str:
        return f"GrainBatches({self._reader.get().plan.named})"


@final
class GrainIterator(grain.DatasetIterator[Batch]):
    """Iterator to the end of a pass.

    Its threads end with the pass, by :meth:`close`, or when it is forgotten.
    """

    def __init__(self, reader: HostReader, turn: Turn) -> None:
        super().__init__()
        self._reader = reader
        self._turn = turn
        self._batches = HostBatches(reader, reader.plan.begin(0), turn)
        self._is_closed = False

    def __next__(self) -> Batch:
        """Return the next batch: column -> numpy array of shape (rows, L)."""
        if self._is_closed:
            raise ValueError(
                "this iterator is closed; create another one from its dataset"
            )
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last batch.

        It is small and JSON-able, as that of ``DataLoader.get_state()``.
        """
        return self._batches.state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of an iterator or loader of the same run.

        The state comes from this iterator or from a ``DataLoader``.

        Raises:
            ConfigError: The state is of other data, of another order or of another
                number of workers.
        """
        batches = HostBatches.resumed(
            self._reader, state, self._turn, without=self._turn
        )
        self._batches.close()
        self._batches = batches

    def close(self) -> None:
        """End the threads and the iteration."""
        self._is_closed = True
        self._batches.close()
        super().close()

    def __str__(self) -> str:
        return f"GrainIterator({self._reader.plan.named})"


@final
class GrainRows:
    """Rows by their number; see :func:`grain_source`.

    Several threads may use it. It can be pickled: each process opens its own files.
    """

    def __init__(self, data: Dataset, columns: Sequence[str] | None = None) -> None:
        self._rows = SharedRows(data, columns, "grain_dataset")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row: column -> array of shape (L,).

        A row that does not exist raises IndexError.
        """
        return self._rows.take([index])[0]

    def __repr__(self) -> str:
        # Grain's checkpoints compare this text. It is equal for the same rows and
        # columns, in any process.
        rows = self._rows
        return f"GrainRows({rows.name}, manifest={rows.manifest}, columns={', '.join(rows.columns)})"
