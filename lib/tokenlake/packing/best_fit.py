"""Best fit: as few rows as can be without cutting a document that fits one.

A document longer than a row is whole rows and a rest. The rests are placed by best-fit decreasing, which is fast and
mostly as good as it gets. Where its rows are not full enough, the rests of documents that are cut anyway fill gaps,
and where that is not enough either, rows are made anew by exact fit, which comes first where all documents are short.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tokenlake.packing.decreasing import best_fit_decreasing
from tokenlake.packing.exact import exact_fit
from tokenlake.packing.segments import Rests, Segments, from_rests
from tokenlake.packing.spill import spilled

Int64 = npt.NDArray[np.int64]

_PADDING: Final = 1000
"""One slot in so many may be padding before something else is tried."""


def best_fit_segments(lengths: Int64, seq_length: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `seq_length` tokens.

    Args:
        max_segments: at most so many pieces in a row; None: any number.

    Returns:
        Rows in the order of their first tokens in the input. A document that fits a row is never cut. A longer one is
        whole rows and a rest, which is mostly one piece.
    """
    goal = _enough(int(lengths.sum()), seq_length) - int((lengths // seq_length).sum())
    methods = (best_fit_decreasing, exact_fit)
    if 2 * int(lengths.max(initial=0)) <= seq_length:  # nothing large: exact fit will do, and at once
        methods = (exact_fit, best_fit_decreasing)
    best: Rests | None = None
    for method in methods:
        rests = Rests.of(lengths, seq_length, lambda sizes, fit=method: fit(sizes, seq_length, max_segments))
        if rests.bins > goal:
            rests = spilled(rests, seq_length, rests.bins - goal, max_segments)
        best = rests if best is None or rests.bins < best.bins else best
        if best.bins <= goal:
            break
    assert best is not None
    return from_rests(lengths, seq_length, best)


def _enough(tokens: int, seq_length: int) -> int:
    """Return how many rows are few enough: as few as is possible, or where hardly a slot is padding."""
    return max(-(-tokens // seq_length), tokens * _PADDING // (seq_length * (_PADDING - 1)))
