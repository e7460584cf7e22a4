"""How large an object may be that is read whole: far more than any of ours, and far less than what fills a machine.

Sealed documents are parsed before anything of them can be believed, so their size is judged first.
"""

from __future__ import annotations

from typing import Final

from tokenlake.errors import IntegrityError
from tokenlake.storage.layout import CLAIM, LEDGER, TAGS

_WHOLE: Final = 1 << 30  # a manifest of a million shards, a tokenizer
_RECORD: Final = 256 << 20  # of one unit
_SMALL: Final = 16 << 20  # claims, tags


def most_bytes(key: str) -> int:
    """Return how many bytes an object may have, to be read whole."""
    *folders, name = key.split("/")
    if name == CLAIM or folders[-1:] == [TAGS]:
        return _SMALL
    return _RECORD if folders[-1:] == [LEDGER] else _WHOLE


def check_size(key: str, size: int) -> None:
    """Raise IntegrityError for an object that is too large to be one of ours, before it is in memory."""
    most = most_bytes(key)
    if size > most:
        raise IntegrityError(
            f"{key}: it has {size} bytes or more; expected at most {most}. It is none of ours: restore it from a copy, "
            "or build it again.",
            file=key,
            expected=most,
            got=size,
        )
