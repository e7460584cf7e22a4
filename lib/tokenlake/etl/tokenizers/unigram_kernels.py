"""Compiled loops for words of a Unigram model: the tree of its pieces, and the search.

The search finds the pieces that spell a word with the largest sum of scores. For every
byte offset it keeps the largest sum until there, and the last piece of it:

1. totals[0] = 0. For each character start, from the left, follow the tree through the
   bytes that come next. At each node where a piece ends:
   totals[end] = max(totals[end], totals[start] + score of the piece).
2. A character that no piece spells alone counts as a piece with the lowest score less
   10.
3. The pieces of the word are read from its end backwards.

Example: the pieces a (-1), b (-1), ab (-1.5) spell "ab" as a b with -2, or as ab with
-1.5, which is chosen.

The tree is a table of branches: uint64[capacity, 2], open addressing, of the node above
bit 8 and the byte, and of the next node. Segments lie in the tables of
:mod:`tokenlake.etl.tokenizers.segment_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tokenlake.etl.tokenizers.segment_kernels import HALF, LOW, MIX, ONE, put


@njit(cache=True, inline="always")
def branch_of(branches: Any, node: Any, byte: Any) -> Any:
    """Return the slot of a node's branch for a byte, or the free one it would get."""
    key = np.uint64(node) << np.uint64(8) | np.uint64(byte)
    mask = np.uint64(len(branches) - 1)
    slot = ((key * MIX) >> HALF) & mask
    while branches[slot, 1] != 0 and branches[slot, 0] != key:
        slot = (slot + ONE) & mask
    return slot


@njit(cache=True)
def add_pieces(
    branches: Any, piece_bytes: Any, offsets: Any, pieces_of_nodes: Any
) -> Any:
    """Put the pieces of a vocabulary into a tree.

    Args:
        branches: uint64[capacity, 2], empty. The capacity is at least twice the number
            of bytes.
        piece_bytes, offsets: uint8[total] and int64[n + 1], the pieces in the order of
            their ids.
        pieces_of_nodes: int32[total + 1], all -1. Gets the id of the piece that ends at
            each node. The root is node 0.
    """
    node_count = 1
    for piece in range(len(offsets) - 1):
        node = 0
        for byte_offset in range(offsets[piece], offsets[piece + 1]):
            slot = branch_of(branches, node, piece_bytes[byte_offset])
            if branches[slot, 1] == 0:
                byte = np.uint64(piece_bytes[byte_offset])
                branches[slot, 0] = np.uint64(node) << np.uint64(8) | byte
                branches[slot, 1] = np.uint64(node_count)
                node_count += 1
            node = np.int64(branches[slot, 1])
        # An empty piece ends at the root, where no word has a piece.
        if node > 0:
            pieces_of_nodes[node] = piece


@njit(cache=True)
def _search(
    word_bytes: Any,
    word_size: Any,
    prefix_size: Any,
    branches: Any,
    pieces_of_nodes: Any,
    scores: Any,
    best_totals: Any,
    best_steps: Any,
) -> None:
    """Find the best sum of scores until each byte of a word, and its last piece.

    Args:
        word_bytes, word_size: Word, and its number of bytes.
        prefix_size: Number of bytes of the prefix, which is one character.
        branches, pieces_of_nodes, scores: Tree and scores of :func:`search_new`.
        best_totals: float64[n + 1], gets the best sum until each byte.
        best_steps: int32[n + 1, 2], gets the start of the last piece and its id; the
            start is -1 for bytes that no piece ends at.
    """
    no_piece = len(scores) - 1
    best_steps[: word_size + 1, 0] = -1
    best_totals[0] = 0.0
    offset = 0
    while offset < word_size:
        # The prefix is one character of several bytes; all others are ASCII.
        character_width = 1
        if offset < prefix_size:
            character_width = prefix_size
        has_single = False
        node = 0
        piece_end = offset
        while piece_end < word_size:
            branch = branch_of(branches, node, word_bytes[piece_end])
            node = np.int64(branches[branch, 1])
            if node == 0:
                break
            piece_end += 1
            piece = pieces_of_nodes[node]
            if piece >= 0:
                score_sum = scores[piece] + best_totals[offset]
                if best_steps[piece_end, 0] < 0 or score_sum > best_totals[piece_end]:
                    best_totals[piece_end] = score_sum
                    best_steps[piece_end, 0] = offset
                    best_steps[piece_end, 1] = piece
                has_single = has_single or piece_end - offset == character_width
        # No piece is the character alone: it may be skipped for the lowest score.
        piece_end = offset + character_width
        if not has_single:
            score_sum = scores[no_piece] + best_totals[offset]
            if best_steps[piece_end, 0] < 0 or score_sum > best_totals[piece_end]:
                best_totals[piece_end] = score_sum
                best_steps[piece_end, 0] = offset
                best_steps[piece_end, 1] = no_piece
        offset = piece_end


@njit(cache=True)
def search_new(
    table: Any,
    new: Any,
    keys: Any,
    pool: Any,
    used: Any,
    branches: Any,
    pieces_of_nodes: Any,
    scores: Any,
    unknown_id: Any,
    byte_kinds: Any,
    prefix: Any,
    word_bytes: Any,
    best_totals: Any,
    best_steps: Any,
) -> Any:
    """Encode new segments of a space and plain characters by the search.

    As `tokenizers` does it: sums are added from the left, and of equal sums the first
    one wins. A segment gets no ids if it holds other characters, is too long, or has a
    character that no piece spells. The caller encodes it by the reference.

    Args:
        table, new, keys: Table, slots of its new segments and their bytes.
        pool: int32, with room for an id per byte of the segments.
        used: Number of entries of `pool` in use.
        branches, pieces_of_nodes: Tree from :func:`add_pieces`.
        scores: float64[pieces + 1], the last one that of a character without a piece.
        unknown_id: Id of a character without a piece, -1 for none.
        byte_kinds: uint8[256], 1 for characters that normalizing does not change, 2 for
            characters that become a space, 0 for all others.
        prefix: uint8[k], bytes that replace the space.
        word_bytes, best_totals, best_steps: uint8[n], float64[n + 1], int32[n + 1, 2],
            room for a word of n bytes. A step is the start of a piece and its id.

    Returns:
        The number of entries of `pool` in use now.
    """
    no_piece = len(scores) - 1
    for slot in new:
        segment_start = np.int64(table[slot, 2])
        segment_size = np.int64(table[slot, 1] & LOW)
        word_size = len(prefix) + segment_size - 1

        # 1. A segment is searched if it is a space and plain characters.
        has_room = word_size <= len(word_bytes)
        is_searched = (
            segment_size > 1 and has_room and byte_kinds[keys[segment_start]] == 2
        )
        for byte_index in range(1, segment_size):
            is_searched = (
                is_searched and byte_kinds[keys[segment_start + byte_index]] == 1
            )
        if not is_searched:
            continue
        word_bytes[: len(prefix)] = prefix
        word_bytes[len(prefix) : word_size] = keys[
            segment_start + 1 : segment_start + segment_size
        ]

        # 2. Find the best sum until each byte, and the last piece of it.
        _search(
            word_bytes,
            word_size,
            len(prefix),
            branches,
            pieces_of_nodes,
            scores,
            best_totals,
            best_steps,
        )

        # 3. Count the pieces from the end. The walk stops where a character is unknown.
        piece_count = 0
        offset = word_size
        while offset > 0:
            piece = best_steps[offset, 1]
            if piece in (no_piece, unknown_id):
                break
            piece_count += 1
            offset = np.int64(best_steps[offset, 0])
        if offset > 0:
            continue

        # 4. Write them, the last one first.
        offset = word_size
        for piece_index in range(piece_count):
            pool[used + piece_count - 1 - piece_index] = best_steps[offset, 1]
            offset = np.int64(best_steps[offset, 0])
        used = put(table, slot, pool, used, piece_count)
    return used
