"""Row groups of a packed dataset, decoded to exactly what a batch is made of.

The ids of the rows stay in the memory that they were decoded to. The lengths of the
segments determine everything else that a batch needs: the document of an id, its
position in the document, the begin of padding. Pages are decoded directly, or by Arrow
where they have another layout than that of our writers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import (
    Bools,
    Int32,
    Int64,
    Ragged,
    cut_runs,
    offsets_of,
    values,
)
from tokenlake.runtime.reading.columns import fixed_bits, fixed_numbers, list_numbers
from tokenlake.runtime.reading.levels import SeenLevels, Unfamiliar
from tokenlake.runtime.reading.shard_file import (
    ColumnChunk,
    Footer,
    OpenShards,
    ShardBytes,
    one_batch,
)
from tokenlake.runtime.reading.token_ids import MOST_IDS, SHORT_IDS, Ids, check_ids
from tokenlake.runtime.reading.unfolding import check_unfolded

IDS: Final = "input_ids"
LENGTHS: Final = "segment_lengths"
LEARNED: Final = "loss_mask"

# Parquet's numbers of types.
_BOOLEAN: Final = 0
_INT32: Final = 1
_TYPES: Final = {IDS: _INT32, LENGTHS: _INT32, LEARNED: _BOOLEAN}

# Largest gap between two column chunks that is read rather than skipped.
_GAP_BYTES: Final = 1 << 16


@final
class PackedGroup:
    """Row group of n rows. Nothing of it may be written to.

    Args:
        ids: Ids of all rows, padding included, int32[n, length], or uint16 if they are
            stored in 16 bits.
        segments: Lengths of the segments of each row; None if they were not requested.
        learned: Loss mask, bool[n, length]; None if it was not requested or is not
            stored.

    Attributes:
        ids: Ids of all rows, padding included, int32 or uint16 [n, length].
        rows: Number of rows.
        length: Number of ids of a row.
        data: Memory of `ids`, row after row.
        row_bytes: Number of bytes of a row in `data`.
        segments: Number of ids of each segment, at least 1, of each of the n rows; None
            if they were not requested.
        learned: True for ids that count toward the loss, bool[n, length]; None if not
            requested or not stored.
        nbytes: Number of bytes of memory that the row group keeps.

    Raises:
        ValueError: A row has no segment, a segment no id, or the segments of a row are
            longer than the row.
    """

    __slots__ = (
        "_attention",
        "data",
        "ids",
        "learned",
        "length",
        "nbytes",
        "row_bytes",
        "rows",
        "segments",
    )

    def __init__(
        self, ids: Ids, segments: Ragged | None, learned: Bools | None
    ) -> None:
        self.ids = ids
        self.rows, self.length = ids.shape
        self.data = ids.reshape(-1).view(np.uint8).data
        self.row_bytes = ids.itemsize * self.length
        self.segments = segments
        self.learned = learned
        self.nbytes = ids.nbytes
        if learned is not None:
            self.nbytes += learned.nbytes
        if segments is not None:
            self.nbytes += segments.ids.nbytes + segments.offsets.nbytes
            check_segments(segments, self.rows, self.length)
        # Costs for the last `within`: a loader uses one value for a whole run.
        self._attention: dict[int | None, list[int]] = {}

    def attention(self, within: int | None) -> list[int]:
        """Return the cost of attention inside segments for each row, n numbers.

        See :func:`attention`.
        """
        if within not in self._attention:
            assert self.segments is not None
            costs = attention(self.segments.ids, self.segments.offsets, within)
            self._attention = {within: costs.tolist()}
        return self._attention[within]

    @classmethod
    def of(cls, batch: pa.RecordBatch, length: int) -> Self:
        """View the columns of a batch of packed rows.

        ValueError unless all rows are packed and have `length` ids.
        """
        ids = _matrix(batch, IDS, pa.int32(), length)
        segments: Ragged | None = None
        if LENGTHS in batch.schema.names:
            # The offsets of a sliced batch begin at its first row, not at 0.
            lists: Any = batch.column(LENGTHS)
            if not pa.types.is_list(lists.type) or lists.type.value_type != pa.int32():
                raise ValueError(f"{LENGTHS} is {lists.type}; expected lists of int32")
            _check_no_nulls(LENGTHS, lists, lists.values)
            offsets = values(lists.offsets).astype(np.int64)
            lengths = values(lists.values)[offsets[0] : offsets[-1]]
            segments = Ragged(lengths, offsets - offsets[0])
        learned: Bools | None = None
        if LEARNED in batch.schema.names:
            learned = _matrix(batch, LEARNED, pa.bool_(), length)
        return cls(ids, segments, learned)


def segments_of(groups: Sequence[PackedGroup], group: Int64, row: Int64) -> Ragged:
    """Return the segments of n rows of several row groups.

    Args:
        groups: Row groups with their segments.
        group: Index of each row's row group in `groups`, int64[n].
        row: Row in the row group, int64[n].
    """
    # Segments of all row groups, end to end.
    lengths_of_groups: list[Int32] = [np.zeros(0, np.int32)]
    offsets_of_groups: list[Int64] = [np.zeros(0, np.int64)]
    for packed_group in groups:
        assert packed_group.segments is not None
        lengths_of_groups.append(packed_group.segments.ids)
        offsets_of_groups.append(packed_group.segments.offsets)
    lengths = np.concatenate(lengths_of_groups)
    offsets = np.concatenate(offsets_of_groups)
    # Index of each row's begin in the joined offsets, and segments of the row groups
    # before.
    first_offset = offsets_of(
        [len(group_offsets) for group_offsets in offsets_of_groups[1:]]
    )
    first_segment = offsets_of(
        [len(group_lengths) for group_lengths in lengths_of_groups[1:]]
    )
    place = first_offset[group] + row
    segments_before = first_segment[group]
    return Ragged.taken(
        lengths, segments_before + offsets[place], segments_before + offsets[place + 1]
    )


def attention(lengths: Int32 | Int64, offsets: Int64, within: int | None) -> Int64:
    """Return the cost of attention inside segments for each row, int64[n].

    It is the sum of the squared lengths of the segments.

    Example: a row of segments of 3 and 2 ids costs 9 + 4 = 13.

    Args:
        lengths: Number of ids of each segment, one row after the other.
        offsets: First segment of each row, and end of the last, int64[n + 1].
        within: Number of ids; segments are cut at its multiples in their row. None if
            they are not cut.
    """
    if within is not None:
        lengths, row, _ = cut_runs(lengths, offsets, within)
        offsets = offsets_of(np.bincount(row, minlength=len(offsets) - 1))
    return np.add.reduceat(np.square(lengths, dtype=np.int64), offsets[:-1])


def check_segments(segments: Ragged, rows: int, length: int) -> None:
    """Raise ValueError unless each row has segments of at least 1 id that fit the row.

    Args:
        segments: Number of ids of each segment of each row.
        rows: Number of rows.
        length: Number of ids of a row.
    """
    # Each check relies on those before it: `reduceat` needs a segment in every row.
    lengths = segments.ids
    offsets = segments.offsets
    if len(offsets) != rows + 1:
        raise ValueError(
            f"segments of {len(offsets) - 1} rows; expected those of {rows} rows"
        )
    if not rows:
        return
    if (offsets[1:] <= offsets[:-1]).any():
        raise ValueError("a row without segments; expected at least one in every row")
    if lengths.min() < 1:
        raise ValueError(f"a segment of {lengths.min()} ids; expected at least one")
    ids_of_rows = np.add.reduceat(lengths, offsets[:-1], dtype=np.int64)
    longest = int(ids_of_rows.max())
    if longest > length:
        raise ValueError(
            f"segments of {longest} ids in a row; expected at most {length}"
        )


def _matrix(
    batch: pa.RecordBatch, name: str, kind: pa.DataType, length: int
) -> npt.NDArray[Any]:
    """Return a column of rows of one length, [rows, length].

    ValueError if it has another type or nulls.
    """
    # Row lengths and types come from the file: they are compared before values are
    # viewed as a matrix.
    column: Any = batch.column(name)
    expected = pa.list_(kind, length)
    if not pa.types.is_fixed_size_list(column.type) or column.type.value_type != kind:
        raise ValueError(f"{name} is {column.type}; expected {expected}")
    if column.type.list_size != length:
        raise ValueError(
            f"{name} has rows of {column.type.list_size} ids; expected {length}"
        )
    flat = column.values.slice(column.offset * length, len(column) * length)
    _check_no_nulls(name, column, flat)
    return values(flat).reshape(len(column), length)


def _check_no_nulls(name: str, *arrays: Any) -> None:
    if any(array.null_count for array in arrays):
        raise ValueError(f"{name} has nulls; expected none")


@final
class PackedReader:
    """Decoder of the row groups of a packed dataset. It may be used by several threads.

    Args:
        shards: Shards of the dataset.
        length: Number of ids of a row.
        limit: Upper bound of ids, exclusive.
    """

    def __init__(self, shards: OpenShards, length: int, limit: int = MOST_IDS) -> None:
        self._shards = shards
        self._length = length
        self._limit = limit
        self._levels = SeenLevels(length)
        self._through_arrow: set[int] = set()

    def read(
        self,
        shard: int,
        index: int,
        rows: int,
        *,
        loss_mask: bool,
        segments: bool = True,
    ) -> PackedGroup:
        """Decode one row group.

        Args:
            shard: Number of the shard.
            index: Row group in the shard.
            rows: Number of rows that the row group must have.
            loss_mask: True to read the loss mask.
            segments: True to read the lengths of the segments.

        Raises:
            ValueError, OSError, pa.ArrowException: The row group is damaged, or has
                other columns or rows.
        """
        columns = [IDS]
        if segments:
            columns.append(LENGTHS)
        if loss_mask:
            columns.append(LEARNED)
        # The footer states where the columns are; it must agree with the manifest.
        source, footer = self._shards.with_footer(shard)
        chunks = _chunks(footer, index, rows, columns, self._length)
        has_our_types = all(
            chunk.kind == _TYPES[name] for name, chunk in chunks.items()
        )
        if has_our_types and shard not in self._through_arrow:
            with contextlib.suppress(Unfamiliar):
                return self._read_directly(source, chunks, rows)
        # Another writer's layout: Arrow reads it, with the same checks. The shard is
        # remembered, so that its other row groups are not tried first.
        group = self._read_through_arrow(source, index, rows, chunks)
        self._through_arrow.add(shard)
        if self._limit <= SHORT_IDS:
            # Half the memory, which the default order of a loader counts on.
            return PackedGroup(
                group.ids.astype(np.uint16), group.segments, group.learned
            )
        return group

    @property
    def through_arrow(self) -> frozenset[int]:
        """Numbers of the shards that turned out to have another layout than ours."""
        return frozenset(self._through_arrow)

    def _read_directly(
        self, source: ShardBytes, chunks: dict[str, ColumnChunk], rows: int
    ) -> PackedGroup:
        data = _bytes_of(source, chunks)
        ids = fixed_numbers(data[IDS], rows, self._length, self._levels, self._limit)
        segments: Ragged | None = None
        if LENGTHS in data:
            segments = Ragged(*list_numbers(data[LENGTHS], chunks[LENGTHS].values))
        learned: Bools | None = None
        if LEARNED in data:
            learned = fixed_bits(data[LEARNED], rows, self._length, self._levels)
        return PackedGroup(ids, segments, learned)

    def _read_through_arrow(
        self, source: ShardBytes, index: int, rows: int, chunks: dict[str, ColumnChunk]
    ) -> PackedGroup:
        # Checksums and sizes are verified while decoding; columns, rows and ids here.
        table = source.parquet().read_row_group(index, list(chunks))
        if sorted(table.schema.names) != sorted(chunks) or table.num_rows != rows:
            names = ", ".join(table.schema.names)
            raise ValueError(
                f"{table.num_rows} rows of {names}; expected {rows} rows of {', '.join(chunks)}"
            )
        group = PackedGroup.of(one_batch(table), self._length)
        check_ids(group.ids, self._limit)
        if group.segments is not None:
            count = len(group.segments.ids)
            stated = chunks[LENGTHS].values
            if count != stated:
                raise ValueError(
                    f"{count} segments; expected {stated}, as the footer says"
                )
        return group


def _chunks(
    footer: Footer, index: int, rows: int, columns: Sequence[str], length: int
) -> dict[str, ColumnChunk]:
    """Return the column chunks of a row group by name.

    Args:
        footer: Footer of the shard.
        index: Row group in the shard.
        rows: Number of rows that the row group must have.
        columns: Names of the columns.
        length: Number of ids of a row.

    Raises:
        ValueError: A column is missing, or holds an impossible number of values.
    """
    chunks = {name: footer.chunk(index, name) for name in columns}
    stated_rows = int(footer.rows[index])
    if stated_rows != rows:
        raise ValueError(f"{stated_rows} rows; expected {rows}")
    # Every row has a segment, and no more of them than ids.
    for name, chunk in chunks.items():
        least = rows if name == LENGTHS else rows * length
        if not least <= chunk.values <= rows * length:
            raise ValueError(
                f"{chunk.values} values of {name}; expected {rows} rows of {length}"
            )
    # Before memory is allocated: a footer and a manifest by one author agree on any
    # number.
    check_unfolded(4 * rows * length, sum(chunk.size for chunk in chunks.values()))
    return chunks


def _bytes_of(
    source: ShardBytes, chunks: dict[str, ColumnChunk]
) -> dict[str, memoryview]:
    """Return the bytes of column chunks by name.

    Chunks that lie close together are read at once.
    """
    # 1. Column chunks in the order of the file, in groups without large gaps.
    groups: list[list[str]] = []
    previous_end = 0
    for name in sorted(chunks, key=lambda name: chunks[name].begin):
        chunk = chunks[name]
        if groups and chunk.begin - previous_end <= _GAP_BYTES:
            groups[-1].append(name)
        else:
            groups.append([name])
        previous_end = chunk.begin + chunk.size
    # 2. One read for each group.
    data: dict[str, memoryview] = {}
    for names in groups:
        first = chunks[names[0]]
        last = chunks[names[-1]]
        group_bytes = memoryview(
            source.read(first.begin, last.begin + last.size - first.begin)
        )
        for name in names:
            begin = chunks[name].begin - first.begin
            data[name] = group_bytes[begin : begin + chunks[name].size]
    return data
