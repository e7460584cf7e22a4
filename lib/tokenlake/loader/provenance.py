"""Where the ids of stored rows come from: the columns that say it, and the row groups in which a document may lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.loader.dataset import Dataset
from tokenlake.ragged import Int64, offsets_of
from tokenlake.store.catalog import read_record
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import UnitRecord

COLUMNS: Final = ["segment_lengths", "documents"]
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
        lengths, documents = (cast("Any", batch.column(name)) for name in COLUMNS)
        counts = documents.value_lengths()
        if not counts.equals(lengths.value_lengths()):
            raise IntegrityError(
                f"{' and '.join(COLUMNS)} of a row group are not of the same segments. "
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


def groups_with(dataset: Dataset, file: int, position: int) -> Iterator[tuple[bool, list[int]]]:
    """Yield row groups that may hold pieces of a document, unit of work by unit of work, the likeliest first.

    The ledger says which units read the file, and a document's pieces never leave a unit. What mixtures and repacked
    versions read is other versions: any of their units may hold any document, and several may hold the same.

    Yields:
        whether no other unit holds the document if this one does, and its row groups.
    """
    units: dict[int, list[int]] = {}
    for group in range(len(dataset.rows.group_rows)):
        units.setdefault(dataset.rows.shard_of(group)[0].unit, []).append(group)
    likely: list[tuple[bool, list[int]]] = []
    unlikely: list[tuple[bool, list[int]]] = []
    for unit, groups in units.items():
        record = _record(dataset, unit)
        if record is None or not record.inputs:
            unlikely.append((False, groups))
            continue
        ranges = [each for each in record.inputs if each.file_id == file]
        if ranges:
            # Ranges are of bytes in files of lines, and else of row groups: a hint of where to begin.
            hit = any(each.start <= position < each.stop for each in ranges)
            (likely if hit else unlikely).append((True, groups))
    yield from likely
    yield from unlikely


def _record(dataset: Dataset, unit: int) -> UnitRecord | None:
    layout = Layout(dataset.manifest.dataset, dataset.manifest.version)
    try:
        return read_record(dataset.store, layout, unit, dataset.manifest)
    except NotFoundError:  # of a version that was copied without its ledger
        return None


def whole_numbers(array: Any) -> Int64:
    return array.to_numpy(zero_copy_only=False).astype(np.int64)
