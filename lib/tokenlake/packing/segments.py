"""Where the pieces of documents lie in rows: what every strategy answers, from lengths alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tokenlake.ragged import offsets_of, places

Int64 = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Segments:
    """Pieces of documents, row by row.

    Attributes:
        document: int64[S], index of the document each piece belongs to.
        start: int64[S], index of the piece's first token within its document.
        length: int64[S], tokens in the piece, at least 1.
        row_offsets: int64[R + 1], pieces ``row_offsets[r]:row_offsets[r + 1]`` make up row ``r``; what they leave
            of it is padding.
    """

    document: Int64
    start: Int64
    length: Int64
    row_offsets: Int64

    @property
    def rows(self) -> int:
        return len(self.row_offsets) - 1

    def taken(self, rows: Int64) -> Segments:
        """Return the rows `rows` (int64[m]), in that order."""
        counts = np.diff(self.row_offsets)[rows]
        pieces = places(self.row_offsets[rows], counts)
        return Segments(self.document[pieces], self.start[pieces], self.length[pieces], offsets_of(counts))


def from_bins(lengths: Int64, seq_length: int, bins: Int64) -> Segments:
    """Return the rows of documents whose rests share rows, and whose other pieces are rows by themselves.

    A document is ``length // seq_length`` whole rows and a rest of ``length % seq_length`` tokens, which may be none.
    Rows come in the order of their first tokens in the input, and the rests of a row in the order of the documents.

    Args:
        lengths: int64[n], tokens per document, each at least 1.
        seq_length: tokens per row.
        bins: int64[m], for the m documents with a rest, in order: the number of the row, from 0 without gaps.
    """
    whole, rests = np.divmod(lengths, seq_length)
    begins = np.cumsum(lengths) - lengths
    full = np.repeat(np.arange(len(lengths)), whole)
    full_start = (np.arange(len(full)) - np.repeat(np.cumsum(whole) - whole, whole)) * seq_length
    rest = np.flatnonzero(rests)[_by_bin(bins)]
    counts = np.concatenate([np.ones(len(full), np.int64), np.bincount(bins)])
    document = np.concatenate([full, rest])
    start = np.concatenate([full_start, whole[rest] * seq_length])
    length = np.concatenate([np.full(len(full), seq_length), rests[rest]])
    rows = Segments(document, start, length, offsets_of(counts))
    first = rows.row_offsets[:-1]
    return rows.taken(np.argsort(begins[document[first]] + start[first]))


def _by_bin(bins: Int64) -> Int64:
    """int64[m]: the order by bin, and inside a bin as it was."""
    return np.argsort(small(bins), kind="stable")


def small(values: Int64) -> npt.NDArray[Any]:
    """Return values >= 0 as uint16 where all of them fit: numpy sorts those by counting, ten times as fast."""
    return values.astype(np.uint16) if not len(values) or int(values.max()) < 1 << 16 else values
