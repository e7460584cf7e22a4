"""Characters by which byte-level tokenizers write the 256 bytes.

GPT-2's tokenizer introduced them.
"""

from __future__ import annotations

import functools


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """Return the printable character by which byte-level tokens write each byte.

    The printable characters of Latin-1 stand for themselves. The other bytes are, in
    order, the characters from U+0100 on. The space is U+0120.
    """
    # The three ranges are those of GPT-2. Space, soft hyphen and control characters are
    # not among them.
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
