"""Where the ids of a row come from: the documents of its segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import IntegrityError
from tokenlake.runtime.loader.dataset import whole_numbers

PIECES: Final = ["segment_lengths", "documents"]
PLACE: Final = ["file", "position"]  # of a row that is one document


@final
@dataclass(frozen=True, eq=False, slots=True)
class Provenance:
    """The segments of the rows of a row group, one row after the other.

    Attributes:
        offsets: which are each row's, int64[rows + 1].
        length: ids of each, int64[s].
        file, position: the document, int64[s] both.
        start: the first id within the document, int64[s].
    """

    offsets: Int64
    length: Int64
    file: Int64
    position: Int64
    start: Int64

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Provenance:
        """Read a row group; IntegrityError where its columns contradict each other."""
        lengths, documents = (cast("Any", batch.column(name)) for name in PIECES)
        counts = documents.value_lengths()
        if not counts.equals(lengths.value_lengths()):
            raise IntegrityError(
                f"{' and '.join(PIECES)} of a row group are not of the same segments. "
                "Run `tokenlake verify --deep` to see all that is damaged"
            )
        fields = [whole_numbers(documents.flatten().field(name)) for name in ("file", "position", "start")]
        return cls(offsets_of(whole_numbers(counts)), whole_numbers(lengths.flatten()), *fields)

    @classmethod
    def of_documents(cls, batch: pa.RecordBatch, lengths: Int64) -> Provenance:
        """Read a row group whose rows are documents, or preferences, of so many ids each, int64[rows]."""
        file, position = (whole_numbers(cast("Any", batch.column(name))) for name in PLACE)
        return cls(np.arange(len(lengths) + 1), lengths, file, position, np.zeros(len(lengths), np.int64))

    def row_of(self, index: Int64) -> Int64:
        """Return the row that each segment is of, int64[n]."""
        return np.searchsorted(self.offsets, index, side="right") - 1
