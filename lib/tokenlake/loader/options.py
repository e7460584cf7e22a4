"""What a run is asked for: the keyword arguments that ``DataLoader`` and the datasets of other libraries share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypedDict, final

from tokenlake.errors import ConfigError
from tokenlake.loader.batch import check_columns
from tokenlake.loader.steps import BatchSizes, check_counts, check_switches, whole_seed

CACHE_BYTES: Final = 512 << 20
WORKER_CACHE_BYTES: Final = 256 << 20  # of each process, where worker processes may be several


class LoaderKeywords(TypedDict, total=False):
    """The fields of :class:`LoaderOptions` but for the batch size, as keyword arguments."""

    seed: int
    shuffle: bool
    epochs: int | None
    drop_last: bool
    pad_last: bool | None
    columns: Sequence[str] | None
    host: tuple[int, int] | None
    lanes: int | None
    window: int
    prefetch: int
    workers: int | None
    cache_bytes: int


@final
@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What decides the batches of a run, and how they are made ready; :class:`tokenlake.DataLoader` explains each.

    Raises:
        ConfigError: an option is not what is allowed.
    """

    batch_size: int | Mapping[int, int]
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    drop_last: bool = False
    pad_last: bool | None = None
    columns: Sequence[str] | None = None
    host: tuple[int, int] | None = None
    lanes: int | None = None
    window: int = 1
    prefetch: int = 2
    workers: int | None = None
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        workers = 0 if self.workers is None else self.workers
        check_counts(prefetch=self.prefetch, workers=workers, cache_bytes=self.cache_bytes)
        pad_last = False if self.pad_last is None else self.pad_last
        check_switches(shuffle=self.shuffle, drop_last=self.drop_last, pad_last=pad_last)
        for name in ("epochs", "lanes", "window"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}: got {value!r}, must be a whole number from 1 on")
        whole_seed(self.seed)
        if self.lanes is not None and self.sizes.common % self.lanes:
            raise ConfigError(
                f"lanes: got {self.lanes}, which does not divide every batch size; "
                f"expected a divisor of {self.sizes.common}"
            )
        check_columns(self.columns)

    @cached_property
    def sizes(self) -> BatchSizes:
        """Rows of the global batch of each step."""
        return BatchSizes.of(self.batch_size)
