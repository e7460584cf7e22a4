"""Copies of runs of values from one array to another."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64, places

LONG: Final = 16
"""Mean length of a run from which copying run by run is faster than looking up each
value (measured).
"""


def copy_runs(
    source: npt.NDArray[Any],
    start: Int64,
    target: npt.NDArray[Any],
    begin: Int64,
    lengths: Int64,
) -> None:
    """Copy n runs of values from one array to another.

    Run i is ``source[start[i] : start[i] + lengths[i]]``. It is copied to
    ``target[begin[i] : begin[i] + lengths[i]]``.

    Args:
        source: Values to read.
        start: First value of each run in `source`, int64[n].
        target: Values to write, of the same type.
        begin: First value of each run in `target`, int64[n].
        lengths: Number of values of each run, int64[n].
    """
    if lengths.sum() < LONG * len(lengths):
        target[places(begin, lengths)] = source[places(start, lengths)]
        return
    # Slices of memory views are the fastest copies that Python has.
    target_bytes = target.view(np.uint8).data
    source_bytes = source.view(np.uint8).data
    width = source.itemsize
    source_begins = (start * width).tolist()
    target_begins = (begin * width).tolist()
    sizes = (lengths * width).tolist()
    for source_begin, target_begin, size in zip(
        source_begins, target_begins, sizes, strict=True
    ):
        target_bytes[target_begin : target_begin + size] = source_bytes[
            source_begin : source_begin + size
        ]


def copied_runs(
    source: npt.NDArray[Any], start: Int64, lengths: Int64
) -> npt.NDArray[Any]:
    """Return the runs of :func:`copy_runs` in a new array, one after the other."""
    ends = np.cumsum(lengths)
    target = np.empty(int(lengths.sum()), source.dtype)
    copy_runs(source, start, target, ends - lengths, lengths)
    return target
