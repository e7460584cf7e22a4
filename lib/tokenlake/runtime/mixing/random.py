"""Random numbers and permutations, independent of the releases of other libraries.

The numbers are those of SplitMix64, which is implemented here.

A stream of random numbers is identified by a key. A key is made of a seed and of words
(epoch, lane, block), one word after the other, so that neighbouring keys have nothing
in common.

**Permutations are computed, not stored**: the place of index i is found without looking
at any other index.

1. The number is written as two digits, ``left * base_right + right``, each below about
   the square root of the size.
2. A round adds to one digit, modulo its base, a number that SplitMix64 draws for the
   other digit and the round's key. Even rounds change the left digit, odd rounds the
   right one. (This is a Feistel network in the form for any base: Black and Rogaway
   2002, *Ciphers with arbitrary finite domains*.)
3. The bases multiply to a little more than the size. A result that is too large goes
   through all rounds again until it is not (cycle walking).

A round is undone by subtraction, so that all rounds are a bijection; so is cycle
walking, which takes ``1 + 1 / sqrt(size)`` passes on average at most.

Example: 12 numbers, key ``key_of(0)``. The bases are 4 and 3, whose product is 12.
Index 0 has the digits 0 and 0; after all rounds they are 0 and 1, so that ``at(0)`` is
1, and ``inverse(1)`` is 0. (The whole permutation is ``1 7 3 2 10 11 0 8 5 9 6 4``.)

The number that is added depends on the *other* digit without any structure; affine
rounds (``a * i + b``) would leave neighbours at one distance. With 32 numbers or more,
six rounds already pass every test of pairs and of single bits; eight are done. With
fewer numbers the digits are so short that six rounds show (an order of 5 comes up 30%
too often); sixteen are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import isqrt
from typing import Any, Final, TypeVar, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64, grouped
from tokenlake.errors import ConfigError

UInt64 = npt.NDArray[np.uint64]
Item = TypeVar("Item")

WORD: Final = (1 << 64) - 1
"""Largest word: seeds and words are taken modulo 2^64."""

# Constants of SplitMix64.
STEP: Final = 0x9E3779B97F4A7C15
FIRST: Final = 0xBF58476D1CE4E5B9
SECOND: Final = 0x94D049BB133111EB


def splitmix64(values: UInt64) -> UInt64:
    """Return SplitMix64's output function, a bijection of 64-bit integers, uint64[n].

    Source: Steele, Lea, Flood 2014.
    """
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
    """Return the key (0 to 2^64 - 1) of a stream.

    ``key_of(seed, *words, last)`` is ``extended(key_of(seed, *words), last)``.

    Args:
        seed: Seed, taken modulo 2^64.
        *words: Words that identify the stream, each taken modulo 2^64.
    """
    key = mixed(seed)
    for word in words:
        key = mixed(key ^ (word & WORD))
    return key


def extended(keys: UInt64 | int, words: Int64) -> UInt64:
    """Return keys with one more word each, uint64[n], as :func:`key_of` makes them.

    Args:
        keys: Keys, uint64[n], or one for all.
        words: Word of each key, int64[n].
    """
    return splitmix64(np.asarray(keys, np.uint64) ^ words.astype(np.uint64))


def shuffled(count: int, key: int) -> Int64:
    """Return a permutation of ``range(count)``, int64[count].

    It is the order of ``splitmix64(key + i)``.

    Distinct numbers stay distinct, so that there are no ties and every way of sorting
    gives the same order.
    """
    counter = np.arange(count, dtype=np.uint64) + np.uint64(key & WORD)
    return np.argsort(splitmix64(counter)).astype(np.int64, copy=False)


LARGEST: Final = 1 << 62
"""Size of the largest permutation."""

_HALF_WORD: Final = np.uint64(32)
_ROUNDS: Final = 8
_ROUNDS_OF_SMALL: Final = 16
_SMALL: Final = 32  # size below which a permutation has more rounds
_DRAWS: Final = 1024  # numbers that are drawn at a time for a buffer
# Indices at a time: their digits and random numbers stay in the processor's cache.
_CHUNK: Final = 1 << 14

_Bases = tuple[UInt64, UInt64]
"""Base of the left and of the right digit, uint64[n] both, or uint64[1] for all."""


@final
class Permutation:
    """Permutations of ``range(size)``, a different one for each key.

    Args:
        size: Size from 0 to 2^62, for all indices; or one for each index, int64[n], at
            least 1.
        key: Key (see :func:`key_of`) for all indices, taken modulo 2^64; or one for
            each index, uint64[n].

    Raises:
        ConfigError: The size is out of range.
    """

    __slots__ = ("_bases", "_key", "_size")

    def __init__(self, size: int | Int64, key: int | UInt64) -> None:
        if isinstance(key, int):
            key = np.array([key & WORD], np.uint64)
        if isinstance(size, int):
            if not 0 <= size <= LARGEST:
                raise ConfigError(
                    f"a permutation of {size} numbers; expected 0 to 2^62"
                )
            size = np.array([size], np.int64)
        self._key = key
        self._size = size
        self._bases = _bases_of(size)

    def at(self, index: Int64) -> Int64:
        """Return the number at each index of the permutation, int64[n].

        An index out of range is a ConfigError.
        """
        return self._permuted(index, is_inverse=False)

    def inverse(self, number: Int64) -> Int64:
        """Return the index of each number, int64[n]: ``inverse(at(i)) == i``."""
        return self._permuted(number, is_inverse=True)

    def _permuted(self, index: Int64, *, is_inverse: bool) -> Int64:
        self._check(index)
        permuted = np.empty(len(index), np.uint64)
        for selection, rounds in self._selections_by_rounds():
            if selection is None:
                for first in range(0, len(index), _CHUNK):
                    chunk = slice(first, first + _CHUNK)
                    permuted[chunk] = self._walk(
                        index[chunk].astype(np.uint64), chunk, rounds, is_inverse
                    )
            else:
                for first in range(0, len(selection), _CHUNK):
                    part = selection[first : first + _CHUNK]
                    permuted[part] = self._walk(
                        index[part].astype(np.uint64), part, rounds, is_inverse
                    )
        return permuted.view(np.int64)

    def _selections_by_rounds(self) -> Iterator[tuple[Int64 | None, int]]:
        """Yield selections of indices (None for all) and their number of rounds."""
        is_small = self._size < _SMALL
        if is_small.all():
            yield None, _ROUNDS_OF_SMALL
        elif not is_small.any():
            yield None, _ROUNDS
        else:
            yield np.flatnonzero(is_small), _ROUNDS_OF_SMALL
            yield np.flatnonzero(~is_small), _ROUNDS

    def _walk(
        self, value: UInt64, part: Int64 | slice, rounds: int, is_inverse: bool
    ) -> UInt64:
        """Return permuted values; those beyond the size go through the rounds again.

        Args:
            value: Indices, uint64[m].
            part: Selection of these among all indices.
            rounds: Number of rounds.
            is_inverse: True for the inverse permutation.
        """
        # Keys, sizes and bases of these indices, or one for all.
        key = values_at(self._key, part)
        size = values_at(self._size.view(np.uint64), part)
        bases = (values_at(self._bases[0], part), values_at(self._bases[1], part))
        value = _all_rounds(value, key, bases, rounds, is_inverse)
        # Cycle walking.
        outside = np.flatnonzero(value >= size)
        while len(outside):
            outside_key = values_at(key, outside)
            outside_bases = (values_at(bases[0], outside), values_at(bases[1], outside))
            value[outside] = _all_rounds(
                value[outside], outside_key, outside_bases, rounds, is_inverse
            )
            outside = outside[value[outside] >= values_at(size, outside)]
        return value

    def _check(self, index: Int64) -> None:
        if not len(index) or (index.min() >= 0 and (index < self._size).all()):
            return
        first = int(np.argmax((index < 0) | (index >= self._size)))
        size = int(np.broadcast_to(self._size, index.shape)[first])
        expected = f"0 to {size - 1}" if size else "none"
        raise ConfigError(
            f"index {index[first]} is not in a permutation of {size}; expected {expected}"
        )


def _bases_of(size: Int64) -> _Bases:
    """Return the bases of both digits, uint64[n] both.

    Their product is the size or a little more.
    """
    if len(size) == 1:
        first_left, first_right = _bases_of_one(int(size[0]))
        return np.array([first_left], np.uint64), np.array([first_right], np.uint64)
    order, sizes, borders = grouped(size)
    left = np.empty(len(size), np.uint64)
    right = np.empty(len(size), np.uint64)
    ranges = pairwise(borders.tolist())
    for distinct_size, (begin, end) in zip(sizes.tolist(), ranges, strict=True):
        base_left, base_right = _bases_of_one(distinct_size)
        left[order[begin:end]] = base_left
        right[order[begin:end]] = base_right
    return left, right


def _bases_of_one(size: int) -> tuple[int, int]:
    """Return the bases of the left and the right digit of one size."""
    left = isqrt(max(size - 1, 0)) + 1
    right = max(-(-size // left), 1)
    return left, right


def values_at(values: npt.NDArray[Any], selection: Int64 | slice) -> npt.NDArray[Any]:
    """Return the selected values of an array.

    An array that has one value for all is returned as a whole.
    """
    if len(values) == 1:
        return values
    return values[selection]


def _all_rounds(
    value: UInt64, key: UInt64, bases: _Bases, rounds: int, is_inverse: bool
) -> UInt64:
    """Return values after all rounds, or before them for the inverse.

    They may be beyond the size.
    """
    # A value has two digits, `left` and `right`. Each round adds a random number to one
    # of them, which is drawn from the other one and the round's key. Therefore the
    # rounds in reverse order, with subtraction, are the inverse.
    left = value // bases[1]
    right = value - left * bases[1]
    addend = np.empty_like(left)
    spare = np.empty_like(left)
    numbers = range(rounds)
    if is_inverse:
        numbers = reversed(numbers)
    for number in numbers:
        if number % 2 == 0:
            digit = left
            other = right
            base = bases[0]
        else:
            digit = right
            other = left
            base = bases[1]
        np.add(other, key + np.uint64(STEP * number & WORD), out=addend)
        _draw(addend, spare, base)
        if is_inverse:
            _subtract(digit, addend, base)
        else:
            _add(digit, addend, base)
    return left * bases[1] + right


def _draw(value: UInt64, spare: UInt64, base: UInt64) -> None:
    """Replace each value by a random number below `base`.

    It is the upper half of SplitMix64's output as a fraction of 2^32.

    Args:
        value: Numbers, uint64[n]; they are replaced in place.
        spare: Memory to work in, uint64[n].
        base: Upper limits, uint64[n] or uint64[1].
    """
    np.right_shift(value, np.uint64(30), out=spare)
    np.bitwise_xor(value, spare, out=value)
    np.multiply(value, np.uint64(FIRST), out=value)
    np.right_shift(value, np.uint64(27), out=spare)
    np.bitwise_xor(value, spare, out=value)
    np.multiply(value, np.uint64(SECOND), out=value)
    np.right_shift(value, _HALF_WORD, out=value)
    np.multiply(value, base, out=value)
    np.right_shift(value, _HALF_WORD, out=value)


def _add(digit: UInt64, addend: UInt64, base: UInt64) -> None:
    """Add a number to each digit modulo its base, in place.

    The smaller one of ``sum`` and ``sum - base`` is right: below zero, unsigned numbers
    wrap to near 2^64.
    """
    np.add(digit, addend, out=digit)
    np.subtract(digit, base, out=addend)
    np.minimum(digit, addend, out=digit)


def _subtract(digit: UInt64, addend: UInt64, base: UInt64) -> None:
    """Subtract a number from each digit modulo its base, in place.

    The result is the smaller one of both candidates, as in `_add`.
    """
    np.subtract(digit, addend, out=digit)
    np.add(digit, base, out=addend)
    np.minimum(digit, addend, out=digit)


def shuffled_by_buffer(items: Iterable[Item], size: int, key: int) -> Iterator[Item]:
    """Yield items in a random order that holds a limited number of them.

    A buffer is filled. Then each new item takes the place of a random one, which is
    yielded. At the end the items that are left are drawn. An item comes out at most
    `size` places early, and any number of places late.

    Args:
        items: Items to shuffle.
        size: Number of items in the buffer.
        key: Key of the order; see :func:`key_of`.
    """
    random_numbers = _numbers_of(key)
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        place = next(random_numbers) % size
        replaced = buffer[place]
        buffer[place] = item
        yield replaced
    while buffer:
        place = next(random_numbers) % len(buffer)
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        yield buffer.pop()


def _numbers_of(key: int) -> Iterator[int]:
    """Yield the numbers ``splitmix64(key + 0)``, ``splitmix64(key + 1)``, ..."""
    counter = np.arange(_DRAWS, dtype=np.uint64) + np.uint64(key)
    while True:
        yield from splitmix64(counter).tolist()
        counter = counter + np.uint64(_DRAWS)
