"""Packed rows: tokens in rows of one length, and the documents of their pieces.

Example: two rows of 4 tokens hold pieces of 2 and 1 tokens, and one of 4::

    segment_lengths  2 1 4
    row_offsets      0 2 3            (pieces 0 and 1, piece 2)
    segment_ids      1 1 2 0  1 1 1 1
    pad              1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from tokenlake.base.arrays import Bools, Int32, Int64, cells, offsets_of
from tokenlake.errors import AccountError
from tokenlake.etl.packing.segments import Segments
from tokenlake.etl.packing.stretch import Stretch


@final
@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of one length.

    Attributes:
        input_ids: Pieces of each row, followed by its padding, contiguous, int32[rows *
            width].
        segment_lengths: Tokens of each piece, row after row, int32[S].
        row_offsets: Row ``r`` has the pieces ``row_offsets[r]:row_offsets[r + 1]``,
            int64[rows + 1].
        file: Id of the file that each piece's document comes from, int64[S].
        position: Position of each piece's document in its file, int64[S].
        start: Index of the piece's first token within its document, int32[S].
        ends: True for a piece that holds its document's last token, bool[S]. False
            where that is not known yet.
        pad: Padding tokens of all rows.
    """

    input_ids: Int32
    segment_lengths: Int32
    row_offsets: Int64
    file: Int64
    position: Int64
    start: Int32
    ends: Bools
    pad: int

    @classmethod
    def of(cls, input_ids: Int32, cut: Segments, documents: Stretch, pad: int) -> Self:
        """Return rows whose pieces are those of a plan.

        Args:
            input_ids: Ids of the rows, int32[rows * width].
            cut: Plan of the rows; it numbers the documents of `documents`.
            documents: Documents that the plan places.
            pad: Padding tokens in `input_ids`.
        """
        document = cut.document
        is_last_piece = cut.start + cut.length == documents.length[document]
        return cls(
            input_ids=input_ids,
            segment_lengths=cut.length.astype(np.int32),
            row_offsets=cut.row_offsets,
            file=documents.file[document],
            position=documents.position[document],
            start=(cut.start + documents.start[document]).astype(np.int32),
            ends=documents.ends[document] & is_last_piece,
            pad=pad,
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_offsets) - 1

    @property
    def width(self) -> int:
        """Tokens of a row, padding included."""
        return len(self.input_ids) // max(1, self.rows)

    @property
    def row_lengths(self) -> Int64:
        """Tokens of each row, padding not counted, int64[rows]."""
        return np.diff(offsets_of(self.segment_lengths)[self.row_offsets])

    @property
    def begins(self) -> Int64:
        """Index in `input_ids` of each piece's first token, int64[S]."""
        # Inside its row a piece begins after the pieces before it, as among all pieces
        # without padding.
        tokens_before = offsets_of(self.segment_lengths)[:-1]
        row_begins = np.arange(self.rows) * self.width
        shift_of_row = row_begins - tokens_before[self.row_offsets[:-1]]
        return tokens_before + np.repeat(shift_of_row, np.diff(self.row_offsets))

    @property
    def segment_ids(self) -> Int32:
        """Numbers 1, 2, 3 ... for each row's pieces, 0 for padding, int32[rows * width]."""
        # The number of a piece in its row, repeated for each of its tokens.
        pieces_per_row = np.diff(self.row_offsets)
        first_piece = np.repeat(self.row_offsets[:-1], pieces_per_row)
        number = np.arange(len(self.segment_lengths)) - first_piece + 1
        token_numbers = np.repeat(number.astype(np.int32), self.segment_lengths)
        if not self.pad:
            return token_numbers
        padded = np.zeros((self.rows, self.width), np.int32)
        padded[cells(self.row_lengths, self.width, left=False)] = token_numbers
        return padded.ravel()

    def groups(self, rows: int) -> Iterator[Self]:
        """Yield the rows in groups of `rows` rows, fewer in the last, as views."""
        width = self.width
        for first_row in range(0, self.rows, rows):
            end_row = min(first_row + rows, self.rows)
            row_offsets = self.row_offsets[first_row : end_row + 1]
            pieces = slice(int(row_offsets[0]), int(row_offsets[-1]))
            input_ids = self.input_ids[first_row * width : end_row * width]
            segment_lengths = self.segment_lengths[pieces]
            yield type(self)(
                input_ids=input_ids,
                segment_lengths=segment_lengths,
                row_offsets=row_offsets - row_offsets[0],
                file=self.file[pieces],
                position=self.position[pieces],
                start=self.start[pieces],
                ends=self.ends[pieces],
                pad=len(input_ids) - int(segment_lengths.sum(dtype=np.int64)),
            )

    def check_boundaries(
        self, prefix: tuple[int, ...], suffix: tuple[int, ...]
    ) -> None:
        """Check on the packed ids that documents begin with BOS and end with EOS.

        The ids themselves are looked at, and not how they were packed.

        Args:
            prefix: Ids that every document begins with.
            suffix: Ids that every document ends with.

        Raises:
            AccountError: A document begins or ends with another id, which is a bug.
        """
        begins = self.begins
        if prefix:
            self._require(self.input_ids[begins[self.start == 0]], prefix[0], "begins")
        if suffix:
            last_tokens = (begins + self.segment_lengths)[self.ends] - 1
            self._require(self.input_ids[last_tokens], suffix[-1], "ends")

    def _require(self, ids: Int32, expected: int, verb: str) -> None:
        wrong_indices = np.flatnonzero(ids != expected)
        if len(wrong_indices):
            wrong_id = int(ids[wrong_indices[0]])
            raise AccountError(
                f"a document {verb} with id {wrong_id}, expected {expected}, in rows packed from file id "
                f"{int(self.file[0])}. This is a bug; nothing was committed"
            )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, of which there is at least one."""
        if len(parts) == 1:
            return parts[0]
        # Offsets of the parts all begin at 0: the numbers of pieces are joined instead.
        pieces_per_row = np.concatenate([np.diff(part.row_offsets) for part in parts])
        return cls(
            input_ids=np.concatenate([part.input_ids for part in parts]),
            segment_lengths=np.concatenate([part.segment_lengths for part in parts]),
            row_offsets=offsets_of(pieces_per_row),
            file=np.concatenate([part.file for part in parts]),
            position=np.concatenate([part.position for part in parts]),
            start=np.concatenate([part.start for part in parts]),
            ends=np.concatenate([part.ends for part in parts]),
            pad=sum(part.pad for part in parts),
        )
