"""Plans of packing: the places of documents' pieces in rows, from lengths alone.

A document longer than a row fills ``length // capacity`` whole rows and leaves a rest
of ``length % capacity`` tokens. Strategies that never cut a document that fits a row
place the rests (:class:`Rests`) and add the whole rows at the end (:func:`from_rests`).

Example: documents of 13 and 3 tokens in rows of 8. Document 0 fills one row and leaves a
rest of 5, document 1 is a rest of 3, and both rests fit one row::

    row 0: document 0 [0, 8)
    row 1: document 0 [8, 13), document 1 [0, 3)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64, offsets_of, places


@final
@dataclass(frozen=True, slots=True)
class Segments:
    """Pieces of documents, row by row.

    Attributes:
        document: Index of the document that each piece belongs to, int64[S].
        start: Index of the piece's first token within its document, int64[S].
        length: Tokens of the piece, at least 1, int64[S].
        row_offsets: Row ``r`` has the pieces ``row_offsets[r]:row_offsets[r + 1]``, and
            padding after them, int64[R + 1].
    """

    document: Int64
    start: Int64
    length: Int64
    row_offsets: Int64

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_offsets) - 1

    def taken(self, rows: Int64) -> Segments:
        """Return some rows in the order of `rows` (their indices, int64[m])."""
        counts = np.diff(self.row_offsets)[rows]
        pieces = places(self.row_offsets[rows], counts)
        return Segments(
            self.document[pieces],
            self.start[pieces],
            self.length[pieces],
            offsets_of(counts),
        )


@final
@dataclass(frozen=True, slots=True)
class Rests:
    """Pieces of documents that share rows with others, by document and then by start.

    Attributes:
        document: Index of the document, int64[m].
        start: Index of the piece's first token within its document, int64[m].
        length: Tokens of the piece, int64[m].
        bin: Number of the shared row, from 0 without gaps, int64[m].
    """

    document: Int64
    start: Int64
    length: Int64
    bin: Int64

    @classmethod
    def of(cls, lengths: Int64, capacity: int, bins: Callable[[Int64], Int64]) -> Self:
        """Return the rests of documents.

        Args:
            lengths: Tokens of each document, at least 1, int64[n].
            capacity: Tokens per row.
            bins: Function from the sizes of the rests (int64[m]) to their shared rows
                (int64[m]).
        """
        whole_rows, rest_sizes = np.divmod(lengths, capacity)
        document = np.flatnonzero(rest_sizes)
        sizes = rest_sizes[document]
        return cls(document, whole_rows[document] * capacity, sizes, bins(sizes))

    @property
    def bins(self) -> int:
        """Number of shared rows."""
        if not len(self.bin):
            return 0
        return int(self.bin.max()) + 1


def from_rests(lengths: Int64, capacity: int, rests: Rests) -> Segments:
    """Return the whole rows of documents together with the rows that their rests share.

    Rows come in the order of their first tokens in the input, and the pieces of a row
    in the order of the documents.

    Args:
        lengths: Tokens of each document, at least 1, int64[n].
        capacity: Tokens per row.
        rests: Rests of these documents.
    """
    # 1. Whole rows: document d has `whole_rows[d]` of them, which start at multiples of
    #    the capacity.
    whole_rows = lengths // capacity
    whole_document = np.repeat(np.arange(len(lengths)), whole_rows)
    rows_before = np.cumsum(whole_rows) - whole_rows
    rows_before_own = np.repeat(rows_before, whole_rows)
    row_in_document = np.arange(len(whole_document)) - rows_before_own
    # 2. Shared rows: rests sorted by row. The stable sort keeps the order of the
    #    documents.
    by_row = np.argsort(small(rests.bin), kind="stable")
    # 3. All pieces, the whole rows first.
    document = np.concatenate([whole_document, rests.document[by_row]])
    start = np.concatenate([row_in_document * capacity, rests.start[by_row]])
    whole_count = len(whole_document)
    whole_lengths = np.full(whole_count, capacity)
    length = np.concatenate([whole_lengths, rests.length[by_row]])
    one_piece = np.ones(whole_count, np.int64)
    pieces_per_row = np.concatenate([one_piece, np.bincount(rests.bin)])
    rows = Segments(document, start, length, offsets_of(pieces_per_row))
    # 4. Sort rows by their first token. Whole rows are in order already, which a stable
    #    sort makes use of.
    first_piece = rows.row_offsets[:-1]
    document_begins = np.cumsum(lengths) - lengths
    first_token = document_begins[document[first_piece]] + start[first_piece]
    return rows.taken(np.argsort(first_token, kind="stable"))


def small(values: Int64) -> npt.NDArray[Any]:
    """Return values >= 0 as uint16 if all of them fit.

    numpy sorts those by counting, ten times as fast.
    """
    if len(values) and int(values.max()) >= 1 << 16:
        return values
    return values.astype(np.uint16)
