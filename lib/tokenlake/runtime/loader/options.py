"""Options that ``DataLoader`` and the datasets of other libraries share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal, Self, TypedDict, final

from tokenlake.base.checks import bounded_number, did_you_mean, expected, whole_number
from tokenlake.base.sizes import parse_size
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.balance import BatchBalance
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.layout import BatchLayout
from tokenlake.runtime.loader.length_curriculum import LengthCurriculum
from tokenlake.runtime.loader.padding import BatchPadding
from tokenlake.runtime.mixing.order_form import ALL_ROWS, OrderForm

CACHE_BYTES: Final = 512 << 20
"""Default memory for decoded row groups, the same for every kind of loader: the
default order depends on it.
"""

WORKER_CACHE_BYTES: Final = 256 << 20
"""Memory of each process for rows that are taken by their numbers, if there may be
several worker processes.
"""

# Larger numbers are mistakes, such as a number of tokens where one of batches is
# expected.
_MOST: Final = 1 << 31
_COUNTS: Final[dict[str, tuple[int, int]]] = {
    "prefetch": (0, _MOST),
    "cache_bytes": (0, (1 << 63) - 1),
    "workers": (0, 1 << 16),
    "window": (1, _MOST),
    "interleave": (1, _MOST),
    "epochs": (1, _MOST),
    "lanes": (1, _MOST),
}
"""Options that are whole numbers: name -> (smallest, largest)."""

_OPTIONAL_COUNTS: Final = ("workers", "epochs", "lanes", "window", "interleave")
"""Options of these that may be None."""

_OPENED: Final = (
    "data is opened before it is loaded: tl.open(path, split=..., storage_options=...)"
)
_HOST: Final = (
    "give host=(index, number of hosts), or sharding where batches are arrays of JAX"
)
_THREADS: Final = (
    "threads of this process read ahead: workers=THREADS, prefetch=BATCHES. For worker processes use tl.torch_dataset "
    "with the DataLoader of PyTorch, or tl.grain_dataset with mp_prefetch"
)
_MAPPED: Final = (
    "batches are arrays already; columns and padding decide which. Change them in the loop, or by "
    "tl.grain_dataset(...).map; "
    "tl.torch_dataset takes the loader of PyTorch"
)
_ORDERED: Final = (
    "seed, lanes, window and interleave decide the order of the whole epoch: shuffle=False for the stored order. For "
    "a sampler use tl.torch_rows or tl.grain_source"
)
_WHOLE: Final = (
    "every epoch is shuffled as a whole, without a buffer: shuffle=True. cache_bytes decides how many row groups are "
    "read side by side"
)
_PADDED: Final = (
    "rows of a packed dataset have the length that it was packed with; padding sets how others are padded and cut: "
    "padding={'max_length': N, 'truncate': 'right'}"
)
_ELSEWHERE: Final[Mapping[str, str]] = {
    "split": "the split is chosen when the dataset is opened: tl.open(path, split='validation')",
    "splits": "the split is chosen when the dataset is opened: tl.open(path, split='validation')",
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
    "prefetch_factor": "the number of batches prepared ahead is prefetch=N",
    "prefetch_size": "the number of batches prepared ahead is prefetch=N",
    "prefetch_buffer_size": "the number of batches prepared ahead is prefetch=N",
    "worker_buffer_size": "the number of batches prepared ahead is prefetch=N",
    "prefetch_workers": "the number of threads that decode ahead is workers=N",
    "num_threads": "the number of threads that decode ahead is workers=N",
    "buffer_size": _WHOLE,
    "shuffle_buffer": _WHOLE,
    "shuffle_buffer_size": _WHOLE,
    "sampler": _ORDERED,
    "batch_sampler": _ORDERED,
    "generator": "the seed of the order is seed=N",
    "rng": "the seed of the order is seed=N",
    "shuffle_seed": "the seed of the order is seed=N",
    "collate_fn": _MAPPED,
    "transform": _MAPPED,
    "transforms": _MAPPED,
    "operations": _MAPPED,
    "map_fn": _MAPPED,
    "num_epochs": "the number of epochs is epochs=N",
    "repeat": "the number of epochs is epochs=N; None for a run without end",
    "drop_remainder": "drop_last=True leaves out a last batch that is not full",
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
    "weights": "weights are an option of a mixture: tl.Mixture(datasets, weights)",
    "seq_length": _PADDED,
    "sequence_length": _PADDED,
    "max_length": _PADDED,
    "truncation": _PADDED,
    "pad_to_multiple_of": "padding={'multiple': N} rounds lengths up",
    "buckets": "buckets are an option of padding: padding={'buckets': N}",
    "fields": "the columns of batches are columns=[...]",
    "features": "the columns of batches are columns=[...]",
}
"""Options of other loaders -> how to do the same with this one."""


def _host_of(host: Any) -> tuple[int, int]:
    """Return (index, number of hosts); ConfigError if it is not such a pair."""
    try:
        index, hosts = (whole_number("host", number, 0) for number in host)
    except (TypeError, ValueError, ConfigError):
        raise ConfigError(
            f"host: got {host!r}, must be (index, number of hosts)"
        ) from None
    return index, hosts


def _size_of(text: str) -> int:
    """Return the bytes of `cache_bytes` as a text; ConfigError if it is no size."""
    try:
        return parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"cache_bytes: {error}", got=text) from None


class LoaderKeywords(TypedDict, total=False):
    """Fields of :class:`LoaderOptions` except the batch size, as keyword arguments."""

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
    window: int | Literal["all"] | None
    interleave: int | None
    prefetch: int
    workers: int | None
    cache_bytes: int | str


@final
@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options that decide the batches of a run and how they are prepared.

    :class:`tokenlake.DataLoader` explains each.

    Raises:
        ConfigError: An option is not allowed.
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
    window: int | Literal["all"] | None = None
    interleave: int | None = None
    prefetch: int = 2
    workers: int | None = None
    cache_bytes: int | str = CACHE_BYTES

    def __post_init__(self) -> None:
        # A size may be a text, such as "256MiB".
        if isinstance(self.cache_bytes, str):
            object.__setattr__(self, "cache_bytes", _size_of(self.cache_bytes))
        # Whole numbers within their bounds, or None where that is allowed.
        for option_name, (smallest, largest) in _COUNTS.items():
            option_value = getattr(self, option_name)
            is_default = option_value is None and option_name in _OPTIONAL_COUNTS
            is_word = option_name == "window" and isinstance(option_value, str)
            is_all = is_word and option_value == ALL_ROWS
            if is_word and not is_all:
                raise expected(
                    "window", option_value, "a whole number from 1 on, or 'all'"
                )
            if not is_default and not is_all:
                # Convert integers of NumPy: a state is JSON.
                number = bounded_number(option_name, option_value, smallest, largest)
                object.__setattr__(self, option_name, number)
        # Strings such as "false" would be true.
        for option_name in ("shuffle", "drop_last", "pad_last"):
            option_value = getattr(self, option_name)
            is_default = option_name == "pad_last" and option_value is None
            if not isinstance(option_value, bool) and not is_default:
                raise expected(option_name, option_value, "True or False")
        object.__setattr__(self, "seed", whole_number("seed", self.seed))
        if self.host is not None:
            object.__setattr__(self, "host", _host_of(self.host))
        # A batch takes equally many rows of every lane.
        if self.lanes is not None and self.sizes.common % self.lanes:
            raise ConfigError(
                f"lanes: got {self.lanes}, which does not divide every batch size; "
                f"expected a divisor of {self.sizes.common}"
            )
        # Two ways to bound the memory of the shuffle.
        if self.window is not None and self.interleave is not None:
            raise ConfigError(
                f"window and interleave: got {self.window!r} and {self.interleave}, which are two orders; expected one "
                "of them, or none for the default order"
            )
        # Read the others now, for their errors.
        _ = self.batch_padding, self.batch_layout, self.curriculum
        if self.balance is not None:
            BatchBalance.of(self.balance)

    @classmethod
    def of(
        cls,
        caller: str,
        batch_size: int | Mapping[int, int],
        options: Mapping[str, Any],
    ) -> Self:
        """Return the options that were given as keyword arguments.

        Args:
            caller: Name of the function or class that takes them.
            batch_size: Rows of a global batch.
            options: All other options.

        Raises:
            ConfigError: An option does not exist, with a hint how to do the same; or an
                option is not allowed.
        """
        # Users come from other loaders: name the way to do the same here.
        option_names = [field.name for field in fields(cls)]
        for option_name in options:
            if option_name in option_names:
                continue
            hint = _ELSEWHERE.get(option_name)
            if hint is None:
                suggestion = did_you_mean(option_name, option_names).removeprefix("; ")
                hint = suggestion or f"it takes {', '.join(option_names)}"
            raise ConfigError(
                f"{caller} has no option {option_name!r}: {hint}",
                field_path=option_name,
            )
        return cls(batch_size=batch_size, **options)

    @property
    def max_bytes(self) -> int:
        """Memory for decoded row groups, in bytes."""
        assert isinstance(self.cache_bytes, int)
        return self.cache_bytes

    @property
    def order_form(self) -> OrderForm | None:
        """Form of the shuffled order that was requested; None: the default."""
        if self.interleave is not None:
            return OrderForm(interleave=self.interleave)
        if self.window is not None:
            return OrderForm(window=self.window)
        return None

    @cached_property
    def ranks(self) -> int | None:
        """Number of ranks among which a batch is balanced; None: no balance.

        The rows of each have about equal cost.

        Raises:
            ConfigError: The number is not given, or is not a multiple of the number of
                hosts.
        """
        if self.balance is None:
            return None
        balance = BatchBalance.of(self.balance)
        # Without a sharding nothing says among how many devices the batch is divided.
        if self.host is None and balance.ranks is None:
            raise ConfigError(
                f"balance: got {self.balance!r}, but the number of ranks is not known; "
                "expected {'ranks': N}, or a sharding, or host"
            )
        hosts = 1 if self.host is None else self.host[1]
        return balance.over(hosts, "host").ranks

    @cached_property
    def batch_padding(self) -> BatchPadding:
        """Padding of rows of many lengths."""
        if self.padding is None:
            return BatchPadding()
        return BatchPadding.of(self.padding)

    @cached_property
    def batch_layout(self) -> BatchLayout:
        """Layout of the arrays of a batch."""
        if self.layout is None:
            return BatchLayout()
        return BatchLayout.of(self.layout)

    @cached_property
    def curriculum(self) -> LengthCurriculum | None:
        """Length curriculum of the run; None: rows stay whole."""
        if self.lengths is None:
            return None
        return LengthCurriculum.of(self.lengths)

    @cached_property
    def sizes(self) -> BatchSizes:
        """Rows of the global batch of each step."""
        return BatchSizes.of(self.batch_size)
