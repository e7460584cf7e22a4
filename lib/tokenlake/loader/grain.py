"""Sources and datasets of Grain over packed datasets: rows by number, or batches in the loader's order.

Grain itself is imported when a dataset of batches is asked for; a source of rows needs nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.loader.batch import check_columns
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.run import PerProcess, Run, own_dataset

if TYPE_CHECKING:
    from tokenlake.loader.grain_batches import GrainBatches

_CACHE_BYTES: Final = 256 << 20


def grain_dataset(
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
    cache_bytes: int = _CACHE_BYTES,
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

    Args: as of :class:`tokenlake.DataLoader`, `prefetch`, `workers` and `cache_bytes` of each worker process.
        `epochs` are laid end to end; Grain's ``repeat`` would give the same ones again.

    Raises:
        MissingExtraError: Grain is not installed.
        ConfigError: an argument is not what is allowed.
    """
    try:
        from tokenlake.loader.grain_batches import GrainBatches
    except ModuleNotFoundError as error:
        if error.name != "grain":
            raise
        raise MissingExtraError("a dataset of Grain needs grain: pip install 'tokenlake[grain]'") from error
    run = Run(
        data,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_last=drop_last,
        pad_last=pad_last,
        columns=columns,
        host=host,
        lanes=lanes,
        window=window,
        prefetch=prefetch,
        workers=workers,
        cache_bytes=cache_bytes,
    )
    return GrainBatches(run)


def grain_source(data: Dataset, *, columns: Sequence[str] | None = None) -> GrainRows:
    """Return a ``grain.sources.RandomAccessDataSource``: row number -> dict of numpy arrays of shape (L,).

    ::

        grain.MapDataset.source(tl.grain_source(ds)).shuffle(seed=0).batch(256)

    For pipelines and samplers of Grain's own. Rows in random order decode a row group for nearly every row; the order
    of :func:`grain_dataset` decodes each once.

    Args:
        data: a dataset of kind packed.
        columns: as of :class:`tokenlake.DataLoader`.

    Raises:
        ConfigError: an argument is not what is allowed.
    """
    return GrainRows(data, columns)


@final
class GrainRows:
    """See :func:`grain_source`. May be used by several threads; picklable, every process opens files of its own."""

    def __init__(self, data: Dataset, columns: Sequence[str] | None = None) -> None:
        if not isinstance(data, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"data: got a {type(data).__name__}, must be a Dataset (tl.open); "
                "the rows of a mixture have no numbers, grain_dataset gives them in their order"
            )
        _ = data.seq_length  # raises where rows are of many lengths
        self._length, self._name, self._manifest = len(data), data.name, data.manifest.sha256
        self._columns = check_columns(columns)
        self._opened = PerProcess(partial(own_dataset, data))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row: column -> array of shape (L,); IndexError where there is none."""
        at = int(index)
        if not 0 <= at < self._length:
            raise IndexError(f"{self._name} has rows 0 to {self._length - 1}; there is no row {at}")
        return {name: values[0] for name, values in self._opened.get().take([at], self._columns).items()}

    def __repr__(self) -> str:
        # Grain's checkpoints compare it: equal for the same rows and columns, in any process.
        return f"GrainRows({self._name}, manifest={self._manifest}, columns={', '.join(self._columns)})"
