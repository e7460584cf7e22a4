"""Batches of packed rows: rows of decoded row groups, gathered into arrays.

A batch is a dict of arrays, one for each column. It is made in four steps
(:meth:`Assembler.batch`):

1. The ids of each row are copied from its decoded row group into one array. Rows after
   the last are padding.
2. The lengths of the rows' segments are gathered. With a length curriculum they are cut
   at each multiple of a length.
3. The requested columns are computed from these lengths
   (:mod:`tokenlake.runtime.loader.columns`).
4. The columns are put into the requested layout
   (:mod:`tokenlake.runtime.loader.layout`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged, cut_runs, offsets_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.columns import FROM_LOSS, RowSegments, labels, targets
from tokenlake.runtime.loader.layout import FLAT_COLUMNS, BatchLayout, moved
from tokenlake.runtime.loader.transfer import (
    CAN_TRANSFER,
    TRANSFER,
    ids_of,
    marks_of,
    planes_of,
)
from tokenlake.runtime.reading.blocks import BLOCKS
from tokenlake.runtime.reading.packed import PackedGroup, segments_of
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.manifest import Manifest

_IDS_AT_ONCE: Final = 1 << 18
"""Ids that are gathered at a time."""

Batch: TypeAlias = dict[str, npt.NDArray[Any]]
"""Column -> array of shape (rows, L); see :mod:`tokenlake.runtime.loader.layout` for
other shapes.
"""


class BatchShape(NamedTuple):
    """Shape of a batch.

    Attributes:
        rows: Number of rows, those of padding included.
        length: Ids of each row.
    """

    rows: int
    length: int


def pad_id_of(manifest: Manifest) -> int:
    """Return the padding id of a version; 0 where its manifest names none."""
    for description in manifest.tokenizer.values():
        if "pad_id" in description:
            return int(description["pad_id"])
    return 0


def reused_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialized array, in memory that nothing refers to any more.

    The memory is that of an earlier array. A batch that the caller keeps, in any form,
    keeps its memory and is never overwritten.
    """
    # New pages would be zeroed by the kernel, which costs as much as filling the batch.
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return BLOCKS.take(size).view(dtype).reshape(shape)


@final
class Assembler:
    """Makes batches of packed rows.

    Args:
        sources: Datasets that rows come from, packed to one length.
        columns: Names of the columns, some of
            :data:`tokenlake.runtime.loader.columns.COLUMNS`.
        fresh: Whether each batch gets newly allocated memory, even where that is
            slower.
        layout: Layout of the arrays; None: row by row.

    Attributes:
        length: Ids of each stored row.
        names: Names of the columns of a batch.
        needs_loss_mask: Whether row groups must be decoded with their loss mask.
        needs_segments: Whether row groups must be decoded with their segment lengths.

    Raises:
        ConfigError: The datasets are not packed, or to different lengths; or the layout
            does not fit the length.
    """

    def __init__(
        self,
        sources: Sequence[StoredRows],
        columns: Sequence[str],
        *,
        fresh: bool = False,
        layout: BatchLayout | None = None,
    ) -> None:
        _check_sources(sources)
        self.length = sources[0].manifest.width
        self.names = tuple(columns)
        self._columns = frozenset(columns)
        self._is_fresh = fresh
        self._pad_id = pad_id_of(sources[0].manifest)
        self._layout = layout or BatchLayout()
        self._layout.check_length(self.length)
        self._parts: int | None = None
        self._is_for_transfer = False
        # A flat batch has no rows: the bounds of its segments are delivered with it.
        if self._layout.flat:
            self.names += FLAT_COLUMNS
        self.needs_segments = (
            bool(self._columns - {"input_ids"}) or self._layout != BatchLayout()
        )
        # Row groups are decoded without the columns that no requested column is made
        # of.
        has_loss_mask = any(rows.has_loss_mask for rows in sources)
        self.needs_loss_mask = has_loss_mask and bool(FROM_LOSS & self._columns)

    def of_parts(self, parts: int) -> Self:
        """Return an assembler of flat batches that consist of equal parts.

        Each part has its own `cu_seqlens`.
        """
        assembler = copy.copy(self)
        assembler._parts = parts
        return assembler

    @property
    def can_transfer(self) -> bool:
        """Whether devices can compute the columns of a batch from its bytes.

        The rows must be in their stored order for that.
        """
        return CAN_TRANSFER and self._layout == BatchLayout()

    def for_transfer(self) -> Self:
        """Return an assembler of batches on their way to devices.

        Their form is explained in :mod:`tokenlake.runtime.loader.transfer`.
        """
        assembler = copy.copy(self)
        assembler._is_for_transfer = True
        return assembler

    def batch(
        self,
        shape: BatchShape,
        group: Int64,
        row: Int64,
        decoded: Callable[[int], PackedGroup],
        within: int | None = None,
    ) -> Batch:
        """Return a batch.

        Args:
            shape: Shape of the batch. Rows after the given ones are padding. A length
                that is shorter than that of the stored rows cuts each into equal parts;
                segments must be cut there too (see `within`).
            group: Number of each row's row group, int64[n], at most as many as fill the
                batch.
            row: Row in its row group, int64[n].
            decoded: Function that returns the row group of a number.
            within: Number of ids at each multiple of which segments of a row end; None:
                segments stay as stored.
        """
        # Each row group is looked up once, however many of its rows are in the batch.
        # This runs for every row: comprehensions take half the time of loops.
        numbers = group.tolist()
        rows = row.tolist()
        distinct_numbers = dict.fromkeys(numbers)
        index_of_number = {
            number: index for index, number in enumerate(distinct_numbers)
        }
        groups = [decoded(number) for number in distinct_numbers]
        group_index = [index_of_number[number] for number in numbers]
        group_of_row = [groups[index] for index in group_index]
        # Segments are not gathered for a batch of ids alone, which is the fastest case.
        segments: RowSegments | None = None
        if self.needs_segments:
            stored = segments_of(groups, np.array(group_index, np.int64), row)
            segments = self._segments(shape, stored, within)
        if self._is_for_transfer:
            return {TRANSFER: self._transfer(shape, group_of_row, rows, segments)}

        ids = self._empty(
            (shape.rows * shape.length // self.length, self.length), np.int32
        )
        self._write_ids(group_of_row, rows, ids)
        batch: Batch = {"input_ids": ids.reshape(shape)}
        if segments is not None:
            self._add_columns(batch, segments, group_of_row, rows)
            self._lay_out(batch, segments)
        return {name: batch[name] for name in self.names}

    def _write_ids(
        self,
        group_of_row: Sequence[PackedGroup],
        rows: Sequence[int],
        out: npt.NDArray[Any],
    ) -> None:
        """Write the ids of stored rows, and the padding id into the rows after.

        The ids of some rows are copied at a time.

        Args:
            group_of_row: Row group of each row.
            rows: Row in its row group.
            out: Array of shape (stored rows, ids of a stored row).
        """
        # The joined bytes of a chunk stay in the cache of the processor until they are
        # widened.
        rows_at_once = max(1, _IDS_AT_ONCE // self.length)
        for begin in range(0, len(rows), rows_at_once):
            chunk = slice(begin, begin + rows_at_once)
            _copy_rows(group_of_row[chunk], rows[chunk], out[chunk])
        out[len(rows) :] = self._pad_id

    def _transfer(
        self,
        shape: BatchShape,
        group_of_row: Sequence[PackedGroup],
        rows: Sequence[int],
        segments: RowSegments | None,
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of a batch for the devices, uint8[rows, planes, L].

        Their form is explained in :mod:`tokenlake.runtime.loader.transfer`.
        """
        # Two bytes an id travel to the device, unless a vocabulary or the padding id
        # needs four.
        id_bytes = max((group.ids.itemsize for group in set(group_of_row)), default=2)
        id_type = np.dtype(np.uint16)
        if self._pad_id >= 1 << 16 or id_bytes > 2:
            id_type = np.dtype(np.int32)
        planes = self._empty(
            (
                shape.rows,
                planes_of(id_type, has_marks=segments is not None),
                shape.length,
            ),
            np.uint8,
        )

        ids = ids_of(planes, id_type)
        if shape.length == self.length:
            self._write_ids(group_of_row, rows, ids)
        else:
            # Stored rows are cut into shorter ones, which do not lie one after the
            # other in the planes.
            stored_ids = self._empty((ids.size // self.length, self.length), id_type)
            self._write_ids(group_of_row, rows, stored_ids)
            ids[...] = stored_ids.reshape(shape)

        if segments is not None:
            learned: Bools | None = None
            if self.needs_loss_mask:
                learned = self._stored_loss_mask(shape, group_of_row, rows)
            segments.marks(learned, marks_of(planes))
        return planes

    def _segments(
        self, shape: BatchShape, stored: Ragged, within: int | None
    ) -> RowSegments:
        """Return the segments of a batch.

        Args:
            shape: Shape of the batch.
            stored: Segment lengths of each stored row.
            within: Number of ids at each multiple of which segments end; None: segments
                stay as stored.
        """
        # Rows of padding have no segments: their offsets repeat the end of the last
        # row.
        parts = self.length // shape.length
        lengths = stored.ids
        padding_rows = shape.rows // parts - len(stored)
        offsets = np.append(stored.offsets, np.full(padding_rows, len(lengths)))
        # A cut row is `parts` rows of the batch, so that its segments are counted for
        # each of these.
        if within is not None:
            lengths, row, part = cut_runs(lengths, offsets, within)
            if parts > 1:
                row = row * parts + part
            offsets = offsets_of(np.bincount(row, minlength=shape.rows))
        return RowSegments.of(lengths, offsets, shape.length)

    def _add_columns(
        self,
        batch: Batch,
        segments: RowSegments,
        group_of_row: Sequence[PackedGroup],
        rows: Sequence[int],
    ) -> None:
        """Add the requested columns to a batch, which has its `input_ids`."""
        ids = batch["input_ids"]
        shape = ids.shape
        if "segment_ids" in self._columns:
            # Segments of a flat batch are numbered over all rows of a part.
            numbered_together = 1
            if self._layout.flat:
                numbered_together = max(1, shape[0] // (self._parts or 1))
            batch["segment_ids"] = segments.ids(
                self._empty(shape, np.int32), numbered_together
            )
        if "positions" in self._columns:
            batch["positions"] = segments.positions(self._empty(shape, np.int32))
        if not FROM_LOSS & self._columns:
            return
        # Loss mask, labels and targets are one after the other functions of the stored
        # mask.
        learned = (
            self._stored_loss_mask(shape, group_of_row, rows)
            if self.needs_loss_mask
            else None
        )
        loss_mask = segments.loss_mask(learned, self._empty(shape, np.bool_))
        batch["loss_mask"] = loss_mask
        if "labels" in self._columns:
            batch["labels"] = labels(ids, loss_mask, self._empty(shape, np.int32))
        if "targets" in self._columns:
            batch["targets"] = targets(ids, loss_mask, self._empty(shape, np.int32))

    def _lay_out(self, batch: Batch, segments: RowSegments) -> None:
        """Put the columns of a batch into the requested layout.

        The columns come row by row.
        """
        # Flat: one row after the other, and the begins of all segments (`cu_seqlens`) for
        # attention kernels of variable length.
        if self._layout.flat:
            cu_seqlens, max_seqlen = self._layout.bounds(
                segments.runs, segments.row_runs, self._parts or 1
            )
            for column_name, column in batch.items():
                batch[column_name] = column.reshape(-1)
            if self._parts is None:
                cu_seqlens = cu_seqlens[0]
                max_seqlen = max_seqlen.reshape(())
            batch["cu_seqlens"] = cu_seqlens
            batch["max_seqlen"] = max_seqlen
            return
        # The other layouts permute the ids of each row, so that devices which share
        # rows have equal work.
        order = self._layout.order(segments.length, segments.runs, segments.row_runs)
        if order is None:
            return
        for column_name in self.names:
            column = batch[column_name]
            memory = self._empty(column.shape, column.dtype)
            batch[column_name] = moved(column, order, memory)

    def _stored_loss_mask(
        self,
        shape: tuple[int, ...],
        group_of_row: Sequence[PackedGroup],
        rows: Sequence[int],
    ) -> Bools:
        """Return the stored loss masks of a batch.

        If the dataset has none, the mask is True for all ids.
        """
        loss_mask = self._empty(
            (shape[0] * shape[1] // self.length, self.length), np.bool_
        )
        for place, (group, row) in enumerate(zip(group_of_row, rows, strict=True)):
            # A dataset without a stored mask is learned from wholly.
            loss_mask[place] = True if group.learned is None else group.learned[row]
        loss_mask[len(rows) :] = False
        return loss_mask.reshape(shape)

    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        if self._is_fresh:
            return np.empty(shape, dtype)
        return reused_array(shape, dtype)


def _check_sources(sources: Sequence[StoredRows]) -> None:
    """Raise ConfigError where datasets are not packed, or to different lengths."""
    kinds = {(rows.manifest.kind, rows.manifest.width) for rows in sources}
    if len(kinds) == 1 and all(kind == "packed" for kind, _ in kinds):
        return
    # Name each dataset with its kind and length, so that the one that differs is seen.
    listed = ", ".join(
        f"{rows.name} ({rows.manifest.kind}, {rows.manifest.width})" for rows in sources
    )
    raise ConfigError(
        f"rows of a batch have one length; expected datasets that are packed to one length, got {listed}"
    )


def _copy_rows(groups: Sequence[PackedGroup], rows: Sequence[int], out: Int32) -> None:
    """Copy one row of each row group into the first rows of an array.

    Args:
        groups: Row group of each row.
        rows: Row in its row group.
        out: Array of shape (B, L).
    """
    # Within one type of ids, a row is a slice of bytes, and rows are joined without a
    # look at their ids.
    id_types = {group.row_bytes: group.ids.dtype for group in groups}
    if len(id_types) == 1:
        ((row_bytes, id_type),) = id_types.items()
        out[: len(rows)] = _joined(groups, rows, row_bytes, id_type).reshape(
            -1, out.shape[1]
        )
        return
    # Row groups store ids in types of different widths: join the rows of each width.
    for row_bytes, id_type in id_types.items():
        row_places = [
            place for place, group in enumerate(groups) if group.row_bytes == row_bytes
        ]
        groups_of_type = [groups[place] for place in row_places]
        rows_of_type = [rows[place] for place in row_places]
        ids = _joined(groups_of_type, rows_of_type, row_bytes, id_type)
        out[row_places] = ids.reshape(-1, out.shape[1])


def _joined(
    groups: Sequence[PackedGroup],
    rows: Sequence[int],
    row_bytes: int,
    id_type: np.dtype[Any],
) -> npt.NDArray[Any]:
    """Return rows end to end, in the type in which they are stored.

    Joining slices of memory is the fastest way to copy many small pieces in Python. An
    array for each piece would take up to twice as long.
    """
    pieces = [
        group.data[row_bytes * row : row_bytes * row + row_bytes]
        for group, row in zip(groups, rows, strict=True)
    ]
    return np.frombuffer(b"".join(pieces), id_type)
