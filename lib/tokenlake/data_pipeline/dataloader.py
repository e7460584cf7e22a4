"""`DataLoaderBuilder`: a data loader of PyTorch, option by option.

Its datasets and collate functions are here, too.

Items of the datasets are rows put through the prompt engine, when they are asked for.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, cast, final

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

from tokenlake.base.checks import require_one_of
from tokenlake.base.columns import IGNORED
from tokenlake.base.result import Err, Result, attempt
from tokenlake.data_pipeline.collate import create_collate_fn
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.text.labeller import ProcessedExample
from tokenlake.etl.text.prompt_engine import PromptEngine
from tokenlake.runtime.loader.torch import process_place
from tokenlake.runtime.mixing.random import key_of, shuffled_by_buffer

# None stands for the default of the platform.
_STARTS = (None, "fork", "spawn", "forkserver")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderBuilder:
    """Options of a ``torch.utils.data.DataLoader``.

    Each ``with_`` method returns a builder with one more option.

    Example:
        >>> from tokenlake.data_pipeline import DataLoaderBuilder
        >>> dataset = [{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}]
        >>> builder = DataLoaderBuilder().with_dataset(dataset).with_batch_size(2).with_padding(0)
        >>> next(iter(builder.build().unwrap()))["input_ids"].tolist()
        [[5, 6, 0], [7, 8, 9]]
    """

    _dataset: Any = None
    _options: dict[str, Any] = field(default_factory=lambda: {"batch_size": 1})
    _shuffle: bool = False
    _seed: int = 0
    _place: tuple[int, int] | None = None
    _distributed: bool = False

    def with_dataset(self, dataset: Dataset[Any]) -> Self:
        """Load the items of a dataset.

        Args:
            dataset: Map-style or iterable dataset.
        """
        return replace(self, _dataset=dataset)

    def with_batch_size(self, batch_size: int, *, drop_last: bool = False) -> Self:
        """Set the number of items in a batch.

        Args:
            batch_size: Number of items.
            drop_last: True to leave out the last batch if it is smaller.
        """
        return self._with(batch_size=batch_size, drop_last=drop_last)

    def with_workers(
        self,
        num_workers: int,
        *,
        persistent: bool = False,
        prefetch_factor: int | None = None,
        start_method: str | None = None,
    ) -> Self:
        """Make batches in worker processes.

        Args:
            num_workers: Number of processes; 0: batches are made in this process.
            persistent: True to keep the processes from epoch to epoch.
            prefetch_factor: Number of batches that each process makes ahead; None:
                PyTorch's default.
            start_method: Start method of the processes, such as "spawn"; None: that of
                the platform.
        """
        require_one_of("start_method", start_method, _STARTS)
        return self._with(
            num_workers=num_workers,
            persistent_workers=persistent,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=start_method,
        )

    def with_pin_memory(self, pin_memory: bool = True) -> Self:
        """Copy batches to pinned memory.

        Args:
            pin_memory: True to copy.
        """
        return self._with(pin_memory=pin_memory)

    def with_shuffle(self, shuffle: bool = True, *, seed: int = 0) -> Self:
        """Shuffle the items in a new order in each epoch.

        An iterable dataset shuffles itself.

        Epochs count from 0, one for each iteration over the loader. ``set_epoch(n)`` of
        the dataset, or of the sampler of several processes, makes the next one epoch n.

        Args:
            shuffle: True to shuffle.
            seed: Random seed of the orders.
        """
        return replace(self, _shuffle=shuffle, _seed=seed)

    def with_distributed(
        self, rank: int | None = None, world_size: int | None = None
    ) -> Self:
        """Load one process's share of the items, by a ``DistributedSampler``.

        All processes get the same number of items: some items are repeated, or with
        ``drop_last`` the last ones are left out.

        Args:
            rank: Index of this process; None: the rank in ``torch.distributed``.
            world_size: Number of processes; None: that of ``torch.distributed``.
        """
        place = None
        if rank is not None and world_size is not None:
            place = (rank, world_size)
        return replace(self, _distributed=True, _place=place)

    def with_padding(self, tokenizer: Any, **options: Any) -> Self:
        """Pad the items of a batch to one length.

        Args:
            tokenizer: Tokenizer, as for
                :func:`tokenlake.data_pipeline.create_collate_fn`.
            options: Options of that function.
        """
        return self.with_collate(create_collate_fn(tokenizer, **options))

    def with_collate(self, function: Callable[[list[Any]], Any]) -> Self:
        """Set the function that makes a batch of items.

        Args:
            function: Function of a list of items.
        """
        return self._with(collate_fn=function)

    def build(self) -> Result[DataLoader[Any], TokenlakeError]:
        """Return the loader, or the error of a wrong option."""
        return attempt(self._built)

    def _with(self, **options: Any) -> Self:
        """Return a builder with further options of the loader."""
        return replace(self, _options={**self._options, **options})

    def _built(self) -> DataLoader[Any]:
        """Return the loader."""
        if self._dataset is None:
            raise ConfigError("dataset: missing; call with_dataset(...) before build()")
        # Only this dataset counts epochs and rows that are left out.
        loader_class: type[DataLoader[Any]] = DataLoader
        if isinstance(self._dataset, StreamingPreprocessedDataset):
            loader_class = StreamingDataLoader
        try:
            return loader_class(self._dataset, **self._options, **self._order())
        except (TypeError, ValueError) as error:  # PyTorch's own checks
            raise ConfigError(f"data loader: {error}") from error

    def _order(self) -> dict[str, Any]:
        """Return the arguments of the loader that decide the order of its rows."""
        # An iterable dataset, a sampler for several processes, or PyTorch's own
        # shuffle.
        if isinstance(self._dataset, IterableDataset):
            if self._shuffle or self._distributed:
                raise ConfigError(
                    "shuffle, distributed: an iterable dataset has its own order; give shuffle_buffer, rank and "
                    "world_size to StreamingPreprocessedDataset"
                )
            return {}
        if not self._distributed:
            return {
                "shuffle": self._shuffle,
                "generator": torch.Generator().manual_seed(self._seed),
            }
        # All processes draw the same order from the seed, and take their shares of it.
        rank, process_count = self._place or process_place()
        sampler = EpochSampler(
            self._dataset,
            process_count,
            rank,
            shuffle=self._shuffle,
            seed=self._seed,
            drop_last=bool(self._options.get("drop_last")),
        )
        return {"sampler": sampler}


@final
class EpochSampler(DistributedSampler[Any]):
    """A ``DistributedSampler`` whose every iteration is the next epoch.

    ``set_epoch`` chooses another one.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_begun = False

    def __iter__(self) -> Iterator[Any]:
        """Return the places of the rows of this process."""
        # PyTorch's sampler repeats the order of an epoch until `set_epoch` is called.
        if self._is_begun:
            self.epoch += 1
        self._is_begun = True
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch."""
        super().set_epoch(epoch)
        self._is_begun = False


@final
class StreamingDataLoader(DataLoader[Any]):
    """A ``DataLoader`` of a :class:`StreamingPreprocessedDataset`.

    Each iteration is the dataset's next epoch. At its end a warning says how many rows
    were left out because they are too long.
    """

    def __iter__(self) -> Any:
        """Return the batches of an epoch."""
        dataset = cast("StreamingPreprocessedDataset", self.dataset)
        dataset.begin_epoch()
        return self._batches(super().__iter__(), dataset)

    def _batches(
        self, batches: Iterator[Any], dataset: StreamingPreprocessedDataset
    ) -> Iterator[Any]:
        """Yield the batches of an epoch, and warn at its end."""
        # Counts grow from epoch to epoch: the differences are those of this one.
        skipped = dataset.skipped
        shortened = dataset.shortened
        yield from batches
        if dataset.skips_long:
            _warn_of_long_prompts(
                dataset.skipped - skipped, "left out", dataset.max_length
            )
        _warn_of_long_prompts(
            dataset.shortened - shortened, "shortened", dataset.max_length
        )


def _warn_of_long_prompts(count: int, done: str, max_length: int) -> None:
    """Warn of rows with long prompts, if there were any."""
    if count:
        warnings.warn(
            f"{count:,} rows of this process were {done}, because their prompts are longer than tokenizer.max_length "
            f"allows ({max_length:,})",
            RuntimeWarning,
            stacklevel=3,
        )


Row = Mapping[str, Any]


@final
class PreprocessedDataset(Dataset[ProcessedExample]):
    """Map-style dataset of examples, one for each row.

    Item i is row i as ``input_ids``, ``attention_mask`` and ``labels``, int32[L] each.

    Args:
        rows: Rows in any object with a length and items, such as a list or a
            ``datasets.Dataset``.
        engine: Engine that makes examples of rows; with ``padding=False`` if a collate
            function pads.

    Example:
        >>> from tokenlake.data_pipeline import PreprocessedDataset, PromptEngine
        >>> prompt = {"template": "Q: {question} A: {answer}", "label_column": "answer"}
        >>> engine = PromptEngine(prompt, "openai-community/gpt2", max_length=32)
        >>> rows = [{"question": "How deep is it?", "answer": "Nine metres."}] * 4
        >>> dataset = PreprocessedDataset(rows, engine)
        >>> len(dataset), dataset[0]["labels"].shape
        (4, (32,))
    """

    def __init__(self, rows: Sequence[Row], engine: PromptEngine) -> None:
        self._rows = rows
        self._engine = engine

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> ProcessedExample:
        """Return the example of a row.

        Raises:
            BadRecordError: No example can be made of it; the error has its number.
        """
        example = _unwrapped(self._engine.process(self._rows[index]), index)
        # Once all rows were requested, in whatever order, it is known what was cut of
        # them.
        cut = self._engine.cut
        cut.judge(is_end=cut.count.documents >= len(self._rows))
        return example


@final
class PackedDataset(Dataset[ProcessedExample]):
    """Map-style dataset of packed rows.

    Item i is row i, which holds several examples one after the other.

    Items have ``input_ids``, ``attention_mask``, ``labels``, ``segment_ids`` (1, 2, 3,
    ... for the examples, 0 for padding) and ``position_ids`` (from 0 in each example),
    int32[L] each.

    Args:
        rows: Rows of a :class:`tokenlake.PackedShardedSource` over examples.

    Example:
        >>> from tokenlake.data_pipeline import DataPipeline
        >>> config = {
        ...     "dataset": {"name": "lake", "stages": ["packing"]},
        ...     "prompt_template": {"template": "Q: {question} A: {answer}", "label_column": "answer"},
        ...     "tokenizer": {"name_or_path": "openai-community/gpt2", "max_length": 64},
        ... }
        >>> rows = [{"question": "How deep is it?", "answer": "Nine metres."}] * 4
        >>> dataset = DataPipeline(config, datasets={"train": rows}).get_dataset("train").unwrap()
        >>> dataset[0]["segment_ids"].shape
        (64,)
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._examples: Final = [_packed_example(row) for row in rows]

    def __len__(self) -> int:
        """Return the number of packed rows."""
        return len(self._examples)

    def __getitem__(self, index: int) -> ProcessedExample:
        """Return a packed row."""
        return self._examples[index]


def _packed_example(row: Row) -> ProcessedExample:
    """Return a packed row as an example, with the positions of its ids."""
    token_ids = row["input_ids"]
    segments = row["segment_ids"]
    # An id begins an example where the segment is another than that of the id before
    # it.
    row_places = np.arange(len(token_ids), dtype=np.int32)
    is_begin = np.concatenate([[True], segments[1:] != segments[:-1]])
    example_starts = np.maximum.accumulate(np.where(is_begin, row_places, 0))
    positions = np.where(segments > 0, row_places - example_starts, 0)
    return ProcessedExample(
        input_ids=token_ids,
        attention_mask=row["attention_mask"],
        labels=np.where(row["loss_mask"], token_ids, np.int32(IGNORED)),
        position_ids=positions.astype(np.int32),
        segment_ids=segments,
    )


_SLOTS: Final = 1024
"""Worker processes that count by themselves; more of them share a count."""


@final
class StreamingPreprocessedDataset(IterableDataset[ProcessedExample]):
    """Iterable dataset of examples, made of rows one by one.

    Each process, and each of its workers, has its share of rows.

    Row n belongs to process ``n % world_size``. Processes get equal numbers of rows,
    and thus of batches: if the rows do not divide evenly, some of the last ones are
    repeated, or with `drop_last` the last ones are left out. With several processes, a
    row that is skipped is replaced by a repetition of the row before it.

    Args:
        rows: Source, or any object that can be iterated several times.
        engine: Engine, as for :class:`PreprocessedDataset`.
        skip_errors: True to leave out rows that make no example, and to count them in
            :attr:`skipped`.
        skip_long: True to leave out and count rows whose prompt is too long.
        shuffle_buffer: Number of rows from which the next one is drawn; 0: rows keep
            their order.
        seed: Random seed of the draw, together with the epoch.
        rank: Index of this process.
        world_size: Number of processes.
        drop_last: True to leave out the last rows in place of repeating some.

    Example:
        >>> from tokenlake.data_pipeline import PromptEngine, StreamingPreprocessedDataset
        >>> prompt = {"template": "Q: {question} A: {answer}", "label_column": "answer"}
        >>> engine = PromptEngine(prompt, "openai-community/gpt2", max_length=32)
        >>> rows = [{"question": "How deep is it?", "answer": "Nine metres."}] * 4
        >>> dataset = StreamingPreprocessedDataset(rows, engine, shuffle_buffer=4)
        >>> sum(1 for _ in dataset)
        4
    """

    def __init__(
        self,
        rows: Iterable[Row],
        engine: PromptEngine,
        *,
        skip_errors: bool = False,
        skip_long: bool = False,
        shuffle_buffer: int = 0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"rank: got {rank} of {world_size} processes, must be 0 to {world_size - 1}"
            )
        self._rows = rows
        self._engine = engine
        self._skips: Final = skip_errors
        self.skips_long: Final = skip_long
        self.max_length: Final = engine.max_length
        self._buffer = shuffle_buffer
        self._seed = seed
        self._place: Final = rank, world_size
        self._drops_last = drop_last
        # In shared memory: workers that are kept see the next epoch there, and this
        # process sees how many rows they skip.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._skipped = torch.zeros(_SLOTS, dtype=torch.int64).share_memory_()
        self._shortened = torch.zeros(_SLOTS, dtype=torch.int64).share_memory_()
        self._is_begun = False

    @property
    def epoch(self) -> int:
        """The epoch that the next loop has, unless :meth:`begin_epoch` is called."""
        return int(self._epoch)

    @property
    def skipped(self) -> int:
        """Rows left out so far, of this process and its workers."""
        return int(self._skipped.sum())

    @property
    def shortened(self) -> int:
        """Rows whose columns were shortened so far, of this process and its workers."""
        return int(self._shortened.sum())

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next loop, also of workers that live on."""
        self._epoch.fill_(epoch)
        self._is_begun = False

    def begin_epoch(self) -> None:
        """Begin the epoch that was set, or the next one if that was begun already.

        A loader calls this itself.
        """
        if self._is_begun:
            self._epoch += 1
        self._is_begun = True

    def __iter__(self) -> Iterator[ProcessedExample]:
        """Return this worker's examples, in the order of the present epoch."""
        return self._examples(self.epoch)

    def _examples(self, epoch: int) -> Iterator[ProcessedExample]:
        """Yield the examples of this worker."""
        worker = get_worker_info()
        worker_id = 0
        worker_count = 1
        if worker is not None:
            worker_id = worker.id
            worker_count = worker.num_workers

        # Every process must yield as many examples as the others: a row that is skipped
        # is replaced by the example before it, at the beginning by the one after it.
        is_shared = self._place[1] > 1
        latest: ProcessedExample | None = None
        owed = 0  # rows skipped before the first example
        rows = itertools.islice(self._share(epoch), worker_id, None, worker_count)
        for number, row in rows:
            # The engine counts for itself; the difference belongs to this row.
            shortened = self._engine.shortened
            result = self._engine.process(row)
            self._shortened[worker_id % _SLOTS] += self._engine.shortened - shortened
            if self._is_skipped(result):
                self._skipped[worker_id % _SLOTS] += 1
                if is_shared and latest is not None:
                    yield latest
                elif is_shared:
                    owed += 1
                continue
            latest = _unwrapped(result, number)
            for _ in range(1 + owed):
                yield latest
            owed = 0
        # No example of this process can stand for the others.
        if owed:
            rank, world = self._place
            raise BadRecordError(
                f"process {rank} of {world}: none of its {owed} rows can be used, so it has no batches, and the "
                "other processes would wait for it; expected rows that fit into max_length"
            )
        self._engine.cut.judge(is_end=True)

    def _share(self, epoch: int) -> Iterator[tuple[int, Row]]:
        """Yield the rows of this process with their numbers.

        Every process has as many.
        """
        numbered: Iterator[tuple[int, Row]] = enumerate(self._rows)
        if self._buffer:  # all draw alike, and then take their share
            numbered = shuffled_by_buffer(
                numbered, self._buffer, key_of(self._seed, epoch)
            )
        rank, process_count = self._place
        # A round has a row for each process.
        round_of_rows: list[tuple[int, Row]] = []
        for numbered_row in numbered:
            round_of_rows.append(numbered_row)
            if len(round_of_rows) == process_count:
                yield round_of_rows[rank]
                round_of_rows = []
        # The last round has too few rows: they are shared again, or left out.
        if round_of_rows and not self._drops_last:
            yield round_of_rows[rank % len(round_of_rows)]

    def _is_skipped(self, result: Result[ProcessedExample, TokenlakeError]) -> bool:
        """Say whether a row is left out because of the error of its example."""
        if not isinstance(result, Err) or not isinstance(result.error, BadRecordError):
            return False
        return self._skips or (self.skips_long and is_too_long(result.error))


def is_too_long(error: TokenlakeError) -> bool:
    """Say whether a row cannot be used because its prompt is too long."""
    return error.details.get("reason") == "too_long"


def _unwrapped(result: Any, number: int) -> ProcessedExample:
    """Return the example of a result, or raise its error with the number of the row."""
    if result.is_ok():
        return result.unwrap()
    error: TokenlakeError = result.unwrap_err()
    # The error has the number of the row, and the option that would accept it.
    # Not the whole message: the engine sees one row at a time, and names it row 0.
    problem = str(error.details.get("problem", error))
    if is_too_long(error):
        problem += ". dataloader.long_prompts: skip leaves these rows out, and shorten cuts their prompts"
    raise type(error)(
        f"row {number}: {problem}", **{**error.details, "row": number}
    ) from error
