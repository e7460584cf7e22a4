"""Provenance: the document that each segment of a row comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import IntegrityError
from tokenlake.runtime.loader.dataset import whole_numbers

PIECES: Final = ["segment_lengths", "documents"]
"""Columns that hold the provenance of packed rows."""

PLACE: Final = ["file", "position"]
"""Columns that hold the provenance of rows that are documents."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class Provenance:
    """Provenance of the segments of a row group, one row after the other.

    Attributes:
        offsets: Number of segments before each row, and of all rows, int64[rows + 1].
        length: Ids of each segment, int64[s].
        file: Id of the input file, int64[s].
        position: Row index of the document in the file, or byte offset in files of
            lines, int64[s].
        start: First id in the document, int64[s].
    """

    offsets: Int64
    length: Int64
    file: Int64
    position: Int64
    start: Int64

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Provenance:
        """Return the provenance of a row group of packed rows.

        Args:
            batch: Columns :data:`PIECES` of the row group.

        Raises:
            IntegrityError: The columns contradict each other.
        """
        lengths_name, documents_name = PIECES
        lengths: Any = batch.column(lengths_name)
        documents: Any = batch.column(documents_name)
        counts = documents.value_lengths()
        if not counts.equals(lengths.value_lengths()):
            raise IntegrityError(
                f"{' and '.join(PIECES)} of a row group have different numbers of segments. "
                "Run `tokenlake verify --deep` to list all damage"
            )
        # All lists end to end: one entry for each segment.
        entries = documents.flatten()
        return cls(
            offsets_of(whole_numbers(counts)),
            whole_numbers(lengths.flatten()),
            whole_numbers(entries.field("file")),
            whole_numbers(entries.field("position")),
            whole_numbers(entries.field("start")),
        )

    @classmethod
    def of_documents(cls, batch: pa.RecordBatch, lengths: Int64) -> Provenance:
        """Return the provenance of a row group whose rows are documents or preferences.

        Args:
            batch: Columns :data:`PLACE` of the row group.
            lengths: Ids of each row, int64[rows].
        """
        # Each row is one segment, from the first id of its document on.
        file_name, position_name = PLACE
        return cls(
            np.arange(len(lengths) + 1),
            lengths,
            whole_numbers(batch.column(file_name)),
            whole_numbers(batch.column(position_name)),
            np.zeros(len(lengths), np.int64),
        )

    def row_of(self, index: Int64) -> Int64:
        """Return the row of each of some segments, int64[n]."""
        return np.searchsorted(self.offsets, index, side="right") - 1
