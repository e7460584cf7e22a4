"""Token ids as shards store them: their types and the range that a tokenizer allows."""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32 | np.uint16]
"""Ids as stored: int32, or uint16 where a shard stores indices of 16 bits."""

MOST_IDS: Final = 1 << 31
"""One more than the largest id that int32 holds."""


SHORT_IDS: Final = 1 << 16
"""One more than the largest id that 16 bits hold."""


def check_ids(numbers: Ids, limit: int) -> None:
    """Raise ValueError unless all numbers are from 0 to `limit` - 1."""
    if not numbers.size:
        return
    # As unsigned, a negative number is larger than every id: one pass finds both
    # errors.
    unsigned_ids = numbers.view(np.uint32) if numbers.dtype == np.int32 else numbers
    largest = int(unsigned_ids.max())
    if largest >= limit:
        refuse_id(largest, limit)


def refuse_id(number: int, limit: int) -> NoReturn:
    """Raise the ValueError for a number that is no id, given as unsigned."""
    if number >= MOST_IDS:
        number -= 1 << 32
    raise ValueError(
        f"the id {number} does not belong to its tokenizer; expected 0 to {limit - 1}"
    )
