"""Packed rows that are imported as they are: every record is a row.

Nothing is packed.

Documents of one record follow each other and have the same file and position. They
become the pieces of a row, and the rest of the row is padding.

Example: rows of 6 ids. The documents [5, 6, 0] and [7, 8] of record 0 and [9, 9, 9, 9,
9, 0] of record 1 are the rows ``5 6 0 7 8 pad`` with two pieces, and ``9 9 9 9 9 0``
with one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import final

import numpy as np

from tokenlake.base.arrays import Int32, cells, offsets_of
from tokenlake.etl.packing.packed import Packed
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.token_files import TokenDocuments, flat_rows
from tokenlake.runtime.store.ledger import ShardEntry


@final
class WholeRowsFile:
    """Rows of one length, each made of the documents of one record.

    Args:
        writer: Writer of the parts. If its schema has a column ``loss_mask``, the ids
            of documents are marked.
        width: Ids of a row.
        pad_id: Id that fills the ends of rows.
        full: Ids of a full row group.
    """

    def __init__(self, writer: PartWriter, width: int, pad_id: int, full: int) -> None:
        self.counts: Counter[str] = Counter()
        self._writer = writer
        self._width = width
        self._pad_id = pad_id
        self._group_rows = max(1, full // width)
        self._waiting: list[Packed] = []
        self._waiting_rows = 0
        self.discard = writer.discard

    def add(self, documents: TokenDocuments) -> None:
        """Append documents; all of a record come together, and none is empty."""
        rows = self._rows_of(documents)
        self._waiting.append(rows)
        self._waiting_rows += rows.rows
        # Full row groups are written at once, so that little waits in memory.
        if self._waiting_rows >= self._group_rows:
            self._write(is_last=False)

    def add_long(self, windows: Iterable[Int32], file: int, position: int) -> None:
        """Append one document that comes in pieces; a row is never so long."""
        raise NotImplementedError("records of ids come as a whole")

    def finish(self) -> list[ShardEntry]:
        """Write and publish the rest; return the parts."""
        self._write(is_last=True)
        return self._writer.finish()

    def _rows_of(self, documents: TokenDocuments) -> Packed:
        """Return the documents as rows."""
        # 1. A row begins where the record changes: its documents share one place.
        begins_row = np.ones(len(documents), np.bool_)
        is_next_position = np.diff(documents.position) != 0
        is_next_file = np.diff(documents.file) != 0
        begins_row[1:] = is_next_position | is_next_file
        row_offsets = np.append(np.flatnonzero(begins_row), len(documents))
        # 2. Its ids, and padding behind them.
        lengths = np.diff(documents.offsets)
        row_lengths = np.diff(offsets_of(lengths)[row_offsets])
        row_ids = documents.ids[documents.offsets[0] : documents.offsets[-1]]
        row_count = len(row_lengths)
        input_ids = np.full((row_count, self._width), self._pad_id, np.int32)
        input_ids[cells(row_lengths, self._width, left=False)] = row_ids
        return Packed(
            input_ids=input_ids.ravel(),
            segment_lengths=lengths.astype(np.int32),
            row_offsets=row_offsets.astype(np.int64),
            file=documents.file,
            position=documents.position,
            start=np.zeros(len(documents), np.int32),
            ends=np.ones(len(documents), np.bool_),
            pad=row_count * self._width - len(row_ids),
        )

    def _write(self, *, is_last: bool) -> None:
        """Write full row groups, and with the last one the rest."""
        if not self._waiting_rows:
            return
        # The last group waits for more rows, unless none come.
        waiting_groups: list[Packed] = []
        waiting_rows = 0
        for row_group in Packed.joined(self._waiting).groups(self._group_rows):
            if row_group.rows < self._group_rows and not is_last:
                waiting_groups.append(row_group)
                waiting_rows += row_group.rows
                continue
            # Every place of a row is an id or padding, which the account checks.
            self.counts.update(
                pad=row_group.pad,
                sequences=row_group.rows,
                slots=len(row_group.input_ids),
            )
            self._writer.write(
                flat_rows(row_group, self._writer.schema),
                tokens=int(row_group.segment_lengths.sum(dtype=np.int64)),
                documents=len(row_group.segment_lengths),
            )
        self._waiting = waiting_groups
        self._waiting_rows = waiting_rows
