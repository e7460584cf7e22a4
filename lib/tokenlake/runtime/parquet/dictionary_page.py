"""Dictionary page in which entry k is the number k.

It is a zstd frame that is put together without a codec.

zstd would take as many bytes for all entries as for the ids. But the entries follow a
pattern that a frame can state in 13 bytes for 256 entries (RFC 8878, "Zstandard
Compression and the 'application/zstd' Media Type", sections 3.1.1.1 to 3.1.1.3). Entry
``256 b + k`` has the four bytes ``k b 0 0``:

1. The first 256 entries, and the first byte of entry 256, are stored as they are.
2. From the second byte of entry ``256 b`` on, for b = 1, 2, ...: 256 times the literal
   ``b``, then a match of three bytes ``0 0 k+1`` that stand 1,024 bytes before.
3. The last three bytes of all are stored as they are.

Example: 512 entries are a raw block of 1,025 bytes, a block of 255 sequences (the last
entry is not complete), and a raw block ``01 00 00``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

MOST_ENTRIES: Final = 1 << 16
"""Largest number of entries of a dictionary."""

STEP: Final = 256
"""Divisor of the number of entries of every dictionary."""

# Types of blocks.
_RAW: Final = 0
_COMPRESSED: Final = 2

# Magic; one segment, the content's size in four bytes, no checksum.
_FRAME_HEAD: Final = bytes.fromhex("28b52ffd a0")
_BLOCK_BYTES: Final = 4 * STEP  # entries that share all but their lowest byte

# Codes of a sequence.
_THREE_BYTES: Final = 0  # length of a match
_SAME_OFFSET: Final = 0  # offset of the sequence before
_FAR_OFFSET: Final = 10  # offsets 1,021 to 2,044; ten more bits say which
# The ten bits of an offset of one block: the value is offset + 3.
_OFFSET_BITS: Final = (_BLOCK_BYTES + 3 - (1 << _FAR_OFFSET)) & ((1 << _FAR_OFFSET) - 1)


@lru_cache(maxsize=4)
def identity_dictionary(entries: int) -> bytes:
    """Return int32 0, 1, ..., entries - 1, little-endian, as a zstd frame.

    Args:
        entries: Number of entries, a multiple of :data:`STEP` up to
            :data:`MOST_ENTRIES`.

    Raises:
        ValueError: The number of entries is another one.
    """
    if entries % STEP or not 0 < entries <= MOST_ENTRIES:
        raise ValueError(
            f"a dictionary of {entries} entries; expected a multiple of {STEP} up to {MOST_ENTRIES}"
        )
    # 1. The first 256 entries, and the first byte of entry 256 if there is one.
    block_count = entries // STEP
    first_entries = b"".join(entry.to_bytes(4, "little") for entry in range(STEP))
    frame = bytearray(_FRAME_HEAD)
    frame += (4 * entries).to_bytes(4, "little")
    if block_count == 1:
        frame += _block(_RAW, first_entries, is_last=True)
        return bytes(frame)
    frame += _block(_RAW, first_entries + b"\0")
    # 2. A block of sequences for each further 256 entries.
    for high_byte in range(1, block_count):
        sequence_count = STEP
        if high_byte == block_count - 1:  # its last match would go beyond the end
            sequence_count = STEP - 1
        frame += _block(_COMPRESSED, _sequences(high_byte, sequence_count))
    # 3. The last three bytes.
    frame += _block(_RAW, bytes([block_count - 1, 0, 0]), is_last=True)
    return bytes(frame)


def _block(kind: int, body: bytes, *, is_last: bool = False) -> bytes:
    """Return a block with its head of three bytes."""
    head = len(body) << 3 | kind << 1 | int(is_last)
    return head.to_bytes(3, "little") + body


def _sequences(high_byte: int, count: int) -> bytes:
    """Return the body of a block of sequences.

    Each sequence is the literal `high_byte`, then three bytes of the block before.

    Args:
        high_byte: Second byte of the entries.
        count: Number of sequences.
    """
    # The literals: one byte, repeated.
    literals = (count << 4 | 0b0101).to_bytes(2, "little") + bytes([high_byte])
    # The form of numbers from 128 on.
    count_bytes = bytes([0x80 | count >> 8, count & 0xFF])
    head = count_bytes + b"\x54\x01"  # each kind of code is one code, repeated
    if high_byte > 1:
        return literals + head + bytes([_SAME_OFFSET, _THREE_BYTES, 1])
    # The first block states the offset of each sequence; a bit of 1 ends the bits.
    offsets = 1 << _FAR_OFFSET * count
    for sequence in range(count):
        offsets |= _OFFSET_BITS << _FAR_OFFSET * sequence
    offset_bytes = offsets.to_bytes(_FAR_OFFSET * count // 8 + 1, "little")
    return literals + head + bytes([_FAR_OFFSET, _THREE_BYTES]) + offset_bytes
