"""Rows of a version as flat arrays, from which files of other trainers are written.

A row of a packed version is segments and padding; a row of other versions is a document, which may be padded, too. For
the packed rows [5, 6 | 7 | pad] and [8, 9, 9, 9]::

    input_ids        = [5, 6, 7, pad, 8, 9, 9, 9]
    row_offsets      = [0, 4, 8]
    segment_lengths  = [2, 1, 4]
    segment_offsets  = [0, 2, 3]

Without padding they are :class:`Sequences`::

    input_ids        = [5, 6, 7, 8, 9, 9, 9]
    lengths          = [2, 1, 4]
    row_sizes        = [2, 1]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, offsets_of
from tokenlake.runtime.reading import PackedGroup
from tokenlake.runtime.reading.token_ids import Ids

COLUMNS: Final = ("input_ids", "attention_mask", "segment_lengths", "loss_mask")
"""Columns of a version that are read for files of other trainers, as far as it has
them.
"""

_ARROW: Final[Any] = pa


@final
@dataclass(frozen=True, slots=True)
class Sequences:
    """Rows without their padding.

    Attributes:
        input_ids: Ids of all sequences, int32[N], or uint16[N] if they are stored in 16
            bits.
        lengths: Number of ids of each sequence, int64[S]: a segment of a packed row, or
            a document.
        row_sizes: Number of sequences of each row, int64[rows].
        loss_mask: True for ids that count toward the loss, bool[N]; None if no loss
            mask is stored.
    """

    input_ids: Ids
    lengths: Int64
    row_sizes: Int64
    loss_mask: Bools | None


@final
@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows as flat arrays.

    Attributes:
        input_ids: Ids of all rows, padding included, int32[N], or uint16[N] if they are
            stored in 16 bits.
        row_offsets: Offset of each row in the ids, int64[rows + 1].
        segment_lengths: Number of ids of each segment of packed rows, int64[S]; None
            for other rows.
        segment_offsets: Offset of each row in the segments, int64[rows + 1]; None for
            other rows.
        attention_mask: True for ids of documents, bool[N]; None if none is stored.
        loss_mask: True for ids that count toward the loss, bool[N]; None if none is
            stored.
    """

    input_ids: Ids
    row_offsets: Int64
    segment_lengths: Int64 | None = None
    segment_offsets: Int64 | None = None
    attention_mask: Bools | None = None
    loss_mask: Bools | None = None

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Return the rows of a batch with the stored columns of :data:`COLUMNS`."""
        # Only `input_ids` is in every version; the others depend on how it was built.
        column_names = batch.schema.names
        row_offsets = _offsets_of(batch.column("input_ids"))
        segment_lengths = None
        segment_offsets = None
        if "segment_lengths" in column_names:
            segments: Any = batch.column("segment_lengths")
            segment_lengths = segments.flatten().to_numpy().astype(np.int64)
            segment_offsets = _offsets_of(segments)
        attention_mask = None
        if "attention_mask" in column_names:
            attention_mask = _flat(batch.column("attention_mask")).astype(np.bool_)
        loss_mask = None
        if "loss_mask" in column_names:
            loss_mask = _flat(batch.column("loss_mask"))
        return cls(
            input_ids=_flat(batch.column("input_ids")),
            row_offsets=row_offsets,
            segment_lengths=segment_lengths,
            segment_offsets=segment_offsets,
            attention_mask=attention_mask,
            loss_mask=loss_mask,
        )

    @classmethod
    def of_packed(cls, row_group: PackedGroup) -> Self:
        """Return the rows of a decoded row group of a packed version."""
        # All rows have one length, from which the offsets follow.
        assert row_group.segments is not None
        loss_mask = None
        if row_group.learned is not None:
            loss_mask = row_group.learned.reshape(-1)
        return cls(
            input_ids=row_group.ids.reshape(-1),
            row_offsets=np.arange(row_group.rows + 1, dtype=np.int64)
            * row_group.length,
            segment_lengths=row_group.segments.ids.astype(np.int64),
            segment_offsets=row_group.segments.offsets,
            loss_mask=loss_mask,
        )

    def with_eos(self, eos_id: int) -> TokenRows:
        """Return documents that end with EOS, which is appended to those that do not.

        EOS counts toward the loss if the id before it does.

        Args:
            eos_id: Id of EOS.
        """
        # 1. Documents that do not end with EOS; those without ids end with nothing.
        document_ends = self.row_offsets[1:]
        lengths = np.diff(self.row_offsets)
        has_ids = lengths > 0
        lacks_eos = ~has_ids
        lacks_eos[has_ids] = self.input_ids[document_ends[has_ids] - 1] != eos_id
        # 2. One id is inserted behind each of them. Its mask is that of the id before
        #    it; a document without ids has none.
        insert_indices = document_ends[lacks_eos]
        loss_mask = self.loss_mask
        if loss_mask is not None:
            mask_before = np.concatenate([np.zeros(1, np.bool_), loss_mask])
            eos_mask = mask_before[insert_indices] & has_ids[lacks_eos]
            loss_mask = np.insert(loss_mask, insert_indices, eos_mask)
        return TokenRows(
            input_ids=np.insert(self.input_ids, insert_indices, eos_id),
            row_offsets=offsets_of(lengths + lacks_eos),
            loss_mask=loss_mask,
        )

    def rows(self, first: int, end: int) -> TokenRows:
        """Return the rows ``first .. end``."""
        # Arrays of ids are views; offsets begin at 0 again.
        first_id = int(self.row_offsets[first])
        id_range = slice(first_id, int(self.row_offsets[end]))
        segment_lengths = None
        segment_offsets = None
        if self.segment_lengths is not None and self.segment_offsets is not None:
            first_segment = int(self.segment_offsets[first])
            segment_offsets = self.segment_offsets[first : end + 1] - first_segment
            segment_lengths = self.segment_lengths[
                first_segment : int(self.segment_offsets[end])
            ]
        return TokenRows(
            input_ids=self.input_ids[id_range],
            row_offsets=self.row_offsets[first : end + 1] - first_id,
            segment_lengths=segment_lengths,
            segment_offsets=segment_offsets,
            attention_mask=_part(self.attention_mask, id_range),
            loss_mask=_part(self.loss_mask, id_range),
        )

    def segment_ids(self) -> Int32:
        """Return the number of the segment of each id in its packed row, from 1.

        Padding has 0.
        """
        assert self.segment_lengths is not None
        assert self.segment_offsets is not None
        # 1. Number of each segment in its row: its index, less that of the row's first.
        row_sizes = np.diff(self.segment_offsets)
        first_segments = np.repeat(self.segment_offsets[:-1], row_sizes)
        segment_numbers = np.arange(len(self.segment_lengths)) - first_segments + 1
        # 2. The padding of each row is one more run, with the number 0.
        row_ends = self.segment_offsets[1:]
        run_lengths = np.insert(self.segment_lengths, row_ends, self._paddings())
        run_numbers = np.insert(segment_numbers, row_ends, 0)
        # 3. Each number is repeated for the ids of its run.
        return np.repeat(run_numbers.astype(np.int32), run_lengths)

    def sequences(self) -> Sequences:
        """Return the segments of packed rows, or the documents, without padding."""
        # 1. Lengths of the sequences, and the ids that are no padding; None: all are.
        row_count = len(self)
        lengths = np.diff(self.row_offsets)
        row_sizes = np.ones(row_count, np.int64)
        is_document: Bools | None = None
        if self.segment_lengths is not None and self.segment_offsets is not None:
            lengths = self.segment_lengths
            row_sizes = np.diff(self.segment_offsets)
            # The segments of a packed row lie at its beginning: two runs for each row.
            paddings = self._paddings()
            if paddings.any():
                row_tokens = np.diff(self.row_offsets) - paddings
                run_lengths = np.column_stack([row_tokens, paddings]).reshape(-1)
                is_document = np.repeat(np.tile([True, False], row_count), run_lengths)
        elif self.attention_mask is not None:
            # Padding of documents may be on either side: the mask says where it is.
            is_document = self.attention_mask
            tokens_before = offsets_of(is_document)
            lengths = np.diff(tokens_before[self.row_offsets])
        # 2. Ids and loss mask, copied only if there is padding to leave out.
        if is_document is None:
            return Sequences(self.input_ids, lengths, row_sizes, self.loss_mask)
        loss_mask = self.loss_mask
        if loss_mask is not None:
            loss_mask = loss_mask[is_document]
        return Sequences(self.input_ids[is_document], lengths, row_sizes, loss_mask)

    def _paddings(self) -> Int64:
        """Return the number of ids of padding in each packed row, int64[rows]."""
        assert self.segment_lengths is not None
        tokens_before = offsets_of(self.segment_lengths)
        return np.diff(self.row_offsets) - np.diff(tokens_before[self.segment_offsets])


def _part(mask: Bools | None, ids: slice) -> Bools | None:
    """Return a part of a mask; None if there is no mask."""
    if mask is None:
        return None
    return mask[ids]


def _flat(column: Any) -> Any:
    """Return the values of a list column; those of a slice are its own."""
    return column.flatten().to_numpy(zero_copy_only=False)


def _offsets_of(column: Any) -> Int64:
    """Return the offsets of a list column, int64[rows + 1], from 0."""
    if _ARROW.types.is_fixed_size_list(column.type):
        return np.arange(len(column) + 1, dtype=np.int64) * column.type.list_size
    offsets = column.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0]
