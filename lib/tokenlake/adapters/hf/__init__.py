"""Datasets of Hugging Face over stored versions: all rows by number, or rows in the loader's order.

Columns have the names that models of transformers take. ``datasets`` itself is imported when one is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tokenlake.adapters.hf.arrow import arrow_files
from tokenlake.adapters.hf.columns import HfColumns
from tokenlake.adapters.hf.steps import HfSteps
from tokenlake.adapters.run import Run
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture

if TYPE_CHECKING:
    import datasets

_CACHE_BYTES: Final = 256 << 20


def to_hf(
    data: Dataset,
    *,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> datasets.Dataset:
    """Return all rows as a ``datasets.Dataset``, memory-mapped, in the order in which they are stored.

    ::

        Trainer(model, args, train_dataset=ds.to_hf())

    The columns are made once, into one Arrow file for each shard, as ``datasets`` itself keeps what it prepares; the
    files are found again by what is in them. No verification is lost: shards are read page by page against their
    checksums, which ``datasets`` would not do, and an Arrow file that is found is hashed before it is used (about 1 s
    per GB). Later reads through the memory map are checked by nobody, as with every ``datasets.Dataset``.

    Args:
        data: a dataset of any kind.
        columns: of a packed dataset any of

            - ``input_ids``: int32, L of them, as all others;
            - ``labels``: int32, aligned with ``input_ids`` (the model shifts them), -100 where there is no loss:
              padding, the first id of each segment, what a stored loss mask leaves out;
            - ``position_ids``: int32, from 0 in each segment. By them transformers keeps segments apart, if there is no
              ``attention_mask`` and the model has ``use_cache=False``, which its Trainer sets;
            - ``attention_mask``: int8, 0 in padding. With it a segment sees those before it in its row;
            - ``segment_ids`` (int32), ``loss_mask`` (bool), ``targets`` (int32): see :mod:`tokenlake.loader.columns`.

            None: ``input_ids``, ``labels`` and ``position_ids``. Of other kinds: any that are stored; None: all.
        rename: {name here: name in the dataset}.
        cache_dir: folder of the Arrow files, 4 bytes per id and column; None: ``tokenlake`` in the cache of
            ``datasets``.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ConfigError: there is no such column, or a name would be there twice.
        IntegrityError: a shard is damaged.
    """
    hf = _datasets()
    chosen = HfColumns.of(data, columns, rename)
    folder = Path(hf.config.HF_DATASETS_CACHE) / "tokenlake" if cache_dir is None else Path(cache_dir)
    files = arrow_files(data, chosen, folder)
    if not files:
        raise ConfigError(f"{data.name} has no rows")
    split = hf.Split(data.split)
    parts = [hf.Dataset.from_file(str(path), split=split) for path in files]
    return parts[0] if len(parts) == 1 else hf.concatenate_datasets(parts, split=split)


def hf_dataset(
    data: Dataset | Mixture,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int = 1,
    drop_last: bool = False,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    host: tuple[int, int] = (0, 1),
    lanes: int | None = None,
    window: int = 1,
    prefetch: int = 2,
    workers: int | None = None,
    cache_bytes: int = _CACHE_BYTES,
) -> datasets.IterableDataset:
    """Return rows in the order of :class:`tokenlake.DataLoader` as a ``datasets.IterableDataset``.

    ::

        dataset = tl.hf_dataset(ds, batch_size=16, epochs=3)
        Trainer(model, TrainingArguments(..., per_device_train_batch_size=16, max_steps=...), train_dataset=dataset)

    Items are rows: dicts of numpy arrays (L,). Each batch of `batch_size` rows is a shard in the sense of ``datasets``.
    So its own ``state_dict`` and ``load_state_dict`` resume exactly and at any step alike: what is made again is the
    rows of one batch at most, not the stream up to there. And with N workers of a PyTorch loader that makes batches
    of `batch_size`, batches come in the same order for every N.

    Frameworks that divide the items of an iterable dataset among processes go on doing so; where none does, `host`
    gives each process its part of every batch.

    Args:
        data, seed, shuffle, epochs, drop_last, lanes, window, prefetch, workers, cache_bytes: as of
            :class:`tokenlake.DataLoader`; epochs are laid end to end.
        batch_size: rows of the global batch.
        columns, rename: as of :func:`to_hf`; ``labels`` and ``targets`` are int64, which losses of PyTorch insist on.
        host: (index, number of hosts): the index-th of equal parts of every batch.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ConfigError: an argument is not what is allowed; or the run has no end.
    """
    hf = _datasets()
    first = data if isinstance(data, Dataset) else next(iter(data.datasets.values()))
    chosen = HfColumns.of(first, columns, rename)
    run = Run(
        data,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_last=drop_last,
        columns=chosen.ours,
        host=host,
        lanes=lanes,
        window=window,
        prefetch=prefetch,
        workers=workers,
        cache_bytes=cache_bytes,
    )
    batches = run.batches_in(0)
    if batches is None:
        raise ConfigError(
            "a dataset of Hugging Face must end: give epochs, or the mixture rows or another `stop`"
        )
    steps = list(range(batches))
    return hf.IterableDataset.from_generator(HfSteps(run, chosen), gen_kwargs={"step": steps})


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("a dataset of Hugging Face needs datasets: pip install datasets") from error
    return datasets
