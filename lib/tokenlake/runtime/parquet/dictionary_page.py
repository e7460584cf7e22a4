"""The dictionary page of :func:`identity_dictionary`: entry k is the number k, compressed once without a codec.

It is a Zstandard frame that is composed directly: a block of literals, and sequences that repeat the upper bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

MOST_ENTRIES: Final = 1 << 16
STEP: Final = 256
"""A dictionary has a multiple of so many entries, at most :data:`MOST_ENTRIES`."""

_RAW, _COMPRESSED = 0, 2
_BLOCK: Final = 4 * STEP  # bytes of the entries that share all but their lowest byte
# Magic; one segment, the content's size in four bytes, no checksum.
_HEADER: Final = bytes.fromhex("28b52ffd a0")
_THREE: Final = 0  # the code of a match of three bytes
_SAME_OFFSET: Final = 0  # the code of the offset of the sequence before
_FAR: Final = 10  # the code of offsets 1021 .. 2044: it takes ten bits more


@lru_cache(maxsize=4)
def identity_dictionary(entries: int) -> bytes:
    """Return int32 0, 1, ..., entries - 1, little-endian, as a zstd frame.

    Args:
        entries: a multiple of :data:`STEP`, at most :data:`MOST_ENTRIES`.

    The entries say nothing, and a frame can say so: its 13 bytes for 256 entries are put together here (RFC 8878,
    "Zstandard Compression and the 'application/zstd' Media Type", sections 3.1.1.1 to 3.1.1.3); zstd would take as much
    for all entries as the ids take. Entry ``256 b + k`` is the bytes ``k b 0 0``. So from the second byte of entry 256
    b on, 256 times: the literal b, then three bytes ``0 0 k+1`` that stand 1,024 bytes before. The first 256 entries,
    the first byte of the next and the last three bytes of all lie there as they are.
    """
    if entries % STEP or not 0 < entries <= MOST_ENTRIES:
        raise ValueError(
            f"a dictionary of {entries} entries; expected a multiple of {STEP} up to {MOST_ENTRIES}"
        )
    first = b"".join(entry.to_bytes(4, "little") for entry in range(STEP))
    high = entries // STEP
    blocks = [(_RAW, first + b"\0" * (high > 1))]
    blocks += [(_COMPRESSED, _entries(number, STEP - (number == high - 1))) for number in range(1, high)]
    if high > 1:
        blocks.append((_RAW, bytes([high - 1, 0, 0])))
    frame = bytearray(_HEADER + (4 * entries).to_bytes(4, "little"))
    for number, (kind, body) in enumerate(blocks):
        last = number == len(blocks) - 1
        frame += (len(body) << 3 | kind << 1 | last).to_bytes(3, "little") + body
    return bytes(frame)


def _entries(high: int, count: int) -> bytes:
    """The body of a block of so many sequences: the literal `high`, then three bytes of the block before."""
    literals = (count << 4 | 0b0101).to_bytes(2, "little") + bytes([high])  # one byte, so often
    head = (bytes([0x80 | count >> 8, count & 0xFF]) if count > 127 else bytes([count])) + b"\x54\x01"
    if high > 1:
        return literals + head + bytes([_SAME_OFFSET, _THREE, 1])
    # The value of an offset is three more than it is; a bit of 1 ends the bits of all.
    bits = sum((_BLOCK + 3 - (1 << _FAR)) << _FAR * place for place in range(count)) | 1 << _FAR * count
    return literals + head + bytes([_FAR, _THREE]) + bits.to_bytes(_FAR * count // 8 + 1, "little")
