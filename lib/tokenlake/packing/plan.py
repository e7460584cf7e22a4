"""From the lengths of documents to their places: the strategies by name."""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from tokenlake.packing.best_fit import best_fit_segments
from tokenlake.packing.first_fit import first_fit_segments
from tokenlake.packing.greedy import segments_of
from tokenlake.packing.pool import pool_segments
from tokenlake.packing.segments import Segments

Int64 = npt.NDArray[np.int64]

Strategy = Literal["greedy", "pool", "first_fit", "best_fit"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)


def plan_segments(
    strategy: Strategy,
    lengths: Int64,
    seq_length: int,
    *,
    num_packers: int = 4,
    max_segments: int | None = None,
) -> Segments:
    """Place documents of `lengths` (int64[n], each at least 1) in rows of `seq_length` tokens.

    Every token of every document is in exactly one piece. No token is looked at.

    Args:
        num_packers: rows that stand open at a time, for ``pool``.
        max_segments: at most so many pieces in a row; None: any number.
    """
    if strategy == "best_fit":
        return best_fit_segments(lengths, seq_length, max_segments)
    if strategy == "first_fit":
        return first_fit_segments(lengths, seq_length, max_segments)
    if strategy == "pool":
        return pool_segments(lengths, seq_length, num_packers, max_segments)
    return segments_of(lengths, seq_length, max_segments)
