"""Rows of ids filled up to one width, as `transformers` pads a batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenlake.ragged import Ragged, cells

Int32 = npt.NDArray[np.int32]
Rows = Int32 | list[Int32]


def padded(ragged: Ragged, pad_id: int, width: int | None = None, *, left: bool = False) -> tuple[Rows, Rows]:
    """Fill up rows to the longest of them, or to `width`.

    Returns:
        The rows, and 1 where they hold ids: int32[n, w] twice; lists of int32 arrays if a row is longer than `width`.
    """
    lengths = ragged.lengths
    longest = int(lengths.max(initial=0))
    if width is not None and longest > width:
        rows = [
            padded(Ragged(row, np.array([0, len(row)])), pad_id, max(width, len(row)), left=left)
            for row in ragged.rows()
        ]
        return [ids[0] for ids, _ in rows], [mask[0] for _, mask in rows]
    width = longest if width is None else width
    here = cells(lengths, width, left=left)
    ids = np.full(here.shape, pad_id, np.int32)
    ids[here] = ragged.ids
    return ids, here.astype(np.int32)
