"""Compiled loops for words of a Unigram model: the tree of its pieces, and the search
for the best ones.

Tables are those of :mod:`tokenlake.etl.tokenizers.segment_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tokenlake.etl.tokenizers.segment_kernels import HALF, LOW, MIX, ONE, put


@njit(cache=True, inline="always")
def branch_of(branches: Any, node: Any, byte: Any) -> Any:
    """Return the slot of a node's branch in a table of branches, or of where it
    would be.
    """
    key = np.uint64(node) << np.uint64(8) | np.uint64(byte)
    mask = np.uint64(len(branches) - 1)
    at = ((key * MIX) >> HALF) & mask
    while branches[at, 1] != 0 and branches[at, 0] != key:
        at = (at + ONE) & mask
    return at


@njit(cache=True)
def add_pieces(branches: Any, data: Any, offsets: Any, ends: Any) -> Any:
    """Put the pieces of a vocabulary (uint8[total], int64[n + 1]), in the order of
    their ids, into a tree.

    Args:
        branches: uint64[capacity, 2], empty, with room for twice as many branches as
            there are bytes.
        ends: int32[total + 1], all -1; gets the id of the piece that ends at each node;
            the root is node 0.
    """
    nodes = 1
    for piece in range(len(offsets) - 1):
        node = 0
        for i in range(offsets[piece], offsets[piece + 1]):
            at = branch_of(branches, node, data[i])
            if branches[at, 1] == 0:
                branches[at, 0] = np.uint64(node) << np.uint64(8) | np.uint64(data[i])
                branches[at, 1] = np.uint64(nodes)
                nodes += 1
            node = np.int64(branches[at, 1])
        if node > 0:
            ends[node] = piece


@njit(cache=True)
def search_new(
    table: Any,
    new: Any,
    keys: Any,
    kept: Any,
    used: Any,
    branches: Any,
    ends: Any,
    scores: Any,
    unknown: Any,
    plain: Any,
    prefix: Any,
    word: Any,
    totals: Any,
    steps: Any,
) -> Any:
    """Give new segments of a space and plain characters the ids of the pieces with the
    largest sum of scores.

    Unigram's search as `tokenizers` does it: sums from the left, the first of equal
    ones wins. A segment that holds anything else, is too long, or has a character that
    no piece spells, gets none.

    Args:
        scores: float64[pieces + 1], the last one that of a character without a piece.
        unknown: the id for these, -1 for none.
        plain: uint8[256], 1 for bytes that are characters which normalizing leaves
            alone, 2 for what becomes a space.
        prefix: uint8[k], what stands for the space.
        word, totals, steps: uint8[n], float64[n + 1], int32[n + 1, 2], room for a word
            of n bytes.

    Returns:
        How much of `kept` is used now.
    """
    none = len(scores) - 1
    for slot in new:
        start, size = np.int64(table[slot, 2]), np.int64(table[slot, 1] & LOW)
        n = len(prefix) + size - 1
        good = size > 1 and n <= len(word) and plain[keys[start]] == 2
        for i in range(1, size):
            good = good and plain[keys[start + i]] == 1
        if not good:
            continue
        word[: len(prefix)] = prefix
        word[len(prefix) : n] = keys[start + 1 : start + size]
        steps[: n + 1, 0] = -1
        totals[0] = 0.0
        at = 0
        while at < n:
            width = len(prefix) if at < len(prefix) else 1
            single, node, end = False, 0, at
            while end < n:
                node = np.int64(branches[branch_of(branches, node, word[end]), 1])
                if node == 0:
                    break
                end += 1
                if ends[node] >= 0:
                    total = scores[ends[node]] + totals[at]
                    if steps[end, 0] < 0 or total > totals[end]:
                        totals[end], steps[end, 0], steps[end, 1] = (
                            total,
                            at,
                            ends[node],
                        )
                    single = single or end - at == width
            end = at + width
            if not single:
                total = scores[none] + totals[at]
                if steps[end, 0] < 0 or total > totals[end]:
                    totals[end], steps[end, 0], steps[end, 1] = total, at, none
            at = end
        count, at = 0, n
        while at > 0 and steps[at, 1] != none and steps[at, 1] != unknown:
            count, at = count + 1, np.int64(steps[at, 0])
        if at > 0:
            continue
        at = n
        for k in range(count):
            kept[used + count - 1 - k] = steps[at, 1]
            at = np.int64(steps[at, 0])
        used = put(table, slot, kept, used, count)
    return used
