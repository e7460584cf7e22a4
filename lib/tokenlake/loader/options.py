"""The options of a loader: the keyword arguments that ``DataLoader`` and the datasets of other libraries share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypedDict, final

from tokenlake.config.values import expected, whole_number
from tokenlake.errors import ConfigError
from tokenlake.loader.layout import BatchBalance, BatchLayout
from tokenlake.loader.padding import BatchPadding
from tokenlake.loader.steps import BatchSizes, LengthCurriculum

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
    padding: BatchPadding | Mapping[str, Any] | None
    layout: BatchLayout | Mapping[str, Any] | Literal["flat"] | None
    balance: BatchBalance | Mapping[str, Any] | Literal["attention"] | None
    lengths: LengthCurriculum | Mapping[Any, Any] | int | None
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
    padding: BatchPadding | Mapping[str, Any] | None = None
    layout: BatchLayout | Mapping[str, Any] | Literal["flat"] | None = None
    balance: BatchBalance | Mapping[str, Any] | Literal["attention"] | None = None
    lengths: LengthCurriculum | Mapping[Any, Any] | int | None = None
    host: tuple[int, int] | None = None
    lanes: int | None = None
    window: int = 1
    prefetch: int = 2
    workers: int | None = None
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        counts = {"prefetch": 0, "cache_bytes": 0, "workers": 0, "window": 1, "epochs": 1, "lanes": 1}
        for name, least in counts.items():
            if (value := getattr(self, name)) is not None or name not in ("workers", "epochs", "lanes"):
                whole_number(name, value, least)
        for name in ("shuffle", "drop_last", "pad_last"):
            if not isinstance(value := getattr(self, name), bool) and (name, value) != ("pad_last", None):
                raise expected(name, value, "True or False")
        whole_number("seed", self.seed)
        if self.lanes is not None and self.sizes.common % self.lanes:
            raise ConfigError(
                f"lanes: got {self.lanes}, which does not divide every batch size; "
                f"expected a divisor of {self.sizes.common}"
            )
        _ = self.batch_padding, self.batch_layout, self.curriculum  # errors come now
        if self.balance is not None:
            BatchBalance.of(self.balance)

    @cached_property
    def ranks(self) -> int | None:
        """Into how many parts of equal cost batches are dealt; None: they are not.

        Raises:
            ConfigError: it is not given, or hosts would not have whole parts.
        """
        if self.balance is None:
            return None
        balance = BatchBalance.of(self.balance)
        if self.host is None and balance.ranks is None:
            raise ConfigError(
                f"balance: got {self.balance!r}, and nothing says into how many ranks batches are dealt; "
                "expected {'ranks': N}, or a sharding, or host"
            )
        return balance.over(1 if self.host is None else self.host[1], "host").ranks

    @cached_property
    def batch_padding(self) -> BatchPadding:
        """How rows of many lengths are padded."""
        return BatchPadding() if self.padding is None else BatchPadding.of(self.padding)

    @cached_property
    def batch_layout(self) -> BatchLayout:
        """How ids lie in the arrays of a batch."""
        return BatchLayout() if self.layout is None else BatchLayout.of(self.layout)

    @cached_property
    def curriculum(self) -> LengthCurriculum | None:
        """How long what attends to each other is at each step; None: as long as rows are stored."""
        return None if self.lengths is None else LengthCurriculum.of(self.lengths)

    @cached_property
    def sizes(self) -> BatchSizes:
        """Rows of the global batch of each step."""
        return BatchSizes.of(self.batch_size)
