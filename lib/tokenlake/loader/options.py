"""The options that ``DataLoader`` and the datasets of other libraries share, and layout and balance of batches.

**Layout**: how the ids of a batch lie in its arrays: row by row, in one flat run, or in the parts of a context-parallel
mesh. Flat, two rows of 8, of two documents and one::

    input_ids     a b c d e f g 0  h i j k l m n o       (rows * L,)
    segment_ids   1 1 1 2 2 2 2 0  3 3 3 3 3 3 3 3       0 is padding
    positions     0 1 2 0 1 2 3 0  0 1 2 3 4 5 6 7
    cu_seqlens    0 3 7 8 16                             where each run begins and the last one ends; padding is a run
    max_seqlen    8                                      ids of the longest run

That is what FlashAttention's varlen functions take, and nothing is copied for it. A compiler of fixed shapes needs
`max_segments`: then `cu_seqlens` has that many runs and one, those that are missing being empty ones at the end.

For context parallelism each row is cut over n devices. The ids of a row are put into the order in which n equal,
neighbouring parts hold what each device has, so that a sharding of the second axis, or a slice, gives a device its
part. A causal mask makes the last ids of a row dearer than the first::

    contiguous    0 1 | 2 3 | 4 5 | 6 7      chunks of a row for n = 4; the last device has most to do
    head_tail     0 7 | 1 6 | 2 5 | 3 4      also called zigzag: 2 n chunks, one from each end for a device
    striped       0 4 | 1 5 | 2 6 | 3 7      id by id: 0, n, 2 n, ... on the first device
    per_document  as head_tail, for each document of the row by itself; for attention that stays inside documents

Labels and targets are made before the ids are moved, and positions and segments move along, so that any loss is that of
the row as it was: attend where segments are equal and the position is not behind one's own.

**Balance**: ranks that have as much to do. The rows of a batch are dealt by what attention costs, as many to each rank.

Attention inside documents costs a row the sum of its squared segment lengths. Ranks wait for each other in every step,
so that a step lasts as long as that of the rank whose rows cost most. A batch of 8 rows for 2 ranks, with their costs::

    as they come    9 7 8 6 | 1 2 1 2      30 and 6: max/mean 1.67
    dealt           9 6 2 1 | 7 8 1 2      18 and 18

Which rows a batch has does not depend on it: only their places in the batch do. So epochs, resuming and the number of
hosts stay what they were, and the number of ranks may change at any step.

Rows are dealt in rounds, the dearest first, one to each rank: there and back again, so that who got the dearest of one
round gets the cheapest of the next; in the last one the rank that has least so far gets the dearest row. Then, while
ranks are apart and it helps, the dearest and the cheapest one exchange the two rows that bring them nearest together.
All of it is whole numbers, ties go by place. Dealing every round by what ranks have so far (Graham's longest processing
time rule) is no better on texts or code, and takes three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, Self, TypedDict, final, get_args

import numpy as np
import numpy.typing as npt

from tokenlake.arrays import Int32, Int64
from tokenlake.base.checks import arguments_of, bounded_number, did_you_mean, expected, whole_number
from tokenlake.errors import ConfigError
from tokenlake.loader.padding import BatchPadding
from tokenlake.loader.steps import BatchSizes, LengthCurriculum

Split = Literal["contiguous", "head_tail", "striped", "per_document"]
_SPLITS: Final = get_args(Split)
FLAT_COLUMNS: Final = ("cu_seqlens", "max_seqlen")
"""What flat batches hold besides the columns."""


_NEAR: Final = 50
"""Ranks are near enough where the dearest costs at most 1 / 50 more than the mean."""


@final
@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """Of batches of packed rows; see :mod:`tokenlake.loader.options` and :class:`tokenlake.DataLoader`.

    Args:
        flat: arrays of shape (rows * L,), with `cu_seqlens`, int32, and `max_seqlen`. With a sharding these have one
            row for each part that the rows of the batch are cut into: (parts, max_segments + 1) and (parts,).
        max_segments: runs that `cu_seqlens` has room for; None: as many as there are, which differ from batch to batch.
        context_parallel: devices that each row is cut over.
        split: which ids each of them has.

    Raises:
        ConfigError: an argument is not what is allowed, or two contradict each other.
    """

    flat: bool = False
    max_segments: int | None = None
    context_parallel: int = 1
    split: Split = "head_tail"

    def __post_init__(self) -> None:
        if not isinstance(self.flat, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("layout.flat", self.flat, "True or False")
        if self.max_segments is not None:
            whole_number("layout.max_segments", self.max_segments, 1, 1 << 31)
        whole_number("layout.context_parallel", self.context_parallel, 1, 1 << 13)
        if self.split not in _SPLITS:
            raise expected("layout.split", self.split, f"one of {', '.join(_SPLITS)}")
        if self.max_segments is not None and not self.flat:
            raise ConfigError(
                "layout.max_segments: only flat batches have cu_seqlens; add flat=True or leave it out"
            )
        if self.flat and self.context_parallel > 1:
            raise ConfigError(
                "layout: got flat=True and context_parallel; the runs of cu_seqlens would be cut between devices. "
                "Use rows with segment_ids and positions for context parallelism"
            )

    @classmethod
    def of(cls, asked: object) -> Self:
        """Read a layout, "flat", or a mapping of its arguments; ConfigError where it is none of these."""
        return arguments_of(cls, "layout", asked, {"flat": cls(flat=True)})

    def check_length(self, length: int) -> None:
        """Raise ConfigError where rows of so many ids cannot be cut as asked."""
        chunks = self.context_parallel * (2 if self.split == "head_tail" else 1)
        if self.context_parallel > 1 and length % chunks:
            raise ConfigError(
                f"layout: split {self.split} over {self.context_parallel} devices cuts rows into {chunks} equal parts; "
                f"got rows of {length} ids, expected a multiple of {chunks}"
            )

    def order(self, length: int, runs: Int64, row_runs: Int64) -> Int64 | None:
        """Return from where each id comes; None: all stay where they are.

        From where in its row, int64[L], or from where in all rows laid end to end, int64[B, L].

        Args:
            length: ids of a row, L.
            runs, row_runs: as of :class:`tokenlake.loader.batch.RowSegments`.
        """
        if self.context_parallel == 1 or self.split == "contiguous":
            return None
        if self.split == "per_document":
            return _by_document(self.context_parallel, length, runs, row_runs)
        return _by_row(self.context_parallel, length, self.split)

    def bounds(self, runs: Int64, row_runs: Int64, parts: int) -> tuple[Int32, Int32]:
        """Return `cu_seqlens` and `max_seqlen` of each part of the rows, int32[parts, n + 1] and int32[parts].

        Raises:
            ConfigError: a part has more runs than `max_segments`.
        """
        edges = row_runs[np.linspace(0, len(row_runs) - 1, parts + 1).astype(np.int64)].tolist()
        each = [some[some > 0] for some in np.split(runs, edges[1:-1])]
        needed = max(len(some) for some in each)
        if self.max_segments is not None and needed > self.max_segments:
            raise ConfigError(
                f"layout.max_segments: got {self.max_segments}, and a batch has {needed} runs (documents, and the "
                f"padding of a row as one); expected at least {needed}. The order does not depend on it: go on from "
                "the last state with a larger one"
            )
        bounds = np.empty((parts, (self.max_segments or needed) + 1), np.int32)
        for row, some in zip(bounds, each, strict=True):
            row[0] = 0
            np.cumsum(some, out=row[1 : len(some) + 1])
            row[len(some) + 1 :] = row[len(some)]
        return bounds, np.array([some.max(initial=0) for some in each], np.int32)


def moved(column: npt.NDArray[Any], order: Int64, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a column [B, L] in an order of :meth:`BatchLayout.order`."""
    # "clip" is the one mode in which numpy writes to `out` without a copy between; no index is out of bounds.
    if order.ndim == 1:
        return np.take(column, order, axis=1, out=out, mode="clip")
    return np.take(column.reshape(-1), order, out=out, mode="clip")


@lru_cache(maxsize=8)
def _by_row(parts: int, length: int, split: Split) -> Int64:
    ids = np.arange(length, dtype=np.int64)
    if split == "striped":
        order = ids.reshape(-1, parts).T.reshape(-1)
    else:
        chunks = ids.reshape(2 * parts, -1)
        order = np.stack([chunks[:parts], chunks[: parts - 1 : -1]], axis=1).reshape(-1)
    order.flags.writeable = False
    return order


def _by_document(parts: int, length: int, runs: Int64, row_runs: Int64) -> Int64:
    """Head and tail of each run for each device. Lengths that cannot be halved evenly leave some devices an id more
    than their part holds, which the next device then has."""
    rows = len(row_runs) - 1
    starts = np.cumsum(runs) - runs
    place = np.arange(rows * length, dtype=np.int64) - np.repeat(starts, runs)
    # Exact enough for chunks, and the same everywhere; dividing whole numbers takes several times as long.
    chunk = (place * np.repeat(2 * parts / np.maximum(runs, 1), runs)).astype(np.int16)
    # numpy sorts 16-bit numbers by their digits, ten times faster than wider ones.
    device = np.minimum(chunk, 2 * parts - 1 - chunk).reshape(rows, length)
    order = np.argsort(device, axis=1, kind="stable")
    order += np.arange(0, rows * length, length)[:, None]
    return order


@final
@dataclass(frozen=True, kw_only=True)
class BatchBalance:
    """Of batches of packed rows; see :mod:`tokenlake.loader.options` and :class:`tokenlake.DataLoader`.

    Args:
        ranks: into how many neighbouring parts of as many rows a batch is dealt, which cost alike. None: with a
            sharding the parts that it cuts rows into, else the number of hosts. A multiple of that makes the
            micro-batches of each host cost alike, too.

    Raises:
        ConfigError: the value is not such a number.
    """

    ranks: int | None = None

    def __post_init__(self) -> None:
        if self.ranks is not None:
            whole_number("balance.ranks", self.ranks, 1)

    @classmethod
    def of(cls, asked: object) -> Self:
        """Read a balance, "attention", or a mapping of its arguments; ConfigError where it is none of these."""
        return arguments_of(cls, "balance", asked, {"attention": cls()})

    def over(self, parts: int, what: str) -> Self:
        """Return the same with a number of ranks: `parts`, where none is given.

        Raises:
            ConfigError: `parts`, which `what` cuts batches into, does not divide the ranks.
        """
        ranks = parts if self.ranks is None else self.ranks
        if ranks % parts:
            raise ConfigError(
                f"balance.ranks: got {ranks}, and {what} cuts batches into {parts} parts; expected a multiple of "
                f"{parts}"
            )
        return type(self)(ranks=ranks)


def dealt(costs: Int64, ranks: int) -> Int64:
    """Return which row each place of a batch has, int64[n]: the places of a rank lie together, its rows ascend.

    Args:
        costs: of the rows, int64[n], n a multiple of `ranks`.
        ranks: into how many parts they are dealt.
    """
    rounds = np.argsort(-costs, kind="stable").reshape(-1, ranks)
    last = rounds[-1].copy()
    rounds[1::2] = rounds[1::2, ::-1].copy()
    cheapest_first = np.argsort(costs[rounds[:-1]].sum(axis=0), kind="stable")
    rounds[-1, cheapest_first] = last
    _exchange(rounds, costs[rounds])
    rows = rounds.T.copy()
    rows.sort(axis=1)
    return rows.reshape(-1)


def _exchange(rows: Int64, costs: Int64) -> None:
    """Exchange rows of the dearest and the cheapest rank, in place, while ranks are apart and it helps.

    Args:
        rows, costs: a column for each rank, int64[n, ranks].
    """
    ranks = rows.shape[1]
    totals = costs.sum(axis=0)
    whole = int(totals.sum())
    for _ in range(2 * ranks):
        dear = int(totals.argmax())
        if int(totals[dear]) * ranks * _NEAR <= whole * (_NEAR + 1):
            return
        cheap = int(totals.argmin())
        apart = int(totals[dear] - totals[cheap])
        moved = costs[:, dear, None] - costs[:, cheap]
        left = np.abs(apart - 2 * moved)
        best = int(left.argmin())
        if left.flat[best] >= apart:
            return
        ours, theirs = divmod(best, len(rows))
        totals[dear] -= moved[ours, theirs]
        totals[cheap] += moved[ours, theirs]
        for values in (rows, costs):
            values[ours, dear], values[theirs, cheap] = values[theirs, cheap], values[ours, dear]


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
