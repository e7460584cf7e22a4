"""Which documents are left out, and which split the others go to: functions of their identity.

A document's identity is (file, position). Its split is decided by a hash of the identity alone, so a
document keeps its split when data is added, units move or other documents are taken down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenlake.order.random import Int64, splitmix64


def split_indices(file: Int64, position: Int64, shares: Sequence[float]) -> npt.NDArray[np.int8]:
    """Index of the split of each document.

    Args:
        file: int64[n], ids of the documents' files.
        position: int64[n], positions in the files.
        shares: fraction of documents per split, summing to 1; at most 127.

    Returns:
        int8[n]. A split's documents are those whose hash, as a fraction of 2^64, falls into its
        stretch of the cumulative shares.
    """
    draws = splitmix64(splitmix64(position.astype(np.uint64)) ^ file.astype(np.uint64))
    bounds = np.cumsum(np.asarray(shares, np.float64))[:-1]
    limits = np.minimum(bounds * 2.0**64, np.nextafter(2.0**64, 0)).astype(np.uint64)
    return np.searchsorted(limits, draws, side="right").astype(np.int8)


def kept(position: Int64, excluded: Sequence[int]) -> npt.NDArray[np.bool_]:
    """bool[n], False where a document's position is in ``excluded``."""
    return ~np.isin(position, np.asarray(excluded, np.int64))
