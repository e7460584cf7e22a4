"""Rows of different lengths become rectangles: padding, attention masks, labels, and the widths of buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from tokenlake.config.suggestion import require_one_of
from tokenlake.errors import ConfigError
from tokenlake.ragged import Bools, Int32, Int64, cells, places
from tokenlake.text.lengths.truncation import SIDES, Side

BucketsInt64 = Int64


def bucket_of(lengths: BucketsInt64, boundaries: BucketsInt64) -> BucketsInt64:
    """Return the bucket of each row, int64[n]: the first whose boundary is at least the row's length.

    Args:
        lengths: int64[n]; none longer than the last boundary.
        boundaries: int64[k], ascending, each the width of a bucket.

    Raises:
        ConfigError: boundaries that do not ascend, or a row longer than the last.
    """
    edges = np.asarray(boundaries, np.int64)
    if not len(edges) or edges[0] < 1 or np.any(np.diff(edges) <= 0):
        raise ConfigError(f"boundaries are {edges.tolist()}, expected ascending numbers of at least 1")
    found = np.searchsorted(edges, lengths, side="left")
    if len(found) and found.max() == len(edges):
        row = int(np.argmax(found == len(edges)))
        raise ConfigError(f"row {row} has {lengths[row]} tokens, the last boundary is {edges[-1]}", row=row)
    return found


def powers(longest: int, shortest: int = 32) -> BucketsInt64:
    """Return boundaries that double from `shortest` up to the first that holds `longest` tokens.

    At most half of a row is padding, and a compiled model sees few shapes, the same for every batch.
    """
    if shortest < 1:
        raise ConfigError(f"shortest is {shortest}, expected at least 1")
    edges = [shortest]
    while edges[-1] < longest:
        edges.append(edges[-1] * 2)
    return np.array(edges, np.int64)


def quantiles(lengths: BucketsInt64, buckets: int, multiple_of: int = 1) -> BucketsInt64:
    """Return at most so many boundaries, so that about equally many of the rows fall between any two of them.

    Args:
        lengths: int64[n], n at least 1; the longest row fits into the last bucket.
        multiple_of: boundaries are rounded up to a multiple of it.
    """
    if buckets < 1 or multiple_of < 1 or not len(lengths):
        raise ConfigError(
            f"got {len(lengths)} rows, {buckets} buckets and multiple_of {multiple_of}, expected at least 1 each"
        )
    ordered = np.sort(lengths)
    ranks = -(-np.arange(1, buckets + 1) * len(ordered) // buckets) - 1
    edges = -(-np.maximum(ordered[ranks], 1) // multiple_of) * multiple_of
    return np.unique(edges)


PaddingStrategy = Literal["none", "longest", "max_length", "buckets"]

PADDING_STRATEGIES: Final[tuple[PaddingStrategy, ...]] = ("none", "longest", "max_length", "buckets")

IGNORED: Final = -100
"""Label of a token that bears no loss, as the trainers of `transformers` and `torch` know it."""


@final
@dataclass(frozen=True, slots=True)
class Padded:
    """n rows of w ids each.

    Attributes:
        rows: int64[n], ascending: which of the rows given these are.
        input_ids: int32[n, w].
        attention_mask: int32[n, w], 1 for a row's own ids, 0 for padding.
        labels: int32[n, w], the ids where they bear loss, :data:`IGNORED` elsewhere, on padding always.
    """

    rows: Int64
    input_ids: Int32
    attention_mask: Int32
    labels: Int32

    @property
    def width(self) -> int:
        """Ids in a row."""
        return self.input_ids.shape[1]


def pad(
    ids: Int32,
    offsets: Int64,
    *,
    pad_id: int,
    strategy: PaddingStrategy = "longest",
    side: Side = "right",
    max_length: int | None = None,
    boundaries: npt.ArrayLike | None = None,
    multiple_of: int = 1,
    loss: Bools | None = None,
) -> list[Padded]:
    """Make rectangles of n rows: one, or one for each group of rows, the shortest first.

    Args:
        ids, offsets: int32[total], int64[n + 1]: row i has ``ids[offsets[i]:offsets[i + 1]]``.
        pad_id: fills rows up; a token that also stands in texts is fine, the mask tells.
        strategy:
            - ``none``: no padding; rows of one length make one rectangle.
            - ``longest``: all rows as wide as the longest.
            - ``max_length``: all rows `max_length` wide.
            - ``buckets``: every row as wide as the first of `boundaries` that holds it; a bucket with rows makes one
              rectangle. See :mod:`tokenlake.text.lengths.padding` for boundaries made of the lengths.
        side: where the padding goes.
        max_length: for ``max_length``: the width.
        boundaries: for ``buckets``: ascending widths.
        multiple_of: widths of ``longest`` are rounded up to a multiple of it.
        loss: bool[total], which ids bear loss; None: all.

    Raises:
        ConfigError: a strategy without what it needs, or a row that is longer than any width allowed: truncate first.
    """
    require_one_of("strategy", strategy, PADDING_STRATEGIES)
    require_one_of("side", side, SIDES)
    lengths = np.diff(offsets)
    if not len(lengths):
        return []
    widths = _widths(lengths, strategy, max_length, boundaries, multiple_of)
    found: list[Padded] = []
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        found.append(_rectangle(ids, offsets, rows, width, pad_id, side, loss))
    return found


def _widths(
    lengths: Int64,
    strategy: PaddingStrategy,
    max_length: int | None,
    boundaries: npt.ArrayLike | None,
    multiple_of: int,
) -> Int64:
    """int64[n]: how wide each row becomes."""
    if strategy == "none":
        return lengths
    if strategy == "longest":
        if multiple_of < 1:
            raise ConfigError(f"multiple_of is {multiple_of}, expected at least 1")
        return np.full(len(lengths), -(-int(lengths.max()) // multiple_of) * multiple_of)
    if strategy == "max_length":
        if max_length is None:
            raise ConfigError("padding 'max_length' needs max_length")
        _fits(lengths, max_length, "max_length")
        return np.full(len(lengths), max_length)
    if boundaries is None:
        raise ConfigError("padding 'buckets' needs boundaries")
    edges = np.asarray(boundaries, np.int64)
    _fits(lengths, int(edges.max(initial=0)), "the last bucket")
    return edges[bucket_of(lengths, edges)]


def _fits(lengths: Int64, most: int, what: str) -> None:
    if lengths.max() > most:
        row = int(np.argmax(lengths > most))
        raise ConfigError(
            f"row {row} has {lengths[row]} tokens, {what} holds {most}; truncate rows before padding them",
            row=row,
            got=int(lengths[row]),
            expected=most,
        )


def _rectangle(
    ids: Int32, offsets: Int64, rows: Int64, width: int, pad_id: int, side: Side, loss: Bools | None
) -> Padded:
    lengths = offsets[rows + 1] - offsets[rows]
    # A mask picks cells row by row, which is the order of the ids.
    there, source = cells(lengths, width, left=side == "left"), places(offsets[rows], lengths)
    input_ids = np.full(there.shape, pad_id, np.int32)
    input_ids[there] = ids[source]
    labels = np.full(there.shape, IGNORED, np.int32)
    labels[there] = ids[source] if loss is None else np.where(loss[source], ids[source], IGNORED)
    return Padded(rows, input_ids, there.astype(np.int32), labels)
