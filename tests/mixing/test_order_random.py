"""Chance is ours: the published generator, keys with nothing in common, shuffles and permutations that never change.

Nothing here is random: keys are fixed, so that a bound that holds once holds always.
"""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.mixing.random import (
    LARGEST,
    WORD,
    Int64,
    Permutation,
    extended,
    key_of,
    mixed,
    shuffled,
    splitmix64,
)

GAMMA = 0x9E3779B97F4A7C15
words = st.integers(0, WORD)


# First outputs of the reference implementation for a seed: each step adds the golden gamma to its state.
PUBLISHED = {
    1234567: [
        0x599ED017FB08FC85,
        0x2C73F08458540FA5,
        0x883EBCE5A3F27C77,
        0x3FBEF740E9177B3F,
        0xE3B8346708CB5ECD,
    ],
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B],
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_splitmix64_is_the_published_function(seed: int) -> None:
    states = np.array([(seed + GAMMA * i) & WORD for i in range(5)], np.uint64)
    assert splitmix64(states).tolist() == PUBLISHED[seed]


@given(st.lists(words, min_size=1))
def test_one_integer_is_mixed_as_many_are(values: list[int]) -> None:
    assert splitmix64(np.array(values, np.uint64)).tolist() == [mixed(value) for value in values]


@given(words, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_a_word_more_extends_a_key(seed: int, last: list[int]) -> None:
    found = extended(key_of(seed, 3), np.array(last, np.int64))
    assert found.tolist() == [key_of(seed, 3, word) for word in last]


def test_keys_are_pinned() -> None:
    """A change here changes the order of every dataset and mixture: never change it."""
    assert key_of(0) == 16294208416658607535
    assert [key_of(0, 0), key_of(0, 1), key_of(1, 0), key_of(7, 1, 2, 3), key_of(-1, -1)] == KEYS


KEYS = [
    12035550249420947055,
    627405149472732430,
    6791897765849424158,
    1867368617898080398,
    7136257342804621622,
]


def test_keys_of_neighbours_differ_in_half_of_their_bits() -> None:
    keys = [key_of(seed, epoch, lane) for seed in range(8) for epoch in range(16) for lane in range(32)]
    assert len(set(keys)) == len(keys)
    bits = np.unpackbits(np.array(keys, np.uint64).view(np.uint8)).reshape(len(keys), 64)
    changed = np.mean(bits[1:] != bits[:-1], axis=0)
    assert np.abs(changed - 0.5).max() < 0.04  # five standard deviations of 4095 fair coins


@given(st.integers(0, 2000), words)
def test_a_shuffle_is_a_permutation(count: int, key: int) -> None:
    found = shuffled(count, key)
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == list(range(count))


def test_shuffles_are_pinned() -> None:
    """A change here changes the order inside the blocks of every mixture: never change it."""
    assert shuffled(12, key_of(0)).tolist() == SHUFFLED_0
    assert shuffled(12, key_of(0, 5, 3)).tolist() == SHUFFLED_1


SHUFFLED_0 = [5, 7, 1, 4, 2, 8, 11, 10, 0, 6, 3, 9]
SHUFFLED_1 = [8, 11, 3, 4, 9, 5, 10, 6, 1, 0, 2, 7]


def test_shuffles_put_every_row_everywhere_alike() -> None:
    """20,000 shuffles of 6: how often each comes to each place, against fair dice (chi square, 25 degrees)."""
    counts = np.zeros((6, 6))
    for block in range(20_000):
        counts[np.arange(6), shuffled(6, key_of(1, block))] += 1
    expected = 20_000 / 6
    assert ((counts - expected) ** 2 / expected).sum() < 60  # a fair one exceeds it once in 8,000


# ---- computed permutations: bijections of any size, without a trace of where an index came from ----------

keys = st.integers(0, 2**64 - 1)


@given(st.integers(0, 3000), keys)
def test_every_number_comes_once(size: int, key: int) -> None:
    moved = Permutation(size, key).at(np.arange(size))
    assert moved.dtype == np.int64
    assert sorted(moved.tolist()) == list(range(size))


@given(st.integers(1, LARGEST), keys, st.lists(st.integers(0, LARGEST), min_size=1, max_size=20))
def test_the_inverse_leads_back_whatever_the_size(size: int, key: int, index: list[int]) -> None:
    permutation, asked = Permutation(size, key), np.array(index) % size
    moved = permutation.at(asked)
    assert ((moved >= 0) & (moved < size)).all()
    assert permutation.inverse(moved).tolist() == asked.tolist()
    assert permutation.at(permutation.inverse(asked)).tolist() == asked.tolist()


@given(st.integers(1, 500), st.lists(keys, min_size=1, max_size=30))
def test_a_key_for_each_index_is_as_a_permutation_for_each(size: int, many: list[int]) -> None:
    index = np.arange(len(many)) % size
    moved = Permutation(size, np.array(many, np.uint64)).at(index)
    assert moved.tolist() == [
        int(Permutation(size, key).at(index[at : at + 1])[0]) for at, key in enumerate(many)
    ]


def test_an_index_alone_goes_where_it_goes_among_others() -> None:
    permutation = Permutation(50_001, key_of(3))
    whole = permutation.at(np.arange(50_001))
    some = np.array([0, 16_383, 16_384, 40_000, 50_000])
    assert permutation.at(some).tolist() == whole[some].tolist()


def test_permutations_are_pinned() -> None:
    """A change here changes the order of every dataset: never change it."""
    assert Permutation(1, key_of(0)).at(np.arange(1)).tolist() == [0]
    assert Permutation(12, key_of(0)).at(np.arange(12)).tolist() == OF_12
    assert Permutation(100, key_of(0, 1)).at(np.arange(8)).tolist() == OF_100
    assert Permutation(10**6 + 3, key_of(7)).at(np.arange(5)).tolist() == OF_MILLION
    assert Permutation(LARGEST, key_of(7)).at(np.array([0, 1, LARGEST - 1])).tolist() == OF_LARGEST


OF_12 = [1, 7, 3, 2, 10, 11, 0, 8, 5, 9, 6, 4]
OF_100 = [0, 86, 42, 44, 30, 1, 55, 33]
OF_MILLION = [35835, 924664, 949360, 453888, 857072]
OF_LARGEST = [4216534342978402700, 905452135161317003, 1762358061020243853]


def test_what_cannot_be_permuted_is_refused() -> None:
    assert Permutation(0, 1).at(np.arange(0)).tolist() == []
    for size in (-1, LARGEST + 1):
        with pytest.raises(ConfigError, match=r"expected 0 to 2\^62"):
            Permutation(size, 1)
    with pytest.raises(ConfigError, match="index 5 is not in a permutation of 5; expected 0 to 4"):
        Permutation(5, 1).at(np.array([0, 5]))
    with pytest.raises(ConfigError, match="index -1 is not in a permutation of 5"):
        Permutation(5, 1).inverse(np.array([-1]))
    with pytest.raises(ConfigError, match="index 0 is not in a permutation of 0; expected none"):
        Permutation(0, 1).at(np.array([0]))


# How good the shuffle is


def _many(size: int, number: int) -> Int64:
    """int64[number, size]: a permutation for each of the first keys."""
    of = extended(key_of(1, size), np.arange(number))
    moved = Permutation(size, np.repeat(of, size)).at(np.tile(np.arange(size), number))
    return moved.reshape(number, size)


def _deviation(counts: Int64) -> float:
    """Chi square against equal counts, in standard deviations of its own distribution."""
    expected, degrees = counts.sum() / counts.size, counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_order_of_a_few_comes_up_alike(size: int) -> None:
    code = _many(size, 50_000) @ (size ** np.arange(size))
    counts = np.unique(code, return_counts=True)[1]
    assert len(counts) == factorial(size)
    assert _deviation(counts) < 4


@pytest.mark.parametrize("size", [2, 7, 31, 32, 256])
def test_every_index_goes_everywhere_alike(size: int) -> None:
    moved = _many(size, 1_000_000 // size)
    counts = np.bincount((moved + np.arange(size) * size).ravel(), minlength=size * size)
    assert _deviation(counts) < 4


@pytest.mark.parametrize("size", [7, 31, 32, 256])
@pytest.mark.parametrize("apart", ["next", "last"])
def test_pairs_go_everywhere_alike(size: int, apart: str) -> None:
    moved = _many(size, 2_000_000 // size)
    other = {"next": 1, "last": size - 1}[apart]
    counts = np.bincount(moved[:, 0] * size + moved[:, other], minlength=size * size).reshape(size, size)
    assert _deviation(counts[~np.eye(size, dtype=bool)]) < 4


@pytest.mark.parametrize("size", [100, 1_000, 65_536, 1_000_003])
def test_neither_places_nor_neighbours_correlate(size: int) -> None:
    """Six standard deviations of independent numbers (1 / sqrt(size)) for the index itself and for lags."""
    rank = Permutation(size, key_of(5)).at(np.arange(size)) / (size - 1) - 0.5
    index = np.arange(size) / (size - 1) - 0.5
    bound = 6 / np.sqrt(size)
    assert abs(np.corrcoef(index, rank)[0, 1]) < bound
    for lag in (1, 2, 3, 10):
        assert abs(np.corrcoef(rank[:-lag], rank[lag:])[0, 1]) < bound, lag


def test_neighbours_are_at_every_distance() -> None:
    """An affine rule would put all neighbours at one distance, and few rounds at few of them."""
    moved = Permutation(2**16, key_of(9)).at(np.arange(2**16))
    distance = np.diff(moved) % 2**16
    assert np.unique(distance, return_counts=True)[1].max() <= 12  # 65,535 balls in as many bins


@pytest.mark.parametrize("bits", [16, 32, 62])
def test_a_changed_bit_changes_half_of_the_bits(bits: int) -> None:
    """Avalanche: each of the bits in, each of the bits out, over 4,096 indices: within 0.4 and 0.6."""
    permutation = Permutation(1 << bits, key_of(2))
    index = Permutation(1 << bits, key_of(4)).at(np.arange(4096))
    moved = permutation.at(index)
    changed = [moved ^ permutation.at(index ^ (1 << bit)) for bit in range(bits)]
    share = np.array([[np.mean(found >> bit & 1) for bit in range(bits)] for found in changed])
    assert share.min() > 0.4
    assert share.max() < 0.6


def test_two_keys_agree_nowhere_more_than_by_chance() -> None:
    found = _many(1000, 200)
    fixed = [(found[a] == found[b]).sum() for a in range(200) for b in range(a)]
    assert abs(np.mean(found == np.arange(1000)) * 1000 - 1) < 0.3  # fixed points: one in the mean
    assert abs(np.mean(fixed) - 1) < 0.05
    assert max(fixed) < 10
