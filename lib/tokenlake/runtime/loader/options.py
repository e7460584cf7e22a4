"""The options that ``DataLoader`` and the datasets of other libraries share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal, Self, TypedDict, final

from tokenlake.base.checks import bounded_number, did_you_mean, expected, whole_number
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.balance import BatchBalance
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.layout import BatchLayout
from tokenlake.runtime.loader.length_curriculum import LengthCurriculum
from tokenlake.runtime.loader.padding import BatchPadding

CACHE_BYTES: Final = 512 << 20
WORKER_CACHE_BYTES: Final = 256 << 20  # of each process, where worker processes may be several

_MOST: Final = 1 << 31
_COUNTS: Final[dict[str, tuple[int, int]]] = {
    "prefetch": (0, _MOST),
    "cache_bytes": (0, (1 << 63) - 1),
    "workers": (0, 1 << 16),
    "window": (1, _MOST),
    "epochs": (1, _MOST),
    "lanes": (1, _MOST),
}
"""Options that are whole numbers, with the least and the largest of each."""

_OPENED: Final = "data is opened before it is loaded: tl.open(path, split=..., storage_options=...)"
_HOST: Final = "give host=(index, number of hosts), or sharding where batches are arrays of JAX"
_THREADS: Final = (
    "threads of this process read ahead: workers=THREADS, prefetch=BATCHES. For worker processes use tl.torch_dataset "
    "with the DataLoader of PyTorch, or tl.grain_dataset with mp_prefetch"
)
_MAPPED: Final = (
    "batches are arrays already, as columns and padding say. Change them in the loop, or by tl.grain_dataset(...).map; "
    "tl.torch_dataset takes the loader of PyTorch"
)
_ORDERED: Final = (
    "the order is a function of seed, lanes and window, over the whole epoch: shuffle=False for the stored order. For "
    "a sampler use tl.torch_rows or tl.grain_source"
)
_WHOLE: Final = (
    "every epoch is shuffled as a whole, without a buffer: shuffle=True, and window for less locality"
)
_PADDED: Final = (
    "rows of a packed dataset have the length that it was packed with; others are padded and cut as padding says: "
    "padding={'max_length': N, 'truncate': 'right'}"
)
_ELSEWHERE: Final[Mapping[str, str]] = {
    "split": "which split is read is said where it is opened: tl.open(path, split='validation')",
    "splits": "which split is read is said where it is opened: tl.open(path, split='validation')",
    "subset": _OPENED,
    "name": _OPENED,
    "storage_options": _OPENED,
    "cache": _OPENED,
    "cache_dir": _OPENED,
    "num_workers": _THREADS,
    "worker_count": _THREADS,
    "persistent_workers": _THREADS,
    "multiprocessing_context": _THREADS,
    "worker_init_fn": _THREADS,
    "read_options": _THREADS,
    "prefetch_factor": "batches that are ready ahead are prefetch=N",
    "prefetch_size": "batches that are ready ahead are prefetch=N",
    "prefetch_buffer_size": "batches that are ready ahead are prefetch=N",
    "worker_buffer_size": "batches that are ready ahead are prefetch=N",
    "prefetch_workers": "threads that decode ahead are workers=N",
    "num_threads": "threads that decode ahead are workers=N",
    "buffer_size": _WHOLE,
    "shuffle_buffer": _WHOLE,
    "shuffle_buffer_size": _WHOLE,
    "sampler": _ORDERED,
    "batch_sampler": _ORDERED,
    "generator": "the order is a function of seed=N",
    "rng": "the order is a function of seed=N",
    "shuffle_seed": "the order is a function of seed=N",
    "collate_fn": _MAPPED,
    "transform": _MAPPED,
    "transforms": _MAPPED,
    "operations": _MAPPED,
    "map_fn": _MAPPED,
    "num_epochs": "epochs of a pass are epochs=N",
    "repeat": "epochs of a pass are epochs=N; None for a run without end",
    "drop_remainder": "to leave out a last batch that is not full is drop_last=True",
    "rank": _HOST,
    "world_size": _HOST,
    "num_replicas": _HOST,
    "num_shards": _HOST,
    "shard_index": _HOST,
    "shard_options": _HOST,
    "process_index": _HOST,
    "process_count": _HOST,
    "mesh": "give sharding=NamedSharding(mesh, PartitionSpec('data')) to tl.DataLoader",
    "device": "give sharding=... to tl.DataLoader for arrays on devices; without it batches are arrays of NumPy",
    "pin_memory": "it is an option of the DataLoader of PyTorch, over tl.torch_dataset",
    "sharding": "global arrays of JAX come from tl.DataLoader(..., sharding=...); here each process reads its host",
    "weights": "weights are of a mixture: tl.Mixture(datasets, weights)",
    "seq_length": _PADDED,
    "sequence_length": _PADDED,
    "max_length": _PADDED,
    "truncation": _PADDED,
    "pad_to_multiple_of": "lengths are rounded up by padding={'multiple': N}",
    "buckets": "buckets are an option of padding: padding={'buckets': N}",
    "fields": "what batches hold is columns=[...]",
    "features": "what batches hold is columns=[...]",
}
"""Options of other loaders -> where that is said here."""


def _host_of(host: Any) -> tuple[int, int]:
    """Return (index, number of hosts); ConfigError where it is no such pair."""
    try:
        index, hosts = (whole_number("host", number, 0) for number in host)
    except (TypeError, ValueError, ConfigError):
        raise ConfigError(f"host: got {host!r}, must be (index, number of hosts)") from None
    return index, hosts


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
        for name, (least, most) in _COUNTS.items():
            value = getattr(self, name)
            if value is not None or name not in ("workers", "epochs", "lanes"):
                # As a plain integer: a state is JSON, which knows no others.
                object.__setattr__(self, name, bounded_number(name, value, least, most))
        for name in ("shuffle", "drop_last", "pad_last"):
            value = getattr(self, name)
            is_left_out = name == "pad_last" and value is None
            if not isinstance(value, bool) and not is_left_out:
                raise expected(name, value, "True or False")
        object.__setattr__(self, "seed", whole_number("seed", self.seed))
        if self.host is not None:
            object.__setattr__(self, "host", _host_of(self.host))
        if self.lanes is not None and self.sizes.common % self.lanes:
            raise ConfigError(
                f"lanes: got {self.lanes}, which does not divide every batch size; "
                f"expected a divisor of {self.sizes.common}"
            )
        _ = self.batch_padding, self.batch_layout, self.curriculum  # errors come now
        if self.balance is not None:
            BatchBalance.of(self.balance)

    @classmethod
    def of(cls, caller: str, batch_size: int | Mapping[int, int], options: Mapping[str, Any]) -> Self:
        """Return the options that were given as keyword arguments.

        Args:
            caller: Name of the function or class that takes them.
            batch_size: Rows of a global batch.
            options: All other options.

        Raises:
            ConfigError: there is no such option, says where it belongs; or an option is not what is allowed.
        """
        names = [field.name for field in fields(cls)]
        for name in options:
            if name in names:
                continue
            hint = _ELSEWHERE.get(name)
            if hint is None:
                near = did_you_mean(name, names)
                hint = near.removeprefix("; ") or f"it takes {', '.join(names)}"
            raise ConfigError(f"{caller} has no option {name!r}: {hint}", field_path=name)
        return cls(batch_size=batch_size, **options)

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
