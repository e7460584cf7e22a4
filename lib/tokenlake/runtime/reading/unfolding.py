"""Limit on the memory that a few stored bytes may decode to.

It protects against decompression bombs.
"""

from __future__ import annotations

from typing import Final

UNFOLDED_BYTES: Final = 1 << 30
"""Decoded bytes that are allowed however few bytes are stored."""

_UNFOLDED_TIMES: Final = 100  # decoded bytes that are allowed for each stored byte


class Bomb(ValueError):
    """Decoding would take far more memory than the stored bytes can account for."""


def check_unfolded(decoded: int, stored: int) -> None:
    """Raise Bomb if the stored bytes cannot account for the decoded bytes.

    Args:
        decoded: Bytes after decoding, counted or announced.
        stored: Bytes in the file.
    """
    if decoded > UNFOLDED_BYTES and decoded > _UNFOLDED_TIMES * stored:
        raise Bomb(
            f"{stored} bytes of pages decompress to {decoded} bytes and more, as in a decompression bomb"
        )
