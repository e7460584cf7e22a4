"""Rows in the loader's order as a dataset of Hugging Face; ``datasets`` itself is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, final

from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch import Batch
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.hf_arrow import HfColumns, import_datasets
from tokenlake.runtime.loader.host_batches import HostBatches, Turn
from tokenlake.runtime.loader.host_reader import HostReader, shared_reader
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.loader.options import WORKER_CACHE_BYTES, LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.per_process import PerProcess

if TYPE_CHECKING:
    import datasets


def hf_dataset(
    data: Dataset | Mixture,
    batch_size: int,
    *,
    rename: Mapping[str, str] | None = None,
    **options: Unpack[LoaderKeywords],
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
        data: as of :class:`tokenlake.DataLoader`.
        batch_size: rows of the global batch.
        rename: as of :meth:`tokenlake.Dataset.to_hf`.
        options: all others of :class:`tokenlake.DataLoader` but `sharding`; epochs are laid end to end.
            `columns` are those of :meth:`tokenlake.Dataset.to_hf`, of which ``labels`` and ``targets`` are int64 here,
            which losses of PyTorch insist on; of documents ``input_ids``, ``attention_mask`` and ``labels`` where none
            are given; of preferences those of the loader; `cache_bytes` is 256 MiB by default.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ConfigError: an argument is not what is allowed; or the run has no end.
    """
    hf = import_datasets()
    first = data if isinstance(data, Dataset) else next(iter(data.datasets.values()))
    chosen = HfColumns.of_batches(first.rows, options.pop("columns", None), rename)
    asked: LoaderKeywords = {"cache_bytes": WORKER_CACHE_BYTES, **options, "columns": chosen.ours}
    if asked.get("layout") is not None:
        raise ConfigError(
            f"layout: got {asked.get('layout')!r}, but a dataset of Hugging Face gives rows as they are; leave it out"
        )
    reader = shared_reader(data, LoaderOptions.of("hf_dataset", batch_size, asked))
    plan = reader.get().plan
    if plan.curriculum is not None and not plan.curriculum.keep_shape:
        raise ConfigError(
            f"lengths: got {asked.get('lengths')!r}, but what takes rows from a dataset of Hugging Face makes "
            "batches of one number of rows of them, and rows of two lengths would come into one; give keep_shape=True"
        )
    full = plan.options.drop_last or plan.options.pad_last
    if plan.bucket_shapes and not (plan.rows_alike and full):
        raise ConfigError(
            "padding.buckets: what takes rows from a dataset of Hugging Face makes batches of one number of rows of "
            "them; give padding equal_rows=True, and drop_last=True or pad_last=True: else the rows of two buckets, "
            "which have two lengths, would come into one batch"
        )
    if (batches := plan.batches_in(0)) is None:
        raise ConfigError(
            "a dataset of Hugging Face must end: give epochs, or the mixture rows or another `stop`"
        )
    steps = {"step": list(range(batches))}
    return hf.IterableDataset.from_generator(HfSteps(reader, chosen), gen_kwargs=steps)


def hf_rows(source: Any, shards: int) -> datasets.IterableDataset:
    """Return the rows of a source as a ``datasets.IterableDataset`` of so many shards; picklable as the source is.

    Args:
        source: its ``positions(share=(index, shards))`` yields (position, row).

    Raises:
        MissingExtraError: ``datasets`` is not installed.
    """
    shares = [(index, shards) for index in range(shards)]
    return import_datasets().IterableDataset.from_generator(
        partial(_shares, source), gen_kwargs={"share": shares}
    )


def _shares(source: Any, share: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for one in share:
        yield from (row for _, row in source.positions(share=one))


@final
class HfSteps:
    """Steps -> rows; picklable. Steps asked for in order, or every n-th of them, are read ahead."""

    def __init__(self, reader: PerProcess[HostReader], columns: HfColumns) -> None:
        self._reader, self._columns = PerProcess(partial(_StepReader, reader)), columns

    def __call__(self, step: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows of steps: column -> array of shape (L,)."""
        reader = self._reader.get()
        for number in step:
            batch = reader.read(number)
            columns = self._columns.of_batch(batch, wide_labels=True)
            try:
                for place in range(len(batch[self._columns.ours[0]])):
                    yield {name: values[place] for name, values in columns.items()}
            except GeneratorExit:  # a loop was left: its threads end
                reader.close()
                raise


@final
class _StepReader:
    """Goes on reading where it stands, if that is what is wanted."""

    def __init__(self, reader: PerProcess[HostReader]) -> None:
        self._reader = reader.get()
        self._batches: HostBatches | None = None
        self._stride, self._last = 1, -1

    def read(self, step: int) -> Batch:
        plan = self._reader.plan
        if self._batches is None or step != self._last + self._stride:
            # In the strides that the last two steps tell: those of one of several workers.
            self._stride = step - self._last if 0 <= self._last < step else 1
            self.close()
            turn = Turn(step % self._stride, self._stride)
            self._batches = HostBatches(self._reader, plan.steps.position(step), turn)
        batch, self._last = next(self._batches), step
        if step + self._stride >= (plan.batches_in(0) or 0):
            self.close()
        return batch

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None
