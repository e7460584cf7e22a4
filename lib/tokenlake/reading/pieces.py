"""The segments of packed rows, taken out of row groups and put in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import IntegrityError
from tokenlake.ragged import cells, offsets_of, places
from tokenlake.reading.runs import bit_rows, packed_bits, runs, values
from tokenlake.reading.wanted import Part
from tokenlake.schema import DOCUMENT

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Pieces:
    """The segments of m packed rows: lengths and documents.

    Attributes:
        places: where each row goes, int64[m].
        counts: segments of each row, int64[m].
        columns: ``length`` and the fields of a document, of all segments, one row after the other.
    """

    places: Int64
    counts: Int64
    columns: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, part: Part) -> Pieces:
        """Take those of the wanted rows of a row group."""
        lengths, offsets = runs(part.batch, "segment_lengths")
        documents, others = runs(part.batch, "documents")
        if not np.array_equal(offsets, others):
            raise IntegrityError(
                f"{part.source.name}: rows with other numbers of segments than of documents. "
                "Run `tokenlake verify --deep`."
            )
        counts = np.diff(offsets)[part.rows]
        index = places(offsets[part.rows], counts)
        columns = {"length": values(lengths)[index]}
        for child in DOCUMENT:
            columns[child.name] = values(documents.field(child.name))[index]
        return cls(part.places, counts, columns)

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return those of all parts, each row at its place."""
        if not parts:
            kinds = {"length": np.int32} | {child.name: child.type.to_pandas_dtype() for child in DOCUMENT}
            none = np.zeros(0, np.int64)
            return cls(none, none, {name: np.zeros(0, kind) for name, kind in kinds.items()})
        counts = np.concatenate([part.counts for part in parts])
        at = np.argsort(np.concatenate([part.places for part in parts]))
        index = places(offsets_of(counts)[at], counts[at])
        columns = {
            name: np.concatenate([part.columns[name] for part in parts])[index] for name in parts[0].columns
        }
        return cls(np.arange(len(at)), counts[at], columns)


def learned_rows(part: Part, pieces: Pieces, ids: Int32, bos_id: int) -> npt.NDArray[np.uint8]:
    """Return which ids of a part's rows bear loss, eight in a byte: uint8[m, ceil(length / 8)].

    Args:
        ids: of all rows, int32[n, length].
        bos_id: what begins a document; negative where nothing does.

    Where the dataset does not say, those of every segment do, but for the BOS that a document begins with.
    """
    if "loss_mask" in part.batch.schema.names:
        return np.take(bit_rows(part.batch, "loss_mask"), part.rows, axis=0)
    ends = offsets_of(pieces.columns["length"])
    limits = offsets_of(pieces.counts)
    found = cells(ends[limits[1:]] - ends[limits[:-1]], ids.shape[1], left=False)
    row = np.repeat(np.arange(len(part.rows)), pieces.counts)
    begin = ends[:-1] - ends[limits[:-1]][row]
    begins = (pieces.columns["start"] == 0) & (ids[part.places[row], begin] == bos_id)
    found[row[begins], begin[begins]] = False
    return packed_bits(found)
