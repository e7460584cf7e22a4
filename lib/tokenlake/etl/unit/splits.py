"""Splits of documents: a hash of a document's identity decides its split.

It also decides whether the document is held out.

The identity is (file, position). A document therefore keeps its split when data is
added, units move or other documents are taken down.

1. ``draw = splitmix64(splitmix64(position) ^ file)``, a number below 2^64.
2. The split is the stretch of the cumulative shares that ``draw / 2^64`` falls into.
3. A document is held out if ``splitmix64(draw) >> 11`` is below a threshold. This
   second hash is independent of the first one, so that the remaining documents are
   divided as if nothing had been held out.

Example: shares 0.8 and 0.2. A draw of 0.5 * 2^64 is in split 0, and one of 0.9 * 2^64
in split 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenlake.runtime.mixing.random import Int64, UInt64, splitmix64


def split_indices(
    file: Int64, position: Int64, shares: Sequence[float], below: int | None = None
) -> npt.NDArray[np.int8]:
    """Return the index of the split of each document, int8[n].

    ``len(shares)`` stands for those that are held out.

    Args:
        file: Id of each document's file, int64[n].
        position: Position of each document in its file, int64[n].
        shares: Fraction of documents per split, summing to 1; at most 126.
        below: Bound of :func:`held_out_draws`; documents below it are held out. None:
            none is.
    """
    # The last share has no upper bound, so that every draw is below one. A bound of 2^64
    # itself would not fit 64 bits.
    bounds = np.cumsum(np.asarray(shares, np.float64))[:-1]
    largest_bound = np.nextafter(2.0**64, 0)
    limits = np.minimum(bounds * 2.0**64, largest_bound).astype(np.uint64)
    draws = _split_draws(file, position)
    split_index = np.searchsorted(limits, draws, side="right").astype(np.int8)
    if below is not None:
        split_index[held_out_draws(file, position) < below] = len(shares)
    return split_index


def held_out_draws(file: Int64, position: Int64) -> Int64:
    """Return a number below 2^53 for each document, int64[n].

    The documents with the smallest numbers are held out.

    Args:
        file: Id of each document's file, int64[n].
        position: Position of each document in its file, int64[n].
    """
    return (splitmix64(_split_draws(file, position)) >> np.uint64(11)).astype(np.int64)


def kept(position: Int64, excluded: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return False for each document whose position is excluded, bool[n]."""
    return ~np.isin(position, np.asarray(excluded, np.int64))


def _split_draws(file: Int64, position: Int64) -> UInt64:
    """Return the draw of each document, as in the formula above, uint64[n]."""
    return splitmix64(splitmix64(position.astype(np.uint64)) ^ file.astype(np.uint64))
