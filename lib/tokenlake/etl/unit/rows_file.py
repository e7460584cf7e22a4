"""Files with rows of one document each, in row groups of about equal numbers of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int32, Int64, places
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.runtime.store.ledger import ShardEntry

_ARROW: Final[Any] = pa

_KEPT_BYTES: Final = 64 << 20  # of kept fields after which a row group ends, however few tokens it has


@final
@dataclass(frozen=True, slots=True)
class Padding:
    """How documents are padded.

    Attributes:
        kind: ``none``; ``max_length``: to `length`, longer ones stay as they are; ``longest``: to the longest of
            their row group.
        length: tokens of a row, for ``max_length``.
        side: where the padding goes.
        pad_id: what it is made of.
    """

    kind: Literal["none", "max_length", "longest"]
    length: int = 0
    side: Literal["left", "right"] = "right"
    pad_id: int = 0

    def sizes(self, lengths: Int64) -> Int64:
        """Return how many ids each of the n rows of a row group has, its documents having `lengths` (int64[n])."""
        if self.kind == "none" or not len(lengths):
            return lengths
        return np.maximum(lengths, self.length if self.kind == "max_length" else lengths.max())

    def apply(self, ids: Int32, lengths: Int64, sizes: Int64) -> tuple[Int32, Int32]:
        """Lay documents (ids int32[sum of lengths]) into rows of `sizes`; return ids and mask, int32[sum of sizes]."""
        if self.kind == "none":
            return ids, np.ones(len(ids), np.int32)
        starts = np.cumsum(sizes) - sizes
        begin = starts if self.side == "right" else starts + sizes - lengths
        at = places(begin, lengths)
        out = np.full(int(sizes.sum()), self.pad_id, np.int32)
        mask = np.zeros(len(out), np.int32)
        out[at], mask[at] = ids, 1
        return out, mask


@final
class RowGroups:
    """Where row groups of documents end: each has at most about `tokens` ids, padding included.

    Args:
        tokens: of a full row group; one document alone may have more.
    """

    def __init__(self, padding: Padding, tokens: int) -> None:
        self._padding, self._tokens = padding, tokens
        self._held = self._longest = self._count = 0

    def take(self, lengths: Int64) -> tuple[int, bool]:
        """Return how many of the next documents (int64[n], n > 0) go into the open group, and whether it is full."""
        if self._padding.kind == "longest":
            return self._take_longest(lengths)
        ends = np.cumsum(self._padding.sizes(lengths))
        # Without padding a document goes into the open group that it comes to, fits or not: released bytes are so.
        least = int(self._padding.kind == "none" or not self._held)
        taken = max(least, int(np.searchsorted(ends, self._tokens - self._held, side="right")))
        if not taken:
            return 0, True
        self._held += int(ends[taken - 1])
        return taken, self._held >= self._tokens or taken < len(lengths)

    def _take_longest(self, lengths: Int64) -> tuple[int, bool]:
        widths = np.maximum.accumulate(np.maximum(lengths[: self._tokens], self._longest))
        areas: Any = widths * np.arange(self._count + 1, self._count + 1 + len(widths))
        taken = int(np.searchsorted(areas, self._tokens, side="right"))
        if not taken and self._count:
            return 0, True
        taken = max(1, taken)
        self._count, self._longest = self._count + taken, int(widths[taken - 1])
        return taken, taken < len(lengths) or int(areas[taken - 1]) >= self._tokens

    def clear(self) -> None:
        """Begin a new group."""
        self._held = self._longest = self._count = 0


Finished = Callable[[pa.RecordBatch, Int64], pa.RecordBatch]
"""From the rows of a row group, and how many ids each has (int64[n]), to what is written."""


@final
class RowsFile:
    """Rows of one document each on their way to row groups, whose borders do not depend on how rows arrive.

    Args:
        padding: what a row group counts beside the ids.
        full: ids of a full row group.
        kept: columns that end a row group where they have many bytes.
    """

    def __init__(
        self, writer: PartWriter, padding: Padding, full: int, finished: Finished, kept: Sequence[str] = ()
    ) -> None:
        self._writer, self._finished, self._kept = writer, finished, kept
        self._groups = RowGroups(padding, full)
        self._waiting: list[tuple[pa.RecordBatch, Int64]] = []
        self._kept_bytes = 0

    def add(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        """Append n rows of so many ids, padding not counted (int64[n])."""
        first = 0
        while first < len(lengths):
            count, full = self._groups.take(lengths[first:])
            if count:
                some = rows.slice(first, count)
                self._waiting.append((some, lengths[first : first + count]))
                self._kept_bytes += sum(some.column(name).nbytes for name in self._kept)
            if full or self._kept_bytes >= _KEPT_BYTES:
                self._flush()
            first += count

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        self._flush()
        return self._writer.finish()

    def discard(self) -> None:
        self._writer.discard()

    def _flush(self) -> None:
        """Write what waits as one row group."""
        waiting, self._waiting, self._kept_bytes = self._waiting, [], 0
        self._groups.clear()
        if waiting:
            rows = _ARROW.concat_batches([rows for rows, _ in waiting])
            lengths = np.concatenate([lengths for _, lengths in waiting])
            rows = self._finished(rows, lengths)
            self._writer.write(rows, tokens=int(lengths.sum()), documents=len(rows))


def row_of(schema: pa.Schema, columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """Return `count` rows of a schema; what is not there is null."""
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return _ARROW.RecordBatch.from_arrays(arrays, schema=schema)
