"""Rows in the loader's order as a dataset of Hugging Face.

The package ``datasets`` is imported when it is needed.
"""

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
from tokenlake.runtime.loader.options import LoaderKeywords, LoaderOptions
from tokenlake.runtime.loader.per_process import PerProcess
from tokenlake.runtime.loader.plan import BatchPlan

if TYPE_CHECKING:
    import datasets


def hf_dataset(
    data: Dataset | Mixture,
    batch_size: int,
    *,
    rename: Mapping[str, str] | None = None,
    **options: Unpack[LoaderKeywords],
) -> datasets.IterableDataset:
    """Return rows in the loader's order as a ``datasets.IterableDataset``.

    The order is that of :class:`tokenlake.DataLoader`. Items are rows: dicts of numpy
    arrays (L,). Each batch of `batch_size` rows is a shard in the sense of
    ``datasets``. Its ``state_dict`` and ``load_state_dict`` therefore resume exactly,
    and equally fast at any step: only the rows of one batch are made again, not the
    stream before. The state counts steps and does not name the order: resume it with
    the same options, and with `window=1` if an earlier release wrote it, whose default
    that was. With N workers of a PyTorch loader that makes batches of `batch_size`,
    batches have the same order for every N.

    Frameworks may divide the items of an iterable dataset among processes. If yours
    does not, `host` gives each process its part of every batch.

    Args:
        data: Dataset or mixture, as for :class:`tokenlake.DataLoader`.
        batch_size: Rows of the global batch.
        rename: Name of a column -> name in the dataset, as for
            :meth:`tokenlake.Dataset.to_hf`.
        options: All other options of :class:`tokenlake.DataLoader` except `sharding`.
            Epochs follow one after the other. `columns` are those of
            :meth:`tokenlake.Dataset.to_hf`; ``labels`` and ``targets`` are int64, as
            losses of PyTorch require. The defaults are ``input_ids``,
            ``attention_mask`` and ``labels`` for documents, and those of the loader for
            preferences.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ConfigError: An argument is not allowed, or the run has no end.

    Example:
        >>> import tokenlake as tl
        >>> dataset = tl.hf_dataset(tl.open("artifacts/books"), batch_size=8, epochs=3)
        >>> row = next(iter(dataset))
        >>> row["input_ids"].shape, row["labels"].dtype
        ((64,), dtype('int64'))
    """
    hf = import_datasets()
    first_dataset = (
        data if isinstance(data, Dataset) else next(iter(data.datasets.values()))
    )
    columns = HfColumns.of_batches(
        first_dataset.rows, options.pop("columns", None), rename
    )
    keywords: LoaderKeywords = {**options, "columns": columns.ours}
    if keywords.get("layout") is not None:
        raise ConfigError(
            f"layout: got {keywords.get('layout')!r}, but a dataset of Hugging Face gives rows as they are; leave it "
            "out"
        )
    reader = shared_reader(data, LoaderOptions.of("hf_dataset", batch_size, keywords))
    plan = reader.get().plan
    _check_plan(plan)
    batches = plan.batches_in(0)
    if batches is None:
        raise ConfigError(
            "a dataset of Hugging Face must end: give epochs, or `rows` or another `stop` of the mixture"
        )
    steps = {"step": list(range(batches))}
    return hf.IterableDataset.from_generator(HfSteps(reader, columns), gen_kwargs=steps)


def _check_plan(plan: BatchPlan) -> None:
    """Raise ConfigError where rows of different lengths would be put into one batch.

    Users of a dataset of Hugging Face take single rows from it, and make batches of a
    constant number of rows.
    """
    if plan.curriculum is not None and not plan.curriculum.keep_shape:
        raise ConfigError(
            f"lengths: got {plan.options.lengths!r}, but batches of a dataset of Hugging Face have a constant number "
            "of rows, and one could contain rows of two lengths; give keep_shape=True"
        )
    is_always_full = plan.options.drop_last or plan.options.pad_last
    if plan.bucket_shapes and not (plan.rows_alike and is_always_full):
        raise ConfigError(
            "padding.buckets: batches of a dataset of Hugging Face have a constant number of rows; give padding "
            "equal_rows=True, and drop_last=True or pad_last=True: otherwise one batch could contain rows of two "
            "buckets, which have two lengths"
        )


def hf_rows(source: Any, shards: int) -> datasets.IterableDataset:
    """Return the rows of a source as a ``datasets.IterableDataset``.

    It can be pickled if the source can.

    Args:
        source: Source whose ``positions(share=(index, shards))`` yields (position,
            row).
        shards: Number of shards of the dataset.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
    """
    shares = [(index, shards) for index in range(shards)]
    return import_datasets().IterableDataset.from_generator(
        partial(_rows_of_shares, source), gen_kwargs={"share": shares}
    )


def _rows_of_shares(
    source: Any, share: Sequence[tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of some shares of a source."""
    for index_and_count in share:
        for _, row in source.positions(share=index_and_count):
            yield row


@final
class HfSteps:
    """Function that yields the rows of steps. It can be pickled.

    Steps that are requested one after the other, or every n-th of them, are read ahead.
    """

    def __init__(self, reader: PerProcess[HostReader], columns: HfColumns) -> None:
        self._reader = PerProcess(partial(_StepReader, reader))
        self._columns = columns

    def __call__(self, step: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows of steps: column -> array of shape (L,)."""
        reader = self._reader.get()
        for number in step:
            batch = reader.read(number)
            columns = self._columns.of_batch(batch, wide_labels=True)
            try:
                for place in range(len(batch[self._columns.ours[0]])):
                    yield {name: values[place] for name, values in columns.items()}
            except GeneratorExit:  # the caller left its loop: end the threads
                reader.close()
                raise


@final
class _StepReader:
    """Reads batches by their step, ahead of need if the steps form a sequence."""

    def __init__(self, reader: PerProcess[HostReader]) -> None:
        self._reader = reader.get()
        self._batches: HostBatches | None = None
        # From one step to the next; the number of workers, if this is one of several.
        self._stride = 1
        self._last_step = -1

    def read(self, step: int) -> Batch:
        """Return the batch of a step."""
        plan = self._reader.plan
        if self._batches is None or step != self._last_step + self._stride:
            # Begin a new sequence, with the distance between the last two steps as its
            # stride.
            has_stride = 0 <= self._last_step < step
            self._stride = step - self._last_step if has_stride else 1
            self.close()
            turn = Turn(step % self._stride, self._stride)
            self._batches = HostBatches(self._reader, plan.steps.position(step), turn)
        batch = next(self._batches)
        self._last_step = step
        if step + self._stride >= (plan.batches_in(0) or 0):
            self.close()
        return batch

    def close(self) -> None:
        """End the threads that read ahead."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None
