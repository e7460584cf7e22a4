"""Writing a unit's Parquet files: hashed as they are written, rolled by size, published whole.

Rows of one document each are put into row groups here. Bad records, set aside with their location, reason and raw
bytes, are such a file too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.arrays import FlatRows, Int32, Int64, places
from tokenlake.errors import StoreError
from tokenlake.etl.job import SPENT
from tokenlake.parquet.writer import RowGroupWriter, open_shard
from tokenlake.schema import LogicalHasher
from tokenlake.sources.bad_records import BadRecord
from tokenlake.store.base import Store
from tokenlake.store.durable_files import remove_temp
from tokenlake.store.layout import Layout, quarantine_path, shard_path
from tokenlake.store.ledger import FileEntry, QuarantineEntry, ShardEntry
from tokenlake.store.writes import HashingFile

_ARROW: Final[Any] = pa
_MOST_ROWS: Final = 1 << 20  # of a row group


@final
class UnitFile:
    """A Parquet file of a unit while it is written to a temporary place.

    Args:
        open_: makes the writer.
    """

    def __init__(
        self, store: Store, layout: Layout, unit: int, open_: Callable[[Any], RowGroupWriter]
    ) -> None:
        self._store, self._layout, self._unit = store, layout, unit
        self._temp = store.temp(layout.prefix)
        try:
            self._file = HashingFile(self._temp)
            self._writer = open_(self._file)
        except BaseException:
            remove_temp(self._temp)
            raise
        self.rows = 0

    @property
    def bytes(self) -> int:
        return self._file.bytes

    def write(self, rows: FlatRows | pa.RecordBatch) -> None:
        """Write one row group."""
        self._writer.write_batch(rows, row_group_size=min(len(rows), _MOST_ROWS))
        self.rows += len(rows)

    def publish(self, path: str) -> FileEntry:
        """Put the whole file in its place; an unequal one there that belongs to no finished unit is replaced."""
        self._writer.close()
        self._file.close()
        entry = FileEntry(bytes=self._file.bytes, sha256=self._file.sha256)
        key, ledger = self._layout.key(path), self._layout.ledger(self._unit)
        self._store.publish(
            self._temp, key, entry.sha256, replace_orphan=lambda: not self._store.exists(ledger)
        )
        return entry

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        # A writer that nobody closes closes itself when it is collected, and finds its file closed.
        with contextlib.suppress(OSError, ValueError, StoreError, pa.ArrowException):
            self._writer.close()
        self._file.close()
        remove_temp(self._temp)


@final
class PartWriter:
    """The parts of one unit and split, in order.

    Args:
        store: where to publish.
        layout: the version's keys.
        split, unit: they name the files.
        schema: of the rows; its metadata are key-values of the files, see :func:`tokenlake.schema.described`.
        max_bytes: a part is closed at the first row group past this size.
        only: number of the one part that is written then, however large, and also where there are no rows.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        split: str,
        unit: int,
        schema: pa.Schema,
        max_bytes: int,
        only: int | None = None,
    ) -> None:
        self._store, self._layout, self._split, self._unit = store, layout, split, unit
        self.schema, self._max_bytes, self._only = schema, max_bytes, only
        self._entries: list[ShardEntry] = []
        self._file: UnitFile | None = None

    def write(self, rows: FlatRows | pa.RecordBatch, *, tokens: int, documents: int) -> None:
        """Write one row group.

        Args:
            rows: the row group; of packed rows best taken apart, as both the file and the hash need them.
            tokens: tokens in it, padding not counted.
            documents: documents that begin in it.
        """
        began = perf_counter_ns()
        file = self._file or self._open()
        self._row_groups.append(file.rows)
        file.write(rows)
        self._logical.update(rows)
        self._tokens += tokens
        self._documents += documents
        if self._only is None and file.bytes >= self._max_bytes:
            self._close(file)
        SPENT["save"] += perf_counter_ns() - began

    def finish(self) -> list[ShardEntry]:
        """Publish the last part and return all entries."""
        began = perf_counter_ns()
        if self._file or self._only is not None:
            self._close(self._file or self._open())
        SPENT["save"] += perf_counter_ns() - began
        return self._entries

    def discard(self) -> None:
        """Give up: remove the unfinished part's temporary file."""
        if self._file is not None:
            self._file.discard()

    def _open(self) -> UnitFile:
        self._file = UnitFile(
            self._store, self._layout, self._unit, lambda sink: open_shard(sink, self.schema)
        )
        self._logical = LogicalHasher()
        self._row_groups: list[int] = []
        self._tokens = self._documents = 0
        return self._file

    def _close(self, file: UnitFile) -> None:
        number = len(self._entries) if self._only is None else self._only
        path = shard_path(self._split, self._unit, number)
        if not file.rows:
            self._logical.update(self.schema.empty_table())
        published = file.publish(path)
        self._file = None
        self._entries.append(
            ShardEntry(
                path=path,
                split=self._split,
                unit=self._unit,
                part=number,
                bytes=published.bytes,
                sha256=published.sha256,
                rows=file.rows,
                tokens=self._tokens,
                documents=self._documents,
                row_groups=tuple(self._row_groups),
                logical=self._logical.digest(),
            )
        )


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


_QUARANTINE_COLUMNS: Final = {
    "path": (pa.string(), "file"),
    "file": (pa.int64(), "file_id"),
    "position": (pa.int64(), "position"),
    "line": (pa.int64(), "line"),
    "reason": (pa.string(), "reason"),
    "detail": (pa.string(), "detail"),
    "raw": (pa.large_binary(), "raw"),
}
"""Column -> its type, and what of a record is in it."""
_QUARANTINE: Final = pa.schema(
    [pa.field(name, kind, nullable=name == "line") for name, (kind, _) in _QUARANTINE_COLUMNS.items()]
)
_FLUSH_BYTES: Final = 16 << 20  # raw bytes held before a row group is written


def _open_quarantine(sink: Any) -> pq.ParquetWriter:
    return pq.ParquetWriter(sink, _QUARANTINE, compression="zstd", write_page_checksum=True)


@final
class QuarantineWriter:
    """Writes one unit's quarantine file, which exists only if a record is bad."""

    def __init__(self, store: Store, layout: Layout, unit: int) -> None:
        self._store, self._layout, self._unit = store, layout, unit
        self._held: list[BadRecord] = []
        self._bytes = 0
        self._file: UnitFile | None = None
        self.first: str = ""

    def add(self, records: Iterable[BadRecord]) -> None:
        for record in records:
            if not self.first:
                self.first = f"{record.file} position {record.position}: {record.reason}: {record.detail}"
            self._held.append(record)
            self._bytes += len(record.raw)
            if self._bytes >= _FLUSH_BYTES:
                self._flush()

    def publish(self) -> QuarantineEntry | None:
        """Write what is left and publish the file; None when no record was bad."""
        self._flush()
        if self._file is None:
            return None
        path = quarantine_path(self._unit)
        entry = self._file.publish(path)
        return QuarantineEntry(path=path, bytes=entry.bytes, sha256=entry.sha256, rows=self._file.rows)

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        if self._file is not None:
            self._file.discard()

    def _flush(self) -> None:
        if not self._held:
            return
        if self._file is None:
            self._file = UnitFile(self._store, self._layout, self._unit, _open_quarantine)
        arrays = [
            pa.array([getattr(record, name) for record in self._held], kind)
            for kind, name in _QUARANTINE_COLUMNS.values()
        ]
        self._file.write(pa.RecordBatch.from_arrays(arrays, schema=_QUARANTINE))
        self._held, self._bytes = [], 0
