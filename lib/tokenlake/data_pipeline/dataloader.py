"""`DataLoaderBuilder`: a data loader of PyTorch, option by option; its datasets and collate functions.

Items of the datasets are rows put through the prompt engine, when they are asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

from tokenlake.config.values import require_one_of
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.loader.torch import process_place
from tokenlake.mixing.random import key_of, shuffled_by_buffer
from tokenlake.result import Err, Result, attempt
from tokenlake.rowwise.batches import Filling, batch_of
from tokenlake.text.prompt_engine import ProcessedExample, PromptEngine
from tokenlake.text.truncation import SIDES, Side
from tokenlake.tokenizers.files import files_of

PaddingTo = Literal["longest", "max_length"]
Batch = dict[str, torch.Tensor]
_PADDINGS: Final = ("longest", "max_length")
_TYPES: Final = {"int32": torch.int32, "int64": torch.int64}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Collate:
    """Makes a batch of examples: ids are filled with `pad_token_id`, masks with 0, labels with -100. Picklable.

    Attributes:
        padding: to the longest example, or all to `max_length`.
        max_length: most ids of an example; None: any number.
        labels_from_ids: examples without labels get their ids as labels.
        labels_apart: labels are sequences of their own, padded by themselves to `max_target_length` at most.
        integers: tensor to its type, and at the same time which tensors a batch has; None: all, int64.
    """

    pad_token_id: int
    padding: PaddingTo = "longest"
    padding_side: Side = "right"
    max_length: int | None = None
    pad_to_multiple_of: int = 1
    labels_from_ids: bool = False
    labels_apart: bool = False
    max_target_length: int | None = None
    integers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        require_one_of("padding", self.padding, _PADDINGS)
        require_one_of("padding_side", self.padding_side, SIDES)
        for name in ("max_length", "max_target_length", "pad_to_multiple_of"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: got {value}, must be a positive number")
        if self.padding == "max_length" and self.max_length is None:
            raise ConfigError("max_length: missing; padding 'max_length' needs it")

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> Batch:
        """Return (n, width) tensors of n examples, whose fields are lists or arrays of one dimension.

        Raises:
            BadRecordError: examples have different fields, or one is longer than allowed.
        """
        rows = [
            {name: each.numpy() if isinstance(each, torch.Tensor) else each for name, each in example.items()}
            for example in examples
        ]
        if self.labels_from_ids:
            rows = [{**row, "labels": row.get("labels", row["input_ids"])} for row in rows]
        labels = [{"labels": row.pop("labels")} for row in rows] if self.labels_apart else []
        batch = self._padded(rows, self.max_length)
        if labels:
            batch |= self._padded(labels, self.max_target_length)
        chosen = self.integers or dict.fromkeys(batch, "int64")
        return {name: torch.as_tensor(batch[name], dtype=_TYPES[kind]) for name, kind in chosen.items()}

    def _padded(self, rows: list[dict[str, Any]], most: int | None) -> dict[str, Any]:
        for at, row in enumerate(rows):
            for name, value in row.items():
                if most is not None and np.ndim(value) and len(value) > most:
                    why = f"{name!r} has {len(value)} values, at most {most} are allowed"
                    told = f"example {at} of the batch: {why}; truncate it, or raise max_length"
                    raise BadRecordError(told, row=at, field_path=name, expected=most, got=len(value))
        width = most if self.padding == "max_length" and most is not None else 0
        return batch_of(rows, Filling(self.pad_token_id, self.padding_side, width, self.pad_to_multiple_of))


def create_collate_fn(tokenizer: Any, **options: Any) -> Collate:
    """Return a function that pads the fields of examples to one length.

    Args:
        tokenizer: an id to pad with, or a tokenizer (Hub id, path, object) that names one.
        options: of :class:`Collate`: padding, padding_side, max_length, pad_to_multiple_of, integers.

    Raises:
        ConfigError: the tokenizer names neither padding nor EOS, or an option is wrong.
    """
    if not isinstance(tokenizer, int):
        files = files_of(tokenizer)
        if files.fill_id is None:
            why = "names neither a padding nor an EOS token; give the id to pad with"
            raise ConfigError(f"tokenizer {files.name!r}: {why}")
        tokenizer = files.fill_id
    return Collate(pad_token_id=tokenizer, **options)


def create_causal_lm_collate(tokenizer: Any, **options: Any) -> Collate:
    """Return a :func:`create_collate_fn` for next-token loss: examples without labels learn all their ids."""
    return create_collate_fn(tokenizer, labels_from_ids=True, **options)


def create_seq2seq_collate(tokenizer: Any, **options: Any) -> Collate:
    """Return a function for encoder and decoder: `labels` have a length of their own (`max_target_length` at most)."""
    return create_collate_fn(tokenizer, labels_apart=True, **options)


_STARTS = (None, "fork", "spawn", "forkserver")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderBuilder:
    """Options of a ``torch.utils.data.DataLoader``; each ``with_`` returns a builder with one more of them.

    ::

        loader = DataLoaderBuilder().with_dataset(dataset).with_batch_size(8).with_padding(tokenizer).build().unwrap()
    """

    _dataset: Any = None
    _options: dict[str, Any] = field(default_factory=lambda: {"batch_size": 1})
    _shuffle: bool = False
    _seed: int = 0
    _place: tuple[int, int] | None = None
    _distributed: bool = False

    def with_dataset(self, dataset: Dataset[Any]) -> Self:
        """Load the items of a dataset, map-style or iterable."""
        return replace(self, _dataset=dataset)

    def with_batch_size(self, batch_size: int, *, drop_last: bool = False) -> Self:
        """Have so many items in a batch; with `drop_last` without the last one, where it is smaller."""
        return self._with(batch_size=batch_size, drop_last=drop_last)

    def with_workers(
        self,
        num_workers: int,
        *,
        persistent: bool = False,
        prefetch_factor: int | None = None,
        start_method: str | None = None,
    ) -> Self:
        """Make batches in so many processes, each `prefetch_factor` ahead; kept from epoch to epoch if `persistent`."""
        require_one_of("start_method", start_method, _STARTS)
        return self._with(
            num_workers=num_workers,
            persistent_workers=persistent,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=start_method,
        )

    def with_pin_memory(self, pin_memory: bool = True) -> Self:
        """Copy batches to pinned memory."""
        return self._with(pin_memory=pin_memory)

    def with_shuffle(self, shuffle: bool = True, *, seed: int = 0) -> Self:
        """Have another order in every epoch, which `seed` decides; an iterable dataset shuffles itself."""
        return replace(self, _shuffle=shuffle, _seed=seed)

    def with_distributed(self, rank: int | None = None, world_size: int | None = None) -> Self:
        """Load one process's share, by a ``DistributedSampler``; left out, torch.distributed says which."""
        place = None if rank is None or world_size is None else (rank, world_size)
        return replace(self, _distributed=True, _place=place)

    def with_padding(self, tokenizer: Any, **options: Any) -> Self:
        """Pad a batch's items; arguments as of :func:`tokenlake.data_pipeline.create_collate_fn`."""
        return self.with_collate(create_collate_fn(tokenizer, **options))

    def with_collate(self, function: Callable[[list[Any]], Any]) -> Self:
        """Make batches of items by a function."""
        return self._with(collate_fn=function)

    def build(self) -> Result[DataLoader[Any], TokenlakeError]:
        """Return the loader, or which option is wrong."""
        return attempt(self._built)

    def _with(self, **options: Any) -> Self:
        return replace(self, _options={**self._options, **options})

    def _built(self) -> DataLoader[Any]:
        if self._dataset is None:
            raise ConfigError("dataset: missing; call with_dataset(...) before build()")
        try:
            return DataLoader(self._dataset, **self._options, **self._order())
        except (TypeError, ValueError) as error:  # PyTorch's own checks
            raise ConfigError(f"data loader: {error}") from error

    def _order(self) -> dict[str, Any]:
        if isinstance(self._dataset, IterableDataset):
            if self._shuffle or self._distributed:
                how = "give shuffle_buffer, rank and world_size to StreamingPreprocessedDataset"
                raise ConfigError(f"shuffle, distributed: an iterable dataset has its own order; {how}")
            return {}
        if not self._distributed:
            return {"shuffle": self._shuffle, "generator": torch.Generator().manual_seed(self._seed)}
        rank, world = self._place or process_place()
        order: dict[str, Any] = {"shuffle": self._shuffle, "seed": self._seed}
        order["drop_last"] = bool(self._options.get("drop_last"))
        return {"sampler": DistributedSampler(self._dataset, world, rank, **order)}


Row = Mapping[str, Any]


@final
class PreprocessedDataset(Dataset[ProcessedExample]):
    """Map-style: item i is row i as ``input_ids``, ``attention_mask`` and ``labels``, int32[L] each.

    Args:
        rows: anything with a length and items, such as a list or a ``datasets.Dataset``.
        engine: makes examples of rows; with ``padding=False`` where a collate function pads.
    """

    def __init__(self, rows: Sequence[Row], engine: PromptEngine) -> None:
        self._rows, self._engine = rows, engine

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> ProcessedExample:
        """Return the example of a row; BadRecordError (with its number) where none can be made of it."""
        return _unwrapped(self._engine.process(self._rows[index]), index)


@final
class StreamingPreprocessedDataset(IterableDataset[ProcessedExample]):
    """Iterable: rows become examples one by one; worker w of process r makes every n-th, so that all have each once.

    Args:
        rows: a source, or anything that can be iterated over again and again.
        engine: as of :class:`PreprocessedDataset`.
        skip_errors: leave rows out of which no example can be made, and count them in :attr:`skipped`.
        shuffle_buffer: rows among which the next is drawn; 0: they come in their order.
        seed: of the draw, together with the epoch.
        rank, world_size: which of how many processes this is.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        engine: PromptEngine,
        *,
        skip_errors: bool = False,
        shuffle_buffer: int = 0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank: got {rank} of {world_size} processes, must be 0 to {world_size - 1}")
        self._rows, self._engine, self._skips = rows, engine, skip_errors
        self._buffer, self._seed = shuffle_buffer, seed
        self._place: Final = rank, world_size
        self.epoch = 0
        self.skipped = 0
        """Rows left out so far, of this process."""

    def set_epoch(self, epoch: int) -> None:
        """Choose another order for the next loop; in workers that live on it acts with the next start."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[ProcessedExample]:
        """Return this worker's examples."""
        worker, (rank, world) = get_worker_info(), self._place
        own, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        numbered: Iterator[tuple[int, Row]] = enumerate(self._rows)
        if self._buffer:  # all draw alike, and then take their share
            numbered = shuffled_by_buffer(numbered, self._buffer, key_of(self._seed, self.epoch))
        for number, row in itertools.islice(numbered, rank * workers + own, None, world * workers):
            made = self._engine.process(row)
            if isinstance(made, Err) and self._skips and isinstance(made.error, BadRecordError):
                self.skipped += 1
            else:
                yield _unwrapped(made, number)


def _unwrapped(made: Any, number: int) -> ProcessedExample:
    """Return an example, or raise why there is none, with the number of its row."""
    if made.is_ok():
        return made.unwrap()
    error: TokenlakeError = made.unwrap_err()
    told = str(error).removeprefix("row 0: ")
    raise type(error)(f"row {number}: {told}", **{**error.details, "row": number}) from error
