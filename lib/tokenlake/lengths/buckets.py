"""Boundaries of lengths: rows of like length go together, so that little of a batch is padding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenlake.errors import ConfigError

Int64 = npt.NDArray[np.int64]


def bucket_of(lengths: Int64, boundaries: Int64) -> Int64:
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


def powers(longest: int, shortest: int = 32) -> Int64:
    """Return boundaries that double from `shortest` up to the first that holds `longest` tokens.

    At most half of a row is padding, and a compiled model sees few shapes, the same for every batch.
    """
    if shortest < 1:
        raise ConfigError(f"shortest is {shortest}, expected at least 1")
    edges = [shortest]
    while edges[-1] < longest:
        edges.append(edges[-1] * 2)
    return np.array(edges, np.int64)


def quantiles(lengths: Int64, buckets: int, multiple_of: int = 1) -> Int64:
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
