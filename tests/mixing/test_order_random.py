"""Chance is ours: the published generator, keys that have nothing in common, and shuffles that never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.mixing.random import WORD, extended, key_of, mixed, shuffled, splitmix64

GAMMA = 0x9E3779B97F4A7C15
words = st.integers(0, WORD)


# First outputs of the reference implementation for a seed: each step adds the golden gamma to its state.
PUBLISHED = {
    1234567: [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
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
