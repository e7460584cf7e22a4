"""Ids of several texts in one array: cut, surrounded, padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Rows = Int32 | list[Int32]


@final
@dataclass(frozen=True, slots=True)
class Ragged:
    """Ids of n texts: ids int32[total], offsets int64[n + 1] from 0."""

    offsets: Int64
    ids: Int32

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self) -> list[Int32]:
        """Return the ids of each text, views of :attr:`ids`."""
        return np.split(self.ids, self.offsets[1:-1]) if len(self) else []


def cut(offsets: Int64, ids: Int32, limit: int | None) -> Ragged:
    """Keep the first `limit` ids of every text, None for all."""
    lengths = np.diff(offsets)
    if limit is None or not (lengths > limit).any():
        return Ragged(offsets, ids)
    short = np.minimum(lengths, limit)
    kept = offsets_of(short)
    return Ragged(kept, ids[np.arange(kept[-1]) + np.repeat(offsets[:-1] - kept[:-1], short)])


def surrounded(ragged: Ragged, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Ragged:
    """Put fixed ids before and after every text's own."""
    if not (prefix or suffix):
        return ragged
    lengths = np.diff(ragged.offsets)
    offsets = offsets_of(lengths + len(prefix) + len(suffix))
    ids = np.empty(int(offsets[-1]), np.int32)
    begin = offsets[:-1] + len(prefix)
    ids[np.arange(len(ragged.ids)) + np.repeat(begin - ragged.offsets[:-1], lengths)] = ragged.ids
    for place, token in enumerate(prefix):
        ids[offsets[:-1] + place] = token
    for place, token in enumerate(suffix):
        ids[begin + lengths + place] = token
    return Ragged(offsets, ids)


def offsets_of(lengths: npt.ArrayLike) -> Int64:
    """Return int64[n + 1] from 0 of the lengths of n texts."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def padded(ragged: Ragged, pad_id: int, width: int | None = None, *, left: bool = False) -> tuple[Rows, Rows]:
    """Fill up rows to the longest of them, or to `width`.

    Returns:
        The rows, and 1 where they hold ids: int32[n, w] twice; lists of int32 arrays if a row is longer than `width`.
    """
    lengths = np.diff(ragged.offsets)
    longest = int(lengths.max(initial=0))
    if width is not None and longest > width:
        rows = [
            padded(Ragged(np.array([0, len(row)]), row), pad_id, max(width, len(row)), left=left)
            for row in ragged.rows()
        ]
        return [ids[0] for ids, _ in rows], [mask[0] for _, mask in rows]
    width = longest if width is None else width
    place = np.arange(width)
    here = place >= (width - lengths)[:, None] if left else place < lengths[:, None]
    ids = np.full(here.shape, pad_id, np.int32)
    ids[here] = ragged.ids
    return ids, here.astype(np.int32)
