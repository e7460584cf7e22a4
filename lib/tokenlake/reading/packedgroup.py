"""One decoded row group of a packed dataset: what a batch is made of, and nothing else.

The rows' ids stay where they were decoded, one view per row. The lengths of the segments say everything else that a
batch needs: which document an id belongs to, its position in it, where padding begins.
"""

from __future__ import annotations

from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.reading.runs import values

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

IDS: Final = "input_ids"
LENGTHS: Final = "segment_lengths"
LEARNED: Final = "loss_mask"


@final
class PackedGroup:
    """A row group of n rows; nothing of it may be written to.

    Args:
        ids: of all rows, padding included, int32[n, length].
        segment_lengths, segment_offsets, learned: see the attributes.

    Attributes:
        rows, length: of `ids`.
        row_views: the ids of each row, n arrays int32[length], each contiguous; views of `ids`.
        segment_lengths: ids of each segment, int32[s], at least 1; all segments of a row, then those of the next.
        segment_offsets: where each row's begin in it and the last row's end, int64[n + 1] from 0.
        learned: which ids bear loss, bool[n, length]; None where it was not asked for or is not stored.
        nbytes: bytes of memory that the row group keeps.

    Raises:
        ValueError: a row has no segment, a segment no id, or the segments of a row are longer than the row.
    """

    __slots__ = (
        "ids",
        "learned",
        "length",
        "nbytes",
        "row_views",
        "rows",
        "segment_lengths",
        "segment_offsets",
    )

    def __init__(
        self, ids: Int32, segment_lengths: Int32, segment_offsets: Int64, learned: Bools | None
    ) -> None:
        self.ids, self.row_views, (self.rows, self.length) = ids, list(ids), ids.shape
        self.segment_lengths, self.segment_offsets, self.learned = segment_lengths, segment_offsets, learned
        parts = (ids, segment_lengths, segment_offsets, *([] if learned is None else [learned]))
        self.nbytes = sum(part.nbytes for part in parts)
        _check_segments(segment_lengths, segment_offsets, self.rows, self.length)

    @classmethod
    def of(cls, batch: pa.RecordBatch, length: int) -> Self:
        """View the columns of a batch; ValueError where they are not those of packed rows of `length` ids."""
        ids = _matrix(batch, IDS, pa.int32(), length)
        lists: Any = batch.column(LENGTHS)
        if not pa.types.is_list(lists.type) or lists.type.value_type != pa.int32():
            raise ValueError(f"{LENGTHS} is {lists.type}; expected lists of int32")
        _check_whole(LENGTHS, lists, lists.values)
        offsets = values(lists.offsets).astype(np.int64)
        lengths = values(lists.values)[offsets[0] : offsets[-1]]
        learned = None
        if LEARNED in batch.schema.names:
            learned = _matrix(batch, LEARNED, pa.bool_(), length)
        return cls(ids, lengths, offsets - offsets[0], learned)


def _check_segments(lengths: Int32, offsets: Int64, rows: int, length: int) -> None:
    if len(offsets) != rows + 1:
        raise ValueError(f"segments of {len(offsets) - 1} rows; expected those of {rows} rows")
    if (offsets[1:] <= offsets[:-1]).any():
        raise ValueError("a row without segments; expected at least one in every row")
    if rows and lengths.min() < 1:
        raise ValueError(f"a segment of {lengths.min()} ids; expected at least one")
    used = int(np.add.reduceat(lengths, offsets[:-1], dtype=np.int64).max()) if rows else 0
    if used > length:
        raise ValueError(f"segments of {used} ids in a row; expected at most {length}")


def _matrix(batch: pa.RecordBatch, name: str, kind: pa.DataType, length: int) -> npt.NDArray[Any]:
    """Return a column of rows of one length, [rows, length]."""
    column: Any = batch.column(name)
    expected = pa.list_(kind, length)
    if not pa.types.is_fixed_size_list(column.type) or column.type.value_type != kind:
        raise ValueError(f"{name} is {column.type}; expected {expected}")
    if column.type.list_size != length:
        raise ValueError(f"{name} has rows of {column.type.list_size} ids; expected {length}")
    flat = column.values.slice(column.offset * length, len(column) * length)
    _check_whole(name, column, flat)
    return values(flat).reshape(len(column), length)


def _check_whole(name: str, *levels: Any) -> None:
    if any(level.null_count for level in levels):
        raise ValueError(f"{name} has nulls; expected none")
