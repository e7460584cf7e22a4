"""Layouts of batches: how the ids of a batch lie in its arrays.

Ids lie row by row, in one flat sequence, or in the parts of a context-parallel mesh. Two rows of 8 in one flat
sequence, the first with two documents and the second with one::

    input_ids     a b c d e f g 0  h i j k l m n o       (rows * L,)
    segment_ids   1 1 1 2 2 2 2 0  3 3 3 3 3 3 3 3       0 is padding
    positions     0 1 2 0 1 2 3 0  0 1 2 3 4 5 6 7
    cu_seqlens    0 3 7 8 16                             begin of each run, and end of the last; padding is a run
    max_seqlen    8                                      ids of the longest run

FlashAttention's varlen functions take these arrays as they are, without a copy. A
compiler that needs fixed shapes needs `max_segments`: `cu_seqlens` then has
``max_segments + 1`` entries, and the runs that are missing are empty ones at the end.

For context parallelism each row is divided among n devices. The ids of a row are reordered, so that n equal,
neighbouring parts hold the ids of one device each: a sharding of the second axis, or a slice, gives each device its
part. A causal mask makes the last ids of a row more expensive than the first::

    contiguous    0 1 | 2 3 | 4 5 | 6 7      chunks of a row for n = 4; the last device has the most work
    head_tail     0 7 | 1 6 | 2 5 | 3 4      also called zigzag: 2 n chunks, one from each end for a device
    striped       0 4 | 1 5 | 2 6 | 3 7      id by id: 0, n, 2 n, ... on the first device
    per_document  as head_tail, for each document of the row by itself; for attention that stays inside documents

Labels and targets are computed before the ids are reordered, and positions and segments
are reordered with them. A loss is therefore the same as that of the original row, if an
id attends to the ids of its segment whose position is not greater than its own.
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
"""Additional columns of flat batches."""


@final
@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """Layout of batches of packed rows: flat, or cut for context parallelism.

    It is an option of :class:`tokenlake.DataLoader`.

    Args:
        flat: True for arrays of shape (rows * L,), with `cu_seqlens`, int32, and
            `max_seqlen`. With a sharding these have one row for each part into which
            the rows of the batch are divided: (parts, max_segments + 1) and (parts,).
        max_segments: Number of runs for which `cu_seqlens` has room; None: as many as
            the batch has, which differs from batch to batch.
        context_parallel: Number of devices among which each row is divided.
        split: Assignment of a row's ids to these devices.

    Raises:
        ConfigError: An argument is not allowed, or two contradict each other.

    Example:
        >>> import tokenlake as tl
        >>> tl.BatchLayout(context_parallel=4, split="striped").split
        'striped'
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
    def of(cls, value: object) -> Self:
        """Return a layout from a layout, "flat", or a mapping of arguments.

        Raises:
            ConfigError: It is none of these.
        """
        return arguments_of(cls, "layout", value, {"flat": cls(flat=True)})

    def check_length(self, length: int) -> None:
        """Raise ConfigError where rows of `length` ids cannot be divided."""
        if self.context_parallel == 1:
            return
        chunks = self.context_parallel
        if self.split == "head_tail":
            chunks *= 2
        if length % chunks:
            raise ConfigError(
                f"layout: split {self.split} over {self.context_parallel} devices cuts rows into {chunks} equal parts; "
                f"got rows of {length} ids, expected a multiple of {chunks}"
            )

    def order(self, length: int, runs: Int64, row_runs: Int64) -> Int64 | None:
        """Return the index from which each id is taken; None: all ids stay in place.

        Args:
            length: Ids of a row, L.
            runs: Ids of each run, as in
                :class:`tokenlake.runtime.loader.columns.RowSegments`.
            row_runs: Number of runs before each row, and of all rows, int64[B + 1].

        Returns:
            Indices in the row, int64[L], if they are the same for all rows; else
            indices in all rows laid end to end, int64[B, L].
        """
        if self.context_parallel == 1 or self.split == "contiguous":
            return None
        if self.split == "per_document":
            return _order_by_document(self.context_parallel, length, runs, row_runs)
        return _order_of_row(self.context_parallel, length, self.split)

    def bounds(self, runs: Int64, row_runs: Int64, parts: int) -> tuple[Int32, Int32]:
        """Return `cu_seqlens` and `max_seqlen` of each part of the rows.

        They are int32[parts, n + 1] and int32[parts].

        Args:
            runs: Ids of each run, int64[s + B].
            row_runs: Number of runs before each row, and of all rows, int64[B + 1].
            parts: Number of equal parts of the rows.

        Raises:
            ConfigError: A part has more runs than `max_segments`.
        """
        # The runs of each part, without empty padding.
        part_edges = np.linspace(0, len(row_runs) - 1, parts + 1).astype(np.int64)
        run_edges = row_runs[part_edges].tolist()
        runs_of_part = [
            part_runs[part_runs > 0] for part_runs in np.split(runs, run_edges[1:-1])
        ]
        needed = max(len(part_runs) for part_runs in runs_of_part)
        if self.max_segments is not None and needed > self.max_segments:
            raise ConfigError(
                f"layout.max_segments: got {self.max_segments}, and a batch has {needed} runs (documents, and the "
                f"padding of a row as one); expected at least {needed}. The order does not depend on it: resume from "
                "the last state with a larger one"
            )
        # Entries after the last run repeat its end: they are empty runs.
        cu_seqlens = np.empty((parts, (self.max_segments or needed) + 1), np.int32)
        for row, part_runs in zip(cu_seqlens, runs_of_part, strict=True):
            count = len(part_runs)
            row[0] = 0
            np.cumsum(part_runs, out=row[1 : count + 1])
            row[count + 1 :] = row[count]
        max_seqlen = [part_runs.max(initial=0) for part_runs in runs_of_part]
        return cu_seqlens, np.array(max_seqlen, np.int32)


def moved(
    column: npt.NDArray[Any], order: Int64, out: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Write a column [B, L] in an order that :meth:`BatchLayout.order` returned.

    Args:
        column: Column of a batch, row by row.
        order: Index from which each id is taken, int64[L] or int64[B, L].
        out: Array of the column's shape and type, which is returned.
    """
    # With mode "clip", and with no other, numpy writes to `out` without a copy in
    # between. All indices are in bounds.
    if order.ndim == 1:
        return np.take(column, order, axis=1, out=out, mode="clip")
    return np.take(column.reshape(-1), order, out=out, mode="clip")


@lru_cache(maxsize=8)
def _order_of_row(parts: int, length: int, split: Split) -> Int64:
    """Return the order of a row for "striped" or "head_tail", int64[L]."""
    ids = np.arange(length, dtype=np.int64)
    if split == "striped":
        order = ids.reshape(-1, parts).T.reshape(-1)
    else:
        chunks = ids.reshape(2 * parts, -1)
        heads = chunks[:parts]
        tails = chunks[: parts - 1 : -1]
        order = np.stack([heads, tails], axis=1).reshape(-1)
    order.flags.writeable = False
    return order


def _order_by_document(parts: int, length: int, runs: Int64, row_runs: Int64) -> Int64:
    """Return the order of rows for "per_document", int64[B, L].

    1. Each run is cut into ``2 * parts`` chunks: the id at place p of a run of n ids is
       in chunk ``2 * parts * p // n``.
    2. Chunk c belongs to device ``min(c, 2 * parts - 1 - c)``: one chunk from the head
       and one from the tail.
    3. The ids of a row are sorted by device. Where chunks differ in length, some
       devices have an id more than their part holds; the next device takes it.
    """
    rows = len(row_runs) - 1
    starts = np.cumsum(runs) - runs
    place = np.arange(rows * length, dtype=np.int64) - np.repeat(starts, runs)
    # Floating point is exact enough for chunks, and the same on all machines. Integer
    # division takes several times as long.
    chunk = (place * np.repeat(2 * parts / np.maximum(runs, 1), runs)).astype(np.int16)
    # numpy sorts 16-bit integers by radix, ten times faster than wider ones.
    device = np.minimum(chunk, 2 * parts - 1 - chunk).reshape(rows, length)
    order = np.argsort(device, axis=1, kind="stable")
    order += np.arange(0, rows * length, length)[:, None]
    return order
