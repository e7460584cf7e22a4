"""The loss mask of a stream of tokens, kept inside the ids themselves.

No vocabulary reaches bit 30 of an id (:data:`LOSS`). A build with a loss mask sets it
in each id that counts toward the loss, so that one copy moves both the ids and their
mask. The bit is removed before ids are written.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.base.arrays import Bools, Int32

LOSS: Final = 1 << 30
"""Bit that is set in an id that counts toward the loss, in a build with a loss mask."""

_LOSS_BIT: Final = np.int32(30)
_ID_BITS: Final = np.int32(LOSS - 1)


def marked(ids: Int32, learned: Bools | bool = True) -> Int32:
    """Return ids with the bit set where `learned` is true.

    Args:
        ids: Ids without the bit, int32[n].
        learned: Mask of the ids that count toward the loss, bool[n], or one value for
            all of them.
    """
    loss_bits = np.asarray(learned).astype(np.int32)
    loss_bits <<= _LOSS_BIT
    return ids | loss_bits


def plain(ids: Int32) -> Int32:
    """Return ids without the bit, int32[n]."""
    return ids & _ID_BITS


def learned(ids: Int32) -> Bools:
    """Return the mask of the ids that have the bit set, bool[n]."""
    return ids > _ID_BITS
