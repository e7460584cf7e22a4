"""Chance is ours: the published generator, keys with nothing in common, shuffles and
permutations that never change.

Nothing here is random: keys are fixed, so that a bound that holds once holds always.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import (
    Int64,
    Permutation,
    extended,
    key_of,
    shuffled,
    splitmix64,
)

GAMMA = 0x9E3779B97F4A7C15
WORD = 2**64 - 1
LARGEST = 2**62
"""Size of the largest permutation."""

words = st.integers(0, WORD)


# First outputs of the reference implementation for a seed: each step adds the golden
# gamma to its state.
PUBLISHED = {
    1234567: [
        0x599ED017FB08FC85,
        0x2C73F08458540FA5,
        0x883EBCE5A3F27C77,
        0x3FBEF740E9177B3F,
        0xE3B8346708CB5ECD,
    ],
    0: [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
        0xF88BB8A8724C81EC,
        0x1B39896A51A8749B,
    ],
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_splitmix64_is_the_published_function(seed: int) -> None:
    states = np.array([(seed + GAMMA * i) & WORD for i in range(5)], np.uint64)
    assert splitmix64(states).tolist() == PUBLISHED[seed]


@given(words, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_a_word_more_extends_a_key(seed: int, last: list[int]) -> None:
    found = extended(key_of(seed, 3), np.array(last, np.int64))
    assert found.tolist() == [key_of(seed, 3, word) for word in last]


def test_keys_are_pinned() -> None:
    """A change here changes the order of every dataset and mixture: never change it."""
    assert key_of(0) == 16294208416658607535
    assert [
        key_of(0, 0),
        key_of(0, 1),
        key_of(1, 0),
        key_of(7, 1, 2, 3),
        key_of(-1, -1),
    ] == KEYS


KEYS = [
    12035550249420947055,
    627405149472732430,
    6791897765849424158,
    1867368617898080398,
    7136257342804621622,
]


@given(st.integers(0, 2000), words)
def test_a_shuffle_is_a_permutation(count: int, key: int) -> None:
    found = shuffled(count, key)
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == list(range(count))


def test_shuffles_are_pinned() -> None:
    """A change here changes the order inside the blocks of every mixture: never
    change it.
    """
    assert shuffled(12, key_of(0)).tolist() == SHUFFLED_0
    assert shuffled(12, key_of(0, 5, 3)).tolist() == SHUFFLED_1


SHUFFLED_0 = [5, 7, 1, 4, 2, 8, 11, 10, 0, 6, 3, 9]
SHUFFLED_1 = [8, 11, 3, 4, 9, 5, 10, 6, 1, 0, 2, 7]


# ---- computed permutations: bijections of any size, without a trace of where an index
# came from ----------

keys = st.integers(0, 2**64 - 1)


@given(st.integers(0, 3000), keys)
def test_every_number_comes_once(size: int, key: int) -> None:
    moved = Permutation(size, key).at(np.arange(size))
    assert moved.dtype == np.int64
    assert sorted(moved.tolist()) == list(range(size))


@given(
    st.integers(1, LARGEST),
    keys,
    st.lists(st.integers(0, LARGEST), min_size=1, max_size=20),
)
def test_the_inverse_leads_back_whatever_the_size(
    size: int, key: int, index: list[int]
) -> None:
    permutation, asked = Permutation(size, key), np.array(index) % size
    moved = permutation.at(asked)
    assert ((moved >= 0) & (moved < size)).all()
    assert permutation.inverse(moved).tolist() == asked.tolist()
    assert permutation.at(permutation.inverse(asked)).tolist() == asked.tolist()


@given(st.integers(1, 500), st.lists(keys, min_size=1, max_size=30))
def test_a_key_for_each_index_is_as_a_permutation_for_each(
    size: int, many: list[int]
) -> None:
    index = np.arange(len(many)) % size
    moved = Permutation(size, np.array(many, np.uint64)).at(index)
    assert moved.tolist() == [
        int(Permutation(size, key).at(index[at : at + 1])[0])
        for at, key in enumerate(many)
    ]


def test_permutations_are_pinned() -> None:
    """A change here changes the order of every dataset: never change it."""
    assert Permutation(1, key_of(0)).at(np.arange(1)).tolist() == [0]
    assert Permutation(12, key_of(0)).at(np.arange(12)).tolist() == OF_12
    assert Permutation(100, key_of(0, 1)).at(np.arange(8)).tolist() == OF_100
    assert Permutation(10**6 + 3, key_of(7)).at(np.arange(5)).tolist() == OF_MILLION
    assert (
        Permutation(LARGEST, key_of(7)).at(np.array([0, 1, LARGEST - 1])).tolist()
        == OF_LARGEST
    )


OF_12 = [1, 7, 3, 2, 10, 11, 0, 8, 5, 9, 6, 4]
OF_100 = [0, 86, 42, 44, 30, 1, 55, 33]
OF_MILLION = [35835, 924664, 949360, 453888, 857072]
OF_LARGEST = [4216534342978402700, 905452135161317003, 1762358061020243853]


def test_what_cannot_be_permuted_is_refused() -> None:
    assert Permutation(0, 1).at(np.arange(0)).tolist() == []
    for size in (-1, LARGEST + 1):
        with pytest.raises(ConfigError, match=r"expected 0 to 2\^62"):
            Permutation(size, 1)
    with pytest.raises(
        ConfigError, match="index 5 is not in a permutation of 5; expected 0 to 4"
    ):
        Permutation(5, 1).at(np.array([0, 5]))
    with pytest.raises(ConfigError, match="index -1 is not in a permutation of 5"):
        Permutation(5, 1).inverse(np.array([-1]))
    with pytest.raises(
        ConfigError, match="index 0 is not in a permutation of 0; expected none"
    ):
        Permutation(0, 1).at(np.array([0]))


# How good the shuffle is


def _many(size: int, number: int) -> Int64:
    """int64[number, size]: a permutation for each of the first keys."""
    of = extended(key_of(1, size), np.arange(number))
    moved = Permutation(size, np.repeat(of, size)).at(np.tile(np.arange(size), number))
    return moved.reshape(number, size)


def _deviation(counts: Int64) -> float:
    """Chi square against equal counts, in standard deviations of its own
    distribution.
    """
    expected, degrees = counts.sum() / counts.size, counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(
        2 * degrees
    )


@pytest.mark.parametrize("size", [2, 7, 31, 32, 256])
def test_every_index_goes_everywhere_alike(size: int) -> None:
    moved = _many(size, 1_000_000 // size)
    counts = np.bincount(
        (moved + np.arange(size) * size).ravel(), minlength=size * size
    )
    assert _deviation(counts) < 4


@pytest.mark.parametrize("bits", [16, 32, 62])
def test_a_changed_bit_changes_half_of_the_bits(bits: int) -> None:
    """Avalanche: each of the bits in, each of the bits out, over 4,096 indices:
    within 0.4 and 0.6.
    """
    permutation = Permutation(1 << bits, key_of(2))
    index = Permutation(1 << bits, key_of(4)).at(np.arange(4096))
    moved = permutation.at(index)
    changed = [moved ^ permutation.at(index ^ (1 << bit)) for bit in range(bits)]
    share = np.array(
        [[np.mean(found >> bit & 1) for bit in range(bits)] for found in changed]
    )
    assert share.min() > 0.4
    assert share.max() < 0.6
