"""Code points on which gigatoken and `tokenizers` disagree."""

from __future__ import annotations

from typing import Final

RANGES: Final[tuple[tuple[int, int], ...]] = ((0x1C89, 0x1C8A),)
