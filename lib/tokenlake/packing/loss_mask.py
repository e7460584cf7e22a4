"""The loss mask travels inside the ids, in a bit that no vocabulary reaches, so that one copy moves both."""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.arrays import Bools, Int32

LOSS: Final = 1 << 30
"""Set in an id that bears loss, in a build with a loss mask."""

_ID: Final = np.int32(LOSS - 1)


def marked(ids: Int32, learned: Bools | bool = True) -> Int32:
    """Return ids (int32[n]) with the bit set where `learned` (bool[n]) is true."""
    bits = np.asarray(learned).astype(np.int32)
    bits <<= np.int32(30)
    return ids | bits


def plain(ids: Int32) -> Int32:
    """Return the ids themselves."""
    return ids & _ID


def learned(ids: Int32) -> Bools:
    """Return which ids bear the bit."""
    return ids > _ID
