"""Writing a unit's Parquet files: hashed as they are written, rolled by size, published whole.

Bad records, set aside with their location, reason and raw bytes, are such a file too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.arrays import FlatRows
from tokenlake.errors import StoreError
from tokenlake.etl.job import CLOCK
from tokenlake.parquet.writer import RowGroupWriter, open_shard
from tokenlake.schema import LogicalHasher
from tokenlake.sources.batch import BadRecord
from tokenlake.store.base import Store
from tokenlake.store.entries import FileEntry, QuarantineEntry, ShardEntry
from tokenlake.store.layout import Layout, quarantine_path, shard_path
from tokenlake.store.local_files import HashingFile, remove_temp

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
        before = CLOCK.switch("save")
        file = self._file or self._open()
        self._row_groups.append(file.rows)
        file.write(rows)
        self._logical.update(rows)
        self._tokens += tokens
        self._documents += documents
        if self._only is None and file.bytes >= self._max_bytes:
            self._close(file)
        CLOCK.switch(before)

    def finish(self) -> list[ShardEntry]:
        """Publish the last part and return all entries."""
        before = CLOCK.switch("save")
        if self._file or self._only is not None:
            self._close(self._file or self._open())
        CLOCK.switch(before)
        return self._entries

    def discard(self) -> None:
        """Give up: remove the unfinished part's temporary file."""
        if self._file is not None:
            self._file.discard()
            self._file = None

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


_QUARANTINE: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("file", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("line", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("raw", pa.large_binary(), nullable=False),
    ]
)
_HELD: Final = ("file", "file_id", "position", "line", "reason", "detail", "raw")
"""What of a record is in these columns."""

_FLUSH_BYTES: Final = 16 << 20
"""Raw bytes held before a row group is written."""


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
            pa.array([getattr(record, name) for record in self._held], field.type)
            for name, field in zip(_HELD, _QUARANTINE, strict=True)
        ]
        self._file.write(pa.RecordBatch.from_arrays(arrays, schema=_QUARANTINE))
        self._held, self._bytes = [], 0
