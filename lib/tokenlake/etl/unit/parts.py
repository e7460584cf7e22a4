"""The Parquet files of a unit: hashed, ended at a size, and published whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.base.arrays import FlatRows
from tokenlake.errors import StoreError
from tokenlake.etl.step_clock import CLOCK
from tokenlake.runtime.logical_hash import LogicalHasher
from tokenlake.runtime.parquet.writer import RowGroupWriter, open_shard
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.durable_files import remove_temp
from tokenlake.runtime.store.layout import Layout, shard_path
from tokenlake.runtime.store.ledger import FileEntry, ShardEntry
from tokenlake.runtime.store.writes import HashingFile

_MOST_ROWS: Final = 1 << 20
"""Rows of a row group."""


@final
class UnitFile:
    """A Parquet file of a unit while it is written to a temporary place.

    Args:
        store: Store of the version.
        layout: Keys of the version.
        unit: Number of the unit.
        open_: Function that opens a writer on a stream.

    Attributes:
        rows: Number of rows written.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        unit: int,
        open_: Callable[[Any], RowGroupWriter],
    ) -> None:
        self._store = store
        self._layout = layout
        self._unit = unit
        self._temp = store.temp(layout.prefix)
        # A writer that cannot be opened leaves no temporary file.
        try:
            self._file = HashingFile(self._temp)
            self._writer = open_(self._file)
        except BaseException:
            remove_temp(self._temp)
            raise
        self.rows = 0

    @property
    def bytes(self) -> int:
        """Number of bytes written."""
        return self._file.bytes

    def write(self, rows: FlatRows | pa.RecordBatch) -> None:
        """Write one row group."""
        self._writer.write_batch(rows, row_group_size=min(len(rows), _MOST_ROWS))
        self.rows += len(rows)

    def publish(self, path: str) -> FileEntry:
        """Put the whole file in its place.

        An unequal file there is replaced if it belongs to no finished unit.
        """
        self._writer.close()
        self._file.close()
        file_entry = FileEntry(bytes=self._file.bytes, sha256=self._file.sha256)
        # An attempt of the unit that died may have left a file of this name.
        ledger_key = self._layout.ledger(self._unit)
        self._store.publish(
            self._temp,
            self._layout.key(path),
            file_entry.sha256,
            replace_orphan=lambda: not self._store.exists(ledger_key),
        )
        return file_entry

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        with contextlib.suppress(OSError, ValueError, StoreError, pa.ArrowException):
            self._writer.close()
        self._file.discard()
        remove_temp(self._temp)


@final
class PartWriter:
    """The parts of one unit and split, in order.

    Args:
        store: Store of the version.
        layout: Keys of the version.
        split: Split of the parts, which their names contain.
        unit: Number of the unit, which their names contain.
        schema: Schema of the rows; its metadata are key-values of the files, see
            :func:`tokenlake.runtime.schema.described`.
        max_bytes: Size after which a part is closed, at the end of a row group.
        only: Number of the only part, which is written however large it is, even
            without rows; None: any number of parts.
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
        self._store = store
        self._layout = layout
        self._split = split
        self._unit = unit
        self.schema = schema
        self._max_bytes = max_bytes
        self._only = only
        self._entries: list[ShardEntry] = []
        self._file: UnitFile | None = None

    def write(
        self, rows: FlatRows | pa.RecordBatch, *, tokens: int, documents: int
    ) -> None:
        """Write one row group.

        Args:
            rows: Row group. Packed rows are best taken apart, as both the file and the
                hash need them in this form.
            tokens: Number of its tokens, padding not counted.
            documents: Number of documents that begin in it.
        """
        with CLOCK.saving():
            file = self._file or self._open()
            self._row_groups.append(file.rows)
            file.write(rows)
            self._logical.update(rows)
            self._tokens += tokens
            self._documents += documents
            # A part ends with a row group, so that its size is exceeded by less than
            # one.
            if self._only is None and file.bytes >= self._max_bytes:
                self._close(file)

    def finish(self) -> list[ShardEntry]:
        """Publish the last part and return all entries."""
        with CLOCK.saving():
            if self._file is not None:
                self._close(self._file)
            elif self._only is not None:
                self._close(self._open())
        return self._entries

    def discard(self) -> None:
        """Give up: remove the unfinished part's temporary file."""
        if self._file is not None:
            self._file.discard()

    def _open(self) -> UnitFile:
        """Open the next part."""
        self._file = UnitFile(
            self._store,
            self._layout,
            self._unit,
            lambda sink: open_shard(sink, self.schema),
        )
        self._logical = LogicalHasher()
        self._row_groups: list[int] = []  # first row of each
        self._tokens = 0
        self._documents = 0
        return self._file

    def _close(self, file: UnitFile) -> None:
        """Publish a part and add its entry."""
        part_number = len(self._entries)
        if self._only is not None:
            part_number = self._only
        path = shard_path(self._split, self._unit, part_number)
        # The hash of no rows is that of an empty table.
        if not file.rows:
            self._logical.update(self.schema.empty_table())
        published = file.publish(path)
        self._file = None
        self._entries.append(
            ShardEntry(
                path=path,
                split=self._split,
                unit=self._unit,
                part=part_number,
                bytes=published.bytes,
                sha256=published.sha256,
                rows=file.rows,
                tokens=self._tokens,
                documents=self._documents,
                row_groups=tuple(self._row_groups),
                logical=self._logical.digest(),
            )
        )
