"""Rows of one length, with the places that their tokens come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.ragged import offsets_of

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of ``seq_length`` tokens.

    Attributes:
        input_ids: int32[rows * seq_length], contiguous; the pieces of a row, then its padding.
        segment_lengths: int32[S], tokens of each piece, rows one after another.
        row_offsets: int64[rows + 1] into the pieces.
        file, position: int64[S], where each piece's document comes from.
        start: int32[S], index of the piece's first token within its document.
        ends: bool[S], whether a piece holds its document's last token. Where that is not known yet it is False.
        pad: padding tokens of all rows.
    """

    input_ids: Int32
    segment_lengths: Int32
    row_offsets: Int64
    file: Int64
    position: Int64
    start: Int32
    ends: Bools
    pad: int

    @property
    def rows(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def begins(self) -> Int64:
        """int64[S]: where in `input_ids` each piece begins."""
        counts = np.diff(self.row_offsets)
        before = offsets_of(self.segment_lengths)[:-1]
        row_begins = np.arange(self.rows) * (len(self.input_ids) // max(1, self.rows))
        # Within its row a piece lies where it lies among all pieces, less what went before the row.
        return before + np.repeat(row_begins - before[self.row_offsets[:-1]], counts)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, of which there is at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            input_ids=np.concatenate([part.input_ids for part in parts]),
            segment_lengths=np.concatenate([part.segment_lengths for part in parts]),
            row_offsets=offsets_of(np.concatenate([np.diff(part.row_offsets) for part in parts])),
            file=np.concatenate([part.file for part in parts]),
            position=np.concatenate([part.position for part in parts]),
            start=np.concatenate([part.start for part in parts]),
            ends=np.concatenate([part.ends for part in parts]),
            pad=sum(part.pad for part in parts),
        )
