"""Columns that would take far more memory than what is stored of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Pread = Callable[[int, int], bytes]
"""(size, offset) -> bytes, fewer only at the end of the file."""

UNFOLDED_BYTES: Final = 1 << 30  # what little may unfold to
_UNFOLDED_TIMES: Final = 100


class Bomb(ValueError):
    """Decoding would take far more memory than what is stored can account for."""


def check_unfolded(decoded: int, stored: int) -> None:
    """Raise Bomb if `decoded` bytes came, or will come, out of `stored` ones that cannot account for them."""
    if decoded > UNFOLDED_BYTES and decoded > _UNFOLDED_TIMES * stored:
        raise Bomb(f"{stored} bytes of pages unfold to {decoded} bytes and more, as in a decompression bomb")
