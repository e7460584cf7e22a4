"""Layouts of batches: how the ids of a batch lie in its arrays.

Row by row, in one flat run, or in the parts of a context-parallel mesh. Two rows of 8 in one
flat run, the first with two documents and the second with one::

    input_ids     a b c d e f g 0  h i j k l m n o       (rows * L,)
    segment_ids   1 1 1 2 2 2 2 0  3 3 3 3 3 3 3 3       0 is padding
    positions     0 1 2 0 1 2 3 0  0 1 2 3 4 5 6 7
    cu_seqlens    0 3 7 8 16                             where each run begins and the last one ends; padding is a run
    max_seqlen    8                                      ids of the longest run

FlashAttention's varlen functions take these arrays as they are, without a copy. A compiler of fixed shapes needs
`max_segments`: `cu_seqlens` then has ``max_segments + 1`` entries, and missing runs are empty ones at the end.

For context parallelism each row is cut over n devices. The ids of a row are put into the order in which n equal,
neighbouring parts hold what each device has, so that a sharding of the second axis, or a slice, gives a device its
part. A causal mask makes the last ids of a row more expensive than the first::

    contiguous    0 1 | 2 3 | 4 5 | 6 7      chunks of a row for n = 4; the last device has most to do
    head_tail     0 7 | 1 6 | 2 5 | 3 4      also called zigzag: 2 n chunks, one from each end for a device
    striped       0 4 | 1 5 | 2 6 | 3 7      id by id: 0, n, 2 n, ... on the first device
    per_document  as head_tail, for each document of the row by itself; for attention that stays inside documents

Labels and targets are made before the ids are moved, and positions and segments move along, so that any loss is that of
the row as it was: attend where segments are equal and the position is not behind one's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, Self, final, get_args

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int32, Int64
from tokenlake.base.checks import arguments_of, expected, whole_number
from tokenlake.errors import ConfigError

Split = Literal["contiguous", "head_tail", "striped", "per_document"]
_SPLITS: Final = get_args(Split)
FLAT_COLUMNS: Final = ("cu_seqlens", "max_seqlen")
"""What flat batches hold besides the columns."""


@final
@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """Layout of batches of packed rows; see :mod:`tokenlake.runtime.loader.layout` and :class:`tokenlake.DataLoader`.

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
            runs, row_runs: as of :class:`tokenlake.runtime.loader.batch.RowSegments`.
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
