"""`DataLoaderBuilder`: a data loader of PyTorch, option by option, checked when it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from tokenlake.config.values import require_one_of
from tokenlake.data_pipeline.collate import create_collate_fn
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.loader.torch import process_place
from tokenlake.result import Result, attempt

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
                raise ConfigError(
                    "shuffle, distributed: an iterable dataset has its own order; give shuffle_buffer, rank and "
                    "world_size to StreamingPreprocessedDataset"
                )
            return {}
        if self._distributed:
            rank, world = self._place or process_place()
            drop = bool(self._options.get("drop_last"))
            return {
                "sampler": DistributedSampler(
                    self._dataset, world, rank, shuffle=self._shuffle, seed=self._seed, drop_last=drop
                )
            }
        return {"shuffle": self._shuffle, "generator": torch.Generator().manual_seed(self._seed)}
