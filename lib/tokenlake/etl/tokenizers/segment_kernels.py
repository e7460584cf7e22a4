"""Compiled loops of the segment cache: cut texts, look up, merge and write segments.

numba compiles them once for each machine and keeps the result on disk. Arrays are the
caller's; nothing is allocated here. :mod:`tokenlake.etl.tokenizers.segments` calls them
and explains why the result is exact.

A table of segments is uint64[capacity, 4], open addressing with linear probing:

- 0: the segment itself where it has at most eight bytes, else its hash; - 1: its size
in bytes, and the number of its ids above bit 32; 0 where the slot is free; - 2: the
offset of its bytes in `keys`; - 3: its ids where it has at most two, else their offset
in `pool`.

A merge table is uint64[capacity, 2], with the same addressing:

- 0: the pair of ids, the left one above bit 32;
- 1: the rank of the merge plus one above bit 32, and the id that it makes; 0 where the
  slot is free. Two entries compare like their ranks, and the smaller one is the merge
  that comes first.

Example: the merges (5, 6) -> 9 and (9, 7) -> 10 have ranks 0 and 1. A segment of the
ids 5 6 7 first becomes 9 7 by rank 0, and then 10 by rank 1.
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

# numba promotes uint64 with int64 to float64. So all constants that meet a uint64 are
# uint64 themselves.
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ONE = np.uint64(1)
EIGHT = np.uint64(8)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

# Odd factors, so that a product keeps every bit of the key: 2^64 / golden ratio, and
# another one for a second round.
MIX = np.uint64(0x9E3779B97F4A7C15)
_STIR = np.uint64(0xD6E8FEB86659FD93)

# The set of pairs has 2^20 bits: a hash of 64 bits keeps its upper 20. Bit b lies in
# word b >> 6, at the place b & 63.
_PAIR_SHIFT = np.uint64(44)
_WORD = np.uint64(6)
_WITHIN = np.uint64(63)

# Larger than the entry of any merge, whose rank is below 2^30.
_NO_RANK = np.int64(1) << 62


def _loading(_context: Any, array: Any, byte_offset: Any) -> Any:
    """Read eight bytes at any offset of a uint8 array, little-endian.

    The array must have eight bytes from the offset on, because nothing checks it.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = context.make_array(signature.args[0])(context, builder, args[0]).data
        wide_address = builder.bitcast(
            builder.gep(address, [args[1]]), ir.IntType(64).as_pointer()
        )
        # The offset is not a multiple of eight; with align=1 LLVM accepts that.
        return builder.load(wide_address, align=1)

    return types.uint64(array, types.intp), codegen


load: Any = intrinsic(_loading)


@njit(cache=True, inline="always")
def _bit(left_point: Any, right_point: Any) -> Any:
    return (
        (np.uint64(left_point) * MIX + np.uint64(right_point)) * _STIR
    ) >> _PAIR_SHIFT


@njit(cache=True)
def add_pairs(bits: Any, left_points: Any, right_points: Any) -> None:
    """Add pairs of code points (int64[n] each) to a set (uint64[PAIR_WORDS])."""
    for pair_index in range(len(left_points)):
        bit = _bit(left_points[pair_index], right_points[pair_index])
        bits[bit >> _WORD] |= ONE << (bit & _WITHIN)


@njit(cache=True, inline="always")
def code_point(text_bytes: Any, byte_offset: Any, mark: Any) -> Any:
    """Return the code point at an offset of valid UTF-8, and its number of bytes.

    The code point `mark` is returned as a space.
    """
    # The first byte gives the number of bytes; each byte that follows has six bits.
    point = np.int64(text_bytes[byte_offset])
    if point < _ASCII:
        return point, 1
    if point < 0xE0:
        return (point & 0x1F) << 6 | (np.int64(text_bytes[byte_offset + 1]) & 0x3F), 2
    if point < 0xF0:
        point = (
            (point & 0x0F) << 12
            | (np.int64(text_bytes[byte_offset + 1]) & 0x3F) << 6
            | (np.int64(text_bytes[byte_offset + 2]) & 0x3F)
        )
        return (_SPACE if point == mark else point), 3
    point = (
        (point & 7) << 18
        | (np.int64(text_bytes[byte_offset + 1]) & 0x3F) << 12
        | (np.int64(text_bytes[byte_offset + 2]) & 0x3F) << 6
    )
    return point | (np.int64(text_bytes[byte_offset + 3]) & 0x3F), 4


@njit(cache=True, inline="always")
def _joined(
    ascii_pairs: Any, bits: Any, spaced: Any, left_point: Any, right_point: Any
) -> Any:
    """Whether a token may hold two neighbouring code points."""
    # Of two numbers, both are below 128 exactly if their union of bits is.
    if (left_point | right_point) < _ASCII:
        return ascii_pairs[left_point << 7 | right_point] != 0
    bit = _bit(left_point, right_point)
    return (
        not (right_point == _SPACE and spaced[left_point] != 0)
        and ((bits[bit >> _WORD] >> (bit & _WITHIN)) & ONE) != 0
    )


@njit(cache=True)
def find_tokens(
    text_bytes: Any,
    begins: Any,
    ends: Any,
    tokens: Any,
    edges: Any,
    first_bytes: Any,
    places: Any,
    rows: Any,
    numbers: Any,
) -> Any:
    """Find tokens that do not overlap in texts, and return their number.

    Args:
        text_bytes: uint8, the texts.
        begins, ends: int64[n], byte offsets of the texts.
        tokens, edges: uint8[total], int64[k + 1], the tokens end to end.
        first_bytes: uint8[256], 1 for each byte that a token begins with.
        places, rows, numbers: int64, with room for all tokens of the texts. Gets the
            byte offset, the text and the token number of each token.
    """
    token_count = 0
    for row in range(len(begins)):
        byte_offset = begins[row]
        text_end = ends[row]
        while byte_offset < text_end:
            if first_bytes[text_bytes[byte_offset]] != 0:
                for token in range(len(edges) - 1):
                    token_start = edges[token]
                    token_size = edges[token + 1] - token_start
                    compared = min(token_size, text_end - byte_offset)
                    equal_bytes = 0
                    while (
                        equal_bytes < compared
                        and text_bytes[byte_offset + equal_bytes]
                        == tokens[token_start + equal_bytes]
                    ):
                        equal_bytes += 1
                    if equal_bytes == token_size:
                        places[token_count] = byte_offset
                        rows[token_count] = row
                        numbers[token_count] = token
                        token_count += 1
                        # The step to the next byte follows below.
                        byte_offset += token_size - 1
                        break
            byte_offset += 1
    return token_count


@njit(cache=True)
def lay_out(
    text_bytes: Any,
    begins: Any,
    ends: Any,
    gets_space: Any,
    once: Any,
    mark: Any,
    laid_bytes: Any,
    starts: Any,
) -> Any:
    """Copy texts end to end, some with a space in front, and return the size.

    An empty text gets no space.

    Args:
        text_bytes: uint8, the texts.
        begins, ends: int64[n], byte offsets of the texts.
        gets_space: uint8[n], 1 for texts that get a space in front.
        once: Whether a text that begins with a space gets none.
        mark: Code point that counts as a space, -1 for none.
        laid_bytes: uint8, gets the texts.
        starts: int64[n + 1], gets the offset of each text in `laid_bytes`, and the end
            of the last one.
    """
    write_offset = 0
    for row in range(len(begins)):
        starts[row] = write_offset
        text_start = begins[row]
        text_end = ends[row]
        if gets_space[row] and text_start < text_end:
            has_space = code_point(text_bytes, text_start, mark)[0] == _SPACE
            if not (once and has_space):
                laid_bytes[write_offset] = _SPACE
                write_offset += 1
        laid_bytes[write_offset : write_offset + text_end - text_start] = text_bytes[
            text_start:text_end
        ]
        write_offset += text_end - text_start
    starts[len(begins)] = write_offset
    return write_offset


@njit(cache=True)
def cut(
    text_bytes: Any,
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
    """Cut a block of texts into segments: between two code points that no token joins.

    A block begins at byte `begin` of text `row`. It ends with the first segment that
    reaches `size` bytes, or with the texts.

    Args:
        text_bytes, starts: Texts from :func:`lay_out`.
        ascii_pairs: uint8[128 * 128], 1 for each pair of ASCII characters that a token
            holds.
        bits: Set of the other pairs of code points that tokens hold.
        spaced: uint8[0x110000], 1 for each code point beyond ASCII after which a space
            begins a segment.
        mark: Code point that counts as a space, -1 for none.
        cuts: int32[size + 2], gets the offset of each segment from `begin`, and the end
            of the last one.
        ends: int32[n], gets for each finished text the number of segments until its
            end.

    Returns:
        The first text that is not finished, the offset of its next byte, and the number
        of segments.
    """
    segment_count = 0
    byte_offset = begin
    limit = begin + size
    rows = len(starts) - 1
    while row < rows:
        text_end = starts[row + 1]
        if byte_offset < text_end:
            if byte_offset >= limit:
                break
            # A text, and the rest of one after a limit, begins with a cut.
            cuts[segment_count] = byte_offset - begin
            segment_count += 1
            point, width = code_point(text_bytes, byte_offset, mark)
            byte_offset += width
            bound = min(text_end, limit)
            while byte_offset < bound:
                next_point = np.int64(text_bytes[byte_offset])
                if (point | next_point) < _ASCII:
                    # Without a branch, because a processor cannot predict the cuts. The
                    # offset is always written, and counted only if it is a cut; the
                    # next one overwrites it otherwise.
                    cuts[segment_count] = byte_offset - begin
                    segment_count += 1 - np.int64(ascii_pairs[point << 7 | next_point])
                    byte_offset += 1
                else:
                    next_point, width = code_point(text_bytes, byte_offset, mark)
                    if not _joined(ascii_pairs, bits, spaced, point, next_point):
                        cuts[segment_count] = byte_offset - begin
                        segment_count += 1
                    byte_offset += width
                point = next_point
            # A segment that reaches over the limit is finished.
            while byte_offset < text_end:
                next_point, width = code_point(text_bytes, byte_offset, mark)
                if not _joined(ascii_pairs, bits, spaced, point, next_point):
                    break
                byte_offset += width
                point = next_point
            if byte_offset < text_end:
                break
        ends[row] = segment_count
        row += 1
    cuts[segment_count] = byte_offset - begin
    return row, byte_offset, segment_count


@njit(cache=True, inline="always")
def short_hash(key: Any, size: Any) -> Any:
    """Return the hash of a segment of at most eight bytes, which is its own key."""
    mixed = (key ^ np.uint64(size)) * MIX
    return mixed ^ (mixed >> HALF)


@njit(cache=True, inline="always")
def hash_of(text_bytes: Any, start: Any, size: Any) -> Any:
    """Return the key of a segment and its hash."""
    # 1. A short segment is its own key: the bytes behind it are shifted away.
    if size <= 8:
        key = load(text_bytes, start) & (_ALL >> np.uint64(64 - 8 * np.int64(size)))
        return key, short_hash(key, size)
    # 2. A longer one is mixed eight bytes at a time. The last eight may overlap those
    #    before, so that no byte is read alone.
    mixed = np.uint64(size)
    byte_offset = np.uint64(start)
    last_offset = byte_offset + mixed - EIGHT
    while byte_offset < last_offset:
        mixed = (mixed ^ load(text_bytes, byte_offset)) * MIX
        mixed ^= mixed >> HALF
        byte_offset += EIGHT
    mixed = (mixed ^ load(text_bytes, last_offset)) * _STIR
    mixed ^= mixed >> HALF
    return mixed, mixed


@njit(cache=True, inline="always")
def equal(
    keys: Any, key_offset: Any, text_bytes: Any, text_offset: Any, size: Any
) -> Any:
    """Whether segments of more than eight bytes are equal."""
    # The last eight bytes may overlap those before, as in `hash_of`.
    offset = np.uint64(0)
    last_offset = np.uint64(size) - EIGHT
    while offset < last_offset:
        if load(keys, np.uint64(key_offset) + offset) != load(
            text_bytes, np.uint64(text_offset) + offset
        ):
            return False
        offset += EIGHT
    return load(keys, np.uint64(key_offset) + last_offset) == load(
        text_bytes, np.uint64(text_offset) + last_offset
    )


@njit(cache=True)
def look_up(
    text_bytes: Any,
    begin: Any,
    cuts: Any,
    segment_count: Any,
    table: Any,
    keys: Any,
    used: Any,
    slots: Any,
    new: Any,
) -> Any:
    """Find the slots of segments, and put new segments into the table.

    Args:
        text_bytes, begin, cuts, segment_count: Segments from :func:`cut`.
        table: uint64[capacity, 4], with room for all segments.
        keys: uint8, gets the bytes of new segments.
        used: Number of bytes of `keys` in use.
        slots: int32[segment_count], gets the slot of each segment.
        new: int32[segment_count], gets the slots of new segments, in order.

    Returns:
        The number of bytes of `keys` in use now, and the number of new segments.
    """
    # The capacity is a power of two.
    mask = len(table) - 1
    new_count = 0
    for segment in range(segment_count):
        start = begin + cuts[segment]
        size = np.int64(cuts[segment + 1] - cuts[segment])
        key, hashed = hash_of(text_bytes, start, size)
        slot = np.int64(hashed & np.uint64(mask))
        while True:
            record_size = table[slot, 1]
            # A free slot: the segment is new. It has no ids yet.
            if record_size == 0:
                table[slot, 0] = key
                table[slot, 1] = np.uint64(size)
                table[slot, 2] = np.uint64(used)
                keys[used : used + size] = text_bytes[start : start + size]
                used += size
                new[new_count] = slot
                new_count += 1
                break
            # The key of a short segment is the segment itself. Of a longer one it is a
            # hash, so that the bytes decide.
            if table[slot, 0] == key and (record_size & LOW) == np.uint64(size):
                key_offset = np.int64(table[slot, 2])
                if size <= 8 or equal(keys, key_offset, text_bytes, start, size):
                    break
            slot = (slot + 1) & mask
        slots[segment] = slot
    return used, new_count


@njit(cache=True)
def move(old_table: Any, table: Any, keys: Any) -> None:
    """Put the segments of a table into a larger one, which is empty."""
    mask = len(table) - 1
    for slot in range(len(old_table)):
        if old_table[slot, 1] != 0:
            key_offset = np.int64(old_table[slot, 2])
            size = np.int64(old_table[slot, 1] & LOW)
            _, hashed = hash_of(keys, key_offset, size)
            free_slot = np.int64(hashed & np.uint64(mask))
            while table[free_slot, 1] != 0:
                free_slot = (free_slot + 1) & mask
            table[free_slot] = old_table[slot]


@njit(cache=True, inline="always")
def _merge_slot(merges: Any, left: Any, right: Any) -> Any:
    """Return the slot of a pair of ids in a merge table, or the free one for it."""
    key = np.uint64(left) << HALF | np.uint64(right)
    mask = np.uint64(len(merges) - 1)
    slot = ((key * MIX) >> HALF) & mask
    while merges[slot, 1] != 0 and merges[slot, 0] != key:
        slot = (slot + ONE) & mask
    return slot


@njit(cache=True)
def add_merges(merges: Any, left_ids: Any, right_ids: Any, merged_ids: Any) -> None:
    """Put merges (int32[n] each, in the order of their ranks) into an empty table."""
    # Ranks are stored plus one, because 0 marks a free slot.
    for rank in range(len(left_ids)):
        slot = _merge_slot(merges, left_ids[rank], right_ids[rank])
        merges[slot, 0] = np.uint64(left_ids[rank]) << HALF | np.uint64(right_ids[rank])
        merges[slot, 1] = np.uint64(rank + 1) << HALF | np.uint64(merged_ids[rank])


@njit(cache=True, inline="always")
def _rank(merges: Any, left: Any, right: Any) -> Any:
    """Return the merge table's entry of two ids, `_NO_RANK` if nothing merges them."""
    entry = merges[_merge_slot(merges, left, right), 1]
    if entry == 0:
        return _NO_RANK
    return np.int64(entry)


@njit(cache=True)
def write_characters(
    text_bytes: Any,
    start: Any,
    stop: Any,
    ids_of_points: Any,
    byte_ids: Any,
    ids: Any,
    write_offset: Any,
) -> Any:
    """Write the ids of characters to `ids`, and return their number.

    A character without an id becomes the ids of its bytes.

    Args:
        text_bytes, start, stop: Characters as UTF-8, with their byte offsets.
        ids_of_points: int32[0x110000], the id of each code point, -1 for none.
        byte_ids: int32[256], the id of each byte.
        ids: int32, gets the ids from `write_offset` on.
        write_offset: Offset of the first id in `ids`.
    """
    id_count = 0
    byte_offset = start
    while byte_offset < stop:
        point, width = code_point(text_bytes, byte_offset, MARK)
        if ids_of_points[point] >= 0:
            ids[write_offset + id_count] = ids_of_points[point]
            id_count += 1
        else:
            for byte_index in range(width):
                ids[write_offset + id_count] = byte_ids[
                    text_bytes[byte_offset + byte_index]
                ]
                id_count += 1
        byte_offset += width
    return id_count


@njit(cache=True)
def merge(
    text_bytes: Any,
    start: Any,
    stop: Any,
    ids_of_points: Any,
    byte_ids: Any,
    merges: Any,
    ids: Any,
    write_offset: Any,
    ranks: Any,
) -> Any:
    """Write the ids of a segment to `ids`, and return their number.

    Byte pair encoding: of all neighbours the pair with the lowest rank is merged, the
    leftmost of several, until no pair has a rank. The time grows with the square of the
    length, which is short.

    Args:
        text_bytes, start, stop: Segment as UTF-8, with its byte offsets.
        ids_of_points: int32[0x110000], the id of each code point, -1 for those that
            become the ids of their bytes.
        byte_ids: int32[256], the id of each byte.
        merges: Merge table.
        ids: int32, gets the ids from `write_offset` on.
        write_offset: Offset of the first id in `ids`.
        ranks: int64[k], with room for an entry per byte of the segment.
    """
    # 1. The ids of the characters, and the entry of each pair of neighbours. Entry k of
    #    `ranks` belongs to the ids k and k + 1.
    id_count = write_characters(
        text_bytes, start, stop, ids_of_points, byte_ids, ids, write_offset
    )
    for pair in range(id_count - 1):
        ranks[pair] = _rank(
            merges, ids[write_offset + pair], ids[write_offset + pair + 1]
        )
    # 2. Merge the best pair.
    while id_count > 1:
        best_pair = 0
        for pair in range(1, id_count - 1):
            if ranks[pair] < ranks[best_pair]:
                best_pair = pair
        if ranks[best_pair] == _NO_RANK:
            break
        ids[write_offset + best_pair] = np.int32(
            ranks[best_pair] & np.int64(0xFFFFFFFF)
        )
        # The merged id takes two places: what follows moves one to the left.
        id_count -= 1
        for pair in range(best_pair + 1, id_count):
            ids[write_offset + pair] = ids[write_offset + pair + 1]
            ranks[pair - 1] = ranks[pair]
        # Only the pairs on both sides of the merged id have changed.
        if best_pair > 0:
            ranks[best_pair - 1] = _rank(
                merges, ids[write_offset + best_pair - 1], ids[write_offset + best_pair]
            )
        if best_pair < id_count - 1:
            ranks[best_pair] = _rank(
                merges, ids[write_offset + best_pair], ids[write_offset + best_pair + 1]
            )
    return id_count


@njit(cache=True)
def merge_new(
    table: Any,
    new: Any,
    keys: Any,
    pool: Any,
    used: Any,
    ids_of_points: Any,
    byte_ids: Any,
    merges: Any,
    ranks: Any,
) -> Any:
    """Encode new segments of at most `len(ranks)` bytes by merging them.

    Longer ones stay without ids, and the caller encodes them by another backend.

    Args:
        table, new, keys: Table, slots of its new segments and their bytes, from
            :func:`look_up`.
        pool: int32, with room for an id per byte of the segments.
        used: Number of entries of `pool` in use.
        ids_of_points, byte_ids, merges, ranks: Tables and room of :func:`merge`.

    Returns:
        The number of entries of `pool` in use now.
    """
    for slot in new:
        size = np.int64(table[slot, 1] & LOW)
        if size > len(ranks):
            continue
        start = np.int64(table[slot, 2])
        id_count = merge(
            keys,
            start,
            start + size,
            ids_of_points,
            byte_ids,
            merges,
            pool,
            used,
            ranks,
        )
        used = put(table, slot, pool, used, id_count)
    return used


@njit(cache=True, inline="always")
def put(table: Any, slot: Any, pool: Any, used: Any, id_count: Any) -> Any:
    """Record the ids of a segment, which were written to `pool` at offset `used`.

    Returns:
        The number of entries of `pool` in use now.
    """
    table[slot, 1] = (table[slot, 1] & LOW) | np.uint64(id_count) << HALF
    if id_count > 2:
        table[slot, 3] = np.uint64(used)
        return used + id_count
    # One or two ids fit into the record: nearly all segments need no read of the pool.
    second_id = np.uint64(0)
    if id_count > 1:
        second_id = np.uint64(pool[used + 1])
    table[slot, 3] = np.uint64(pool[used]) | second_id << HALF
    return used


@njit(cache=True)
def put_given(
    table: Any, slots: Any, offsets: Any, ids: Any, pool: Any, used: Any
) -> Any:
    """Record the ids of segments that another backend encoded.

    Args:
        table, slots: Table, and the slots of the segments: int32[n].
        offsets, ids: int64[n + 1] and int32[total], the ids of the segments.
        pool: int32, with room for the ids and two more.
        used: Number of entries of `pool` in use.

    Returns:
        The number of entries of `pool` in use now.
    """
    for segment in range(len(slots)):
        id_count = offsets[segment + 1] - offsets[segment]
        pool[used : used + id_count] = ids[offsets[segment] : offsets[segment + 1]]
        used = put(table, slots[segment], pool, used, id_count)
    return used


@njit(cache=True)
def count_ids(table: Any, slots: Any, segment_count: Any) -> Any:
    """Return the number of ids of the segments in the first slots."""
    total = 0
    for segment in range(segment_count):
        total += np.int64(table[slots[segment], 1] >> HALF)
    return total


@njit(cache=True)
def write(
    table: Any,
    slots: Any,
    segment_count: Any,
    pool: Any,
    ids: Any,
    write_offset: Any,
    row: Any,
    end_row: Any,
    ends: Any,
    offsets: Any,
) -> Any:
    """Write the ids of segments to `ids`, and return the offset of their end.

    Args:
        table, slots, segment_count: Table, and the slots of the segments.
        pool: int32, the ids of segments with more than two.
        ids: int32, with room for all ids and two more.
        write_offset: Offset of the first id in `ids`.
        row, end_row: First text of the segments, and the first that is not finished.
        ends: Number of segments until the end of each text, from :func:`cut`.
        offsets: int64[texts + 1], gets the end of the ids of each finished text.
    """
    for segment in range(segment_count):
        # A text ends before this segment; several do if texts are empty.
        while row < end_row and ends[row] == segment:
            row += 1
            offsets[row] = write_offset
        record_size = table[slots[segment], 1]
        record_ids = table[slots[segment], 3]
        id_count = np.int64(record_size >> HALF)
        # Two ids are written without asking for the number. The next segment overwrites
        # those in excess; hence the room for two more.
        if id_count <= 2:
            ids[write_offset] = np.int32(record_ids & LOW)
            ids[write_offset + 1] = np.int32(record_ids >> HALF)
        else:
            pool_offset = np.int64(record_ids)
            for id_index in range(id_count):
                ids[write_offset + id_index] = pool[pool_offset + id_index]
        write_offset += id_count
    while row < end_row:
        row += 1
        offsets[row] = write_offset
    return write_offset
