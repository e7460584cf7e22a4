"""The dictionary of indices that stand for themselves: any zstd decoder reads it,
and it takes next to nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tokenlake.runtime.parquet import identity_dictionary

STEP = 256
"""The number of entries is a multiple of it, at most :data:`MOST_ENTRIES`."""

MOST_ENTRIES = 1 << 16

_CODEC: Any = pa.Codec("zstd")


@pytest.mark.parametrize(
    "entries", [STEP, 2 * STEP, 3 * STEP, 32_000, 50_432, MOST_ENTRIES]
)
def test_a_decoder_gets_every_number_up_to_the_last(entries: int) -> None:
    frame = identity_dictionary(entries)
    assert (
        _CODEC.decompress(frame, 4 * entries, asbytes=True)
        == np.arange(entries, dtype="<i4").tobytes()
    )
    assert len(frame) <= 1400 + 13 * entries // STEP


@pytest.mark.parametrize("entries", [-STEP, 0, 1, STEP + 1, MOST_ENTRIES + STEP])
def test_other_numbers_of_entries_are_refused(entries: int) -> None:
    with pytest.raises(
        ValueError,
        match=f"a dictionary of {entries} entries; expected a multiple of 256 up to 65536",
    ):
        identity_dictionary(entries)
