"""Row groups of a packed dataset, decoded to what a batch is made of, and nothing else.

The rows' ids stay where they were decoded. The lengths of the segments say everything else that a
batch needs: which document an id belongs to, its position in it, where padding begins. Pages are read
directly, or through Arrow where they are not laid out as we write them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged, cut_runs, offsets_of, values
from tokenlake.runtime.reading.columns import fixed_bits, fixed_numbers, list_numbers
from tokenlake.runtime.reading.levels import SeenLevels, Unfamiliar
from tokenlake.runtime.reading.shard_file import ColumnChunk, Footer, OpenShards, ShardBytes, one_batch
from tokenlake.runtime.reading.token_ids import MOST_IDS, Ids, check_ids
from tokenlake.runtime.reading.unfolding import check_unfolded

IDS: Final = "input_ids"
LENGTHS: Final = "segment_lengths"
LEARNED: Final = "loss_mask"


@final
class PackedGroup:
    """A row group of n rows; nothing of it may be written to.

    Args:
        ids: of all rows, padding included, int32[n, length], or uint16 where they are stored as such.
        segments, learned: see the attributes.

    Attributes:
        rows, length: of `ids`.
        data: the memory of `ids`, row after row.
        row_bytes: of it, those of a row.
        segments: ids of each segment, at least 1, of each of the n rows; None where they were not asked for.
        learned: which ids bear loss, bool[n, length]; None where it was not asked for or is not stored.
        nbytes: bytes of memory that the row group keeps.

    Raises:
        ValueError: a row has no segment, a segment no id, or the segments of a row are longer than the row.
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

    def __init__(self, ids: Ids, segments: Ragged | None, learned: Bools | None) -> None:
        self.ids, (self.rows, self.length) = ids, ids.shape
        self.data, self.row_bytes = ids.reshape(-1).view(np.uint8).data, ids.itemsize * self.length
        self.segments, self.learned = segments, learned
        self.nbytes = ids.nbytes + (0 if learned is None else learned.nbytes)
        self._attention: dict[int | None, list[int]] = {}
        if segments is not None:
            self.nbytes += segments.ids.nbytes + segments.offsets.nbytes
            check_segments(segments, self.rows, self.length)

    def attention(self, within: int | None) -> list[int]:
        """Return what attention inside segments costs each row, n numbers; see :func:`attention`."""
        if within not in self._attention:
            assert self.segments is not None
            costs = attention(self.segments.ids, self.segments.offsets, within)
            self._attention = {within: costs.tolist()}
        return self._attention[within]

    @classmethod
    def of(cls, batch: pa.RecordBatch, length: int) -> Self:
        """View the columns of a batch; ValueError where they are not those of packed rows of `length` ids."""
        ids = _matrix(batch, IDS, pa.int32(), length)
        segments = learned = None
        if LENGTHS in batch.schema.names:
            lists: Any = batch.column(LENGTHS)
            if not pa.types.is_list(lists.type) or lists.type.value_type != pa.int32():
                raise ValueError(f"{LENGTHS} is {lists.type}; expected lists of int32")
            _check_whole(LENGTHS, lists, lists.values)
            offsets = values(lists.offsets).astype(np.int64)
            segments = Ragged(values(lists.values)[offsets[0] : offsets[-1]], offsets - offsets[0])
        if LEARNED in batch.schema.names:
            learned = _matrix(batch, LEARNED, pa.bool_(), length)
        return cls(ids, segments, learned)


def segments_of(groups: Sequence[PackedGroup], group: Int64, row: Int64) -> Ragged:
    """Return the segments of n rows of row groups: by places in `groups`, and the row in each, int64[n] both."""
    each = [one.segments for one in groups if one.segments is not None]
    assert len(each) == len(groups)
    nothing = np.zeros(0, np.int32)
    lengths = np.concatenate([nothing, *(one.ids for one in each)])
    offsets = np.concatenate([nothing, *(one.offsets for one in each)])
    place = offsets_of([len(one.offsets) for one in each])[group] + row
    before = offsets_of([len(one.ids) for one in each])[group]
    return Ragged.taken(lengths, before + offsets[place], before + offsets[place + 1])


def attention(lengths: Int32 | Int64, offsets: Int64, within: int | None) -> Int64:
    """Return what attention inside segments costs each row: the sum of their squared lengths, int64[n].

    Args:
        lengths, offsets: of the segments, as of :class:`PackedGroup`.
        within: segments are cut at every multiple of it in their row; None: they are not.
    """
    if within is not None:
        lengths, row, _ = cut_runs(lengths, offsets, within)
        offsets = offsets_of(np.bincount(row, minlength=len(offsets) - 1))
    return np.add.reduceat(np.square(lengths, dtype=np.int64), offsets[:-1])


def check_segments(segments: Ragged, rows: int, length: int) -> None:
    """Raise ValueError unless each of so many rows has segments of 1 id or more, `length` ids together at most."""
    lengths, offsets = segments.ids, segments.offsets
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


_BOOLEAN, _INT32 = 0, 1
_KINDS: Final = {IDS: _INT32, LENGTHS: _INT32, LEARNED: _BOOLEAN}
_NEAR: Final = 1 << 16  # bytes between two column chunks that are read rather than skipped


@final
class PackedReader:
    """Row groups of the shards of a packed dataset; may be used by several threads.

    Args:
        shards: opens them.
        length: ids of a row.
        limit: Ids are below it, and none is negative.
    """

    def __init__(self, shards: OpenShards, length: int, limit: int = MOST_IDS) -> None:
        self._shards, self._length, self._seen = shards, length, SeenLevels(length)
        self._limit = limit
        self._through_arrow: set[int] = set()

    def read(
        self, shard: int, index: int, rows: int, *, loss_mask: bool, segments: bool = True
    ) -> PackedGroup:
        """Decode one row group.

        Args:
            shard, index: the shard, and the row group in it.
            rows: how many it must have.
            loss_mask, segments: whether these are read.

        Raises:
            ValueError, OSError, pa.ArrowException: it is damaged, or not what was expected.
        """
        columns = [IDS] + [LENGTHS] * segments + [LEARNED] * loss_mask
        source, footer = self._shards.with_footer(shard)
        chunks = _chunks(footer, index, rows, columns, self._length)
        if shard not in self._through_arrow and all(
            chunk.kind == _KINDS[name] for name, chunk in chunks.items()
        ):
            with contextlib.suppress(Unfamiliar):
                return self._direct(source, chunks, rows)
        group = self._arrow(source, index, rows, chunks)
        self._through_arrow.add(shard)
        return group

    @property
    def through_arrow(self) -> frozenset[int]:
        """The shards that were found to be laid out in another way than ours."""
        return frozenset(self._through_arrow)

    def _direct(self, source: ShardBytes, chunks: dict[str, ColumnChunk], rows: int) -> PackedGroup:
        data, length = _bytes(source, chunks), self._length
        ids = fixed_numbers(data[IDS], rows, length, self._seen, self._limit)
        segments = Ragged(*list_numbers(data[LENGTHS], chunks[LENGTHS].values)) if LENGTHS in data else None
        learned = fixed_bits(data[LEARNED], rows, length, self._seen) if LEARNED in data else None
        return PackedGroup(ids, segments, learned)

    def _arrow(
        self, source: ShardBytes, index: int, rows: int, chunks: dict[str, ColumnChunk]
    ) -> PackedGroup:
        table = source.parquet().read_row_group(index, list(chunks))
        if sorted(table.schema.names) != sorted(chunks) or table.num_rows != rows:
            names = ", ".join(table.schema.names)
            raise ValueError(f"{table.num_rows} rows of {names}; expected {rows} rows of {', '.join(chunks)}")
        group = PackedGroup.of(one_batch(table), self._length)
        check_ids(group.ids, self._limit)
        found = None if group.segments is None else len(group.segments.ids)
        if found is not None and found != (stated := chunks[LENGTHS].values):
            raise ValueError(f"{found} segments; expected {stated}, as the footer says")
        return group


def _chunks(
    footer: Footer, index: int, rows: int, columns: Sequence[str], length: int
) -> dict[str, ColumnChunk]:
    """Return where the columns of a row group lie; ValueError unless they hold as many values as they must."""
    chunks = {name: footer.chunk(index, name) for name in columns}
    if (found := int(footer.rows[index])) != rows:
        raise ValueError(f"{found} rows; expected {rows}")
    for name, chunk in chunks.items():
        least = rows if name == LENGTHS else rows * length
        if not least <= chunk.values <= rows * length:
            raise ValueError(f"{chunk.values} values of {name}; expected {rows} rows of {length}")
    # Before any memory is taken for them: a footer and a manifest of one hand agree on any number.
    check_unfolded(4 * rows * length, sum(chunk.size for chunk in chunks.values()))
    return chunks


def _bytes(source: ShardBytes, chunks: dict[str, ColumnChunk]) -> dict[str, memoryview]:
    """Return the bytes of column chunks; those that lie together are read at once."""
    found: dict[str, memoryview] = {}
    near: list[tuple[str, ColumnChunk]] = []

    def read() -> None:
        begin, last = near[0][1].begin, near[-1][1]
        data = memoryview(source.read(begin, last.begin + last.size - begin))
        for name, chunk in near:
            found[name] = data[chunk.begin - begin : chunk.begin - begin + chunk.size]

    for name, chunk in sorted(chunks.items(), key=lambda item: item[1].begin):
        if near and chunk.begin - (near[-1][1].begin + near[-1][1].size) > _NEAR:
            read()
            near = []
        near.append((name, chunk))
    read()
    return found
