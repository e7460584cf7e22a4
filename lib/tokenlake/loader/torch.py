"""Datasets of PyTorch over packed datasets: batches in the loader's order, or rows by number.

PyTorch itself is imported when one of these is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from tokenlake.errors import MissingExtraError
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture

if TYPE_CHECKING:
    from tokenlake.loader.torch_batches import TorchBatches
    from tokenlake.loader.torch_rows import TorchRows

_MISSING: Final = "a dataset of PyTorch needs torch: pip install 'tokenlake[torch]'"
_CACHE_BYTES: Final = 256 << 20

Integers = Literal["mixed", "int32", "int64"]


def torch_dataset(
    data: Dataset | Mixture,
    batch_size: int | Mapping[int, int],
    *,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = 1,
    drop_last: bool = False,
    pad_last: bool = False,
    columns: Sequence[str] | None = None,
    rows: bool = False,
    integers: Integers = "mixed",
    host: tuple[int, int] | None = None,
    lanes: int | None = None,
    window: int = 1,
    prefetch: int = 1,
    workers: int | None = None,
    cache_bytes: int = _CACHE_BYTES,
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
        data, batch_size, seed, shuffle, epochs, drop_last, pad_last, columns, lanes, window: as of
            :class:`tokenlake.DataLoader`.
        rows: items are single rows, arrays of shape (L,), in the same order; give `batch_size` of PyTorch's loader the
            same number as here, or workers make other batches.
        integers: type of integer columns. "mixed": ``labels`` and ``targets`` int64, which PyTorch's losses insist on,
            all others int32, as they are stored (embeddings, comparisons and additions take them) and not copied;
            "int64" for what indexes by ids (``gather``, ``one_hot``); "int32" copies nothing. Masks are bool.
        host: (rank, number of processes): this process gets these rows of every batch, the rank-th of equal parts.
            None: those of ``torch.distributed`` where it is initialised, else (0, 1). Frameworks that divide batches
            among processes themselves want (0, 1).
        prefetch, workers, cache_bytes: as of :class:`tokenlake.DataLoader`, of each worker process.

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigError: an argument is not what is allowed; or this is one of several processes (``WORLD_SIZE``) and
            nobody says which.
    """
    try:
        from tokenlake.loader.torch_batches import TorchBatches, host_of
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    from tokenlake.loader.run import Run

    run = Run(
        data,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_last=drop_last,
        pad_last=pad_last,
        columns=columns,
        host=host_of() if host is None else host,
        lanes=lanes,
        window=window,
        prefetch=prefetch,
        workers=workers,
        cache_bytes=cache_bytes,
    )
    return TorchBatches(run, integers=integers, rows=rows)


def torch_rows(
    data: Dataset, *, columns: Sequence[str] | None = None, integers: Integers = "mixed"
) -> TorchRows:
    """Return a map-style ``torch.utils.data.Dataset``: row number -> dict of tensors of shape (L,).

    For samplers of one's own. Rows in random order decode a row group for nearly every row; the order of
    :func:`torch_dataset` decodes each once.

    Args:
        data: a dataset of kind packed.
        columns: as of :class:`tokenlake.DataLoader`.
        integers: as of :func:`torch_dataset`.

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigError: an argument is not what is allowed.
    """
    try:
        from tokenlake.loader.torch_rows import TorchRows
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return TorchRows(data, columns, integers)


def _missing(error: ModuleNotFoundError) -> Exception:
    return MissingExtraError(_MISSING) if error.name == "torch" else error
