"""Compiled loops of the cached words: split texts, look words up, write their ids.

numba compiles them once for each machine and keeps the result on disk. Arrays are the
caller's; nothing is allocated here. Texts lie end to end in one uint8 array with at
least eight more bytes behind the last of them, because eight are read at once.

**Pieces and cuts.** Parts of the text that follow each other without a gap are given by
their edges: part k lies at ``edges[k]:edges[k + 1]``. Splitting turns the edges of n
parts into the edges of more parts. `counts` (int64[n + 1]) has the number of these up
to the end of each part; its first entry is 0.

Example: the parts "ab c" and "d" have the edges 0, 4, 5. Split before spaces, their
pieces "ab", " c" and "d" have the edges (cuts) 0, 2, 4, 5, and the counts are 0, 2, 3.

**A table of words** is uint64[capacity, 2] with open addressing and linear probing. A
record has 16 bytes:

- the key: the word itself where it has at most eight bytes, else its hash;
- bits 0 to 15 the word's size in bytes, 0 where the slot is free; bits 16 to 31 the
  number of its ids; bits 32 to 63 its offset in the pool.

The pool (int32) holds the bytes of a word of more than eight bytes, and behind them its
ids. The ids of a shorter word lie there alone; where it has just one, the record holds
the id itself in the place of the offset. While the ids of a new word are not known, the
number of ids is :data:`PENDING`, and the offset is the word's number among the new
ones.

**Results** of the look-up are uint64: bits 0 to 31 the number of ids, bits 32 to 63
their offset in the pool, or the only id.

A record of 16 bytes, and not an array per field, is what makes the look-up fast: a word
costs one access to memory that the processor's cache does not hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tokenlake.etl.tokenizers.kernel_constants import FILTER_WORDS
from tokenlake.etl.tokenizers.segment_kernels import (
    HALF,
    LOW,
    MIX,
    ONE,
    code_point,
    equal,
    hash_of,
    load,
    short_hash,
    write_characters,
)
from tokenlake.etl.tokenizers.unigram_kernels import branch_of
from tokenlake.etl.tokenizers.words.automaton import (
    BEGIN,
    CUT,
    MATCH,
    STATE_SHIFT,
    STOP,
    UNMATCHED,
)

LONGEST = 4096
"""Bytes of the longest word that a table holds. It has at most as many ids, so that
their number stays below :data:`PENDING`.
"""
PENDING = 0xFFFF
"""Number of ids in the record of a word whose ids are not known yet."""
# Bytes of the longest word that is its own key.
_SHORT_BYTES = 8

# numba promotes uint64 with int64 to float64. So all constants that meet a uint64 are
# uint64 themselves.
_SHORT = np.uint64(_SHORT_BYTES)
_ASCII_BITS = np.uint64(7)
_ASCII = np.uint64(128)
_NO_MARK = -1
_FIELD = np.uint64(0xFFFF)
_QUARTER = np.uint64(16)
_PENDING_IDS = np.uint64(0xFFFFFFFF)
_PENDING_RECORD = np.uint64(PENDING << 16)
_UNSURE = 255
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BITS = np.uint64(64)
_BYTE = np.uint64(8)
_WORD = np.uint64(6)
_WITHIN = np.uint64(63)
# The upper bits of a hash, as many as number the bits of the filter.
_FILTER_SHIFT = np.uint64(64 - (64 * FILTER_WORDS - 1).bit_length())
# Number of words whose records are fetched before they are read.
_AHEAD = 32
_RECORD_ENTRIES = 2
# Larger than the entry of any merge, whose rank is below 2^30.
_NO_RANK = np.int64(1) << 62


@njit(cache=True)
def _match_end(
    text_bytes: Any,
    byte_offset: Any,
    part_end: Any,
    by_symbol: Any,
    symbol_of: Any,
    symbols: Any,
    at_end: Any,
) -> Any:
    """Return the end of the match that begins at a byte, that byte for no match."""
    state = np.int64(BEGIN)
    match_end = byte_offset
    while byte_offset < part_end:
        point, width = code_point(text_bytes, byte_offset, _NO_MARK)
        entry = np.int64(by_symbol[state * symbols + np.int64(symbol_of[point])])
        if entry & STOP:
            return match_end
        if entry & CUT:
            return byte_offset
        if entry & MATCH:
            match_end = byte_offset
        state = entry >> STATE_SHIFT
        if state == UNMATCHED:
            return match_end
        byte_offset += width
    # The text ends: the state decides whether a match ends there.
    if at_end[state]:
        return part_end
    return match_end


@njit(cache=True, nogil=True)
def split(
    text_bytes: Any,
    edges: Any,
    part: Any,
    byte_offset: Any,
    limit: Any,
    by_byte: Any,
    by_symbol: Any,
    symbol_of: Any,
    symbols: Any,
    at_end: Any,
    quiet: Any,
    cuts: Any,
    counts: Any,
) -> Any:
    """Split parts of a text where the matches of an expression begin and end.

    A block is split at a call. It ends with the last cut before its limit, because a
    piece that reaches over the limit may become longer.

    Args:
        text_bytes: uint8, the texts.
        edges: int64[n + 1], the parts.
        part, byte_offset: The part and byte to begin at.
        limit: Size of the block in bytes. The block is longer if it holds no cut.
        by_byte, by_symbol, symbol_of, symbols, at_end, quiet: Tables of a
            :class:`Splitter`.
        cuts: int64, gets the edges of the pieces. It has two entries more than twice
            the limit, or than the bytes of all parts.
        counts: int64[n + 1], gets the number of pieces up to the end of each finished
            part.

    Returns:
        The first part that is not finished, the byte at which the next call begins, and
        the number of pieces.
    """
    cut_count = 0
    block_size = limit
    limit = byte_offset + block_size
    while part < len(edges) - 1:
        part_end = edges[part + 1]
        if byte_offset >= part_end:
            counts[part + 1] = cut_count
            part += 1
            continue
        if byte_offset >= limit:
            break
        # A part, and the rest of one after a block, begins with a cut.
        next_byte = byte_offset
        cuts[cut_count] = next_byte
        cut_count += 1
        state = np.int64(BEGIN)
        # End of the last match, which a longer one may replace.
        match_end = next_byte
        bound = min(part_end, limit)
        while True:
            # 1. Follow the table; a cut is written always and counted where it is one,
            #    without a branch.
            is_stopped = False
            while next_byte < bound:
                # Outside of matches most bytes only lead to the next one.
                if state == UNMATCHED:
                    while (
                        next_byte < bound
                        and quiet[text_bytes[np.uint64(next_byte)]] != 0
                    ):
                        next_byte += 1
                    if next_byte >= bound:
                        break
                byte = np.uint64(text_bytes[np.uint64(next_byte)])
                if byte < _ASCII:
                    entry = np.int64(by_byte[np.uint64(state) << _ASCII_BITS | byte])
                    width = 1
                else:
                    point, width = code_point(text_bytes, next_byte, _NO_MARK)
                    symbol = np.int64(symbol_of[np.uint64(point)])
                    entry = np.int64(by_symbol[np.uint64(state * symbols + symbol)])
                if entry & STOP:
                    is_stopped = True
                    break
                cuts[np.uint64(cut_count)] = next_byte
                cut_count += entry & CUT
                if entry & MATCH:
                    match_end = next_byte
                state = entry >> STATE_SHIFT
                next_byte += width
            if not is_stopped:
                if next_byte >= part_end:
                    # The part ends. It is done unless a match is open that does not
                    # end here; state 0 is the beginning of a piece.
                    is_outside = state <= UNMATCHED
                    if is_outside or at_end[state]:
                        break
                else:
                    # 2. The limit: give the last piece back, or extend the block where
                    #    it is the only one.
                    if cuts[cut_count - 1] > byte_offset:
                        cut_count -= 1
                        return part, cuts[cut_count], cut_count
                    bound = min(part_end, bound + block_size)
                    continue
            # 3. No match ends here.
            piece_start = cuts[cut_count - 1]
            if state == UNMATCHED:
                # 3a. Outside of matches: a match may begin here, but it is not certain.
                longest_end = _match_end(
                    text_bytes,
                    next_byte,
                    part_end,
                    by_symbol,
                    symbol_of,
                    symbols,
                    at_end,
                )
                if longest_end == next_byte:
                    _, width = code_point(text_bytes, next_byte, _NO_MARK)
                    next_byte += width
                    continue
                cuts[cut_count] = next_byte
                cut_count += 1
                next_byte = longest_end
                state = np.int64(BEGIN)
                if longest_end < part_end:
                    cuts[cut_count] = longest_end
                    cut_count += 1
            elif match_end > piece_start:
                # 3b. An earlier match ended in this piece: it is read again from there.
                cuts[cut_count] = match_end
                cut_count += 1
                next_byte = match_end
                state = np.int64(BEGIN)
            else:
                # 3c. No match begins at this piece: its first character is outside.
                _, width = code_point(text_bytes, piece_start, _NO_MARK)
                next_byte = piece_start + width
                state = np.int64(UNMATCHED)
            match_end = next_byte
        byte_offset = part_end
        counts[part + 1] = cut_count
        part += 1
    cuts[cut_count] = byte_offset
    return part, byte_offset, cut_count


def _prefetching(_context: Any, table: Any, slot: Any) -> Any:
    """Ask the processor to load a record of a table, which will be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = context.make_array(signature.args[0])(context, builder, args[0]).data
        # llvm.prefetch(address, 0 for a read, 3 to keep it in all caches, 1 for data).
        entry = builder.mul(args[1], ir.Constant(ir.IntType(64), _RECORD_ENTRIES))
        record_address = builder.gep(address, [entry])
        int32_type = ir.IntType(32)
        function_type = ir.FunctionType(
            ir.VoidType(), [record_address.type, int32_type, int32_type, int32_type]
        )
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [record_address.type], function_type
        )
        is_write, locality, is_data = (
            ir.Constant(int32_type, value) for value in (0, 3, 1)
        )
        builder.call(prefetch, [record_address, is_write, locality, is_data])
        return context.get_dummy_value()

    return types.void(table, types.intp), codegen


_prefetch: Any = intrinsic(_prefetching)


@njit(cache=True)
def _long_slot(
    text_bytes: Any,
    start: Any,
    size: Any,
    key: Any,
    table: Any,
    pool: Any,
    cuts: Any,
    new: Any,
) -> Any:
    """Return the slot of a word of more than eight bytes, and its record.

    If the table lacks the word, they are the free slot that it would get, and 0.
    """
    mask = np.uint64(len(table) - 1)
    slot = key & mask
    while True:
        record = table[slot, 1]
        if record == 0:
            return slot, record
        if table[slot, 0] == key and (record & _FIELD) == size:
            # The bytes of a pending word are not in the pool yet, but in the text.
            offset = record >> HALF
            if (record >> _QUARTER) & _FIELD == np.uint64(PENDING):
                if equal(
                    text_bytes, np.uint64(cuts[new[offset]]), text_bytes, start, size
                ):
                    return slot, record
            elif equal(pool, offset << np.uint64(2), text_bytes, start, size):
                return slot, record
        slot = (slot + ONE) & mask


@njit(cache=True, nogil=True)
def look_up(
    text_bytes: Any,
    cuts: Any,
    word: Any,
    word_count: Any,
    table: Any,
    free_words: Any,
    pool: Any,
    ids: Any,
    results: Any,
    new: Any,
    new_count: Any,
) -> Any:
    """Find words in the table, and put new words into it.

    Args:
        text_bytes, cuts, word_count: Words from :func:`split`.
        word: Number of the first word to find.
        table: uint64[capacity, 2]. The capacity is a power of two.
        free_words: Number of words that the table may still take.
        pool, ids: Pool as uint8 and as int32.
        results: uint64[word_count], gets the number and place of each word's ids.
        new: int64[word_count], gets the numbers of the new words, from `new_count` on.
        new_count: Number of new words of the block before this call.

    Returns:
        The word at which the next call begins (`word_count` unless the table is full),
        and the number of new words.
    """
    added_words = 0
    mask = np.uint64(len(table) - 1)
    hashed_end = word
    for number in range(word, word_count):
        # 0. Hash some words ahead and prefetch their records. The hashes wait in the
        #    entries of the results.
        if number == hashed_end:
            hashed_end = min(word_count, number + _AHEAD)
            for ahead in range(number, hashed_end):
                start = np.uint64(cuts[ahead])
                size = np.uint64(cuts[ahead + 1]) - start
                hashed = np.uint64(0)
                if size <= np.uint64(LONGEST):
                    _, hashed = hash_of(text_bytes, start, size)
                    _prefetch(table, hashed & mask)
                results[ahead] = hashed
        start = np.uint64(cuts[number])
        size = np.uint64(cuts[number + 1]) - start

        # 1. A short word: its key is the word itself.
        if size <= _SHORT:
            key = load(text_bytes, start) & (_ALL >> (_BITS - _BYTE * size))
            slot = results[number] & mask
            record = table[slot, 1]
            while record != 0 and (table[slot, 0] != key or (record & _FIELD) != size):
                slot = (slot + ONE) & mask
                record = table[slot, 1]
            count = (record >> _QUARTER) & _FIELD
            offset = record >> HALF
        # 2. A long one: equal hashes are not enough.
        elif size <= np.uint64(LONGEST):
            key = results[number]
            slot, record = _long_slot(
                text_bytes, start, size, key, table, pool, cuts, new
            )
            count = (record >> _QUARTER) & _FIELD
            offset = record >> HALF
            # The ids lie behind the bytes, which fill whole entries of the pool.
            if record != 0 and count != np.uint64(PENDING):
                offset += (size + np.uint64(3)) >> np.uint64(2)
                if count == ONE:
                    offset = np.uint64(ids[offset])
        # 3. A word that is too long for the table: it is new whenever it comes.
        else:
            results[number] = np.uint64(new_count) << HALF | _PENDING_IDS
            new[new_count] = number
            new_count += 1
            continue
        if record != 0:
            if count == np.uint64(PENDING):
                count = _PENDING_IDS
            results[number] = offset << HALF | count
            continue

        # 4. A new word. When the table is full, the caller enlarges it and calls again.
        if added_words >= free_words:
            return number, new_count
        added_words += 1
        table[slot, 0] = key
        table[slot, 1] = np.uint64(new_count) << HALF | _PENDING_RECORD | size
        results[number] = np.uint64(new_count) << HALF | _PENDING_IDS
        new[new_count] = number
        new_count += 1
    return word_count, new_count


@njit(cache=True, nogil=True)
def add_words(
    text_bytes: Any,
    cuts: Any,
    new: Any,
    new_count: Any,
    offsets: Any,
    new_ids: Any,
    table: Any,
    pool: Any,
    ids: Any,
    used: Any,
    new_results: Any,
) -> Any:
    """Give new words their ids.

    Args:
        text_bytes, cuts, new, new_count: Words from :func:`look_up`.
        offsets, new_ids: int64[new_count + 1] and int32[total], ids of the new words.
        table, pool, ids: Table and pool of :func:`look_up`. The pool has room for the
            words and their ids.
        used: Number of entries of the pool in use.
        new_results: uint64[new_count], gets the number and place of each new word's
            ids.

    Returns:
        The number of entries of the pool in use now.
    """
    mask = np.uint64(len(table) - 1)
    for new_number in range(new_count):
        # 1. Write the bytes of a long word, then the ids.
        start = cuts[new[new_number]]
        size = cuts[new[new_number] + 1] - start
        first_id = offsets[new_number]
        id_count = offsets[new_number + 1] - first_id
        word_offset = used
        if size > _SHORT_BYTES and size <= LONGEST:
            for byte_index in range(size):
                pool[used * 4 + byte_index] = text_bytes[start + byte_index]
            used += (size + 3) >> 2
        id_place = np.uint64(used)
        if id_count == 1:
            id_place = np.uint64(new_ids[first_id])
        if id_count != 1 or size > _SHORT_BYTES:
            for id_index in range(id_count):
                ids[used + id_index] = new_ids[first_id + id_index]
            used += id_count
        new_results[new_number] = id_place << HALF | np.uint64(id_count)
        if size > LONGEST:
            continue

        # 2. Find the word's record, which still holds its number among the new words,
        #    and complete it.
        width = np.uint64(size)
        if size <= _SHORT_BYTES:
            key = load(text_bytes, start) & (_ALL >> (_BITS - _BYTE * width))
            hashed = short_hash(key, width)
        else:
            id_place = np.uint64(word_offset)
            key, hashed = hash_of(text_bytes, np.uint64(start), width)
        slot = hashed & mask
        pending = np.uint64(new_number) << HALF | _PENDING_RECORD | width
        while table[slot, 1] != pending or table[slot, 0] != key:
            slot = (slot + ONE) & mask
        table[slot, 1] = id_place << HALF | np.uint64(id_count) << _QUARTER | width
    return used


@njit(cache=True)
def move_words(old_table: Any, table: Any) -> None:
    """Put the words of a table into a larger one, which is empty."""
    mask = len(table) - 1
    for slot in range(len(old_table)):
        record = old_table[slot, 1]
        if record == 0:
            continue
        # The key of a short word is the word, that of a longer one its hash.
        hashed = old_table[slot, 0]
        size = np.int64(record & _FIELD)
        if size <= _SHORT_BYTES:
            hashed = short_hash(hashed, size)
        free_slot = np.int64(hashed & np.uint64(mask))
        while table[free_slot, 1] != 0:
            free_slot = (free_slot + 1) & mask
        table[free_slot] = old_table[slot]


@njit(cache=True, nogil=True)
def settle(results: Any, word_count: Any, new_results: Any) -> Any:
    """Replace the numbers of new words in results, and return the number of all ids.

    Args:
        results: uint64[word_count] from :func:`look_up`.
        word_count: Number of words.
        new_results: uint64[new words] from :func:`add_words`.
    """
    total = 0
    for word in range(word_count):
        if results[word] & LOW == _PENDING_IDS:
            results[word] = new_results[np.int64(results[word] >> HALF)]
        total += np.int64(results[word] & LOW)
    return total


@njit(cache=True, nogil=True)
def write_ids(
    results: Any,
    word_count: Any,
    pool: Any,
    part: Any,
    end_part: Any,
    counts: Any,
    ids: Any,
    write_offset: Any,
    offsets: Any,
) -> Any:
    """Write the ids of words to `ids`, and return the offset of their end.

    Args:
        results: uint64[word_count] from :func:`settle`.
        word_count: Number of words.
        pool: int32, the ids of words with more than one.
        part, end_part: First part of the words, and the first that is not finished.
        counts: int64, the number of words up to the end of each of these parts.
        ids: int32, with room for all ids.
        write_offset: Offset of the first id in `ids`.
        offsets: int64, gets the end of the ids of each finished part.
    """
    word = 0
    while True:
        # The words of one part, or those of the part that is not finished.
        end_word = word_count
        if part < end_part:
            end_word = counts[part + 1]
        while word < end_word:
            id_count = np.int64(results[word] & LOW)
            pool_offset = np.int64(results[word] >> HALF)
            if id_count == 1:
                ids[write_offset] = pool_offset
            else:
                for id_index in range(id_count):
                    ids[write_offset + id_index] = pool[pool_offset + id_index]
            write_offset += id_count
            word += 1
        if part >= end_part:
            return write_offset
        part += 1
        offsets[part] = write_offset


@njit(cache=True, nogil=True)
def find_unsure(
    text_bytes: Any, edges: Any, combining_classes: Any, unsure: Any
) -> None:
    """Find texts that may not be normalized.

    The quick check of Unicode Standard Annex 15: a text is normalized if no code point
    may change, and the combining classes of marks that follow each other ascend.

    Args:
        text_bytes, edges: uint8 and int64[n + 1], the texts.
        combining_classes: uint8[0x110000], the canonical combining class of each code
            point, 255 for code points that may change.
        unsure: uint8[n], gets 1 for each text that may not be normalized.
    """
    for text_index in range(len(edges) - 1):
        byte_offset = edges[text_index]
        text_end = edges[text_index + 1]
        previous_class = 0
        while byte_offset < text_end:
            # Eight ASCII characters at a time: none has its highest bit set. ASCII
            # never changes.
            if (
                byte_offset + 8 <= text_end
                and load(text_bytes, byte_offset) & np.uint64(0x8080808080808080) == 0
            ):
                byte_offset += 8
                previous_class = 0
                continue
            point, width = code_point(text_bytes, byte_offset, _NO_MARK)
            byte_offset += width
            combining_class = np.int64(combining_classes[point])
            if combining_class == _UNSURE or (
                combining_class != 0 and combining_class < previous_class
            ):
                unsure[text_index] = 1
                break
            previous_class = combining_class


@njit(cache=True, nogil=True)
def find_added(
    text_bytes: Any,
    begins: Any,
    ends: Any,
    first_bytes: Any,
    branches: Any,
    tokens_of_nodes: Any,
    skipped: Any,
    places: Any,
    parts: Any,
    tokens: Any,
) -> Any:
    """Find added tokens in parts of texts.

    The leftmost token wins, of several that begin at one byte the longest, and no token
    lies inside another one.

    Args:
        text_bytes: uint8, the texts.
        begins, ends: int64[n], byte offsets of the parts.
        first_bytes: uint8[256], 1 for each byte that a token begins with.
        branches, tokens_of_nodes: Tree of the tokens, see
            :func:`tokenlake.etl.tokenizers.unigram_kernels.add_pieces`.
        skipped: uint8[k], 1 for tokens that are plain text. Others are not found inside
            them.
        places, parts, tokens: int64, get the byte offset, the part and the number of
            each token.

    Returns:
        The number of tokens. If they do not fit into the arrays, it is larger than
        these, which hold the first ones.
    """
    token_count = 0
    capacity = len(places)
    for part in range(len(begins)):
        byte_offset = begins[part]
        part_end = ends[part]
        while byte_offset < part_end:
            if first_bytes[text_bytes[byte_offset]] == 0:
                byte_offset += 1
                continue
            # Follow the tree: the last node with a token gives the longest one.
            token = -1
            token_end = byte_offset + 1
            node = 0
            next_byte = byte_offset
            while next_byte < part_end:
                node = np.int64(
                    branches[branch_of(branches, node, text_bytes[next_byte]), 1]
                )
                if node == 0:
                    break
                next_byte += 1
                if tokens_of_nodes[node] >= 0:
                    token = tokens_of_nodes[node]
                    token_end = next_byte
            if token >= 0 and skipped[token] == 0:
                if token_count < capacity:
                    places[token_count] = byte_offset
                    parts[token_count] = part
                    tokens[token_count] = token
                token_count += 1
            byte_offset = token_end
    return token_count


@njit(cache=True)
def add_whole_words(word_bytes: Any, edges: Any, slots: Any) -> None:
    """Put the numbers of words into a table.

    Args:
        word_bytes, edges: uint8 and int64[n + 1], the words, with eight more bytes
            behind the last one.
        slots: int32[capacity], zeros. Gets the numbers of the words plus one, because 0
            marks a free slot. The capacity is a power of two.
    """
    mask = np.uint64(len(slots) - 1)
    for word in range(len(edges) - 1):
        _, hashed = hash_of(word_bytes, edges[word], edges[word + 1] - edges[word])
        slot = hashed & mask
        while slots[slot] != 0:
            slot = (slot + ONE) & mask
        slots[slot] = word + 1


@njit(cache=True)
def _whole_word(
    text_bytes: Any, start: Any, size: Any, word_bytes: Any, edges: Any, slots: Any
) -> Any:
    """Return the number of a word in a table of whole words, -1 for none."""
    mask = np.uint64(len(slots) - 1)
    _, hashed = hash_of(text_bytes, start, size)
    slot = hashed & mask
    while slots[slot] != 0:
        word = slots[slot] - 1
        word_start = edges[word]
        if edges[word + 1] - word_start == size:
            equal_bytes = 0
            while (
                equal_bytes < size
                and word_bytes[word_start + equal_bytes]
                == text_bytes[start + equal_bytes]
            ):
                equal_bytes += 1
            if equal_bytes == size:
                return word
        slot = (slot + ONE) & mask
    return -1


@njit(cache=True, inline="always")
def _merge_hash(left: Any, right: Any) -> Any:
    """Return the key of a pair of ids and its hash."""
    pair_key = np.uint64(left) << HALF | np.uint64(right)
    return pair_key, pair_key * MIX


@njit(cache=True)
def add_merges(
    merges: Any, bits: Any, left_ids: Any, right_ids: Any, merged_ids: Any
) -> None:
    """Put the merges of a tokenizer into a table.

    Args:
        merges: uint64[capacity, 2], zeros: a merge table as in
            :mod:`tokenlake.etl.tokenizers.segment_kernels`.
        bits: uint64[:data:`FILTER_WORDS`], zeros; gets a bit for each pair. Most pairs
            in a text have no merge. The bits, which stay in the processor's cache, rule
            them out without a look into the table.
        left_ids, right_ids, merged_ids: int32[n], the pairs and the ids that they
            become, in the order of their ranks.
    """
    mask = np.uint64(len(merges) - 1)
    for rank in range(len(left_ids)):
        pair_key, mixed = _merge_hash(left_ids[rank], right_ids[rank])
        bit = mixed >> _FILTER_SHIFT
        bits[bit >> _WORD] |= ONE << (bit & _WITHIN)
        slot = (mixed >> HALF) & mask
        while merges[slot, 1] != 0 and merges[slot, 0] != pair_key:
            slot = (slot + ONE) & mask
        merges[slot, 0] = pair_key
        merges[slot, 1] = np.uint64(rank + 1) << HALF | np.uint64(merged_ids[rank])


@njit(cache=True, inline="always")
def _rank_of(merges: Any, bits: Any, left: Any, right: Any) -> Any:
    """Return the merge table's entry of two ids, `_NO_RANK` if nothing merges them."""
    pair_key, mixed = _merge_hash(left, right)
    bit = mixed >> _FILTER_SHIFT
    if (bits[bit >> _WORD] >> (bit & _WITHIN)) & ONE == 0:
        return _NO_RANK
    mask = np.uint64(len(merges) - 1)
    slot = (mixed >> HALF) & mask
    while merges[slot, 1] != 0 and merges[slot, 0] != pair_key:
        slot = (slot + ONE) & mask
    entry = merges[slot, 1]
    if entry == 0:
        return _NO_RANK
    return np.int64(entry)


@njit(cache=True)
def fill_byte_pairs(merges: Any, bits: Any, byte_ids: Any, byte_pairs: Any) -> None:
    """Fill `byte_pairs` (int64[65536]) with the entry of each pair of bytes.

    The first look-ups of a word then need no hash.
    """
    for left_byte in range(256):
        for right_byte in range(256):
            byte_pairs[left_byte << 8 | right_byte] = _rank_of(
                merges, bits, byte_ids[left_byte], byte_ids[right_byte]
            )


@njit(cache=True)
def _merge(
    text_bytes: Any,
    start: Any,
    stop: Any,
    ids_of_points: Any,
    byte_ids: Any,
    byte_pairs: Any,
    merges: Any,
    bits: Any,
    ids: Any,
    write_offset: Any,
    ranks: Any,
) -> Any:
    """Write the ids of a word to `ids` from an offset on, and return their number.

    Byte pair encoding: of all neighbours the pair with the lowest rank is merged, the
    leftmost of several, until no pair has a rank.
    """
    # 1. The ids of the bytes or, where characters have ids, of the characters. Entry k
    #    of `ranks` belongs to the ids k and k + 1.
    if len(byte_pairs) > 0:
        id_count = stop - start
        for pair in range(id_count):
            ids[write_offset + pair] = byte_ids[text_bytes[start + pair]]
        for pair in range(id_count - 1):
            ranks[pair] = byte_pairs[
                np.int64(text_bytes[start + pair]) << 8
                | np.int64(text_bytes[start + pair + 1])
            ]
    else:
        id_count = write_characters(
            text_bytes, start, stop, ids_of_points, byte_ids, ids, write_offset
        )
        for pair in range(id_count - 1):
            ranks[pair] = _rank_of(
                merges, bits, ids[write_offset + pair], ids[write_offset + pair + 1]
            )
    # 2. Merge the best pair until there is none.
    while id_count > 1:
        # Two loops whose branches a processor can predict take less time than one that
        # remembers the place of the lowest rank.
        lowest = ranks[0]
        for pair in range(1, id_count - 1):
            lowest = min(lowest, ranks[pair])
        if lowest == _NO_RANK:
            break
        best_pair = 0
        while ranks[best_pair] != lowest:
            best_pair += 1
        ids[write_offset + best_pair] = np.int32(lowest & np.int64(0xFFFFFFFF))
        # The merged id takes two places: what follows moves one to the left.
        id_count -= 1
        for pair in range(best_pair + 1, id_count):
            ids[write_offset + pair] = ids[write_offset + pair + 1]
            ranks[pair - 1] = ranks[pair]
        # Only the pairs on both sides of the merged id have changed.
        if best_pair > 0:
            ranks[best_pair - 1] = _rank_of(
                merges,
                bits,
                ids[write_offset + best_pair - 1],
                ids[write_offset + best_pair],
            )
        if best_pair < id_count - 1:
            ranks[best_pair] = _rank_of(
                merges,
                bits,
                ids[write_offset + best_pair],
                ids[write_offset + best_pair + 1],
            )
    return id_count


@njit(cache=True, nogil=True)
def merge_words(
    text_bytes: Any,
    cuts: Any,
    new: Any,
    whole_bytes: Any,
    whole_edges: Any,
    whole_slots: Any,
    whole_ids: Any,
    ids_of_points: Any,
    byte_ids: Any,
    byte_pairs: Any,
    merges: Any,
    bits: Any,
    ranks: Any,
    offsets: Any,
    ids: Any,
) -> Any:
    """Encode words by byte pair encoding, and return the number of their ids.

    Args:
        text_bytes, cuts, new: Texts, edges of all words, and the numbers of the words
            to encode.
        whole_bytes, whole_edges, whole_slots, whole_ids: Words that have an id as a
            whole, from :func:`add_whole_words`; empty for none.
        ids_of_points: int32[0x110000], the id of each code point, -1 for those that
            become the ids of their bytes.
        byte_ids: int32[256], the id of each byte.
        byte_pairs: int64[65536] from :func:`fill_byte_pairs` if only bytes have ids,
            else empty.
        merges, bits: Tables from :func:`add_merges`.
        ranks: int64[k], with room for an entry per byte of a word.
        offsets: int64[n + 1], gets the end of the ids of each word.
        ids: int32, with room for an id per byte of the words.
    """
    write_offset = 0
    for new_index in range(len(new)):
        start = cuts[new[new_index]]
        stop = cuts[new[new_index] + 1]
        # A vocabulary with ignore_merges takes a word that is a token as it is.
        whole_word = -1
        if len(whole_ids) > 0:
            whole_word = _whole_word(
                text_bytes, start, stop - start, whole_bytes, whole_edges, whole_slots
            )
        if whole_word >= 0:
            ids[write_offset] = whole_ids[whole_word]
            write_offset += 1
        else:
            write_offset += _merge(
                text_bytes,
                start,
                stop,
                ids_of_points,
                byte_ids,
                byte_pairs,
                merges,
                bits,
                ids,
                write_offset,
                ranks,
            )
        offsets[new_index + 1] = write_offset
    return write_offset
