"""Provenance: the document that each segment of a row comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast, final

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
        lengths, documents = (cast("Any", batch.column(name)) for name in PIECES)
        counts = documents.value_lengths()
        if not counts.equals(lengths.value_lengths()):
            raise IntegrityError(
                f"{' and '.join(PIECES)} of a row group have different numbers of segments. "
                "Run `tokenlake verify --deep` to list all damage"
            )
        fields = [
            whole_numbers(documents.flatten().field(name))
            for name in ("file", "position", "start")
        ]
        return cls(
            offsets_of(whole_numbers(counts)), whole_numbers(lengths.flatten()), *fields
        )

    @classmethod
    def of_documents(cls, batch: pa.RecordBatch, lengths: Int64) -> Provenance:
        """Return the provenance of a row group whose rows are documents or preferences.

        Args:
            batch: Columns :data:`PLACE` of the row group.
            lengths: Ids of each row, int64[rows].
        """
        file, position = (
            whole_numbers(cast("Any", batch.column(name))) for name in PLACE
        )
        return cls(
            np.arange(len(lengths) + 1),
            lengths,
            file,
            position,
            np.zeros(len(lengths), np.int64),
        )

    def row_of(self, index: Int64) -> Int64:
        """Return the row of each of some segments, int64[n]."""
        return np.searchsorted(self.offsets, index, side="right") - 1
