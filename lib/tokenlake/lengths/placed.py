"""Cutting a document that is encoded already, at a place that its text decides.

Only the part of the text that the budget can reach is encoded once more, for the places of its tokens: a document may
be a thousand times longer. That part is exact if its ids are those of the document; where they are not, it is made
longer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.lengths.truncation import Side, Strategy, truncate
from tokenlake.tokenizers.encoder import Encoder

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: Beyond what the budget should take, by the document's own bytes per token.
_SPARE: Final = 1.25
_LEAST_BYTES: Final = 512
_GROWTH: Final = 4


def cut_text(
    encoder: Encoder, text: pa.LargeStringArray, ids: Int32, budget: int, strategy: Strategy, side: Side
) -> tuple[int, int]:
    """Return which tokens of a document are kept: ``first:last``.

    Args:
        encoder: what made the ids.
        text: large_string[1].
        ids: int32[n], all ids of the text; n is more than `budget`.
        budget, strategy, side: as for :func:`tokenlake.lengths.truncation.truncate`.
    """
    buffer: Any = text[0].as_buffer()
    data = np.frombuffer(buffer, np.uint8)
    start, stop = _places(encoder, data, ids, budget, side)
    cut = truncate(data.data, start, stop, budget, strategy, side)
    if side == "right":
        return 0, cut.last
    return len(ids) - (len(start) - cut.first), len(ids)


def _places(encoder: Encoder, data: Bytes, ids: Int32, budget: int, side: Side) -> tuple[Int64, Int64]:
    """Return the places of more than `budget` tokens at the end of the text that is kept: int64[k] each."""
    needed = min(budget + 1, len(ids))
    size = int(needed * (len(data) / len(ids)) * _SPARE) + _LEAST_BYTES
    while True:
        begin, end = (0, min(size, len(data))) if side == "right" else (max(0, len(data) - size), len(data))
        begin, end = _character(data, begin), _character(data, end)
        part = pa.array([data[begin:end].tobytes().decode()], pa.large_string())
        encoded, start, stop = encoder.encode_places(part)
        same = encoded.ids[:needed] if side == "right" else encoded.ids[-needed:]
        wanted = ids[:needed] if side == "right" else ids[-needed:]
        if size >= len(data) or np.array_equal(same, wanted):
            return start + begin, stop + begin
        size *= _GROWTH


def _character(data: Bytes, at: int) -> int:
    """Return the place at or before byte `at` where a character begins."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at
