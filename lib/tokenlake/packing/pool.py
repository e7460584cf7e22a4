"""Pool: a few rows stand open, and each document goes to the one that it fills best.

A document that fits none of them fills the fullest to its end and goes on in the row that is opened in its place, so
that rows have no padding but the last ones.
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from tokenlake.packing.segments import Segments
from tokenlake.ragged import offsets_of

Int64 = npt.NDArray[np.int64]


def pool_segments(lengths: Int64, seq_length: int, packers: int, max_segments: int | None = None) -> Segments:
    """Plan documents of `lengths` (int64[n], each at least 1) into rows of `seq_length` tokens.

    Args:
        packers: rows that stand open at a time.
        max_segments: at most so many pieces in a row, which is closed then, full or not; None: any number.

    Returns:
        Rows in the order in which they were opened, the pieces of a row in the order in which they came.
    """
    pool = _Pool(seq_length, packers, max_segments or seq_length)
    for document, length in enumerate(lengths.tolist()):
        pool.add(document, length)
    return pool.segments()


@final
class _Pool:
    """The open rows: of each its room, its number and how many pieces it has."""

    def __init__(self, seq_length: int, packers: int, most: int) -> None:
        self._seq_length, self._most = seq_length, most
        self._room = [seq_length] * packers
        self._row = [-1] * packers  # a row is numbered when its first piece comes
        self._pieces = [0] * packers
        self._opened = 0
        self._placed: tuple[list[int], ...] = ([], [], [], [])  # row, document, start, length

    def add(self, document: int, length: int) -> None:
        """Place one document."""
        start = 0
        room = self._room
        least = min((left for left in room if left >= length), default=None)
        # The fullest one, where none has room enough; of equals the first.
        packer = room.index(min(room) if least is None else least)
        while start < length:
            piece = min(length - start, room[packer])
            self._place(packer, document, start, piece)
            start += piece

    def _place(self, packer: int, document: int, start: int, length: int) -> None:
        if self._row[packer] < 0:
            self._row[packer], self._opened = self._opened, self._opened + 1
        for column, value in zip(self._placed, (self._row[packer], document, start, length), strict=True):
            column.append(value)
        self._room[packer] -= length
        self._pieces[packer] += 1
        if not self._room[packer] or self._pieces[packer] == self._most:
            self._room[packer], self._row[packer], self._pieces[packer] = self._seq_length, -1, 0

    def segments(self) -> Segments:
        """Return what was placed, row by row."""
        row, document, start, length = (np.array(column, np.int64) for column in self._placed)
        order = np.argsort(row, kind="stable")
        counts = np.bincount(row, minlength=self._opened)
        return Segments(document[order], start[order], length[order], offsets_of(counts))
