"""Chance: SplitMix64, written here, so that no release of another library changes an order, and permutations made of
it.

A stream of random numbers is named by a key. Keys are made of a seed and of words (which epoch, which lane, which
block), one word after the other, so that the keys of neighbours have nothing in common.

Permutations are computed, not stored: where index i goes is found without looking at any other index. A number below
``size`` is written as two digits, ``left * base + right``, each below about the root of `size`. A round adds to one
digit, modulo its base, a number drawn for the other digit; the next round swaps their parts (a Feistel network, in the
form for any base: Black and Rogaway 2002, *Ciphers with arbitrary finite domains*). What is drawn comes from
SplitMix64. A round is undone by subtracting, so that all of them are a bijection. The two bases multiply to a little
more than `size`; the few indices that land past it go round again until they do not (cycle walking), which keeps a
bijection and takes 1 + 1/sqrt(size) passes at most in the mean.

What is added is a function of the *other* digit without any structure: affine rounds (``a * i + b``) would leave
neighbours at one distance. Six rounds already pass every test of pairs and of single bits for 32 numbers and more, and
eight are done; below, digits are so short that six show (an order of 5 comes up 30% too often), so sixteen are done.
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


LARGEST: Final = 1 << 62

_HALF: Final = np.uint64(32)
_ROUNDS: Final = 8
_ROUNDS_OF_FEW: Final = 16
_FEW: Final = 32
_DRAWS: Final = 1024  # numbers that are drawn at a time for a buffer
_CHUNK: Final = 1 << 14  # indices at a time: their digits and what is drawn for them stay in the cache


@final
class Permutation:
    """The permutations of ``range(size)``, a different one for each key.

    Args:
        size: 0 to 2^62, for all indices; or one for each index, int64[n], at least 1.
        key: of :func:`key_of`, for all indices, taken modulo 2^64; or one for each index, uint64[n].
    """

    __slots__ = ("_bases", "_key", "_size")

    def __init__(self, size: int | Int64, key: int | UInt64) -> None:
        self._key = np.array([key & WORD], np.uint64) if isinstance(key, int) else key
        if isinstance(size, int):
            if not 0 <= size <= LARGEST:
                raise ConfigError(f"a permutation of {size} numbers; expected 0 to 2^62")
            size = np.array([size], np.int64)
        self._size = size
        self._bases = _bases(self._size)

    def at(self, index: Int64) -> Int64:
        """Return where each index goes, int64[n]; all must be in ``range(size)``."""
        return self._permuted(index, backwards=False)

    def inverse(self, index: Int64) -> Int64:
        """Return the index that goes to each, int64[n]: ``inverse(at(i)) == i``."""
        return self._permuted(index, backwards=True)

    def _permuted(self, index: Int64, *, backwards: bool) -> Int64:
        self._check(index)
        found = np.empty(len(index), np.uint64)
        for there, rounds in self._by_rounds():
            for first in range(0, len(index if there is None else there), _CHUNK):
                chunk = slice(first, first + _CHUNK)
                part = chunk if there is None else there[chunk]
                found[part] = self._walk(index[part].astype(np.uint64), part, rounds, backwards)
        return found.view(np.int64)

    def _by_rounds(self) -> Iterator[tuple[Int64 | None, int]]:
        """Yield which indices take how many rounds; None: all."""
        few = self._size < _FEW
        if few.all() or not few.any():
            yield None, _ROUNDS_OF_FEW if few.all() else _ROUNDS
            return
        yield np.flatnonzero(few), _ROUNDS_OF_FEW
        yield np.flatnonzero(~few), _ROUNDS

    def _walk(self, value: UInt64, part: Int64 | slice, rounds: int, backwards: bool) -> UInt64:
        key, size = values_at(self._key, part), values_at(self._size.view(np.uint64), part)
        bases = values_at(self._bases[0], part), values_at(self._bases[1], part)
        value = _pass(value, key, bases, rounds, backwards)
        outside = np.flatnonzero(value >= size)
        while len(outside):
            own = values_at(key, outside), (values_at(bases[0], outside), values_at(bases[1], outside))
            value[outside] = _pass(value[outside], *own, rounds, backwards)
            outside = outside[value[outside] >= values_at(size, outside)]
        return value

    def _check(self, index: Int64) -> None:
        if len(index) and not (index.min() >= 0 and (index < self._size).all()):
            first = int(np.argmax((index < 0) | (index >= self._size)))
            size = int(np.broadcast_to(self._size, index.shape)[first])
            expected = f"0 to {size - 1}" if size else "none"
            raise ConfigError(f"index {index[first]} is not in a permutation of {size}; expected {expected}")


def _bases(size: Int64) -> tuple[UInt64, UInt64]:
    """Return the bases of the left and the right digit, whose product is `size` or a little more; uint64[n] both."""
    order, sizes, ends = grouped(size)
    bases = np.empty((2, len(size)), np.uint64)
    for each, (first, last) in zip(sizes.tolist(), pairwise(ends.tolist()), strict=True):
        root = isqrt(max(each - 1, 0)) + 1
        bases[:, order[first:last]] = [[root], [max(-(-each // root), 1)]]
    return bases[0], bases[1]


def values_at(values: npt.NDArray[Any], there: Int64 | slice) -> npt.NDArray[Any]:
    """Return the values of some places, where there may be one for all."""
    return values if len(values) == 1 else values[there]


def _pass(value: UInt64, key: UInt64, bases: tuple[UInt64, UInt64], rounds: int, backwards: bool) -> UInt64:
    left = value // bases[1]
    right = value - left * bases[1]
    drawn, spare = np.empty_like(left), np.empty_like(left)
    for number in range(rounds)[:: -1 if backwards else 1]:
        digit, other, base = (left, right, bases[0]) if number % 2 == 0 else (right, left, bases[1])
        np.add(other, key + np.uint64(STEP * number & WORD), out=drawn)
        _draw(drawn, spare, base)
        _add(digit, drawn, base, backwards)
    return left * bases[1] + right


def _draw(value: UInt64, spare: UInt64, base: UInt64) -> None:
    """Replace each value by a number below `base`: the upper half of SplitMix64's output, as a fraction of 2^32."""
    np.right_shift(value, np.uint64(30), out=spare)
    np.bitwise_xor(value, spare, out=value)
    np.multiply(value, np.uint64(FIRST), out=value)
    np.right_shift(value, np.uint64(27), out=spare)
    np.bitwise_xor(value, spare, out=value)
    np.multiply(value, np.uint64(SECOND), out=value)
    np.right_shift(value, _HALF, out=value)
    np.multiply(value, base, out=value)
    np.right_shift(value, _HALF, out=value)


def _add(digit: UInt64, drawn: UInt64, base: UInt64, backwards: bool) -> None:
    """Add (or subtract) modulo `base`, in place.

    The right one of a sum and the sum without `base` is the smaller: below zero it wraps to near 2^64. So it is of a
    difference and the difference with `base`.
    """
    if backwards:
        np.subtract(digit, drawn, out=digit)
        np.add(digit, base, out=drawn)
    else:
        np.add(digit, drawn, out=digit)
        np.subtract(digit, base, out=drawn)
    np.minimum(digit, drawn, out=digit)


def shuffled_by_buffer(items: Iterable[Item], size: int, key: int) -> Iterator[Item]:
    """Yield `items` in an order that `key` decides, holding `size` of them.

    The buffer is filled; then each new item takes the place of one drawn from it, and in the end those that are left
    are drawn. An item comes out at most `size` places early, and any number of places late.
    """
    draws = _draws(key)
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        place = next(draws) % size
        drawn, buffer[place] = buffer[place], item
        yield drawn
    while buffer:
        place = next(draws) % len(buffer)
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        yield buffer.pop()


def _draws(key: int) -> Iterator[int]:
    """Yield the numbers of the stream that `key` names: ``splitmix64(key + 0), splitmix64(key + 1) ...``."""
    counter = np.arange(_DRAWS, dtype=np.uint64) + np.uint64(key)
    while True:
        yield from splitmix64(counter).tolist()
        counter = counter + np.uint64(_DRAWS)
