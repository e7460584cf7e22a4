"""Ids of several texts in one array: cut, surrounded, padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows = Int32 | list[Int32]
Fixed = tuple[int, ...]


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


def cut(ragged: Ragged, ends: Int64) -> Ragged:
    """Keep the first ``ends[i]`` ids of text i, at most as many as it has."""
    lengths = np.diff(ragged.offsets)
    if (lengths <= ends).all():
        return ragged
    short = np.minimum(lengths, ends)
    kept = offsets_of(short)
    places = np.arange(kept[-1]) + np.repeat(ragged.offsets[:-1] - kept[:-1], short)
    return Ragged(kept, ragged.ids[places])


def surrounded(ragged: Ragged, prefix: Fixed, suffix: Fixed, head: Bools, tail: Bools) -> Ragged:
    """Put `prefix` before the texts where `head` (bool[n]) is true, and `suffix` after those of `tail`."""
    lengths = np.diff(ragged.offsets)
    before, after = head * len(prefix), tail * len(suffix)
    if not before.any() and not after.any():
        return ragged
    offsets = offsets_of(lengths + before + after)
    ids = np.empty(int(offsets[-1]), np.int32)
    begin = offsets[:-1] + before
    ids[np.arange(len(ragged.ids)) + np.repeat(begin - ragged.offsets[:-1], lengths)] = ragged.ids
    for place, token in enumerate(prefix):
        ids[offsets[:-1][head] + place] = token
    for place, token in enumerate(suffix):
        ids[(begin + lengths)[tail] + place] = token
    return Ragged(offsets, ids)


def begins(ragged: Ragged, prefix: Fixed) -> Bools:
    """Return bool[n]: which texts begin with `prefix`."""
    return np.array([tuple(row[: len(prefix)]) == prefix for row in ragged.rows()], np.bool_)


def ends(ragged: Ragged, suffix: Fixed) -> Bools:
    """Return bool[n]: which texts end with `suffix`."""
    return np.array([not suffix or tuple(row[-len(suffix) :]) == suffix for row in ragged.rows()], np.bool_)


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
