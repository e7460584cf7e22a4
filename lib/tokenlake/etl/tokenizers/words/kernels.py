"""Compiled loops of the cached words: splitting texts, looking words up, and writing
their ids.

numba compiles them once for each machine and keeps the result on disk. Arrays are the
caller's; nothing is allocated here. Texts lie end to end in one uint8 array with at
least eight more bytes behind the last of them.

**Pieces and cuts.** Parts of the text that follow each other without a gap are given by
their edges: part k lies at ``edges[k]:edges[k + 1]``. Splitting turns the edges of n
parts into the edges of more parts. `counts` (int64[n + 1]) says how many of these there
are up to the end of each part; its first entry is 0.

**A table of words** is uint64[capacity, 2] with open addressing and linear probing. A
record has 16 bytes:

- the key: the word itself where it has at most eight bytes, else its hash;
- bits 0 to 15 the word's size in bytes, 0 where the slot is free; bits 16 to 31 the
  number of its ids; bits 32 to 63 where it lies in the pool.

The pool (int32) holds the bytes of a word of more than eight bytes, and behind them its
ids. The ids of a shorter word lie there alone; where it has just one, the record holds
the id itself in the place of the offset. While the ids of a new word are not known, the
number of ids is :data:`PENDING`, and the offset is the word's number among the new
ones.

**Found** words are uint64: bits 0 to 31 the number of ids, bits 32 to 63 where they lie
in the pool, or the only id.
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
"""Bytes of the longest word that a table holds."""
PENDING = 0xFFFF
_SHORT_BYTES = 8
_SHORT = np.uint64(_SHORT_BYTES)  # bytes of a word that is its own key
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
_FILTER_SHIFT = np.uint64(64 - (64 * FILTER_WORDS - 1).bit_length())
_AHEAD = 32  # words
_RECORD_ENTRIES = 2
_NO_RANK = np.int64(1) << 62


@njit(cache=True)
def _match_end(
    data: Any,
    i: Any,
    stop: Any,
    by_symbol: Any,
    symbol_of: Any,
    symbols: Any,
    at_end: Any,
) -> Any:
    """Return where the match that begins at byte i ends, i where none does."""
    state = np.int64(BEGIN)
    end = i
    while i < stop:
        point, width = code_point(data, i, _NO_MARK)
        entry = np.int64(by_symbol[state * symbols + np.int64(symbol_of[point])])
        if entry & STOP:
            return end
        if entry & CUT:
            return i
        if entry & MATCH:
            end = i
        state = entry >> STATE_SHIFT
        if state == UNMATCHED:
            return end
        i += width
    return stop if at_end[state] else end


@njit(cache=True, nogil=True)
def split(
    data: Any,
    edges: Any,
    part: Any,
    place: Any,
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

    Args:
        data: uint8, the texts.
        edges: int64[n + 1], the parts.
        part, place: The part and byte to begin at.
        limit: About how many bytes are split: up to the first cut before that, or after
            it where there is none.
        by_byte, by_symbol, symbol_of, symbols, at_end, quiet: Tables of a
            :class:`Splitter`.
        cuts: int64, gets the edges of the pieces; two entries more than twice the
            limit, or than there are bytes.
        counts: int64[n + 1], gets the number of pieces up to the end of each part that
            was finished.

    Returns:
        The first part that is not finished, the byte to go on at, and the number of
        pieces.
    """
    n = 0
    block = limit
    limit = place + block
    while part < len(edges) - 1:
        stop = edges[part + 1]
        if place >= stop:
            counts[part + 1] = n
            part += 1
            continue
        if place >= limit:
            break
        i = place
        cuts[n] = i
        n += 1
        state = np.int64(BEGIN)
        noted = i  # where the last match ended that a longer one may replace
        bound = min(stop, limit)
        while True:
            # 1. Follow the table; a cut is written always and counted where it is one,
            #    without a branch.
            stopped = False
            while i < bound:
                if state == UNMATCHED:
                    while i < bound and quiet[data[np.uint64(i)]] != 0:
                        i += 1
                    if i >= bound:
                        break
                byte = np.uint64(data[np.uint64(i)])
                if byte < _ASCII:
                    entry = np.int64(by_byte[np.uint64(state) << _ASCII_BITS | byte])
                    width = 1
                else:
                    point, width = code_point(data, i, _NO_MARK)
                    symbol = np.int64(symbol_of[np.uint64(point)])
                    entry = np.int64(by_symbol[np.uint64(state * symbols + symbol)])
                if entry & STOP:
                    stopped = True
                    break
                cuts[np.uint64(n)] = i
                n += entry & CUT
                if entry & MATCH:
                    noted = i
                state = entry >> STATE_SHIFT
                i += width
            if not stopped:
                if i >= stop:
                    is_outside = state <= UNMATCHED  # or at its beginning, state 0
                    if is_outside or at_end[state]:
                        break
                else:
                    # 2. The limit: give the last piece back, or go on where it is the
                    #    only one.
                    if cuts[n - 1] > place:
                        n -= 1
                        return part, cuts[n], n
                    bound = min(stop, bound + block)
                    continue
            # 3. No match ends here.
            begin = cuts[n - 1]
            if state == UNMATCHED:
                end = _match_end(data, i, stop, by_symbol, symbol_of, symbols, at_end)
                if end == i:
                    _, width = code_point(data, i, _NO_MARK)
                    i += width
                    continue
                cuts[n] = i
                n += 1
                i = end
                state = np.int64(BEGIN)
                if end < stop:
                    cuts[n] = end
                    n += 1
            elif noted > begin:
                cuts[n] = noted
                n += 1
                i = noted
                state = np.int64(BEGIN)
            else:
                _, width = code_point(data, begin, _NO_MARK)
                i = begin + width
                state = np.int64(UNMATCHED)
            noted = i
        place = stop
        counts[part + 1] = n
        part += 1
    cuts[n] = place
    return part, place, n


def _prefetching(_context: Any, table: Any, slot: Any) -> Any:
    """Ask the processor to load a record of a table, which will be read soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        entry = builder.mul(args[1], ir.Constant(ir.IntType(64), _RECORD_ENTRIES))
        address = builder.gep(data, [entry])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [address.type], kind
        )
        is_write, locality, is_data = (
            ir.Constant(number, value) for value in (0, 3, 1)
        )
        builder.call(prefetch, [address, is_write, locality, is_data])
        return context.get_dummy_value()

    return types.void(table, types.intp), codegen


_prefetch: Any = intrinsic(_prefetching)


@njit(cache=True)
def _long_slot(
    data: Any,
    start: Any,
    size: Any,
    key: Any,
    table: Any,
    pool: Any,
    cuts: Any,
    new: Any,
) -> Any:
    """Return the slot of a word of more than eight bytes, or the free one that it
    would get; its record.
    """
    mask = np.uint64(len(table) - 1)
    at = key & mask
    while True:
        about = table[at, 1]
        if about == 0:
            return at, about
        if table[at, 0] == key and (about & _FIELD) == size:
            offset = about >> HALF
            if (about >> _QUARTER) & _FIELD == np.uint64(PENDING):
                if equal(data, np.uint64(cuts[new[offset]]), data, start, size):
                    return at, about
            elif equal(pool, offset << np.uint64(2), data, start, size):
                return at, about
        at = (at + ONE) & mask


@njit(cache=True, nogil=True)
def look_up(
    data: Any,
    cuts: Any,
    word: Any,
    n: Any,
    table: Any,
    room: Any,
    pool: Any,
    ids: Any,
    found: Any,
    new: Any,
    fresh: Any,
) -> Any:
    """Find words in the table, and put those that it lacks into it.

    Args:
        data, cuts, n: The words, as :func:`split` returns them.
        word: The word to begin at.
        table: uint64[capacity, 2].
        room: How many more words the table may take.
        pool, ids: The pool as uint8 and as int32.
        found: uint64[n], gets where the ids of each word are.
        new: int64[n], gets the numbers of the words that are new, from `fresh` on.

    Returns:
        The word to go on at (less than n where the table is full), and the number of
        new words.
    """
    taken = 0
    mask = np.uint64(len(table) - 1)
    hashed_to = word
    for k in range(word, n):
        # 0. Hash some words ahead, so that their records are on their way when they are
        #    read.
        if k == hashed_to:
            hashed_to = min(n, k + _AHEAD)
            for ahead in range(k, hashed_to):
                start = np.uint64(cuts[ahead])
                size = np.uint64(cuts[ahead + 1]) - start
                hashed = np.uint64(0)
                if size <= np.uint64(LONGEST):
                    _, hashed = hash_of(data, start, size)
                    _prefetch(table, hashed & mask)
                found[ahead] = hashed
        start = np.uint64(cuts[k])
        size = np.uint64(cuts[k + 1]) - start
        # 1. A short word: its key is the word itself.
        if size <= _SHORT:
            key = load(data, start) & (_ALL >> (_BITS - _BYTE * size))
            at = found[k] & mask
            about = table[at, 1]
            while about != 0 and (table[at, 0] != key or (about & _FIELD) != size):
                at = (at + ONE) & mask
                about = table[at, 1]
            count = (about >> _QUARTER) & _FIELD
            offset = about >> HALF
        # 2. A long one: equal hashes are not enough.
        elif size <= np.uint64(LONGEST):
            key = found[k]
            at, about = _long_slot(data, start, size, key, table, pool, cuts, new)
            count = (about >> _QUARTER) & _FIELD
            offset = about >> HALF
            if about != 0 and count != np.uint64(PENDING):
                offset += (size + np.uint64(3)) >> np.uint64(2)
                if count == ONE:
                    offset = np.uint64(ids[offset])
        # 3. One that the table does not take.
        else:
            found[k] = np.uint64(fresh) << HALF | _PENDING_IDS
            new[fresh] = k
            fresh += 1
            continue
        if about != 0:
            if count == np.uint64(PENDING):
                count = _PENDING_IDS
            found[k] = offset << HALF | count
            continue
        # 4. A new word.
        if taken >= room:
            return k, fresh
        taken += 1
        table[at, 0] = key
        table[at, 1] = np.uint64(fresh) << HALF | _PENDING_RECORD | size
        found[k] = np.uint64(fresh) << HALF | _PENDING_IDS
        new[fresh] = k
        fresh += 1
    return n, fresh


@njit(cache=True, nogil=True)
def add_words(
    data: Any,
    cuts: Any,
    new: Any,
    fresh: Any,
    offsets: Any,
    given: Any,
    table: Any,
    pool: Any,
    ids: Any,
    used: Any,
    settled: Any,
) -> Any:
    """Give new words their ids.

    Args:
        data, cuts, new, fresh: From :func:`look_up`.
        offsets, given: int64[fresh + 1] and int32[total], the ids of the new words.
        table, pool, ids: As of :func:`look_up`; the pool has room for the words and
            their ids.
        used: Number of entries of the pool that are in use.
        settled: uint64[fresh], gets where the ids of each new word are, as in `found`.

    Returns:
        How much of the pool is in use now.
    """
    mask = np.uint64(len(table) - 1)
    for number in range(fresh):
        start = cuts[new[number]]
        size = cuts[new[number] + 1] - start
        first = offsets[number]
        count = offsets[number + 1] - first
        begin = used
        if size > _SHORT_BYTES and size <= LONGEST:
            for i in range(size):
                pool[used * 4 + i] = data[start + i]
            used += (size + 3) >> 2
        place = np.uint64(used)
        if count == 1:
            place = np.uint64(given[first])
        if count != 1 or size > _SHORT_BYTES:
            for i in range(count):
                ids[used + i] = given[first + i]
            used += count
        settled[number] = place << HALF | np.uint64(count)
        if size > LONGEST:
            continue
        # The word's record still says which new word it is.
        width = np.uint64(size)
        if size <= _SHORT_BYTES:
            key = load(data, start) & (_ALL >> (_BITS - _BYTE * width))
            hashed = short_hash(key, width)
        else:
            place = np.uint64(begin)
            key, hashed = hash_of(data, np.uint64(start), width)
        at = hashed & mask
        pending = np.uint64(number) << HALF | _PENDING_RECORD | width
        while table[at, 1] != pending or table[at, 0] != key:
            at = (at + ONE) & mask
        table[at, 1] = place << HALF | np.uint64(count) << _QUARTER | width
    return used


@njit(cache=True)
def move_words(old: Any, table: Any) -> None:
    """Put the words of a table into a larger one, which is empty."""
    mask = len(table) - 1
    for slot in range(len(old)):
        about = old[slot, 1]
        if about == 0:
            continue
        hashed = old[slot, 0]
        size = np.int64(about & _FIELD)
        if size <= _SHORT_BYTES:
            hashed = short_hash(hashed, size)
        at = np.int64(hashed & np.uint64(mask))
        while table[at, 1] != 0:
            at = (at + 1) & mask
        table[at] = old[slot]


@njit(cache=True, nogil=True)
def settle(found: Any, n: Any, settled: Any) -> Any:
    """Replace the numbers of new words in `found` by where their ids are; return how
    many ids the n words have.
    """
    total = 0
    for k in range(n):
        if found[k] & LOW == _PENDING_IDS:
            found[k] = settled[np.int64(found[k] >> HALF)]
        total += np.int64(found[k] & LOW)
    return total


@njit(cache=True, nogil=True)
def write_ids(
    found: Any,
    n: Any,
    kept: Any,
    part: Any,
    done: Any,
    counts: Any,
    ids: Any,
    at: Any,
    offsets: Any,
) -> Any:
    """Write the ids of words to `ids` from `at` on; return where they end.

    Args:
        found: uint64[n], from :func:`settle`.
        kept: int32, the pool.
        part, done: The first part that the words belong to, and the first that is not
            finished.
        counts: int64, the number of words up to the end of each of these parts.
        ids: int32, with room for all ids.
        offsets: int64, gets where the ids of each finished part end.
    """
    k = 0
    while True:
        last = counts[part + 1] if part < done else n
        while k < last:
            count = np.int64(found[k] & LOW)
            place = np.int64(found[k] >> HALF)
            if count == 1:
                ids[at] = place
            else:
                for i in range(count):
                    ids[at + i] = kept[place + i]
            at += count
            k += 1
        if part >= done:
            return at
        part += 1
        offsets[part] = at


@njit(cache=True, nogil=True)
def find_unsure(data: Any, edges: Any, kinds: Any, unsure: Any) -> None:
    """Find texts that may not be normalized, by the quick check of Unicode Standard
    Annex 15.

    Args:
        data, edges: uint8 and int64[n + 1], the texts.
        kinds: uint8[0x110000], the canonical combining class of each code point, 255
            for code points that may change.
        unsure: uint8[n], gets 1 for each text that may not be normalized.
    """
    for part in range(len(edges) - 1):
        i = edges[part]
        stop = edges[part + 1]
        before = 0
        while i < stop:
            # Eight ASCII characters at a time.
            if i + 8 <= stop and load(data, i) & np.uint64(0x8080808080808080) == 0:
                i += 8
                before = 0
                continue
            point, width = code_point(data, i, _NO_MARK)
            i += width
            kind = np.int64(kinds[point])
            if kind == _UNSURE or (kind != 0 and kind < before):
                unsure[part] = 1
                break
            before = kind


@njit(cache=True, nogil=True)
def find_added(
    data: Any,
    begins: Any,
    stops: Any,
    firsts: Any,
    branches: Any,
    leaves: Any,
    skipped: Any,
    places: Any,
    parts: Any,
    tokens: Any,
) -> Any:
    """Find added tokens in parts of texts: leftmost, the longest of several, none
    inside another.

    Args:
        data: uint8, the texts.
        begins, stops: int64[n], where the parts lie.
        firsts: uint8[256], 1 for bytes that a token begins with.
        branches, leaves: The tree of the tokens, see
            :func:`tokenlake.etl.tokenizers.unigram_kernels.add_pieces`.
        skipped: uint8[k], 1 for tokens that are plain text; they still keep others from
            being found inside them.
        places, parts, tokens: int64, get where each token begins, its part and its
            number.

    Returns:
        How many tokens there are; if there is no room for all, as many as there is room
        for were written.
    """
    n = 0
    room = len(places)
    for part in range(len(begins)):
        i = begins[part]
        stop = stops[part]
        while i < stop:
            if firsts[data[i]] == 0:
                i += 1
                continue
            # The longest token that begins here.
            token = -1
            end = i + 1
            node = 0
            k = i
            while k < stop:
                node = np.int64(branches[branch_of(branches, node, data[k]), 1])
                if node == 0:
                    break
                k += 1
                if leaves[node] >= 0:
                    token = leaves[node]
                    end = k
            if token >= 0 and skipped[token] == 0:
                if n < room:
                    places[n] = i
                    parts[n] = part
                    tokens[n] = token
                n += 1
            i = end
    return n


@njit(cache=True)
def add_whole_words(data: Any, edges: Any, slots: Any) -> None:
    """Put the numbers of words, plus one, into a table.

    Args:
        data, edges: uint8 and int64[n + 1], the words, with eight more bytes behind the
            last.
        slots: int32[capacity], zeros; gets the words' numbers, counted from 1.
    """
    mask = np.uint64(len(slots) - 1)
    for number in range(len(edges) - 1):
        _, hashed = hash_of(data, edges[number], edges[number + 1] - edges[number])
        at = hashed & mask
        while slots[at] != 0:
            at = (at + ONE) & mask
        slots[at] = number + 1


@njit(cache=True)
def _whole_word(
    data: Any, start: Any, size: Any, known: Any, edges: Any, slots: Any
) -> Any:
    """Return the number of a word in a table of :func:`add_whole_words`, -1 for
    none.
    """
    mask = np.uint64(len(slots) - 1)
    _, hashed = hash_of(data, start, size)
    at = hashed & mask
    while slots[at] != 0:
        number = slots[at] - 1
        first = edges[number]
        if edges[number + 1] - first == size:
            i = 0
            while i < size and known[first + i] == data[start + i]:
                i += 1
            if i == size:
                return number
        at = (at + ONE) & mask
    return -1


@njit(cache=True, inline="always")
def _merge_hash(left: Any, right: Any) -> Any:
    """Return the key of a pair of ids and its hash."""
    key = np.uint64(left) << HALF | np.uint64(right)
    return key, key * MIX


@njit(cache=True)
def add_merges(merges: Any, bits: Any, left: Any, right: Any, made: Any) -> None:
    """Put the merges of a tokenizer into a table.

    Args:
        merges: uint64[capacity, 2], zeros. A record has the two ids, then the merge's
            rank plus one above bit 32 and the id that it makes.
        bits: uint64[:data:`FILTER_WORDS`], zeros; gets a bit for each pair. Most pairs
            that are asked for are no merges, and the bits stay in the processor's cache
            where the table does not.
        left, right, made: int32[n], the pairs and what they make, the first merge
            first.
    """
    mask = np.uint64(len(merges) - 1)
    for rank in range(len(left)):
        key, mixed = _merge_hash(left[rank], right[rank])
        bit = mixed >> _FILTER_SHIFT
        bits[bit >> _WORD] |= ONE << (bit & _WITHIN)
        at = (mixed >> HALF) & mask
        while merges[at, 1] != 0 and merges[at, 0] != key:
            at = (at + ONE) & mask
        merges[at, 0] = key
        merges[at, 1] = np.uint64(rank + 1) << HALF | np.uint64(made[rank])


@njit(cache=True, inline="always")
def _rank_of(merges: Any, bits: Any, left: Any, right: Any) -> Any:
    """Return the rank and the result of merging two ids, as one number that orders
    them; none: the largest.
    """
    key, mixed = _merge_hash(left, right)
    bit = mixed >> _FILTER_SHIFT
    if (bits[bit >> _WORD] >> (bit & _WITHIN)) & ONE == 0:
        return _NO_RANK
    mask = np.uint64(len(merges) - 1)
    at = (mixed >> HALF) & mask
    while merges[at, 1] != 0 and merges[at, 0] != key:
        at = (at + ONE) & mask
    about = merges[at, 1]
    return _NO_RANK if about == 0 else np.int64(about)


@njit(cache=True)
def fill_byte_pairs(merges: Any, bits: Any, byte_ids: Any, byte_pairs: Any) -> None:
    """Note the merge of each pair of bytes in `byte_pairs` (int64[65536]), which
    serves in the place of the table.
    """
    for first in range(256):
        for second in range(256):
            byte_pairs[first << 8 | second] = _rank_of(
                merges, bits, byte_ids[first], byte_ids[second]
            )


@njit(cache=True)
def _merge(
    data: Any,
    start: Any,
    stop: Any,
    points: Any,
    byte_ids: Any,
    byte_pairs: Any,
    merges: Any,
    bits: Any,
    ids: Any,
    at: Any,
    ranks: Any,
) -> Any:
    """Write the ids of a word to `ids` from `at` on and return their number: byte pair
    encoding as it is defined.

    Of all neighbours the pair with the lowest rank is merged, the leftmost of several,
    until none can be.
    """
    # 1. The ids of the bytes or, where characters have ids, of these, or of the bytes
    #    of those that have none.
    if len(byte_pairs) > 0:
        n = stop - start
        for k in range(n):
            ids[at + k] = byte_ids[data[start + k]]
        for k in range(n - 1):
            ranks[k] = byte_pairs[
                np.int64(data[start + k]) << 8 | np.int64(data[start + k + 1])
            ]
    else:
        n = write_characters(data, start, stop, points, byte_ids, ids, at)
        for k in range(n - 1):
            ranks[k] = _rank_of(merges, bits, ids[at + k], ids[at + k + 1])
    # 2. Merge; entry k of `ranks` is of the pair k and k + 1.
    while n > 1:
        # Two loops without unforeseeable branches take less time than one that notes
        # the place of the lowest.
        lowest = ranks[0]
        for k in range(1, n - 1):
            lowest = min(lowest, ranks[k])
        if lowest == _NO_RANK:
            break
        best = 0
        while ranks[best] != lowest:
            best += 1
        ids[at + best] = np.int32(lowest & np.int64(0xFFFFFFFF))
        n -= 1
        for k in range(best + 1, n):
            ids[at + k] = ids[at + k + 1]
            ranks[k - 1] = ranks[k]
        if best > 0:
            ranks[best - 1] = _rank_of(merges, bits, ids[at + best - 1], ids[at + best])
        if best < n - 1:
            ranks[best] = _rank_of(merges, bits, ids[at + best], ids[at + best + 1])
    return n


@njit(cache=True, nogil=True)
def merge_words(
    data: Any,
    cuts: Any,
    new: Any,
    known: Any,
    known_edges: Any,
    known_slots: Any,
    known_ids: Any,
    points: Any,
    byte_ids: Any,
    byte_pairs: Any,
    merges: Any,
    bits: Any,
    ranks: Any,
    offsets: Any,
    ids: Any,
) -> Any:
    """Encode words by byte pair encoding; return the number of their ids.

    Args:
        data, cuts, new: The texts, the edges of all words, and the numbers of those
            that are encoded.
        known, known_edges, known_slots, known_ids: Words that have an id as a whole,
            from :func:`add_whole_words`.
        points: int32[0x110000], the id of each code point, -1 for those that become the
            ids of their bytes.
        byte_ids: int32[256].
        byte_pairs: int64[65536] from :func:`fill_byte_pairs` where only bytes have ids,
            else empty.
        merges, bits: From :func:`add_merges`.
        ranks: int64[k], room for as many as a word has bytes.
        offsets: int64[n + 1], gets where the ids of each word end.
        ids: int32, with room for as many ids as the words have bytes.
    """
    at = 0
    for k in range(len(new)):
        start = cuts[new[k]]
        stop = cuts[new[k] + 1]
        number = -1
        if len(known_ids) > 0:
            number = _whole_word(
                data, start, stop - start, known, known_edges, known_slots
            )
        if number >= 0:
            ids[at] = known_ids[number]
            at += 1
        else:
            at += _merge(
                data,
                start,
                stop,
                points,
                byte_ids,
                byte_pairs,
                merges,
                bits,
                ids,
                at,
                ranks,
            )
        offsets[k + 1] = at
    return at
