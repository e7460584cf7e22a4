"""The one source of chance: SplitMix64, written here, so that no release of another library changes an order.

A stream of random numbers is named by a key. Keys are made of a seed and of words (which epoch, which lane, which
block), one word after the other, so that the keys of neighbours have nothing in common.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

WORD: Final = (1 << 64) - 1
"""The largest word: seeds and words are taken modulo 2^64."""

STEP: Final = 0x9E3779B97F4A7C15
FIRST: Final = 0xBF58476D1CE4E5B9
SECOND: Final = 0x94D049BB133111EB


def splitmix64(values: UInt64) -> UInt64:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers."""
    z = values + np.uint64(STEP)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


def mixed(value: int) -> int:
    """Return :func:`splitmix64` of one integer, taken modulo 2^64."""
    z = (value + STEP) & WORD
    z = ((z ^ (z >> 30)) * FIRST) & WORD
    z = ((z ^ (z >> 27)) * SECOND) & WORD
    return z ^ (z >> 31)


def key_of(seed: int, *words: int) -> int:
    """Return the key (0 to 2^64 - 1) of the stream that a seed and words name, each taken modulo 2^64.

    ``key_of(seed, *words, last)`` is ``extended(key_of(seed, *words), last)``.
    """
    key = mixed(seed)
    for word in words:
        key = mixed(key ^ (word & WORD))
    return key


def extended(keys: UInt64 | int, words: Int64) -> UInt64:
    """Return the keys made of `keys` and one word more each: uint64[n], as :func:`key_of` makes them."""
    return splitmix64(np.asarray(keys, np.uint64) ^ words.astype(np.uint64))


def shuffled(count: int, key: int) -> Int64:
    """Return a permutation of ``range(count)``, int64[count]: the order of ``splitmix64(key + i)``.

    Distinct numbers stay distinct, so that there are no ties and any way of sorting gives the same order.
    """
    counter = np.arange(count, dtype=np.uint64) + np.uint64(key & WORD)
    return np.argsort(splitmix64(counter)).astype(np.int64, copy=False)
