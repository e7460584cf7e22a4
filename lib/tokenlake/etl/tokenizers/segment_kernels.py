"""Compiled loops of the segment cache: cutting a text, looking its segments up, merging
new ones, writing the ids.

numba compiles them once for each machine and keeps the result on disk. Arrays are the
caller's; nothing is allocated here. See :mod:`tokenlake.etl.tokenizers.segments` for
what they are parts of, and why the result is exact.

A table of segments is uint64[capacity, 4], open addressing with linear probing:

- 0: the segment itself where it has at most eight bytes, else its hash;
- 1: its size in bytes, and how many ids it has above bit 32; 0 where the slot is free;
- 2: where its bytes begin in `keys`;
- 3: its ids where there are at most two, else where they begin in `kept`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tokenlake.etl.tokenizers.kernel_constants import MARK

_ASCII = 128
_SPACE = 32
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ONE = np.uint64(1)
EIGHT = np.uint64(8)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
MIX = np.uint64(0x9E3779B97F4A7C15)
_STIR = np.uint64(0xD6E8FEB86659FD93)
_PAIR_SHIFT = np.uint64(44)  # of 64 bits, so that 20 are left
_WORD = np.uint64(6)
_WITHIN = np.uint64(63)
_DEAD = -1
_NO_RANK = np.int64(1) << 62


def _loading(_context: Any, array: Any, place: Any) -> Any:
    """Read eight bytes from any place of a uint8 array, the first of them lowest;
    the array must reach so far.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        wide = builder.bitcast(
            builder.gep(data, [args[1]]), ir.IntType(64).as_pointer()
        )
        return builder.load(wide, align=1)

    return types.uint64(array, types.intp), codegen


load: Any = intrinsic(_loading)


@njit(cache=True, inline="always")
def _bit(first: Any, second: Any) -> Any:
    return ((np.uint64(first) * MIX + np.uint64(second)) * _STIR) >> _PAIR_SHIFT


@njit(cache=True)
def add_pairs(bits: Any, first: Any, second: Any) -> None:
    """Put pairs of code points (int64[n] each) into a set (uint64[PAIR_WORDS])."""
    for i in range(len(first)):
        bit = _bit(first[i], second[i])
        bits[bit >> _WORD] |= ONE << (bit & _WITHIN)


@njit(cache=True, inline="always")
def code_point(data: Any, i: Any, mark: Any) -> Any:
    """Return the code point that begins at byte i of valid UTF-8, a space for
    `mark`, and how many bytes it has.
    """
    c = np.int64(data[i])
    if c < _ASCII:
        return c, 1
    if c < 0xE0:
        return (c & 0x1F) << 6 | (np.int64(data[i + 1]) & 0x3F), 2
    if c < 0xF0:
        c = (
            (c & 0x0F) << 12
            | (np.int64(data[i + 1]) & 0x3F) << 6
            | (np.int64(data[i + 2]) & 0x3F)
        )
        return (_SPACE if c == mark else c), 3
    c = (
        (c & 7) << 18
        | (np.int64(data[i + 1]) & 0x3F) << 12
        | (np.int64(data[i + 2]) & 0x3F) << 6
    )
    return c | (np.int64(data[i + 3]) & 0x3F), 4


@njit(cache=True, inline="always")
def _joined(ascii_pairs: Any, bits: Any, spaced: Any, c: Any, d: Any) -> Any:
    """Whether a token may hold the code points c and d side by side."""
    if (c | d) < _ASCII:
        return ascii_pairs[c << 7 | d] != 0
    bit = _bit(c, d)
    return (
        not (d == _SPACE and spaced[c] != 0)
        and ((bits[bit >> _WORD] >> (bit & _WITHIN)) & ONE) != 0
    )


@njit(cache=True)
def find_tokens(
    data: Any,
    begins: Any,
    stops: Any,
    tokens: Any,
    edges: Any,
    firsts: Any,
    places: Any,
    rows: Any,
    which: Any,
) -> Any:
    """Find tokens, none of which overlaps another one, in texts; return how many there
    are.

    Args:
        begins, stops: int64[n], where the texts lie in `data`.
        tokens, edges: uint8[total], int64[k + 1], the tokens end to end.
        firsts: uint8[256], 1 for the bytes that they begin with.
        places, rows, which: int64, with room for all of them: where each is in `data`,
            its text, the token's number.
    """
    n = 0
    for row in range(len(begins)):
        i, stop = begins[row], stops[row]
        while i < stop:
            if firsts[data[i]] != 0:
                for token in range(len(edges) - 1):
                    first, size = edges[token], edges[token + 1] - edges[token]
                    k = 0
                    while (
                        k < size and i + k < stop and data[i + k] == tokens[first + k]
                    ):
                        k += 1
                    if k == size:
                        places[n], rows[n], which[n] = i, row, token
                        n += 1
                        i += size - 1
                        break
            i += 1
    return n


@njit(cache=True)
def lay_out(
    data: Any,
    begins: Any,
    stops: Any,
    led: Any,
    once: Any,
    mark: Any,
    laid: Any,
    starts: Any,
) -> Any:
    """Copy texts to `laid` end to end, those of `led` that are not empty behind a
    space; return the size.

    Args:
        begins, stops: int64[n], where the texts lie in `data`.
        led: uint8[n], 1 for those before which a space is put; with `once` only where
            they begin with none.
        mark: the code point that counts as a space, -1 for none.
        starts: int64[n + 1], gets where each begins in `laid`, and where the last one
            ends.
    """
    end = 0
    for row in range(len(begins)):
        starts[row] = end
        a, b = begins[row], stops[row]
        if led[row] and a < b and not (once and code_point(data, a, mark)[0] == _SPACE):
            laid[end] = _SPACE
            end += 1
        laid[end : end + b - a] = data[a:b]
        end += b - a
    starts[len(begins)] = end
    return end


@njit(cache=True)
def cut(
    data: Any,
    starts: Any,
    row: Any,
    begin: Any,
    size: Any,
    ascii_pairs: Any,
    bits: Any,
    spaced: Any,
    mark: Any,
    cuts: Any,
    ends: Any,
) -> Any:
    """Cut texts into segments, from byte `begin` of text `row` on, until `size` bytes
    or all texts are done.

    Args:
        data, starts: from :func:`lay_out`.
        ascii_pairs: uint8[128 * 128], `bits`: the pairs of code points that tokens
            hold.
        spaced: uint8[0x110000], 1 for each code point (none of ASCII) behind which a
            space begins a segment.
        mark: the code point that counts as a space, -1 for none.
        cuts: int32[size + 2]; gets where segments begin, from `begin` on, and where the
            last one ends.
        ends: int32[n]; gets for each text that was finished how many segments there
            were until its end.

    Returns:
        The first text that is not finished, where to go on, and the number of segments.
    """
    n, i, limit, rows = 0, begin, begin + size, len(starts) - 1
    while row < rows:
        stop = starts[row + 1]
        if i < stop:
            if i >= limit:
                break
            cuts[n] = i - begin
            n += 1
            c, width = code_point(data, i, mark)
            i += width
            bound = min(stop, limit)
            while i < bound:
                d = np.int64(data[i])
                if (c | d) < _ASCII:
                    # No branch, for nobody can foresee where the cuts are; what is
                    # written in vain is written over.
                    cuts[n] = i - begin
                    n += 1 - np.int64(ascii_pairs[c << 7 | d])
                    i += 1
                else:
                    d, width = code_point(data, i, mark)
                    if not _joined(ascii_pairs, bits, spaced, c, d):
                        cuts[n] = i - begin
                        n += 1
                    i += width
                c = d
            while i < stop:  # to the end of a segment that reaches over the limit
                d, width = code_point(data, i, mark)
                if not _joined(ascii_pairs, bits, spaced, c, d):
                    break
                i += width
                c = d
            if i < stop:
                break
        ends[row] = n
        row += 1
    cuts[n] = i - begin
    return row, i, n


@njit(cache=True, inline="always")
def short_hash(key: Any, size: Any) -> Any:
    """Return the hash of a segment of at most eight bytes, which is its own key."""
    mixed = (key ^ np.uint64(size)) * MIX
    return mixed ^ (mixed >> HALF)


@njit(cache=True, inline="always")
def hash_of(data: Any, start: Any, size: Any) -> Any:
    """Return the key of a segment and its hash."""
    if size <= 8:
        key = load(data, start) & (_ALL >> np.uint64(64 - 8 * np.int64(size)))
        return key, short_hash(key, size)
    mixed = np.uint64(size)
    at = np.uint64(start)
    last = at + mixed - EIGHT
    while at < last:
        mixed = (mixed ^ load(data, at)) * MIX
        mixed ^= mixed >> HALF
        at += EIGHT
    mixed = (mixed ^ load(data, last)) * _STIR
    mixed ^= mixed >> HALF
    return mixed, mixed


@njit(cache=True, inline="always")
def equal(keys: Any, one: Any, data: Any, other: Any, size: Any) -> Any:
    """Whether segments of more than eight bytes are equal."""
    at = np.uint64(0)
    last = np.uint64(size) - EIGHT
    while at < last:
        if load(keys, np.uint64(one) + at) != load(data, np.uint64(other) + at):
            return False
        at += EIGHT
    return load(keys, np.uint64(one) + last) == load(data, np.uint64(other) + last)


@njit(cache=True)
def look_up(
    data: Any,
    begin: Any,
    cuts: Any,
    n: Any,
    table: Any,
    keys: Any,
    used: Any,
    slots: Any,
    new: Any,
) -> Any:
    """Find the slots of segments; put new ones into the table, their bytes behind the
    `used` of `keys`.

    Args:
        data, begin, cuts, n: from :func:`cut`.
        slots: int32[n]; gets the slot of each segment.
        new: int32[n]; gets the slots of new segments, in order.

    Returns:
        How many bytes of `keys` are used now, and how many segments are new.
    """
    mask, fresh = len(table) - 1, 0
    for k in range(n):
        start, size = begin + cuts[k], np.int64(cuts[k + 1] - cuts[k])
        key, hashed = hash_of(data, start, size)
        at = np.int64(hashed & np.uint64(mask))
        while True:
            about = table[at, 1]
            if about == 0:
                table[at, 0] = key
                table[at, 1] = np.uint64(size)
                table[at, 2] = np.uint64(used)
                keys[used : used + size] = data[start : start + size]
                used += size
                new[fresh] = at
                fresh += 1
                break
            if (
                table[at, 0] == key
                and (about & LOW) == np.uint64(size)
                and (
                    size <= 8 or equal(keys, np.int64(table[at, 2]), data, start, size)
                )
            ):
                break
            at = (at + 1) & mask
        slots[k] = at
    return used, fresh


@njit(cache=True)
def move(old: Any, table: Any, keys: Any) -> None:
    """Put the segments of a table into a larger one, which is empty."""
    mask = len(table) - 1
    for slot in range(len(old)):
        if old[slot, 1] != 0:
            _, hashed = hash_of(
                keys, np.int64(old[slot, 2]), np.int64(old[slot, 1] & LOW)
            )
            at = np.int64(hashed & np.uint64(mask))
            while table[at, 1] != 0:
                at = (at + 1) & mask
            table[at] = old[slot]


@njit(cache=True, inline="always")
def _merge_slot(merges: Any, left: Any, right: Any) -> Any:
    """Return the slot of a pair of ids in a table of merges, or of where it would
    be.
    """
    key = np.uint64(left) << HALF | np.uint64(right)
    mask = np.uint64(len(merges) - 1)
    at = ((key * MIX) >> HALF) & mask
    while merges[at, 1] != 0 and merges[at, 0] != key:
        at = (at + ONE) & mask
    return at


@njit(cache=True)
def add_merges(merges: Any, left: Any, right: Any, made: Any) -> None:
    """Put merges (int32[n] each), the first of which comes first, into a table:
    uint64[capacity, 2], empty.
    """
    for rank in range(len(left)):
        at = _merge_slot(merges, left[rank], right[rank])
        merges[at, 0] = np.uint64(left[rank]) << HALF | np.uint64(right[rank])
        merges[at, 1] = np.uint64(rank + 1) << HALF | np.uint64(made[rank])


@njit(cache=True, inline="always")
def _rank(merges: Any, left: Any, right: Any) -> Any:
    """Return the rank and the result of merging two ids, as one number that orders
    them; none: the largest.
    """
    about = merges[_merge_slot(merges, left, right), 1]
    return _NO_RANK if about == 0 else np.int64(about)


@njit(cache=True)
def write_characters(
    data: Any, start: Any, stop: Any, points: Any, byte_ids: Any, ids: Any, at: Any
) -> Any:
    """Write the ids of characters to `ids` from `at` on, or of the bytes of those that
    have none; return their number.

    Args:
        points: int32[0x110000], the id of each code point, -1 for those that become the
            ids of their bytes.
        byte_ids: int32[256].
    """
    count = 0
    place = start
    while place < stop:
        point, width = code_point(data, place, MARK)
        if points[point] >= 0:
            ids[at + count] = points[point]
            count += 1
        else:
            for offset in range(width):
                ids[at + count] = byte_ids[data[place + offset]]
                count += 1
        place += width
    return count


@njit(cache=True)
def merge(
    data: Any,
    start: Any,
    stop: Any,
    points: Any,
    byte_ids: Any,
    merges: Any,
    ids: Any,
    at: Any,
    ranks: Any,
) -> Any:
    """Write the ids of a segment to `ids` from `at` on and return their number: byte
    pair encoding as it is defined.

    Of all neighbours the pair with the lowest rank is merged, the leftmost of several,
    until none can be.

    Args:
        points: int32[0x110000], the id of each code point, -1 for those that become the
            ids of their bytes.
        byte_ids: int32[256].
        ranks: int64[k], room for as many as there are bytes.
    """
    n = write_characters(data, start, stop, points, byte_ids, ids, at)
    for k in range(n - 1):
        ranks[k] = _rank(merges, ids[at + k], ids[at + k + 1])
    while n > 1:
        best = 0
        for k in range(1, n - 1):
            if ranks[k] < ranks[best]:
                best = k
        if ranks[best] == _NO_RANK:
            break
        ids[at + best] = np.int32(ranks[best] & np.int64(0xFFFFFFFF))
        n -= 1
        for k in range(best + 1, n):
            ids[at + k] = ids[at + k + 1]
            ranks[k - 1] = ranks[k]
        if best > 0:
            ranks[best - 1] = _rank(merges, ids[at + best - 1], ids[at + best])
        if best < n - 1:
            ranks[best] = _rank(merges, ids[at + best], ids[at + best + 1])
    return n


@njit(cache=True)
def merge_new(
    table: Any,
    new: Any,
    keys: Any,
    kept: Any,
    used: Any,
    points: Any,
    byte_ids: Any,
    merges: Any,
    ranks: Any,
) -> Any:
    """Give new segments of at most `len(ranks)` bytes their ids; return how much of
    `kept` is used now.

    `kept` must have room for as many ids as the segments have bytes.
    """
    for slot in new:
        size = np.int64(table[slot, 1] & LOW)
        if size > len(ranks):
            continue
        start = np.int64(table[slot, 2])
        n = merge(
            keys, start, start + size, points, byte_ids, merges, kept, used, ranks
        )
        used = put(table, slot, kept, used, n)
    return used


@njit(cache=True, inline="always")
def put(table: Any, slot: Any, kept: Any, used: Any, n: Any) -> Any:
    """Note that the ids of a segment are the n in `kept` behind the `used`; return
    how much is used now.
    """
    table[slot, 1] = (table[slot, 1] & LOW) | np.uint64(n) << HALF
    if n > 2:
        table[slot, 3] = np.uint64(used)
        return used + n
    second = np.uint64(kept[used + 1]) if n > 1 else np.uint64(0)
    table[slot, 3] = np.uint64(kept[used]) | second << HALF
    return used


@njit(cache=True)
def put_given(
    table: Any, slots: Any, offsets: Any, ids: Any, kept: Any, used: Any
) -> Any:
    """Give segments ids that were found elsewhere (int64[n + 1], int32[total]);
    return how much of `kept` is used.
    """
    for k in range(len(slots)):
        n = offsets[k + 1] - offsets[k]
        kept[used : used + n] = ids[offsets[k] : offsets[k + 1]]
        used = put(table, slots[k], kept, used, n)
    return used


@njit(cache=True)
def count_ids(table: Any, slots: Any, n: Any) -> Any:
    """Return how many ids the segments in n slots have."""
    total = 0
    for k in range(n):
        total += np.int64(table[slots[k], 1] >> HALF)
    return total


@njit(cache=True)
def write(
    table: Any,
    slots: Any,
    n: Any,
    kept: Any,
    ids: Any,
    at: Any,
    row: Any,
    done: Any,
    ends: Any,
    offsets: Any,
) -> Any:
    """Write the ids of segments to `ids` from `at` on; return where they end.

    `offsets` (int64[texts + 1]) gets where the ids of the texts ``row`` to ``done``
    (exclusive) end. There must be room for two ids more than there are.
    """
    for k in range(n):
        while row < done and ends[row] == k:
            row += 1
            offsets[row] = at
        about, given = table[slots[k], 1], table[slots[k], 3]
        count = np.int64(about >> HALF)
        if count <= 2:
            ids[at] = np.int32(given & LOW)
            ids[at + 1] = np.int32(given >> HALF)
        else:
            first = np.int64(given)
            for j in range(count):
                ids[at + j] = kept[first + j]
        at += count
    while row < done:
        row += 1
        offsets[row] = at
    return at
