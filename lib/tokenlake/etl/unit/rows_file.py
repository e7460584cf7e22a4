"""Files with rows of one document each, in row groups of about equal numbers of tokens.

The borders of row groups do not depend on how rows arrive: they follow from the lengths
of the documents alone. A row group ends

- with the document that fills it, without padding: released bytes are so;
- before the document that would exceed it, with padding. Padded to the longest of the
  group, a document may make all rows before it longer, so that the area ``rows *
  longest`` is looked at.

Example: full groups of 10 ids; documents of 4, 5 and 3 ids. Without padding the group
has all three (12 ids). Padded to the longest it has the first two (2 * 5 = 10 ids; with
the third it would have 15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int32, Int64, places
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.runtime.store.ledger import ShardEntry

_ARROW: Final[Any] = pa

_KEPT_BYTES: Final = 64 << 20
"""Bytes of kept fields after which a row group ends, however few tokens it has."""


@final
@dataclass(frozen=True, slots=True)
class Padding:
    """Padding of documents.

    Attributes:
        kind: ``none``; ``max_length``: to `length`, longer ones stay as they are;
            ``longest``: to the longest of their row group.
        length: Tokens of a row, for ``max_length``.
        side: Side of the row that the padding is on.
        pad_id: Id of the padding.
    """

    kind: Literal["none", "max_length", "longest"]
    length: int = 0
    side: Literal["left", "right"] = "right"
    pad_id: int = 0

    def sizes(self, lengths: Int64) -> Int64:
        """Return the number of ids of each row of a row group, int64[n].

        Padding is included.

        Args:
            lengths: Ids of each document, int64[n].
        """
        if self.kind == "none" or not len(lengths):
            return lengths
        if self.kind == "max_length":
            return np.maximum(lengths, self.length)
        return np.full(len(lengths), lengths.max())

    def apply(self, ids: Int32, lengths: Int64, sizes: Int64) -> tuple[Int32, Int32]:
        """Lay documents into rows; return ids, and a mask, int32[total] each.

        The mask has 1 for ids that are not padding.

        Args:
            ids: Ids of all documents.
            lengths: Ids of each document, int64[n].
            sizes: Ids of each row, int64[n].
        """
        if self.kind == "none":
            return ids, np.ones(len(ids), np.int32)
        # The places of all ids among those of the rows; all other places are padding.
        begins = np.cumsum(sizes) - sizes
        if self.side == "left":
            begins += sizes - lengths
        indices = places(begins, lengths)
        padded = np.full(int(sizes.sum()), self.pad_id, np.int32)
        padded[indices] = ids
        mask = np.zeros(len(padded), np.int32)
        mask[indices] = 1
        return padded, mask


@final
class RowGroups:
    """Borders of row groups of documents, each of at most about `tokens` ids.

    Padding is included.

    Args:
        padding: Padding of the documents.
        tokens: Ids of a full row group. A group of one document may have more.
    """

    def __init__(self, padding: Padding, tokens: int) -> None:
        self._padding = padding
        self._tokens = tokens
        # The open group: its ids, or the number of its documents and the ids of the
        # longest.
        self._held_ids = 0
        self._held_documents = 0
        self._longest = 0

    def take(self, lengths: Int64) -> tuple[int, bool]:
        """Add documents to the open group.

        Args:
            lengths: Ids of the next documents, n > 0, int64[n].

        Returns:
            Number of documents that go into the open group, and True if it is full.
        """
        if self._padding.kind == "longest":
            return self._take_longest(lengths)
        ends = np.cumsum(self._padding.sizes(lengths))
        free_ids = self._tokens - self._held_ids
        document_count = int(np.searchsorted(ends, free_ids, side="right"))
        # Without padding the group takes one document even if it does not fit. An empty
        # group takes one in any case.
        takes_one = self._padding.kind == "none" or not self._held_ids
        if takes_one:
            document_count = max(1, document_count)
        if not document_count:
            return 0, True
        self._held_ids += int(ends[document_count - 1])
        is_full = self._held_ids >= self._tokens or document_count < len(lengths)
        return document_count, is_full

    def _take_longest(self, lengths: Int64) -> tuple[int, bool]:
        """Add documents to a group whose rows are as long as the longest of them."""
        # The area of the group after each document. At most as many documents fit as
        # the group has ids, because each has one at least.
        candidates = np.maximum(lengths[: self._tokens], self._longest)
        longest = np.maximum.accumulate(candidates)
        row_counts = self._held_documents + 1 + np.arange(len(longest))
        areas: Any = longest * row_counts
        document_count = int(np.searchsorted(areas, self._tokens, side="right"))
        if not document_count and self._held_documents:
            return 0, True
        # An empty group takes one document in any case.
        document_count = max(1, document_count)
        self._held_documents += document_count
        self._longest = int(longest[document_count - 1])
        last_area = int(areas[document_count - 1])
        is_full = document_count < len(lengths) or last_area >= self._tokens
        return document_count, is_full

    def clear(self) -> None:
        """Begin a new group."""
        self._held_ids = 0
        self._held_documents = 0
        self._longest = 0


Finished: TypeAlias = Callable[[pa.RecordBatch, Int64], pa.RecordBatch]
"""Function that makes the written rows of a row group.

It gets the rows, and the number of ids of each (int64[n]).
"""


@final
class RowsFile:
    """Rows of one document each, on their way to row groups.

    Args:
        writer: Writer of the parts.
        padding: Padding, which counts toward a full row group.
        full: Ids of a full row group.
        finished: Last change of a row group before it is written.
        kept: Names of columns that end a row group when they have many bytes.
    """

    def __init__(
        self,
        writer: PartWriter,
        padding: Padding,
        full: int,
        finished: Finished,
        kept: Sequence[str] = (),
    ) -> None:
        self._writer = writer
        self._finished = finished
        self._kept = kept
        self._groups = RowGroups(padding, full)
        self._waiting_rows: list[pa.RecordBatch] = []
        self._waiting_lengths: list[Int64] = []
        self._kept_bytes = 0

    def add(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        """Append rows.

        Args:
            rows: n rows.
            lengths: Ids of each, padding not counted, int64[n].
        """
        first_row = 0
        while first_row < len(lengths):
            row_count, is_full = self._groups.take(lengths[first_row:])
            end_row = first_row + row_count
            if row_count:
                group_rows = rows.slice(first_row, row_count)
                self._waiting_rows.append(group_rows)
                self._waiting_lengths.append(lengths[first_row:end_row])
                for column_name in self._kept:
                    self._kept_bytes += group_rows.column(column_name).nbytes
            # Kept fields may be far larger than the ids beside them.
            if is_full or self._kept_bytes >= _KEPT_BYTES:
                self._flush()
            first_row = end_row

    def finish(self) -> list[ShardEntry]:
        """Write and publish the rest; return the parts."""
        self._flush()
        return self._writer.finish()

    def discard(self) -> None:
        """Give up: remove temporary files."""
        self._writer.discard()

    def _flush(self) -> None:
        """Write the rows that wait as one row group."""
        self._groups.clear()
        if not self._waiting_rows:
            return
        rows = _ARROW.concat_batches(self._waiting_rows)
        lengths = np.concatenate(self._waiting_lengths)
        self._waiting_rows = []
        self._waiting_lengths = []
        self._kept_bytes = 0
        rows = self._finished(rows, lengths)
        self._writer.write(rows, tokens=int(lengths.sum()), documents=len(rows))


def row_of(schema: pa.Schema, columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """Return `count` rows of a schema; missing columns are null."""
    arrays: list[Any] = []
    for field in schema:
        if field.name in columns:
            arrays.append(columns[field.name])
        else:
            arrays.append(pa.nulls(count, field.type))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=schema)
