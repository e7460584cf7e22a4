"""Which documents are left out, and which split the others go to: functions of their identity.

A document's identity is (file, position). Its split is decided by a hash of the identity alone, so a
document keeps its split when data is added, units move or other documents are taken down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


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


def splitmix64(values: UInt64) -> UInt64:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def kept(position: Int64, excluded: Sequence[int]) -> npt.NDArray[np.bool_]:
    """bool[n], False where a document's position is in ``excluded``."""
    return ~np.isin(position, np.asarray(excluded, np.int64))
