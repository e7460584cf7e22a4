"""The characters by which byte-level tokenizers write the 256 bytes, as GPT-2's
tokenizer does.
"""

from __future__ import annotations

import functools


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """Return the printable character by which a byte-level vocabulary writes each of
    the 256 bytes.

    The printable characters of Latin-1 stand for themselves. The other bytes are, in
    order, the characters from U+0100 on. The space is U+0120.
    """
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    characters: list[str] = []
    substitute = 0x100
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(substitute))
            substitute += 1
    return tuple(characters)
