"""Compiled loops of cleaning: hashes of word n-grams, MinHash signatures, look-ups,
clusters.

numba compiles them once for each machine and keeps the result on disk. Arrays are the
caller's, and so is their size.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

_P1: Final = np.uint64(11400714785074694791)
_P2: Final = np.uint64(14029467366897019727)
_P3: Final = np.uint64(1609587929392839161)
_P4: Final = np.uint64(9650029242287828579)
_P5: Final = np.uint64(2870177450012600261)
_ONE: Final = np.uint64(1)
_BITS: Final = np.uint64(64)
_FULL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_SPACE: Final = 32

PRIME: Final = np.uint64((1 << 61) - 1)
"""The modulus of the permutations, a Mersenne prime."""
_PRIME_BITS: Final = np.uint64(61)


@njit(cache=True, inline="always")
def _rotated(value: Any, by: Any) -> Any:
    """Return a 64-bit number rotated to the left."""
    return (value << by) | (value >> (_BITS - by))


@njit(cache=True, inline="always")
def _number(data: Any, at: Any, count: Any) -> Any:
    """Return `count` bytes as a little-endian number."""
    number = np.uint64(0)
    for i in range(count):
        number |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return number


@njit(cache=True, inline="always")
def _round(sum_: Any, lane: Any) -> Any:
    """Return the sum of a lane after 8 more bytes, as a number."""
    return _rotated(sum_ + lane * _P2, np.uint64(31)) * _P1


@njit(cache=True, inline="always")
def _long_start(data: Any, at: Any, end: Any) -> Any:
    """Return the state after all whole blocks of 32 bytes, and the offset of their
    end.
    """
    # Each block gives 8 bytes to each of four lanes.
    one = _P1 + _P2
    two = _P2
    three = np.uint64(0)
    four = np.uint64(0) - _P1
    while at + 32 <= end:
        one = _round(one, _number(data, at, 8))
        two = _round(two, _number(data, at + 8, 8))
        three = _round(three, _number(data, at + 16, 8))
        four = _round(four, _number(data, at + 24, 8))
        at += 32
    state = _rotated(one, _ONE) + _rotated(two, np.uint64(7))
    state += _rotated(three, np.uint64(12)) + _rotated(four, np.uint64(18))
    for lane in (one, two, three, four):
        state = (state ^ _round(np.uint64(0), lane)) * _P1 + _P4
    return state, at


@njit(cache=True)
def xxh64(data: Any, at: Any, end: Any) -> Any:
    """Return XXH64 (seed 0) of the bytes from `at` to `end`; the algorithm is that
    of xxHash's specification.
    """
    size = np.uint64(end - at)
    state = _P5
    if end - at >= 32:
        state, at = _long_start(data, at, end)
    state += size
    while at + 8 <= end:
        state = (
            _rotated(state ^ _round(np.uint64(0), _number(data, at, 8)), np.uint64(27))
            * _P1
            + _P4
        )
        at += 8
    if at + 4 <= end:
        state = (
            _rotated(state ^ (_number(data, at, 4) * _P1), np.uint64(23)) * _P2 + _P3
        )
        at += 4
    while at < end:
        state = _rotated(state ^ (np.uint64(data[at]) * _P5), np.uint64(11)) * _P1
        at += 1
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


@njit(cache=True)
def hash_ngrams(data: Any, at: Any, end: Any, n: Any, starts: Any, out: Any) -> Any:
    """Hash every n-gram of one document's words; return how many there are.

    Args:
        data: Words with one space between each two, uint8.
        at: Offset of the document's first byte.
        end: Offset after its last byte.
        n: Number of words of an n-gram.
        starts: Buffer for the offsets of the last n words, int64[n].
        out: Buffer for the hashes, with room for one of each word, uint64.
    """
    words = 0
    count = 0
    first = at
    for i in range(at, end + 1):
        if i < end and data[i] != _SPACE:
            continue
        # A word ends here. With n words or more, an n-gram ends here, too.
        if i > first:
            starts[words % n] = first
            words += 1
            if words >= n:
                out[count] = xxh64(data, starts[words % n], i)
                count += 1
        first = i + 1
    return count


@njit(cache=True)
def sign(hashes: Any, count: Any, factors: Any, terms: Any, least: Any) -> Any:
    """Fill `least` (uint64[k]) with the least values of k permutations of a document's
    n-grams.

    The permutations are ``(factor * hash + term) mod (2^61 - 1)``, the product being of
    64 bits.
    """
    least[:] = _FULL
    for i in range(count):
        value = hashes[i]
        for j in range(len(factors)):
            mixed = value * factors[j] + terms[j]
            mixed = (mixed & PRIME) + (mixed >> _PRIME_BITS)
            mixed = mixed - PRIME if mixed >= PRIME else mixed
            least[j] = min(least[j], mixed)


@njit(cache=True)
def sign_all(
    data: Any,
    ends: Any,
    n: Any,
    factors: Any,
    terms: Any,
    rows: Any,
    out: Any,
    counts: Any,
) -> Any:
    """Make the band keys of documents.

    Args:
        data: Words of the documents, with one space between each two, uint8.
        ends: Offset of each document's first byte, and of the end of the last one,
            int64[documents + 1].
        n: Number of words of an n-gram.
        factors: Factors of the permutations, uint64[bands * rows].
        terms: Terms of the permutations, uint64[bands * rows].
        rows: Number of permutations of a band.
        out: Output: a hash of each band's least values, uint64[documents, bands].
        counts: Output: number of n-grams of each document, int64[documents]. The keys
            of a document without n-grams mean nothing.
    """
    hashes = np.empty(_most_words(ends), np.uint64)
    starts = np.empty(n, np.int64)
    least = np.empty(len(factors), np.uint64)
    for document in range(len(ends) - 1):
        counts[document] = hash_ngrams(
            data, ends[document], ends[document + 1], n, starts, hashes
        )
        sign(hashes, counts[document], factors, terms, least)
        band = least.view(np.uint8)
        for key in range(out.shape[1]):
            out[document, key] = xxh64(band, key * rows * 8, (key + 1) * rows * 8)


@njit(cache=True)
def _most_words(ends: Any) -> Any:
    """Return the largest number of words that a document can have: each takes two
    bytes, with its space.
    """
    longest = 0
    for document in range(len(ends) - 1):
        longest = max(longest, ends[document + 1] - ends[document])
    return longest // 2 + 2


@njit(cache=True)
def ngrams_of_all(data: Any, ends: Any, n: Any, out: Any, counts: Any) -> Any:
    """Hash the n-grams of all documents into `out`, count those of each in `counts`,
    and return their number.
    """
    starts = np.empty(n, np.int64)
    total = 0
    for document in range(len(ends) - 1):
        counts[document] = hash_ngrams(
            data, ends[document], ends[document + 1], n, starts, out[total:]
        )
        total += counts[document]
    return total


@njit(cache=True)
def look_up(
    hashes: Any, counts: Any, known: Any, groups: Any, sieve: Any, hits: Any, group: Any
) -> Any:
    """Count the known n-grams of each document, and find the group of the first of
    them.

    Args:
        hashes: Hashes of the n-grams of all documents, one document after the other,
            uint64.
        counts: Number of n-grams of each document, int64[documents].
        known: Hashes of the known n-grams, ascending, uint64[k].
        groups: Group of each known n-gram, int64[k].
        sieve: 1 where the low bits of a known hash point, uint8 of a power of two
            bytes.
        hits: Output: number of known n-grams of each document, int64[documents].
        group: Output: group of the first known n-gram of each document, or -1,
            int64[documents].
    """
    mask = np.uint64(len(sieve) - 1)
    at = 0
    for document in range(len(counts)):
        hits[document] = 0
        group[document] = -1
        for _ in range(counts[document]):
            value = hashes[at]
            at += 1
            # Most hashes are unknown, and the sieve rules out 15 of 16 of them without
            # a search.
            if sieve[value & mask] == 0:
                continue
            place = np.searchsorted(known, value)
            if place < len(known) and known[place] == value:
                hits[document] += 1
                if group[document] < 0:
                    group[document] = groups[place]


@njit(cache=True)
def _root(parents: Any, item: Any) -> Any:
    """Return the root of an item's tree, and halve the path to it on the way."""
    while parents[item] != item:
        parents[item] = parents[parents[item]]
        item = parents[item]
    return item


@njit(cache=True)
def unite(parents: Any, keys: Any, items: Any) -> Any:
    """Join the sets of neighbours with equal keys. The root of a set is its lowest
    item.

    Args:
        parents: Parent of each item, changed in place, int64.
        keys: Key of each item, sorted, uint64[n].
        items: Items, int64[n].
    """
    for i in range(1, len(keys)):
        if keys[i] == keys[i - 1]:
            left = _root(parents, items[i - 1])
            right = _root(parents, items[i])
            parents[max(left, right)] = min(left, right)


@njit(cache=True)
def settle(parents: Any) -> Any:
    """Make the lowest item of each set the parent of all its items."""
    for item in range(len(parents)):
        parents[item] = parents[parents[item]]
