"""What texts have in common at their beginning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def common_prefix(texts: Sequence[str]) -> str:
    """Return the longest text that all of them begin with, character by character; "" for none."""
    if not texts:
        return ""
    # Between the first and the last in order lie all others.
    first, last = min(texts), max(texts)
    return first[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))]
