"""Compiled loops of cleaning: hashes of n-grams, MinHash, look-ups and clusters.

numba compiles them once for each machine and keeps the result on disk. Arrays are the
caller's, and so is their size.

**MinHash.** A document is a set of n-grams. The least value of a random permutation is
equal for two documents with a probability that is the share of n-grams that they have in
common (Broder 1997). Bands of several least values are hashed to one key, so that only
documents with many n-grams in common share a key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

# Constants of XXH64.
_P1: Final = np.uint64(11400714785074694791)
_P2: Final = np.uint64(14029467366897019727)
_P3: Final = np.uint64(1609587929392839161)
_P4: Final = np.uint64(9650029242287828579)
_P5: Final = np.uint64(2870177450012600261)
_ONE: Final = np.uint64(1)
# Numbers are uint64 throughout: numba makes a float of uint64 and int64.
_BITS: Final = np.uint64(64)
_FULL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_SPACE: Final = 32

PRIME: Final = np.uint64((1 << 61) - 1)
"""The modulus of the permutations, a Mersenne prime."""
_PRIME_BITS: Final = np.uint64(61)


@njit(cache=True, inline="always")
def _rotated(value: Any, bits: Any) -> Any:
    """Return a 64-bit number rotated to the left."""
    return (value << bits) | (value >> (_BITS - bits))


@njit(cache=True, inline="always")
def _number(data: Any, offset: Any, byte_count: Any) -> Any:
    """Return `byte_count` bytes as a little-endian number."""
    number = np.uint64(0)
    for index in range(byte_count):
        number |= np.uint64(data[offset + index]) << np.uint64(8 * index)
    return number


@njit(cache=True, inline="always")
def _round(sum_: Any, lane: Any) -> Any:
    """Return the sum of a lane after 8 more bytes, as a number."""
    return _rotated(sum_ + lane * _P2, np.uint64(31)) * _P1


@njit(cache=True, inline="always")
def _long_start(data: Any, begin: Any, end: Any) -> Any:
    """Return the state after all whole blocks of 32 bytes, and the offset of their end."""
    # Each block gives 8 bytes to each of four lanes.
    lane_1 = _P1 + _P2
    lane_2 = _P2
    lane_3 = np.uint64(0)
    lane_4 = np.uint64(0) - _P1
    offset = begin
    while offset + 32 <= end:
        lane_1 = _round(lane_1, _number(data, offset, 8))
        lane_2 = _round(lane_2, _number(data, offset + 8, 8))
        lane_3 = _round(lane_3, _number(data, offset + 16, 8))
        lane_4 = _round(lane_4, _number(data, offset + 24, 8))
        offset += 32
    # The lanes join in one state.
    state = _rotated(lane_1, _ONE) + _rotated(lane_2, np.uint64(7))
    state += _rotated(lane_3, np.uint64(12)) + _rotated(lane_4, np.uint64(18))
    for lane in (lane_1, lane_2, lane_3, lane_4):
        state = (state ^ _round(np.uint64(0), lane)) * _P1 + _P4
    return state, offset


@njit(cache=True)
def xxh64(data: Any, begin: Any, end: Any) -> Any:
    """Return XXH64 (seed 0) of the bytes from `begin` to `end`.

    The algorithm is that of xxHash's specification.
    """
    # 1. Whole blocks of 32 bytes.
    size = np.uint64(end - begin)
    state = _P5
    offset = begin
    if end - begin >= 32:
        state, offset = _long_start(data, begin, end)
    state += size
    # 2. The bytes behind them: eights, one four, and single ones.
    while offset + 8 <= end:
        lane = _round(np.uint64(0), _number(data, offset, 8))
        state = _rotated(state ^ lane, np.uint64(27)) * _P1 + _P4
        offset += 8
    if offset + 4 <= end:
        lane = _number(data, offset, 4) * _P1
        state = _rotated(state ^ lane, np.uint64(23)) * _P2 + _P3
        offset += 4
    while offset < end:
        lane = np.uint64(data[offset]) * _P5
        state = _rotated(state ^ lane, np.uint64(11)) * _P1
        offset += 1
    # 3. The avalanche: every bit of the state changes half of the others.
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


@njit(cache=True)
def hash_ngrams(
    data: Any, begin: Any, end: Any, ngram: Any, starts: Any, out: Any
) -> Any:
    """Hash every n-gram of one document's words; return how many there are.

    Args:
        data: Words with one space between each two, uint8.
        begin: Offset of the document's first byte.
        end: Offset after its last byte.
        ngram: Number of words of an n-gram.
        starts: Buffer for the offsets of the last words, int64[ngram].
        out: Buffer for the hashes, with room for one of each word, uint64.
    """
    word_count = 0
    ngram_count = 0
    word_start = begin
    # The end of the document ends its last word as a space does.
    for offset in range(begin, end + 1):
        if offset < end and data[offset] != _SPACE:
            continue
        # A word ends here. With enough words, an n-gram ends here, too. `starts` is a
        # ring: its next place holds the oldest word, with which the n-gram begins.
        if offset > word_start:
            starts[word_count % ngram] = word_start
            word_count += 1
            if word_count >= ngram:
                out[ngram_count] = xxh64(data, starts[word_count % ngram], offset)
                ngram_count += 1
        word_start = offset + 1
    return ngram_count


@njit(cache=True)
def sign(hashes: Any, count: Any, factors: Any, terms: Any, least: Any) -> Any:
    """Fill `least` (uint64[k]) with the least values of k permutations of n-grams.

    The permutations are ``(factor * hash + term) mod (2^61 - 1)``, the product being of
    64 bits.
    """
    least[:] = _FULL
    for index in range(count):
        ngram_hash = hashes[index]
        for permutation in range(len(factors)):
            mixed = ngram_hash * factors[permutation] + terms[permutation]
            # The remainder by a Mersenne prime is the sum of the low and the high bits,
            # less the prime where that is too much.
            mixed = (mixed & PRIME) + (mixed >> _PRIME_BITS)
            mixed = mixed - PRIME if mixed >= PRIME else mixed
            least[permutation] = min(least[permutation], mixed)


@njit(cache=True)
def sign_all(
    data: Any,
    ends: Any,
    ngram: Any,
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
        ngram: Number of words of an n-gram.
        factors: Factors of the permutations, uint64[bands * rows].
        terms: Terms of the permutations, uint64[bands * rows].
        rows: Number of permutations of a band.
        out: Output: a hash of each band's least values, uint64[documents, bands].
        counts: Output: number of n-grams of each document, int64[documents]. The keys
            of a document without n-grams mean nothing.
    """
    # Buffers for one document, which all documents use in turn.
    hashes = np.empty(_most_words(ends), np.uint64)
    starts = np.empty(ngram, np.int64)
    least = np.empty(len(factors), np.uint64)
    for document in range(len(ends) - 1):
        counts[document] = hash_ngrams(
            data, ends[document], ends[document + 1], ngram, starts, hashes
        )
        sign(hashes, counts[document], factors, terms, least)
        # The key of a band is the hash of the bytes of its least values.
        least_bytes = least.view(np.uint8)
        band_size = rows * 8
        for band in range(out.shape[1]):
            out[document, band] = xxh64(
                least_bytes, band * band_size, (band + 1) * band_size
            )


@njit(cache=True)
def _most_words(ends: Any) -> Any:
    """Return the largest number of words that a document can have.

    Each word takes two bytes, with its space.
    """
    longest = 0
    for document in range(len(ends) - 1):
        longest = max(longest, ends[document + 1] - ends[document])
    return longest // 2 + 2


@njit(cache=True)
def ngrams_of_all(data: Any, ends: Any, ngram: Any, out: Any, counts: Any) -> Any:
    """Hash the n-grams of all documents into `out`, and return their number.

    `counts` gets the number of each document's n-grams.
    """
    starts = np.empty(ngram, np.int64)
    hash_count = 0
    for document in range(len(ends) - 1):
        counts[document] = hash_ngrams(
            data, ends[document], ends[document + 1], ngram, starts, out[hash_count:]
        )
        hash_count += counts[document]
    return hash_count


@njit(cache=True)
def look_up(
    hashes: Any,
    counts: Any,
    known_hashes: Any,
    set_indices: Any,
    sieve: Any,
    hits: Any,
    first_set: Any,
) -> Any:
    """Count the known n-grams of each document, and find the set of the first.

    Args:
        hashes: Hashes of the n-grams of all documents, one document after the other,
            uint64.
        counts: Number of n-grams of each document, int64[documents].
        known_hashes: Hashes of the known n-grams, ascending, uint64[k].
        set_indices: Set of each known n-gram, int64[k].
        sieve: 1 where the low bits of a known hash point, uint8 of a power of two
            bytes.
        hits: Output: number of known n-grams of each document, int64[documents].
        first_set: Output: set of the first known n-gram of each document, or -1,
            int64[documents].
    """
    sieve_mask = np.uint64(len(sieve) - 1)
    hash_index = 0
    for document in range(len(counts)):
        hits[document] = 0
        first_set[document] = -1
        for _ in range(counts[document]):
            ngram_hash = hashes[hash_index]
            hash_index += 1
            # Most hashes are unknown, and the sieve rules out 15 of 16 of them without
            # a search.
            if sieve[ngram_hash & sieve_mask] == 0:
                continue
            known_index = np.searchsorted(known_hashes, ngram_hash)
            # A hash behind all known ones has no place among them.
            if known_index == len(known_hashes):
                continue
            if known_hashes[known_index] == ngram_hash:
                hits[document] += 1
                if first_set[document] < 0:
                    first_set[document] = set_indices[known_index]


@njit(cache=True)
def _root(parents: Any, item: Any) -> Any:
    """Return the root of an item's tree, and halve the path to it on the way."""
    while parents[item] != item:
        parents[item] = parents[parents[item]]
        item = parents[item]
    return item


@njit(cache=True)
def unite(parents: Any, keys: Any, items: Any) -> Any:
    """Join the sets of neighbours with equal keys.

    The root of a set is its lowest item.

    Args:
        parents: Parent of each item, changed in place, int64.
        keys: Key of each item, sorted, uint64[n].
        items: Items, int64[n].
    """
    for index in range(1, len(keys)):
        if keys[index] == keys[index - 1]:
            left_root = _root(parents, items[index - 1])
            right_root = _root(parents, items[index])
            parents[max(left_root, right_root)] = min(left_root, right_root)


@njit(cache=True)
def settle(parents: Any) -> Any:
    """Make the lowest item of each set the parent of all its items."""
    # Parents have lower numbers, so that a parent's own parent is the root by now.
    for item in range(len(parents)):
        parents[item] = parents[parents[item]]
